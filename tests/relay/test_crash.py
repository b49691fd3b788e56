"""Killed at any moment, the relay delivers every event that it acknowledged."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import aiohttp
import msgspec
import pytest

from tests.support.lives import children, kill_all, process
from tests.support.receiver import Got, Reaction, receiving
from tests.support.site import SECRET, settings_with
from waystation.accounts.tables import User
from waystation.relay.connections import NewConnection
from waystation.relay.sources import NewSource
from waystation.relay.tables import Delivery, Event, Hour, Source
from waystation.server.runtime import Runtime, running

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.receiver import Receiver
    from waystation.relay.service import Relay
    from waystation.store import Store

ROUNDS = max(3, int(os.environ.get("CRASH_ROUNDS", "20")) // 4)
"""In each of the four settings."""

APART = 120.0
SENDERS = 8


class Sent:
    """Who sends, and what they were told."""

    def __init__(self) -> None:
        self.acknowledged: list[str] = []
        self.count = 0

    async def keep_sending(self, url: str) -> None:
        async with aiohttp.ClientSession() as http:
            await asyncio.gather(*(self._sender(http, url) for _ in range(SENDERS)))

    async def _sender(self, http: aiohttp.ClientSession, url: str) -> None:
        while True:
            self.count += 1
            try:
                async with http.post(url, json={"n": self.count}) as answer:
                    noted = await answer.json()
                    if answer.status == 200:
                        self.acknowledged.append(noted["id"])
            except (aiohttp.ClientError, OSError, msgspec.DecodeError):
                return


async def live_and_die(
    settings: dict[str, Any],
    roles: list[str],
    ahead: float,
    source: str,
    sent: Sent,
    rng: random.Random,
    longest: float,
    processes: int = 1,
) -> None:
    """One life: started, used, and each of its processes killed at a moment of its own."""
    async with AsyncExitStack() as stack:
        started = [
            await stack.enter_async_context(process(settings, role, ahead, processes))
            for role in roles
        ]
        url = started[0][1]
        sending = asyncio.create_task(sent.keep_sending(f"{url}/in/{source}"))

        async def kill(one: Any) -> None:
            await asyncio.sleep(rng.uniform(0.05, longest))
            if processes > 1:  # one of them first, which may be the one that writes
                os.kill(rng.choice(children(one.pid)), signal.SIGKILL)
                await asyncio.sleep(rng.uniform(0.05, longest))
            kill_all(one.pid)

        await asyncio.gather(*(kill(one) for one, _ in started))
        await sending


async def prepare(settings: dict[str, Any], url: str) -> str:
    """A source with two connections, one of which fails now and then."""
    async with running(settings_with(**settings)) as runtime:
        user = await runtime.provided["accounts"].find_or_open("ann@example.com")
        relay: Relay = runtime.provided["relay"]
        source = await relay.sources.create(user.user_id, NewSource(name="crash"))
        for path in ("a", "b"):
            given = NewConnection(name=path, destination_url=f"{url}/{path}")
            await relay.connections.create(source, given)
        return source.source_id


async def finish(settings: dict[str, Any], roles: list[str], ahead: float, source: str) -> float:
    """Lives that nobody ends, until nothing is open; the time after them."""
    for _ in range(15):
        ahead += APART
        async with AsyncExitStack() as stack:
            for role in roles:
                await stack.enter_async_context(process(settings, role, ahead))
            if await all_done(settings, ahead, source):
                return ahead
    raise AssertionError("something is stuck")


async def all_done(settings: dict[str, Any], ahead: float, source: str) -> bool:
    async with running(settings_with(**settings), clock=lambda: time.time() + ahead) as runtime:
        for _ in range(60):
            found = await statuses(runtime.store, source)
            if found == {"delivered"}:
                return True
            if found <= {"delivered", "retrying"} and await all_wait(runtime, source):
                return False  # for the next life
            await asyncio.sleep(0.1)
    return False


async def all_wait(runtime: Runtime, source: str) -> bool:
    """Whether every open delivery waits for a time that has not come."""
    store, now = runtime.store, int(runtime.store.clock() * 1000)
    for connection in await runtime.provided["relay"].directory.list_connections(source):
        query = Delivery.query(connection.connection_id, index="GSI2")
        async for delivery in store.iterate(query):
            if delivery.claim is not None or (delivery.due_at or 0) <= now:
                return False
    return True


async def statuses(store: Store, source: str) -> set[str]:
    return {event.status async for event in store.iterate(Event.query(source))}


async def check(runtime: Runtime, source: str, sent: Sent, receiver: Receiver) -> None:
    """Nothing is lost, nothing is stuck, and all that is written agrees."""
    store, parts = runtime.store, runtime.provided["events"]
    events = {event.event_id: event async for event in store.iterate(Event.query(source))}
    assert len(sent.acknowledged) >= 5
    assert set(sent.acknowledged) <= events.keys()
    reached = {(got.path, got.headers["x-waystation-event"]) for got in receiver.got}
    assert {(path, id_) for path in ("/a", "/b") for id_ in events} <= reached
    for event in events.values():
        assert event.todo is None
        deliveries, attempts = await parts.parts(event)
        assert [d.status for d in deliveries] == ["delivered"] * 2
        assert all(d.lane is None and d.claim is None for d in deliveries)
        rows = "\n".join(map(str, [event, *deliveries, *attempts]))
        assert event.attempt_count == len(attempts) == sum(d.attempts for d in deliveries), rows
        for delivery in deliveries:
            codes = {
                a.attempt_number: a.status_code
                for a in attempts
                if a.delivery_id == delivery.delivery_id
            }
            assert sorted(codes) == list(range(1, delivery.attempts + 1))
            assert codes[delivery.attempts] == 200
    [user] = (await store.scan(User)).items
    [kept] = [s for s in (await store.query(Source.query(user.user_id))).items if s.event_count]
    received = sum(h.received for h in (await store.query(Hour.query(user.user_id))).items)
    delivered = sum(h.delivered for h in (await store.query(Hour.query(user.user_id))).items)
    assert user.usage_this_month == kept.event_count == received == len(events)
    assert delivered == 2 * len(events)


async def crash_test(
    settings: dict[str, Any],
    roles: list[str],
    seed: int,
    rounds: int,
    longest: float,
    processes: int = 1,
) -> None:
    rng = random.Random(seed)

    def decide(got: Got) -> Reaction:
        fails = got.path == "/b" and rng.random() < 0.05
        return Reaction(500 if fails else 200, b"")

    async with receiving() as receiver:
        receiver.decide = decide
        source = await prepare(settings, receiver.url)
        sent = Sent()
        ahead = 0.0
        for _ in range(rounds):
            await live_and_die(settings, roles, ahead, source, sent, rng, longest, processes)
            ahead += APART
        ahead = await finish(settings, roles, ahead, source)
        async with running(settings_with(**settings), clock=lambda: time.time() + ahead) as runtime:
            await check(runtime, source, sent, receiver)


def on_a_file(folder: Path) -> dict[str, Any]:
    return {
        "store": f"sqlite:///{folder}/relay.db",
        "blobs": f"file:{folder}/blobs",
        "secret_key": SECRET,
    }


@pytest.mark.parametrize("roles", [["all"], ["api", "worker"]], ids="+".join)
async def test_every_acknowledged_event_is_delivered(tmp_path: Path, roles: list[str]) -> None:
    await crash_test(on_a_file(tmp_path), roles, 11 + len(roles), ROUNDS, 0.7)


async def test_every_acknowledged_event_is_delivered_by_several_processes(tmp_path: Path) -> None:
    """Each of them is killed now and then, also the one that writes for the others."""
    await crash_test(on_a_file(tmp_path), ["all"], 31, ROUNDS, 0.7, processes=3)


@pytest.mark.parametrize("roles", [["all"], ["api", "worker"]], ids="+".join)
async def test_every_acknowledged_event_is_delivered_on_aws(
    dynamodb_url: str, moto_url: str, monkeypatch: pytest.MonkeyPatch, roles: list[str]
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", moto_url)
    settings = {
        "store": "dynamodb://us-east-1",
        "queue": "sqs://us-east-1",
        "aws_endpoint_url": dynamodb_url,
        "blobs": "memory:///",
        "secret_key": SECRET,
        "env": f"crash{len(roles)}",
        "allow_networks": ["127.0.0.0/8"],
    }
    await crash_test(settings, roles, 21 + len(roles), ROUNDS, 2.0)
