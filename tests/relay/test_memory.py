"""Deliveries in memory: claimed while they are there, shown, bounded, and given back."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from tests.relay.hub import hub_at
from tests.relay.test_once import relay_of, stranded
from tests.support.faults import Faults, relay_on
from tests.support.receiver import Reaction, receiving
from waystation.errors import StoreUnavailable
from waystation.relay.delivering import due, parcels
from waystation.relay.delivering.parcels import Memory, Parcel
from waystation.relay.states import own_event
from waystation.relay.tables import Attempt, Connection, Delivery, Event
from waystation.store import exists, set_to

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.relay.hub import Hub
    from tests.support.receiver import Receiver
    from waystation.clock import ManualClock


async def arrived(receiver: Receiver, count: int) -> None:
    async with asyncio.timeout(10):
        while len(receiver.got) < count:
            await asyncio.sleep(0.005)


async def held_up(hub: Hub, receiver: Receiver, count: int) -> tuple[str, list[str]]:
    """A source, and events for an endpoint that takes one at a time and does not answer yet."""
    receiver.gate = asyncio.Event()
    source = await hub.source()
    await hub.connect(source, receiver.url, concurrency=1)
    events = [(await hub.send(source)).json["id"] for _ in range(count)]
    await arrived(receiver, 1)
    return source, events


async def test_what_is_in_memory_is_shown_as_it_will_be(hub: Hub, receiver: Receiver) -> None:
    _, [under_way, waiting] = await held_up(hub, receiver, 2)
    shown = [await hub.event(id_) for id_ in (under_way, waiting)]
    assert [event["status"] for event in shown] == ["processing"] * 2
    pending = [event["deliveries"][0] for event in shown]
    assert [delivery["status"] for delivery in pending] == ["pending"] * 2
    assert pending[0]["id"] == receiver.got[0].headers["webhook-id"]
    assert receiver.gate is not None
    receiver.gate.set()
    await hub.settle()
    after = [(await hub.event(id_))["deliveries"][0] for id_ in (under_way, waiting)]
    assert [delivery["id"] for delivery in after] == [delivery["id"] for delivery in pending]
    assert [len(delivery["attempts"]) for delivery in after] == [1, 1]
    assert (await hub.relay.store.scan(Delivery)).items == []


async def test_others_keep_away_from_what_is_renewed(hub: Hub, receiver: Receiver) -> None:
    _, events = await held_up(hub, receiver, 4)
    other = relay_of(hub).worker
    for _ in range(5):
        hub.clock.advance(30)
        await hub.worker.renewals.renew()
        await other.tend()
    assert len(receiver.got) == 1
    assert receiver.gate is not None
    receiver.gate.set()
    await hub.settle()
    assert len(receiver.got) == 4
    assert {(await hub.statuses(id_))[0] for id_ in events} == {"delivered"}


async def test_rows_that_wait_in_memory_are_renewed_too(
    hub: Hub, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(due, "_FULL_SECONDS", 0.02)
    hub.relay.tools.memory.most = 2
    _, events = await held_up(hub, receiver, 6)
    hub.relay.tools.memory.most = 1_000
    async with asyncio.timeout(10):
        while not any(d.claim for d in (await hub.relay.store.scan(Delivery)).items):
            await asyncio.sleep(0.005)
    other = relay_of(hub).worker
    for _ in range(4):
        hub.clock.advance(30)
        await hub.worker.renewals.renew()
    rows = (await hub.relay.store.scan(Delivery)).items
    now = hub.clock() * 1000
    assert all((row.due_at or 0) > now for row in rows if row.claim)
    assert receiver.gate is not None
    receiver.gate.set()
    await hub.settle()
    await other.tend()
    assert len(receiver.got) == 6
    assert {(await hub.statuses(id_))[0] for id_ in events} == {"delivered"}


async def test_one_that_was_taken_over_is_not_sent(hub: Hub, receiver: Receiver) -> None:
    """It was not renewed in time, and another process has claimed its event."""
    _, [under_way, waiting] = await held_up(hub, receiver, 2)
    hub.clock.advance(61)
    async with receiving() as elsewhere:
        other = relay_of(hub)
        for connection in await other.directory.connections(
            (await hub.event(waiting))["source_id"]
        ):
            connection.destination_url = elsewhere.url
        await other.worker.tend()
        assert len(elsewhere.got) == 2
        await hub.worker.renewals.renew()
        assert receiver.gate is not None
        receiver.gate.set()
        await hub.settle()
        assert len(receiver.got) == 1
    for event_id in (under_way, waiting):  # what the other has written stands
        event = await hub.event(event_id)
        assert (event["status"], event["attempts"]) == ("delivered", 1)
    assert (hub.relay.tools.lanes.running, hub.relay.tools.memory.count) == (0, 0)


async def test_what_waits_is_given_back_at_the_end(hub: Hub, receiver: Receiver) -> None:
    """So that others need not wait until its claim has run out."""
    _, events = await held_up(hub, receiver, 3)
    hub.runtime.supervisor.stopping.set()
    ending = asyncio.create_task(hub.worker.drain(10))
    async with asyncio.timeout(10):
        while len((await hub.relay.store.scan(Delivery)).items) < 2:
            await asyncio.sleep(0.005)
    assert receiver.gate is not None
    receiver.gate.set()
    await ending
    assert len(receiver.got) == 1
    hub.clock.advance(1)
    await relay_of(hub).worker.tend()
    assert len(receiver.got) == 3
    assert {(await hub.statuses(id_))[0] for id_ in events} == {"delivered"}
    assert {event.todo for event in (await hub.relay.store.scan(Event)).items} == {None}


async def test_what_ends_together_is_one_change(clock: ManualClock, receiver: Receiver) -> None:
    async with hub_at(clock, systems=relay_on(store=Faults)) as hub:
        receiver.gate = asyncio.Event()
        source = await hub.source()
        for _ in range(8):
            await hub.connect(source, receiver.url)
        event_id = (await hub.send(source)).json["id"]
        await arrived(receiver, 8)
        writes: list[int] = []

        async def counted(call: Any, *given: Any) -> None:
            writes.append(sum(isinstance(write.source, Attempt) for write in given))
            await call(*given)

        store: Any = hub.relay.store
        store.around["write_together"] = counted
        receiver.gate.set()
        await hub.settle()
        assert sum(writes) == 8
        assert len(writes) < 8
        event = await hub.event(event_id)
        assert (event["status"], event["attempts"]) == ("delivered", 8)
        numbers = [a.sequence for a in (await store.query(Attempt.query(event_id))).items]
        assert numbers == list(range(1, 9))


async def test_nothing_is_kept_of_seconds_that_have_passed(hub: Hub, receiver: Receiver) -> None:
    """The counters of a second are the same for many deliveries; those of an hour of them would
    fill the memory."""
    source = await hub.source()
    await hub.connect(source, receiver.url)
    for status in (200, 500, 200, 410):
        receiver.default = Reaction(status)
        await hub.sent(source)
        hub.clock.advance(1)
    assert len(receiver.got) == 4
    kept = hub.worker.outcomes._tallies  # there is no other way to see it
    assert len(kept) == 1


async def test_a_sender_feels_that_its_events_come_too_fast(
    hub: Hub, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parcels, "_CALM_SECONDS", 60.0)
    hub.relay.tools.memory.most = 16
    source, _ = await held_up(hub, receiver, 2)
    waiting = asyncio.create_task(hub.send(source))
    done, _ = await asyncio.wait([waiting], timeout=0.1)
    assert not done
    assert receiver.gate is not None
    receiver.gate.set()
    assert (await waiting).status == 200
    await hub.settle()
    assert len(receiver.got) == 3


async def test_a_slow_endpoint_does_not_keep_its_senders_waiting(
    hub: Hub, receiver: Receiver
) -> None:
    """Longer than a moment, however much waits for it."""
    hub.relay.tools.memory.most = 16
    source, _ = await held_up(hub, receiver, 2)
    async with asyncio.timeout(5):
        for _ in range(4):
            assert (await hub.send(source)).status == 200
    assert receiver.gate is not None
    receiver.gate.set()
    await hub.settle()
    assert len(receiver.got) == 6


def test_no_account_fills_the_memory(hub: Hub) -> None:
    memory = Memory(most=100, most_bytes=10**9)

    def filled(account: str) -> int:
        taken = 0
        while memory.take(Parcel(own_event("src_x", account, "x", {}, 1.0), hub.relay.keyring)):
            taken += 1
        return taken

    assert [filled(account) for account in ("a", "b", "c")] == [50, 25, 13]


def test_memory_is_bounded_in_bytes(hub: Hub) -> None:
    memory = Memory(most=1_000, most_bytes=100_000)
    large = own_event("src_x", "a", "x", "y" * 5_000, 1.0)
    held = []
    while memory.take(parcel := Parcel(large, hub.relay.keyring)):
        held.append(parcel)
    assert 1 < len(held) < 10
    for parcel in held:
        memory.give(parcel)
    assert (memory.count, memory.bytes) == (0, 0)


class Paused:
    """A store whose next write waits until it is let go."""

    def __init__(self, hub: Hub) -> None:
        self.reached, self.go_on = asyncio.Event(), asyncio.Event()
        store: Any = hub.relay.store
        store.around["write_together"] = self._wait
        self._store = store

    async def _wait(self, call: Any, *given: Any) -> None:
        del self._store.around["write_together"]
        self.reached.set()
        await self.go_on.wait()
        await call(*given)


async def test_a_connection_may_be_paused_while_its_event_is_written(
    clock: ManualClock, receiver: Receiver
) -> None:
    async with hub_at(clock, systems=relay_on(store=Faults)) as hub:
        source = await hub.source()
        first = await hub.connect(source, f"{receiver.url}/a")
        await hub.connect(source, f"{receiver.url}/b")
        await hub.sent(source)
        paused = Paused(hub)
        sending = asyncio.create_task(hub.send(source))
        await paused.reached.wait()
        await hub.patch(first, status="paused")
        hub.worker.timed.kick(first["id"])
        await hub.worker.timed.finish()
        paused.go_on.set()
        event_id = (await sending).json["id"]
        await hub.settle()
        assert sorted((await hub.statuses(event_id))[1:]) == ["delivered", "pending"]
        assert hub.relay.tools.memory.count == 0
        await hub.patch(first, status="active")
        await hub.settle()
        assert (await hub.statuses(event_id))[0] == "delivered"


async def test_a_lane_may_break_while_an_event_is_written(
    clock: ManualClock, receiver: Receiver
) -> None:
    async with hub_at(clock, systems=relay_on(store=Faults)) as hub:
        source = await hub.source()
        connection = await hub.connect(source, receiver.url, retry={"schedule": []})
        await hub.sent(source)
        paused = Paused(hub)
        sending = asyncio.create_task(hub.send(source))
        await paused.reached.wait()
        lane = hub.relay.tools.lanes.get(connection["id"])
        assert lane is not None
        for _ in range(10):
            hub.relay.tools.lanes.failed(lane)
        key = Connection.key(source, connection["id"])
        await hub.relay.store.update(key, set_to("failure_streak", 10), when=exists())
        paused.go_on.set()
        event_id = (await sending).json["id"]
        await hub.settle()
        assert len(receiver.got) == 1
        await hub.later(31)
        assert (await hub.statuses(event_id))[0] == "delivered"


async def test_a_connection_that_goes_before_the_rescue_fails_its_delivery(
    hub: Hub, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nobody(plan: object) -> None:
        """The process ends here."""

    source = await hub.source()
    connection = await hub.connect(source, receiver.url)
    with monkeypatch.context() as patch:
        patch.setattr(hub.worker, "written", nobody)
        event_id = (await hub.send(source)).json["id"]
    await hub.call("DELETE", f"/v1/connections/{connection['id']}")
    for _ in range(3):
        await hub.later(31)
    event = await hub.event(event_id)
    assert (event["status"], event["deliveries"][0]["error"]) == (
        "failed",
        "the connection was deleted",
    )


async def test_memory_that_is_full_of_bytes_costs_no_writes(
    clock: ManualClock, receiver: Receiver
) -> None:
    async with hub_at(clock, systems=relay_on(store=Faults)) as hub:
        hub.relay.tools.memory.most_bytes = 0
        source = await hub.source()
        await hub.connect(source, receiver.url)
        await hub.send(source)
        writes = 0

        async def counted(call: Any, *given: Any) -> None:
            nonlocal writes
            writes += 1
            await call(*given)

        store: Any = hub.relay.store
        store.around["write_together"] = counted
        await asyncio.sleep(0.1)
        assert writes <= 2
        hub.relay.tools.memory.most_bytes = 10**9
        await hub.later(2)
        assert len(receiver.got) == 1


async def test_lanes_that_found_no_place_come_first(hub: Hub, receiver: Receiver) -> None:
    hub.relay.tools.lanes.most = 4
    receiver.gate = asyncio.Event()
    source = await hub.source()
    await hub.connect(source, f"{receiver.url}/busy")
    for _ in range(20):
        await hub.send(source)
    await arrived(receiver, 2)
    other = await hub.source()
    await hub.connect(other, f"{receiver.url}/other")
    await hub.send(other)
    receiver.gate.set()
    await hub.settle()
    paths = [got.path for got in receiver.got]
    assert paths.index("/other") < 10
    assert len(paths) == 21


async def test_an_attempt_that_came_to_nothing_is_made_again(
    clock: ManualClock, receiver: Receiver
) -> None:
    """Though another delivery of the same event is still in memory."""
    async with hub_at(clock, systems=relay_on(store=Faults)) as hub, receiving() as slow:
        slow.gate = asyncio.Event()
        source = await hub.source()
        await hub.connect(source, slow.url)
        await hub.connect(source, receiver.url)
        looked = hub.relay.directory.connection
        failures = 0

        async def failing(source_id: str, connection_id: str) -> Any:
            nonlocal failures
            found = await looked(source_id, connection_id)
            if found is not None and found.destination_url == receiver.url and not failures:
                failures += 1
                raise StoreUnavailable("no disk")
            return found

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(hub.relay.directory, "connection", failing)
            event_id = (await hub.send(source)).json["id"]
            await arrived(slow, 1)
        assert (failures, receiver.got) == (1, [])
        for _ in range(3):
            hub.clock.advance(31)
            await hub.worker.renewals.renew()
            await hub.worker.timed.tick()
            await asyncio.sleep(0.05)
        assert len(receiver.got) == 1
        slow.gate.set()
        await hub.settle()
        assert (await hub.statuses(event_id))[0] == "delivered"


async def test_an_answer_that_was_lost_does_not_count_twice(
    clock: ManualClock, receiver: Receiver
) -> None:
    async with hub_at(clock, systems=relay_on(store=Faults)) as hub, receiving() as slow:
        slow.gate = asyncio.Event()
        source = await hub.source()
        await hub.connect(source, slow.url)
        quick = await hub.connect(source, receiver.url)
        lost = 0

        async def losing(call: Any, *given: Any) -> None:
            nonlocal lost
            await call(*given)
            if not lost and any(isinstance(write.source, Attempt) for write in given):
                lost += 1
                raise StoreUnavailable("the answer was lost")

        store: Any = hub.relay.store
        store.around["write_together"] = losing
        event_id = (await hub.send(source)).json["id"]
        async with asyncio.timeout(10):
            while (await hub.event(event_id))["attempts"] < 1 or hub.worker.parcels == {}:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        slow.gate.set()
        await hub.settle()
        assert lost == 1
        assert (await hub.event(event_id))["attempts"] == 2
        assert (await hub.get(f"/v1/connections/{quick['id']}"))["delivery_count"] == 1


def loses(hub: Hub, number: int, then: Callable[[], None] = lambda: None) -> None:
    """Have the answer be lost to the write of one of the attempts, which is written all the same,
    and then do something."""
    count = 0

    async def losing(call: Any, *given: Any) -> None:
        nonlocal count
        await call(*given)
        if any(isinstance(write.source, Attempt) for write in given):
            count += 1
            if count == number:
                then()
                raise StoreUnavailable("the answer was lost")

    store: Any = hub.relay.store
    store.around["write_together"] = losing


async def test_what_others_write_after_a_lost_answer_does_not_hide_it(
    clock: ManualClock, receiver: Receiver
) -> None:
    """The event is no longer as the lost write has left it."""
    async with hub_at(clock, systems=relay_on(store=Faults)) as hub, receiving() as slow:
        slow.gate = asyncio.Event()
        source = await hub.source()
        connections = [await hub.connect(source, to.url) for to in (receiver, slow)]
        loses(hub, 1, then=slow.gate.set)
        event_id = await hub.sent(source)
        event = await hub.event(event_id)
        assert (event["status"], event["attempts"]) == ("delivered", 2)
        rows = await hub.relay.store.query(Attempt.query(event_id))
        assert sorted(a.connection_id for a in rows.items) == sorted(c["id"] for c in connections)
        for connection in connections:
            found = await hub.get(f"/v1/connections/{connection['id']}")
            assert found["delivery_count"] == 1


async def test_after_a_lost_answer_an_endpoint_is_heeded_all_the_same(
    clock: ManualClock, receiver: Receiver
) -> None:
    async with hub_at(clock, systems=relay_on(store=Faults)) as hub:
        source = await hub.source()
        connection = await hub.connect(source, receiver.url)
        receiver.default = Reaction(500)
        event_id = await hub.sent(source)
        receiver.default = Reaction(410)
        loses(hub, 1)
        await hub.later(60)
        assert await hub.statuses(event_id) == ["retrying", "retrying"]
        assert (await hub.get(f"/v1/connections/{connection['id']}"))["status"] == "paused"


async def test_a_patience_that_another_service_wrote_is_bounded(
    hub: Hub, receiver: Receiver
) -> None:
    source = await hub.source()
    connection = await hub.connect(source, receiver.url)
    key = Connection.key(source, connection["id"])
    await hub.relay.store.update(key, set_to("timeout_seconds", 3600), when=exists())
    hub.relay.directory.forget(source)
    assert (await hub.statuses(await hub.sent(source)))[0] == "delivered"


@pytest.mark.parametrize("answered", [True, False], ids=["written", "not yet known to be written"])
async def test_an_event_that_is_taken_while_it_is_looked_up_is_processed_once(
    clock: ManualClock, receiver: Receiver, answered: bool
) -> None:
    """A timer and the queue may lead to an event at the same time, and a read may take long."""
    async with hub_at(clock, systems=relay_on(store=Faults)) as hub:
        source = await hub.source()
        await hub.connect(source, receiver.url)
        event_id = await stranded(hub, source)
        event = (await hub.relay.store.query(Event.query(event_id, index="GSI1"))).items[0]
        looking, taken, written, heard = (asyncio.Event() for _ in range(4))
        receiver.gate = asyncio.Event()

        async def slow_read(get: Any, key: Any) -> Any:
            looking.set()
            await taken.wait()
            return await get(key)

        async def slow_answer(write: Any, *given: Any) -> None:
            await write(*given)
            written.set()
            await heard.wait()

        store: Any = hub.relay.store
        store.around["get"] = slow_read
        hub.worker.look(source)
        await looking.wait()
        store.around = {"write_together": slow_answer}
        taking = asyncio.create_task(hub.worker.process(event))
        await written.wait()
        if answered:
            heard.set()
            await taking
        taken.set()
        for _ in range(20):
            await asyncio.sleep(0)
        heard.set()
        await taking
        await arrived(receiver, 1)
        receiver.gate.set()
        await hub.settle()
        assert len(receiver.got) == 1


async def test_what_is_under_way_is_not_begun_again_while_its_claim_lasts(
    hub: Hub, receiver: Receiver
) -> None:
    """Also where another delivery of its event came to nothing."""
    _, [event_id] = await held_up(hub, receiver, 1)
    [parcel] = hub.worker.parcels.values()
    parcel.abandoned = True
    [event] = (await hub.relay.store.query(Event.query(event_id, index="GSI1"))).items
    await hub.worker.process(event)
    assert receiver.gate is not None
    receiver.gate.set()
    await hub.settle()
    assert len(receiver.got) == 1
