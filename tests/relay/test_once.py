"""Work that is interrupted or repeated: handed on, and done once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tests.support.site import SECRET
from waystation.errors import ItemTooLarge, StoreUnavailable, TransactionCancelled
from waystation.patterns.vault import Vault
from waystation.relay.connections import NewConnection
from waystation.relay.egress import Reply
from waystation.relay.paths import Webhook
from waystation.relay.service import Relay
from waystation.relay.sources import NewSource
from waystation.relay.states import own_event
from waystation.relay.tables import Attempt, Delivery, Event, Wake
from waystation.relay.wakes import Wakes
from waystation.relay.worker import EventRef, Worker
from waystation.store import Put, absent, exists, key_of, remove, set_to

if TYPE_CHECKING:
    import pytest

    from tests.relay.hub import Hub
    from tests.support.receiver import Receiver


async def stranded(hub: Hub, source: str) -> str:
    """An event that was acknowledged by a process that has no worker, and then ended."""
    begin, handing = hub.relay.begin, hub.relay.hand_over

    async def nobody(event: Event) -> None:
        return None

    hub.relay.begin, hub.relay.hand_over = None, nobody
    answer = await hub.send(source)
    hub.relay.begin, hub.relay.hand_over = begin, handing
    found: str = answer.json["id"]
    return found


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
    hub: Hub, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = await hub.source()
    await hub.connect(source, receiver.url)
    with monkeypatch.context() as patch:
        patch.setattr(hub.relay, "begin", lambda event, made: None)
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
    assert hub.relay.lanes.running == 0
    assert len(receiver.got) == 2


async def test_a_refused_event_takes_no_place_in_a_lane(
    hub: Hub, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = await hub.source()
    await hub.connect(source, receiver.url, concurrency=1)

    async def broken(*given: Any, **more: Any) -> None:
        raise StoreUnavailable("no disk")

    with monkeypatch.context() as patch:
        patch.setattr(hub.relay.ledger, "write", broken)
        assert (await hub.send(source)).status == 503
    await hub.sent(source)
    assert hub.relay.lanes.running == 0
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
    assert hub.relay.lanes.running == 0
    await hub.relay.store.update(key_of(connections[1]), remove("retry_config"), when=exists())
    hub.relay.directory.forget(source)
    await hub.later(31)
    assert await hub.statuses(event_id) == ["processing", "delivered", "pending"]


async def test_an_event_that_waits_for_its_lane_does_not_miss_its_turn(
    hub: Hub, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lane is free again, and was looked at, before the event is written."""
    source = await hub.source()
    await hub.connect(source, receiver.url, concurrency=1)
    receiver.gate = asyncio.Event()
    await hub.send(source)
    written, go_on = asyncio.Event(), asyncio.Event()
    write = hub.relay.ledger.write

    async def slow(*given: Any, **more: Any) -> None:
        if more.get("new"):
            written.set()
            await go_on.wait()
        await write(*given, **more)

    monkeypatch.setattr(hub.relay.ledger, "write", slow)
    sending = asyncio.create_task(hub.send(source))
    await written.wait()
    receiver.gate.set()
    await hub.worker.finish()
    go_on.set()
    event_id = (await sending).json["id"]
    await hub.settle()
    assert (await hub.statuses(event_id))[0] == "delivered"


async def test_at_the_end_attempts_are_finished(hub: Hub, receiver: Receiver) -> None:
    source = await hub.source()
    await hub.connect(source, receiver.url)
    receiver.gate = asyncio.Event()
    answer = await hub.send(source)
    ending = asyncio.create_task(hub.worker.end(10))
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
    await hub.worker.end(0.01)
    assert hub.relay.lanes.running == 0
    assert (await hub.event(answer.json["id"]))["attempts"] == 0
    receiver.gate.set()
    other = Worker(hub.relay)
    for _ in range(3):
        hub.clock.advance(31)
        await other.tick()
        await other.finish()
    assert (await hub.statuses(answer.json["id"]))[0] == "delivered"


async def test_a_delivery_whose_worker_died_is_taken_over(hub: Hub, receiver: Receiver) -> None:
    source = await hub.source()
    await hub.connect(source, receiver.url)
    event_id = await stranded(hub, source)
    event = (await hub.relay.store.query(Event.query(event_id, index="GSI1"))).items[0]
    claimed = await hub.relay.dispatch.first(event, await hub.relay.directory.connections(source))
    assert len(claimed) == 1  # and nobody attempts it
    hub.relay.lanes.release(claimed[0].connection_id)
    await hub.later(31)
    assert receiver.got == []
    await hub.later(31)
    assert (await hub.statuses(event_id))[0] == "delivered"
    assert len(receiver.got) == 1


async def test_an_event_that_comes_twice_is_processed_once(hub: Hub, receiver: Receiver) -> None:
    """The queue gives messages at least once."""
    source = await hub.source()
    await hub.connect(source, receiver.url)
    event_id = await stranded(hub, source)
    event = (await hub.relay.store.query(Event.query(event_id, index="GSI1"))).items[0]

    class Told:
        def decode(self, kind: type[EventRef]) -> EventRef:
            return EventRef(source, event.received_at, event_id)

    message: Any = Told()
    await asyncio.gather(*(hub.worker.handle(message) for _ in range(5)))
    await hub.settle()
    await hub.worker.handle(message)
    await hub.later(61)
    assert len(receiver.got) == 1
    assert len((await hub.event(event_id))["deliveries"]) == 1


async def test_a_database_error_after_an_answer_does_not_send_again(
    hub: Hub, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = await hub.source()
    await hub.connect(source, receiver.url)
    write, failures = hub.relay.ledger.write, 0

    async def failing(account: str, actions: Any, tallies: Any, *more: Any, **named: Any) -> None:
        nonlocal failures
        if receiver.got and failures < 3:
            failures += 1
            raise StoreUnavailable("the disk is gone for a moment")
        await write(account, actions, tallies, *more, **named)

    monkeypatch.setattr(hub.relay.ledger, "write", failing)
    event_id = await hub.sent(source)
    await hub.later(120)
    assert failures == 3
    assert (await hub.statuses(event_id))[0] == "delivered"
    assert len(receiver.got) == 1


async def test_a_late_worker_does_not_write_over_another(hub: Hub, receiver: Receiver) -> None:
    """Its claim has run out, and somebody else has delivered meanwhile."""
    receiver.gate = asyncio.Event()
    source = await hub.source()
    await hub.connect(source, receiver.url)
    answer = await hub.send(source)
    async with asyncio.timeout(10):
        while not receiver.got:
            await asyncio.sleep(0.01)
    delivery = (await hub.relay.store.scan(Delivery)).items[0]
    delivery.claim = "another's"
    await hub.relay.store.put(delivery)
    receiver.gate.set()
    await hub.settle()
    after = (await hub.relay.store.scan(Delivery)).items[0]
    assert (after.claim, after.status, after.attempts) == ("another's", "pending", 0)
    assert (await hub.event(answer.json["id"]))["attempts"] == 0


async def test_nothing_is_due_when_all_is_done(hub: Hub, receiver: Receiver) -> None:
    """Wakes go away by themselves once there is nothing to look at."""
    source = await hub.source()
    await hub.connect(source, receiver.url)
    await hub.sent(source)
    for _ in range(4):
        await hub.later(61)
    assert (await hub.relay.store.scan(Wake)).items == []


async def test_a_wake_that_others_rely_on_stays(hub: Hub) -> None:
    """One that is held by somebody who is about to let it go is not one to rely on."""
    wakes = hub.relay.wakes
    now = int(hub.clock() * 1000)
    await wakes.ensure("conn_x", now)
    [due] = await wakes.due(10, set())
    held = await wakes.take(due)
    assert held is not None
    held.idle = True
    hub.clock.advance(35)
    await wakes.ensure("conn_x", int(hub.clock() * 1000) + 30_000)
    await wakes.settle(held, None)
    [kept] = (await hub.relay.store.scan(Wake)).items
    assert kept.due_at <= int(hub.clock() * 1000) + 30_000


async def test_a_wake_moves_far_ahead_only_after_a_second_look(hub: Hub) -> None:
    """An index may not have shown everything at the first."""
    wakes = hub.relay.wakes
    await wakes.ensure("conn_x", int(hub.clock() * 1000))
    far = int(hub.clock() * 1000) + 12 * 3_600_000
    [due] = await wakes.due(10, set())
    held = await wakes.take(due)
    assert held is not None
    await wakes.settle(held, far)
    hub.clock.advance(61)
    [again] = await wakes.due(10, set())
    held = await wakes.take(again)
    assert held is not None
    await wakes.settle(held, far)
    hub.clock.advance(3600)
    assert await wakes.due(10, set()) == []


async def test_a_kick_while_a_look_ends_is_not_lost(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    async def work(name: str, held: Wake | None) -> int | None:
        nonlocal looks
        looks += 1
        return None

    async def settle(wake: Wake, next_at: int | None) -> None:
        hub.worker.kick("conn_x")

    monkeypatch.setattr(hub.worker, "_work", work)
    monkeypatch.setattr(hub.relay.wakes, "settle", settle)
    await hub.relay.wakes.ensure("conn_x", int(hub.clock() * 1000))
    await hub.worker.tick()
    await hub.worker.finish()
    assert looks == 2


async def test_many_at_once_need_one_wake(hub: Hub) -> None:
    """Each a little sooner than the last: they do not trip over each other."""
    wakes = hub.relay.wakes
    now = int(hub.clock() * 1000)
    await asyncio.gather(*(wakes.ensure("conn_x", now + 60_000 - n) for n in range(200)))
    [wake] = (await hub.relay.store.scan(Wake)).items
    assert wake.due_at <= now + 60_000 - 199


async def test_a_wake_is_written_once_however_many_rely_on_it(hub: Hub) -> None:
    """Also when it is nearly due, and when it is overdue because nobody has taken it yet."""
    wakes = hub.relay.wakes
    for _ in range(50):
        await wakes.expect("src_x", int(hub.clock() * 1000) + 30_000)
        hub.clock.advance(1)
    [wake] = (await hub.relay.store.scan(Wake)).items
    assert wake.version == 1


async def test_a_wake_that_is_about_to_go_is_not_relied_on(hub: Hub) -> None:
    """After the first look that found nothing, the second would delete it."""
    wakes = hub.relay.wakes
    await wakes.expect("src_x", int(hub.clock() * 1000))
    [due] = await wakes.due(10, set())
    held = await wakes.take(due)
    assert held is not None
    await wakes.settle(held, None)
    hub.clock.advance(44)
    await wakes.expect("src_x", int(hub.clock() * 1000) + 30_000)
    hub.clock.advance(17)
    [due] = await wakes.due(10, set())
    held = await wakes.take(due)
    assert held is not None
    await wakes.settle(held, None)
    assert len((await hub.relay.store.scan(Wake)).items) == 1


async def test_a_retry_is_in_time_though_a_look_came_before_it_was_written(
    hub: Hub, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = await hub.source()
    await hub.connect(source, receiver.url, retry={"schedule": [5, 5]})
    receiver.fail()
    others = Wakes(hub.relay.store)
    write = hub.relay.ledger.write

    async def slow(account: str, actions: Any, tallies: Any, *rest: Any, **more: Any) -> None:
        if any(isinstance(getattr(a, "item", None), Attempt) for a in actions):
            hub.clock.advance(6)
            for due in await others.due(10, set()):
                if due.name.startswith("conn_") and (held := await others.take(due)):
                    await others.settle(held, None)
        await write(account, actions, tallies, *rest, **more)

    monkeypatch.setattr(hub.relay.ledger, "write", slow)
    event_id = await hub.sent(source)
    monkeypatch.setattr(hub.relay.ledger, "write", write)
    receiver.work()
    await hub.later(1)
    assert (await hub.statuses(event_id))[0] == "delivered"


async def test_what_is_known_of_a_wake_is_not_believed_for_long(hub: Hub) -> None:
    """Another process may have taken it sooner, and seen it go."""
    ours, theirs = hub.relay.wakes, Wakes(hub.relay.store)
    start = int(hub.clock() * 1000)
    await ours.ensure("conn_x", start + 3_600_000)
    await theirs.ensure("conn_x", start)
    for _ in range(2):
        [due] = await theirs.due(10, set())
        held = await theirs.take(due)
        assert held is not None
        await theirs.settle(held, None)
        hub.clock.advance(61)
    assert (await hub.relay.store.scan(Wake)).items == []
    await ours.expect("conn_x", start + 3_700_000)
    assert len((await hub.relay.store.scan(Wake)).items) == 1


async def test_two_do_not_take_one_wake(hub: Hub) -> None:
    wakes = hub.relay.wakes
    await wakes.ensure("conn_x", int(hub.clock() * 1000))
    [due] = await wakes.due(10, set())
    taken = await asyncio.gather(*(wakes.take(due) for _ in range(5)))
    assert len([wake for wake in taken if wake is not None]) == 1


async def test_one_bad_entry_does_not_harm_the_others_of_its_batch(hub: Hub) -> None:
    ledger, store = hub.relay.ledger, hub.relay.store
    good = [Wake(name=f"conn_{n}", shard=0, due_at=1) for n in range(5)]
    await store.put(Wake(name="conn_9", shard=0, due_at=1))
    taken = Wake(name="conn_9", shard=0, due_at=2)
    writes = [ledger.write("usr", [Put(wake)], []) for wake in good]
    writes.insert(2, ledger.write("usr", [Put(taken, when=absent())], []))
    outcomes = await asyncio.gather(*writes, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes].count(TransactionCancelled) == 1
    assert len((await store.scan(Wake)).items) == 6


async def test_one_entry_that_is_too_large_does_not_harm_the_others(hub: Hub) -> None:
    ledger, store = hub.relay.ledger, hub.relay.store
    small = [Wake(name=f"conn_{n}", shard=0, due_at=1) for n in range(5)]
    huge = own_event("src_x", "usr", "x", "x" * 500_000, hub.clock())
    writes = [ledger.write("usr", [Put(wake)], []) for wake in small]
    writes.insert(2, ledger.write("usr", [Put(huge)], []))
    outcomes = await asyncio.gather(*writes, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes].count(ItemTooLarge) == 1
    assert len((await store.scan(Wake)).items) == 5


async def test_an_event_can_go_to_an_inbox(hub: Hub) -> None:
    """Whoever has inboxes gives the relay a way to reach them."""
    put: list[tuple[dict[str, object], str, bytes]] = []

    async def inbox(place: dict[str, object], event: Event, body: bytes) -> Reply:
        put.append((place, event.event_id, body))
        return Reply(201, "", 1)

    relay = Relay(hub.relay.store, Vault(SECRET), networks=[], inbox=inbox)
    worker = Worker(relay)
    relay.begin = worker.begin
    user = await hub.runtime.accounts.find_or_open("ann@example.com")
    source = await relay.sources.create(user.user_id, NewSource(name="x"))
    given = NewConnection(name="x", inbox={"tenant": "t", "inbox": "i"})
    await relay.connections.create(source, given)
    known = await relay.directory.source(source.source_id)
    assert known is not None
    receipt = await relay.receive(known, Webhook(b'{"a": 1}', {}), "127.0.0.1")
    await worker.finish()
    assert put == [({"tenant": "t", "inbox": "i"}, receipt.id, b'{"a": 1}')]
    assert (await hub.statuses(receipt.id))[0] == "delivered"
    await relay.close()
