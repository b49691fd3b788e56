"""What only the embedded queues promise: exact receipts, and survival of a kill."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest

from waystation.clock import ManualClock
from waystation.errors import InvalidRequest, MessageLost, QueueUnavailable
from waystation.queues import Queues, QueueSpec, open_queues
from waystation.store import Item, Table, open_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

PLAIN = QueueSpec(name="plain", visibility=30, max_receives=3)
ORDERED = QueueSpec(name="ordered", ordered=True, visibility=3, max_receives=100)
KILLS = int(os.environ.get("CRASH_ROUNDS", "20"))


@pytest.fixture
async def queues(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Queues]:
    url = f"sqlite:///{tmp_path / 'queues.db'}"
    async with (
        await open_store(url, [], clock=clock) as store,
        await open_queues("embedded", [PLAIN, ORDERED], store) as queues,
    ):
        yield queues


async def test_a_lapsed_message_cannot_be_extended(queues: Queues, clock: ManualClock) -> None:
    queue = queues[PLAIN]
    await queue.send(1)
    [message] = await queue.receive()
    clock.advance(30)
    with pytest.raises(MessageLost):
        await queue.extend(message, 30)


async def test_a_lapsed_worker_cannot_acknowledge_its_successors_message(
    queues: Queues, clock: ManualClock
) -> None:
    queue = queues[PLAIN]
    await queue.send(1)
    [lapsed] = await queue.receive()
    clock.advance(31)
    [held] = await queue.receive()
    await queue.ack(lapsed)
    await queue.extend(held, 30)
    clock.advance(31)
    assert len(await queue.receive()) == 1


async def test_a_clock_that_is_set_back_does_not_change_the_order(
    queues: Queues, clock: ManualClock
) -> None:
    queue = queues[ORDERED]
    await queue.send("first", group="a")
    clock.advance(-3600)
    await queue.send("second", group="a")
    await queue.send("alone")
    [alone] = await queue.receive()
    assert alone.decode() == "alone"
    await queue.ack(alone)
    clock.advance(3600)
    [message] = await queue.receive()
    assert message.decode() == "first"


async def test_another_process_with_a_slow_clock_does_not_overtake(tmp_path: Path) -> None:
    """What was received is the first of its group, whatever a later sender's clock says."""
    url = f"sqlite:///{tmp_path / 'queues.db'}"
    fast, slow = ManualClock(1_700_000_100), ManualClock(1_700_000_000)
    async with (
        await open_store(url, [], clock=fast) as one,
        await open_store(url, [], clock=slow) as other,
    ):
        queue = (await open_queues("embedded", [ORDERED], one))[ORDERED]
        late = (await open_queues("embedded", [ORDERED], other))[ORDERED]
        await queue.send("first", group="a")
        [message] = await queue.receive()
        await late.send("second", group="a")
        assert await late.receive() == []
        await queue.ack(message)
        assert [found.decode() for found in await late.receive()] == ["second"]


async def test_a_receiver_that_leaves_takes_nothing_along(queues: Queues) -> None:
    queue = queues[PLAIN]
    for n in range(10):
        await queue.send(n)
        task = asyncio.create_task(queue.receive())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        [message] = await queue.receive()
        await queue.ack(message)


async def test_any_number_of_dedupe_ids_is_forgotten(queues: Queues, clock: ManualClock) -> None:
    queue = queues[ORDERED]
    await asyncio.gather(*(queue.send(n, dedupe=str(n)) for n in range(1500)))
    clock.advance(301)
    assert await queues.tend() == 1500


async def test_dead_letters_are_forgotten_after_two_weeks(
    queues: Queues, clock: ManualClock
) -> None:
    queue = queues[PLAIN]
    await queue.send("poison")
    for _ in range(3):
        for message in await queue.receive():
            await queue.release(message)
    await queue.receive()
    clock.advance(14 * 86_400 - 1)
    await queues.tend()
    assert len(await queue.dead_letters()) == 1
    clock.advance(2)
    await queues.tend()
    assert await queue.dead_letters() == []


async def test_a_closed_store_takes_no_messages(tmp_path: Path) -> None:
    store = await open_store(f"sqlite:///{tmp_path / 'queues.db'}", [])
    queues = await open_queues("embedded", [PLAIN], store)
    await store.close()
    with pytest.raises(QueueUnavailable):
        await queues[PLAIN].send(1)


async def test_processes_share_a_queue(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'queues.db'}"
    async with await open_store(url, []) as one, await open_store(url, []) as other:
        sending = await open_queues("embedded", [PLAIN], one)
        receiving = await open_queues("embedded", [PLAIN], other)
        waiting = asyncio.create_task(receiving[PLAIN].receive(wait=10))
        await sending[PLAIN].send("hello")
        [message] = await asyncio.wait_for(waiting, timeout=5)
        assert message.decode() == "hello"


async def test_environments_do_not_mix(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'queues.db'}"
    async with (
        await open_store(url, [], env="dev") as dev,
        await open_store(url, [], env="prod") as prod,
    ):
        queue = (await open_queues("embedded", [PLAIN], dev))[PLAIN]
        other = (await open_queues("embedded", [PLAIN], prod))[PLAIN]
        await queue.send(1)
        assert await other.receive() == []


async def test_embedded_queues_need_a_sqlite_store(dynamodb_url: str) -> None:
    class Thing(Item, table=Table("things", pk="pk"), pk="{id}"):
        id: str

    async with await open_store(
        "dynamodb://eu-west-1", [Thing.spec.table], endpoint_url=dynamodb_url
    ) as store:
        with pytest.raises(InvalidRequest, match="SQLite"):
            await open_queues("embedded", [PLAIN], store)


async def test_an_unknown_engine_is_refused() -> None:
    async with await open_store("sqlite://:memory:", []) as store:
        with pytest.raises(InvalidRequest, match="embedded or sqs"):
            await open_queues("rabbit://", [PLAIN], store)


SENDER = """
import asyncio, sys
from waystation.queues import QueueSpec, open_queues
from waystation.store import open_store

async def main(url, first):
    async with await open_store(url, []) as store:
        queue = (await open_queues("embedded", [QueueSpec(name="plain")], store))[
            QueueSpec(name="plain")]
        async def send(worker):
            for n in range(100000):
                value = f"{first}-{worker}-{n}"
                await queue.send(value)
                sys.stdout.write(value + "\\n")
                sys.stdout.flush()
        await asyncio.gather(*(send(worker) for worker in range(8)))

asyncio.run(main(sys.argv[1], sys.argv[2]))
"""


async def test_a_kill_loses_no_message_that_was_acknowledged(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'queues.db'}"
    acknowledged: set[str] = set()
    chance = random.Random()
    for kill in range(max(3, KILLS // 4)):
        sender = subprocess.Popen(
            [sys.executable, "-c", SENDER, url, str(kill)], stdout=subprocess.PIPE, text=True
        )
        assert sender.stdout is not None
        try:
            acknowledged.add(sender.stdout.readline().strip())
            await asyncio.sleep(chance.random() * 0.1)
        finally:
            sender.send_signal(signal.SIGKILL)
            rest, _ = sender.communicate()
        acknowledged |= {line for line in rest.splitlines(keepends=True) if line.endswith("\n")}
    acknowledged = {line.strip() for line in acknowledged}
    async with await open_store(url, []) as store:
        queue = (await open_queues("embedded", [PLAIN], store))[PLAIN]
        found: set[str] = set()
        while messages := await queue.receive():
            found |= {message.decode() for message in messages}
            await asyncio.gather(*map(queue.ack, messages))
    assert len(acknowledged) > KILLS
    assert acknowledged <= found


WORKER = """
import asyncio, os, sys
from waystation.queues import QueueSpec, open_queues
from waystation.store import open_store

spec = QueueSpec(name="ordered", ordered=True, visibility=3, max_receives=100)

async def main(url, log):
    out = os.open(log, os.O_WRONLY | os.O_APPEND)
    async with await open_store(url, []) as store:
        queue = (await open_queues("embedded", [spec], store))[spec]
        while True:
            for message in await queue.receive(3, wait=1):
                os.write(out, f"{message.group} {message.decode()}\\n".encode())
                await queue.ack(message)

asyncio.run(main(sys.argv[1], sys.argv[2]))
"""


async def test_order_under_eight_processes_that_are_killed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'queues.db'}"
    log = tmp_path / "log"
    log.touch()
    groups, each = 40, max(20, KILLS)
    async with await open_store(url, []) as store:
        queue = (await open_queues("embedded", [ORDERED], store))[ORDERED]
        for n in range(each):
            await asyncio.gather(*(queue.send(n, group=f"g{g}") for g in range(groups)))
        started = time.monotonic()
        workers = [_worker(url, log) for _ in range(8)]
        try:
            killed = 0
            while (await queue.depth()).oldest_age is not None:
                assert time.monotonic() - started < 120
                await asyncio.sleep(0.1)
                if killed < KILLS:
                    victim = random.randrange(8)
                    workers[victim].kill()
                    workers[victim].wait()
                    workers[victim] = _worker(url, log)
                    killed += 1
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
    order = defaultdict(list)
    for line in log.read_text().splitlines():
        group, value = line.split()
        order[group].append(int(value))
    assert len(order) == groups
    for done in order.values():
        assert done == sorted(done)
        assert set(done) == set(range(each))


def _worker(url: str, log: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", WORKER, url, str(log)])
