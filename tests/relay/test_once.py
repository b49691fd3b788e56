"""Work that is interrupted or repeated: handed on, and done once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from tests.relay.hub import hub_at
from tests.support.faults import Faults, relay_on
from waystation.errors import Overloaded, StoreUnavailable
from waystation.patterns import Timer, Timers, WriteBatches
from waystation.relay.delivering.onward import EventRef
from waystation.relay.rules.paths import Webhook
from waystation.relay.service import Relay
from waystation.relay.tables import RECEIVED, Attempt, Delivery, Event
from waystation.store import exists, key_of, remove, set_to

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.relay.hub import Hub
    from tests.support.receiver import Receiver
    from waystation.clock import ManualClock


@pytest.fixture
async def hub(clock: ManualClock) -> AsyncIterator[Hub]:
    """A relay whose store can be told to fail."""
    async with hub_at(clock, systems=relay_on(store=Faults)) as running:
        yield running


def faults(hub: Hub) -> Faults:
    store: Any = hub.relay.store
    assert isinstance(store, Faults)
    return store


def writes(actions: Any, kind: type) -> bool:
    """Whether a transaction puts an item of a type."""
    return any(isinstance(getattr(action, "source", None), kind) for action in actions)


async def stranded(hub: Hub, source: str) -> str:
    """An event that was acknowledged by a process that has no worker, and then ended."""
    dead = relay_of(hub, queue=hub.runtime.queues[RECEIVED])
    known = await dead.directory.source(source)
    assert known is not None
    receipt = await dead.intake.receive(known, Webhook(b'{"n": 1}', {}), "127.0.0.1")
    return receipt.id


def relay_of(hub: Hub, **more: Any) -> Relay:
    """The relay of another process on the same store."""

    async def billed(content: bytes, age: float) -> bool:
        return True

    return Relay(
        hub.runtime.store,
        hub.runtime.vault,
        hub.relay.outbound,
        inboxes=hub.relay.tools.inboxes,
        billed=billed,
        **more,
    )


async def test_an_event_between_two_steps_is_handed_on(hub: Hub, receiver: Receiver) -> None:
    source = await hub.source()
    await hub.connect(source, receiver.url)
    event_id = await stranded(hub, source)
    await hub.settle()
    assert receiver.got == []
    await hub.later(31)
    event = await hub.event(event_id)
    assert event["status"] == "delivered"
    assert event["processed_at"] is not None


async def test_an_event_whose_process_ended_before_the_first_attempt_is_delivered(
    hub: Hub, receiver: Receiver
) -> None:
    source = await hub.source()
    await hub.connect(source, receiver.url)

    async def nobody(plan: object) -> None:
        """The process ends here."""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hub.worker, "written", nobody)
        event_id = await hub.sent(source)
    assert receiver.got == []
    for _ in range(3):
        await hub.later(31)
    assert (await hub.statuses(event_id)) == ["delivered", "delivered"]
    assert len(receiver.got) == 1


async def test_a_duplicate_takes_no_place_in_a_lane(hub: Hub, receiver: Receiver) -> None:
    source = await hub.source(dedupe={"mode": "fields", "fields": ["$.n"]})
    await hub.connect(source, receiver.url, concurrency=1)
    for _ in range(3):
        await hub.sent(source, b'{"n": 1}')
    await hub.sent(source, b'{"n": 2}')
    assert (hub.relay.tools.lanes.running, hub.relay.tools.memory.count) == (0, 0)
    assert len(receiver.got) == 2


async def test_a_refused_event_takes_no_place_in_a_lane(hub: Hub, receiver: Receiver) -> None:
    source = await hub.source()
    await hub.connect(source, receiver.url, concurrency=1)

    faults(hub).fail_once("write_together", StoreUnavailable("no disk"))
    assert (await hub.send(source)).status == 503
    await hub.sent(source)
    assert (hub.relay.tools.lanes.running, hub.relay.tools.memory.count) == (0, 0)
    assert len(receiver.got) == 1


async def test_an_event_whose_deliveries_cannot_be_made_is_kept(
    hub: Hub, receiver: Receiver
) -> None:
    """Somebody else has written into the table what we would not."""
    source = await hub.source()
    for _ in range(2):
        await hub.connect(source, receiver.url, concurrency=1)
    connections = await hub.relay.directory.list_connections(source)
    await hub.patch({"id": connections[1].connection_id}, status="paused")
    broken = set_to("retry_config", "{")
    await hub.relay.store.update(key_of(connections[1]), broken, when=exists())
    hub.relay.directory.forget(source)
    event_id = await hub.sent(source)
    assert (hub.relay.tools.lanes.running, hub.relay.tools.memory.count) == (0, 0)
    await hub.relay.store.update(key_of(connections[1]), remove("retry_config"), when=exists())
    hub.relay.directory.forget(source)
    await hub.later(31)
    assert await hub.statuses(event_id) == ["processing", "delivered", "pending"]


async def test_an_event_that_waits_for_its_lane_does_not_miss_its_turn(
    hub: Hub, receiver: Receiver
) -> None:
    """The lane is free again, and was looked at, before the event is written."""
    source = await hub.source()
    await hub.connect(source, receiver.url, concurrency=1)
    receiver.gate = asyncio.Event()
    await hub.send(source)
    written, go_on = asyncio.Event(), asyncio.Event()

    async def slow(call: Any, key: Any) -> Any:
        if key.spec.item is Timer:  # the last step before the event itself is written
            written.set()
            await go_on.wait()
        return await call(key)

    hub.clock.advance(46)  # so that the timer is looked at again
    faults(hub).around["get"] = slow
    sending = asyncio.create_task(hub.send(source))
    await written.wait()
    receiver.gate.set()
    await hub.worker.timed.finish()
    go_on.set()
    event_id = (await sending).json["id"]
    await hub.settle()
    assert (await hub.statuses(event_id))[0] == "delivered"


async def test_at_the_end_attempts_are_finished(hub: Hub, receiver: Receiver) -> None:
    source = await hub.source()
    await hub.connect(source, receiver.url)
    receiver.gate = asyncio.Event()
    answer = await hub.send(source)
    ending = asyncio.create_task(hub.worker.drain(10))
    receiver.gate.set()
    await ending
    assert (await hub.statuses(answer.json["id"]))[0] == "delivered"


async def test_at_the_end_attempts_that_take_too_long_are_left_to_others(
    hub: Hub, receiver: Receiver
) -> None:
    source = await hub.source()
    await hub.connect(source, receiver.url)
    receiver.gate = asyncio.Event()
    answer = await hub.send(source)
    await hub.worker.drain(0.01)
    assert (hub.relay.tools.lanes.running, hub.relay.tools.memory.count) == (0, 0)
    assert (await hub.event(answer.json["id"]))["attempts"] == 0
    receiver.gate.set()
    other = relay_of(hub).worker
    for _ in range(3):
        hub.clock.advance(31)
        await other.tend()
    assert (await hub.statuses(answer.json["id"]))[0] == "delivered"


async def test_a_delivery_whose_worker_died_is_taken_over(hub: Hub, receiver: Receiver) -> None:
    receiver.fail()
    source = await hub.source()
    connection = await hub.connect(source, receiver.url)
    event_id = await hub.sent(source)
    receiver.work()
    [delivery] = (await hub.relay.store.query(Delivery.query(connection["id"], index="GSI2"))).items
    delivery.claim, delivery.due_at = "a dead one's", int((hub.clock() + 60) * 1000)
    await hub.relay.store.put(delivery)
    await hub.later(40)
    assert len(receiver.got) == 1
    await hub.later(31)
    assert (await hub.statuses(event_id))[0] == "delivered"
    assert len(receiver.got) == 2


async def test_an_event_that_comes_twice_is_processed_once(hub: Hub, receiver: Receiver) -> None:
    """The queue gives messages at least once."""
    source = await hub.source()
    await hub.connect(source, receiver.url)
    event_id = await stranded(hub, source)
    event = (await hub.relay.store.query(Event.query(event_id, index="GSI1"))).items[0]

    class Sent:
        def decode(self, kind: type[EventRef]) -> EventRef:
            return EventRef(source, event.received_at, event_id)

    message: Any = Sent()
    await asyncio.gather(*(hub.worker.handle(message) for _ in range(5)))
    await hub.settle()
    await hub.worker.handle(message)
    await hub.later(61)
    assert len(receiver.got) == 1
    assert len((await hub.event(event_id))["deliveries"]) == 1


async def test_a_database_error_after_an_answer_does_not_send_again(
    hub: Hub, receiver: Receiver
) -> None:
    source = await hub.source()
    await hub.connect(source, receiver.url)
    failures = 0

    async def failing(call: Any, *actions: Any, **named: Any) -> None:
        nonlocal failures
        if receiver.got and failures < 3:
            failures += 1
            raise StoreUnavailable("the disk is gone for a moment")
        await call(*actions, **named)

    faults(hub).around["write_together"] = failing
    event_id = await hub.sent(source)
    await hub.later(120)
    assert failures == 3
    assert (await hub.statuses(event_id))[0] == "delivered"
    assert len(receiver.got) == 1


async def test_a_late_worker_does_not_write_over_another(hub: Hub, receiver: Receiver) -> None:
    """Its claim has run out, and somebody else has taken the event over."""
    receiver.gate = asyncio.Event()
    source = await hub.source()
    await hub.connect(source, receiver.url)
    answer = await hub.send(source)
    async with asyncio.timeout(10):
        while not receiver.got:
            await asyncio.sleep(0.01)
    event = (await hub.relay.store.scan(Event)).items[0]
    event.claim, event.revision = "another's", event.revision + 1
    await hub.relay.store.put(event)
    receiver.gate.set()
    await hub.settle()
    after = (await hub.relay.store.scan(Event)).items[0]
    assert (after.claim, after.status, after.attempt_count) == ("another's", "processing", 0)
    assert (await hub.relay.store.scan(Attempt)).items == []
    assert (await hub.event(answer.json["id"]))["deliveries"][0]["status"] == "pending"


async def test_nothing_is_due_when_all_is_done(hub: Hub, receiver: Receiver) -> None:
    """Timers go away by themselves once there is nothing to look at."""
    source = await hub.source()
    await hub.connect(source, receiver.url)
    await hub.sent(source)
    for _ in range(4):
        await hub.later(61)
    assert (await hub.relay.store.scan(Timer)).items == []


async def test_a_retry_is_in_time_though_a_look_came_before_it_was_written(
    hub: Hub, receiver: Receiver
) -> None:
    source = await hub.source()
    await hub.connect(source, receiver.url, retry={"schedule": [5, 5]})
    receiver.fail()
    others = Timers(hub.runtime.store, "relay")

    async def slow(call: Any, *actions: Any, **named: Any) -> None:
        if writes(actions, Attempt):
            hub.clock.advance(6)
            for due in await others.due(10, set()):
                if due.name.startswith("conn_") and (held := await others.take(due)):
                    await others.settle(held, None)
        await call(*actions, **named)

    faults(hub).around["write_together"] = slow
    event_id = await hub.sent(source)
    del faults(hub).around["write_together"]
    receiver.work()
    await hub.later(1)
    assert (await hub.statuses(event_id))[0] == "delivered"


async def test_an_outcome_is_written_however_much_waits(hub: Hub, receiver: Receiver) -> None:
    """What was delivered is not delivered again because there was much to write."""
    relay = relay_of(hub, batches=WriteBatches(hub.runtime.store, most_waiting=0))
    source = await hub.source()
    await hub.connect(source, receiver.url)
    event_id = await stranded(hub, source)
    known = await relay.directory.source(source)
    assert known is not None
    with pytest.raises(Overloaded):
        await relay.intake.receive(known, Webhook(b"{}", {}), "127.0.0.1")
    hub.clock.advance(31)
    await relay.worker.tend()
    assert (await hub.statuses(event_id))[0] == "delivered"
