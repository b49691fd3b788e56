"""One endpoint's trouble is its own: limits, breaker, auto-disable and alerts."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tests.relay.hub import hub_at
from tests.support.faults import Faults, relay_on
from tests.support.receiver import Reaction, Receiver, receiving
from waystation.relay.delivering import worker
from waystation.relay.tables import Connection, Delivery, Owner
from waystation.store import Page

if TYPE_CHECKING:
    from pathlib import Path

    from tests.relay.hub import Hub
    from waystation.clock import ManualClock


async def connection_of(hub: Hub, connection: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = await hub.get(f"/v1/connections/{connection['id']}")
    return found


async def test_a_slow_endpoint_does_not_delay_others(hub: Hub, receiver: Receiver) -> None:
    async with receiving() as slow:
        slow.gate = asyncio.Event()
        source = await hub.source()
        await hub.connect(source, slow.url, concurrency=2)
        await hub.connect(source, receiver.url)
        for _ in range(30):
            await hub.send(source)
        async with asyncio.timeout(10):
            while len(receiver.got) < 30:
                await asyncio.sleep(0.01)
        assert len(slow.got) == 2
        slow.gate.set()
        await hub.settle()
        assert len(slow.got) == 30


async def test_concurrency_is_bounded(hub: Hub, receiver: Receiver) -> None:
    receiver.gate = asyncio.Event()
    source = await hub.source()
    await hub.connect(source, receiver.url, concurrency=3)
    for _ in range(12):
        await hub.send(source)
    async with asyncio.timeout(10):
        while len(receiver.got) < 3:
            await asyncio.sleep(0.01)
    receiver.gate.set()
    await hub.settle()
    assert receiver.most_at_once == 3
    assert len(receiver.got) == 12


async def test_a_backlog_lies_in_the_table(hub: Hub, receiver: Receiver) -> None:
    """However many deliveries wait, memory has only as many as it has room for."""
    hub.relay.tools.memory.most = 10
    receiver.gate = asyncio.Event()
    source = await hub.source()
    connection = await hub.connect(source, receiver.url, concurrency=1)
    for _ in range(20):
        await hub.send(source)
    async with asyncio.timeout(10):
        while not receiver.got:
            await asyncio.sleep(0.01)
    waiting = await hub.relay.store.query(Delivery.query(connection["id"], index="GSI2"))
    assert len([d for d in waiting.items if d.claim is None]) >= 15
    assert hub.relay.tools.memory.count <= 5  # half of what is free, as for any account
    receiver.gate.set()
    await hub.settle()
    assert len(receiver.got) == 20


async def test_deliveries_keep_to_the_rate(hub: Hub, receiver: Receiver) -> None:
    source = await hub.source()
    limit = {"count": 5, "seconds": 60}
    await hub.connect(source, receiver.url, rate_limit=limit)
    for _ in range(12):
        await hub.sent(source)
    assert len(receiver.got) == 5
    await hub.later(30)
    assert len(receiver.got) == 5
    await hub.later(32)
    assert len(receiver.got) == 10
    await hub.later(62)
    assert len(receiver.got) == 12


async def test_a_broken_endpoint_is_tried_now_and_then(hub: Hub, receiver: Receiver) -> None:
    """After ten failures in a row, one attempt at a time, further and further apart."""
    receiver.fail()
    source = await hub.source()
    connection = await hub.connect(source, receiver.url)
    events = [await hub.sent(source) for _ in range(30)]
    assert len(receiver.got) == 10
    await hub.later(31)
    assert len(receiver.got) == 11
    await hub.later(31)
    assert len(receiver.got) == 11
    await hub.later(30)
    assert len(receiver.got) == 12
    receiver.work()
    await hub.later(130)
    assert {(await hub.statuses(e))[0] for e in events[10:]} == {"delivered"}
    assert (await connection_of(hub, connection))["failure_streak"] == 0


async def test_waiting_for_a_broken_endpoint_is_no_attempt(hub: Hub, receiver: Receiver) -> None:
    receiver.fail()
    source = await hub.source()
    await hub.connect(source, receiver.url)
    for _ in range(10):
        await hub.sent(source)
    late = await hub.sent(source)
    event = await hub.event(late)
    assert event["status"] == "processing"
    assert event["deliveries"][0]["attempts"] == []


async def test_a_short_outage_under_load_breaks_the_lane_once(hub: Hub, receiver: Receiver) -> None:
    """Attempts that were under way when the lane broke do not make its rest longer."""
    receiver.gate = asyncio.Event()
    receiver.fail()
    source = await hub.source()
    connection = await hub.connect(source, receiver.url, concurrency=100)
    for _ in range(100):
        await hub.send(source)
    async with asyncio.timeout(20):
        while receiver.at_once < 100:
            await asyncio.sleep(0.01)
    receiver.gate.set()
    await hub.settle()
    assert (await connection_of(hub, connection))["status"] == "active"
    receiver.work()
    await hub.later(35)
    assert len(receiver.got) == 200
    assert (await connection_of(hub, connection))["failure_streak"] == 0


async def fail_for_long(hub: Hub, rounds: int) -> None:
    for _ in range(rounds):
        await hub.later(700)


async def test_an_endpoint_that_keeps_failing_is_disabled(hub: Hub, receiver: Receiver) -> None:
    """With alerts on the way, each told once, through the account's own source."""
    receiver.fail()
    async with receiving() as pager:
        source = await hub.source()
        connection = await hub.connect(source, receiver.url)
        sources = (await hub.get("/v1/sources"))["data"]
        [alerts] = [s["id"] for s in sources if s["provider"] == "waystation"]
        await hub.connect(alerts, pager.url)
        events = [await hub.sent(source) for _ in range(40)]
        await fail_for_long(hub, 95)
        shown = await connection_of(hub, connection)
        assert (shown["status"], shown["disabled_reason"]) == ("paused", "failures")
        alerts_sent = [msgspec.json.decode(got.body) for got in pager.got]
        assert [t["type"] for t in alerts_sent] == ["connection.failing"] * 3 + [
            "connection.disabled"
        ]
        assert [t["data"].get("percent") for t in alerts_sent] == [50, 70, 90, None]
        assert alerts_sent[-1]["data"]["connection_id"] == connection["id"]
        assert len(receiver.got) == 50
        # What was not delivered is kept, and goes out when somebody has seen to it.
        receiver.work()
        await hub.patch(connection, status="active")
        await fail_for_long(hub, 3)
        assert {(await hub.statuses(e))[0] for e in events} <= {"delivered", "failed", "retrying"}
        assert len(receiver.got) > 70
        assert (await connection_of(hub, connection))["failure_streak"] == 0


async def test_gone_disables_at_once(hub: Hub, receiver: Receiver) -> None:
    receiver.answers = [Reaction(410)]
    source = await hub.source()
    connection = await hub.connect(source, receiver.url)
    event_id = await hub.sent(source)
    shown = await connection_of(hub, connection)
    assert (shown["status"], shown["disabled_reason"]) == ("paused", "gone")
    kept = await hub.sent(source)
    await hub.later(7200)
    assert len(receiver.got) == 1
    await hub.patch(connection, status="active")
    await hub.settle()
    assert (await hub.statuses(event_id))[0] == "delivered"
    assert (await hub.statuses(kept))[0] == "delivered"


async def test_alerts_about_the_alerts_stop_somewhere(hub: Hub, receiver: Receiver) -> None:
    receiver.fail()
    source = await hub.source()
    await hub.connect(source, receiver.url)
    sources = (await hub.get("/v1/sources"))["data"]
    [alerts] = [s["id"] for s in sources if s["provider"] == "waystation"]
    await hub.connect(alerts, receiver.url)
    for _ in range(40):
        await hub.sent(source)
    await fail_for_long(hub, 120)
    assert len((await hub.get(f"/v1/sources/{alerts}/events"))["data"]) == 4


async def test_strangers_cannot_send_alerts(hub: Hub) -> None:
    await hub.source()
    sources = (await hub.get("/v1/sources"))["data"]
    [alerts] = [s["id"] for s in sources if s["provider"] == "waystation"]
    assert (await hub.send(alerts)).status == 404
    assert (await hub.call("DELETE", f"/v1/sources/{alerts}")).status == 409


async def test_counters_of_a_connection(hub: Hub, receiver: Receiver) -> None:
    source = await hub.source()
    connection = await hub.connect(source, receiver.url, retry={"schedule": []})
    for _ in range(3):
        await hub.sent(source)
    receiver.fail()
    await hub.sent(source)
    shown = await connection_of(hub, connection)
    assert (shown["delivery_count"], shown["failure_count"]) == (3, 1)
    stored = await hub.relay.store.get(Connection.key(source, connection["id"]))
    assert stored is not None
    assert stored.failure_streak == 1


async def test_a_duplicate_does_not_count_towards_the_rate(hub: Hub, receiver: Receiver) -> None:
    source = await hub.source(dedupe={"mode": "fields", "fields": ["$.n"]})
    await hub.connect(source, receiver.url, rate_limit={"count": 2, "seconds": 60})
    for _ in range(5):
        await hub.sent(source, b'{"n": 1}')
    await hub.sent(source, b'{"n": 2}')
    assert len(receiver.got) == 2


async def test_a_paused_connection_is_not_looked_at_for_every_event(
    clock: ManualClock, receiver: Receiver
) -> None:
    async with hub_at(clock, systems=relay_on(store=Faults)) as hub:
        source = await hub.source()
        connection = await hub.connect(source, receiver.url)
        await hub.sent(source)
        await hub.patch(connection, status="paused")
        await hub.sent(source)
        looks: list[str] = []

        async def get(call: Any, key: Any) -> Any:
            if key == Owner.key(connection["id"]):
                looks.append("a look")
            return await call(key)

        store: Any = hub.relay.store
        store.around["get"] = get
        for _ in range(5):
            await hub.sent(source)
        assert looks == []


async def test_a_delivery_that_an_index_shows_late_is_not_forgotten(
    clock: ManualClock, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "INDEX_SECONDS", 0.01)
    async with hub_at(clock, systems=relay_on(store=Faults)) as hub:
        source = await hub.source()
        await hub.connect(source, receiver.url, rate_limit={"count": 20, "seconds": 1})
        looks = 0

        async def query(call: Any, asked: Any, **more: Any) -> Any:
            nonlocal looks
            looks += 1
            return await call(asked, **more) if looks > 2 else Page([], None)

        store: Any = hub.relay.store
        store.around["query"] = query
        answer = await hub.send(source)
        async with asyncio.timeout(10):
            while not receiver.got:
                await asyncio.sleep(0.005)
        await hub.settle()
        assert (await hub.statuses(answer.json["id"]))[0] == "delivered"


async def test_a_rate_limit_holds_for_all_processes_together(
    clock: ManualClock, receiver: Receiver, tmp_path: Path
) -> None:
    file = f"sqlite:///{tmp_path}/way.db"
    async with hub_at(clock, store=file) as one, hub_at(clock, store=file) as other:
        source = await one.source()
        await one.connect(source, receiver.url, rate_limit={"count": 5, "seconds": 60})
        for hub in (one, other) * 15:
            await hub.send(source)
        for hub in (one, other) * 3:
            await hub.settle()
        assert len(receiver.got) == 5
        clock.advance(62)
        for hub in (one, other) * 3:
            await hub.settle()
        assert len(receiver.got) == 10


@pytest.mark.parametrize(
    ("status", "asked", "rests"),
    [(503, "30", 30), (429, "86400", 600), (502, None, 5), (503, None, 0)],
)
async def test_an_endpoint_rests_for_as_long_as_it_asks_and_no_longer_than_ten_minutes(
    hub: Hub, receiver: Receiver, status: int, asked: str | None, rests: int
) -> None:
    source = await hub.source()
    await hub.connect(source, receiver.url)
    headers = {} if asked is None else {"Retry-After": asked}
    receiver.answers = [Reaction(status, b"", headers)]
    await hub.sent(source)
    await hub.sent(source)
    assert len(receiver.got) == (1 if rests else 2)
    if rests:
        await hub.later(rests - 1)
        assert len(receiver.got) == 1
        await hub.later(2)
        assert len(receiver.got) >= 2
