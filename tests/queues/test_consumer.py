"""Working off a queue."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.faults import Faults
from waystation.errors import QueueUnavailable
from waystation.queues import Consumer, Message, Queue, QueueSpec, TryLater, open_queues
from waystation.queues import consumer as consumer_module
from waystation.queues.consumer import wait_after
from waystation.store import open_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from waystation.clock import ManualClock

SPEC = QueueSpec(name="jobs", ordered=True, visibility=1, max_receives=3)
SLOW = QueueSpec(name="slow", visibility=30)


@pytest.fixture
async def queue(clock: ManualClock) -> AsyncIterator[Queue]:
    async with await open_store("sqlite://:memory:", [], clock=clock) as store:
        yield (await open_queues("embedded", [SPEC], store))[SPEC]


@asynccontextmanager
async def consuming(consumer: Consumer) -> AsyncIterator[None]:
    stopping = asyncio.Event()
    task = asyncio.create_task(consumer.run(stopping))
    try:
        yield
    finally:
        stopping.set()
        await task


async def test_a_handled_message_is_acknowledged(queue: Queue, clock: ManualClock) -> None:
    handled: asyncio.Queue[int] = asyncio.Queue()

    async def handle(message: Message) -> None:
        handled.put_nowait(message.decode())

    await queue.send(1)
    async with consuming(Consumer(queue, handle)):
        assert await handled.get() == 1
    assert (await queue.depth()).oldest_age is None


@pytest.fixture
async def slow(clock: ManualClock) -> AsyncIterator[Queue]:
    """One whose messages do not come back by themselves for a while."""
    async with await open_store("sqlite://:memory:", [], clock=clock) as store:
        yield (await open_queues("embedded", [SLOW], store))[SLOW]


async def test_a_failed_message_is_tried_again_later(slow: Queue, clock: ManualClock) -> None:
    queue = slow
    tried = asyncio.Event()

    async def handle(message: Message) -> None:
        tried.set()
        raise ValueError("not today")

    await queue.send(1)
    async with consuming(Consumer(queue, handle)):
        await tried.wait()
    assert await queue.receive() == []
    clock.advance(3)
    [message] = await queue.receive()
    assert message.receives == 2


async def test_a_handler_says_when_it_wants_its_message_again(
    slow: Queue, clock: ManualClock
) -> None:
    tried = asyncio.Event()

    async def handle(message: Message) -> None:
        tried.set()
        raise TryLater("not now", retry_after=600.0)

    await slow.send(1)
    async with consuming(Consumer(slow, handle)):
        await tried.wait()
    clock.advance(599)
    assert await slow.receive() == []
    clock.advance(1)
    [message] = await slow.receive()
    assert message.receives == 2


async def test_a_handler_that_fails_at_once_gives_its_message_back(
    slow: Queue, clock: ManualClock
) -> None:
    def broken(message: Message) -> Any:
        raise TypeError("not even a coroutine")

    await slow.send(1)
    [message] = await slow.receive()
    await Consumer(slow, broken).process(message)
    clock.advance(3)
    assert len(await slow.receive()) == 1


async def test_a_handler_that_meets_a_cancelled_task_has_failed(
    slow: Queue, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def handle(message: Message) -> None:
        inner = asyncio.create_task(asyncio.Event().wait())
        inner.cancel()
        await inner

    await slow.send(1)
    [message] = await slow.receive()
    await Consumer(slow, handle).process(message)
    assert await slow.receive() == []
    clock.advance(3)
    assert len(await slow.receive()) == 1
    assert "failed, receive 1 of 5" in caplog.text


async def test_a_queue_that_is_away_does_not_end_the_consumer(
    slow: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_module, "wait_after", lambda _: 0.001)
    troubles = [QueueUnavailable("away"), QueueUnavailable("away")]

    async def troubled(receive: Any, *arguments: Any, **named: Any) -> Any:
        if troubles:
            raise troubles.pop()
        return await receive(*arguments, **named)

    faults: Any = Faults(slow)
    faults.around["receive"] = troubled
    handled = asyncio.Event()

    async def handle(message: Message) -> None:
        handled.set()

    await slow.send(1)
    async with consuming(Consumer(faults, handle)):
        await asyncio.wait_for(handled.wait(), 5)


async def test_work_stops_when_its_message_cannot_be_kept(queue: Queue) -> None:
    async def away(extend: Any, message: Message, seconds: float) -> None:
        raise RuntimeError("something unheard of")

    faults: Any = Faults(queue)
    faults.around["extend"] = away

    async def handle(message: Message) -> None:
        await asyncio.Event().wait()

    await queue.send(1)
    [message] = await queue.receive()
    await asyncio.wait_for(Consumer(faults, handle).process(message), timeout=5)


async def test_groups_are_handled_beside_each_other(queue: Queue) -> None:
    """Each waits for the other, which can only work if both run."""
    barrier = asyncio.Barrier(2)

    async def handle(message: Message) -> None:
        await barrier.wait()

    await queue.send(1, group="a")
    await queue.send(2, group="b")
    async with consuming(Consumer(queue, handle)), asyncio.timeout(5):
        while (await queue.depth()).oldest_age is not None:
            await asyncio.sleep(0.01)


async def test_no_more_at_once_than_allowed(queue: Queue) -> None:
    running, most = 0, 0

    async def handle(message: Message) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1

    for n in range(20):
        await queue.send(n)
    async with consuming(Consumer(queue, handle, concurrency=3)), asyncio.timeout(5):
        while (await queue.depth()).oldest_age is not None:
            await asyncio.sleep(0.01)
    assert most == 3


async def test_stopping_finishes_what_was_begun(queue: Queue) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def handle(message: Message) -> None:
        begun.set()
        await go_on.wait()

    await queue.send(1)
    stopping = asyncio.Event()
    task = asyncio.create_task(Consumer(queue, handle).run(stopping))
    await begun.wait()
    stopping.set()
    await asyncio.sleep(0)
    assert not task.done()
    go_on.set()
    await task
    assert (await queue.depth()).oldest_age is None


async def test_stopping_while_receiving_leaves_the_messages_there(tmp_path: Path) -> None:
    """On a file, where receiving takes a moment."""

    async def handle(message: Message) -> None:
        handled.append(message.id)

    handled: list[str] = []
    url = f"sqlite:///{tmp_path / 'w.db'}"
    for _ in range(10):
        async with await open_store(url, []) as store:
            queue = (await open_queues("embedded", [SLOW], store))[SLOW]
            await queue.send(1)
            stopping = asyncio.Event()
            task = asyncio.create_task(Consumer(queue, handle).run(stopping))
            for _ in range(3):
                await asyncio.sleep(0)
            stopping.set()
            await task
    async with await open_store(url, []) as store:
        left = await (await open_queues("embedded", [SLOW], store))[SLOW].depth()
        assert left.in_flight == 0
        assert left.ready + len(handled) == 10


async def test_stopping_gives_back_what_takes_too_long(queue: Queue) -> None:
    begun = asyncio.Event()

    async def handle(message: Message) -> None:
        begun.set()
        await asyncio.Event().wait()

    await queue.send(1)
    async with consuming(Consumer(queue, handle, grace=0.01)):
        await begun.wait()
    [message] = await queue.receive()
    assert message.receives == 2


async def test_work_that_takes_long_keeps_its_message(queue: Queue, clock: ManualClock) -> None:
    extended = asyncio.Event()

    async def noticed(extend: Any, message: Message, seconds: float) -> None:
        await extend(message, seconds)
        extended.set()

    faults: Any = Faults(queue)
    faults.around["extend"] = noticed
    done = asyncio.Event()

    async def handle(message: Message) -> None:
        clock.advance(0.9)
        await extended.wait()
        clock.advance(0.9)
        done.set()

    await queue.send(1)
    async with consuming(Consumer(faults, handle)):
        await done.wait()
        assert await queue.receive() == []


async def test_work_stops_when_its_message_is_lost(queue: Queue, clock: ManualClock) -> None:
    ended = asyncio.Event()

    async def handle(message: Message) -> None:
        clock.advance(5)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.set()
            raise

    await queue.send(1)
    consumer = Consumer(queue, handle)
    [message] = await queue.receive()
    await asyncio.wait_for(consumer.process(message), timeout=5)
    assert ended.is_set()


def test_waits_between_tries_grow_and_end() -> None:
    assert 1 <= wait_after(1) <= 2
    assert 150 <= wait_after(50) <= 300
