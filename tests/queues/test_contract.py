"""What every queue promises, on every engine."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from waystation.errors import InvalidRequest
from waystation.queues import Message, Queue, Queues, QueueSpec

if TYPE_CHECKING:
    from waystation.clock import ManualClock


async def drained(queue: Queue) -> list[Any]:
    """The values of everything that can be received, acknowledged one batch at a time."""
    found = []
    while messages := await queue.receive():
        for message in messages:
            found.append(message.decode())
            await queue.ack(message)
    return found


async def fail(queue: Queue, times: int) -> None:
    """Receive and give back."""
    for _ in range(times):
        for message in await queue.receive():
            await queue.release(message)


class Job(msgspec.Struct):
    event: str
    attempt: int = 1


async def test_what_was_sent_is_received(plain: Queue) -> None:
    sent = await plain.send(Job("evt_1", 2))
    [message] = await plain.receive()
    assert message.decode(Job) == Job("evt_1", 2)
    assert (message.id, message.group, message.receives) == (sent, None, 1)


async def test_any_text_survives(plain: Queue) -> None:
    text = "\x00 \x07 ünïcödé \U0001f600 <&> \"'\\ \ufffe"
    await plain.send({"text": text})
    [message] = await plain.receive()
    assert message.decode() == {"text": text}


async def test_an_empty_queue_gives_nothing(plain: Queue) -> None:
    assert await plain.receive() == []


async def test_an_acknowledged_message_is_gone(plain: Queue, clock: ManualClock) -> None:
    await plain.send(1)
    [message] = await plain.receive()
    await plain.ack(message)
    clock.advance(3600)
    assert await plain.receive() == []


async def test_acknowledging_twice_is_harmless(plain: Queue) -> None:
    await plain.send(1)
    [message] = await plain.receive()
    await plain.ack(message)
    await plain.ack(message)
    await plain.send(2)
    assert await drained(plain) == [2]


async def test_a_message_is_hidden_while_it_is_worked_on(plain: Queue, clock: ManualClock) -> None:
    await plain.send(1)
    assert len(await plain.receive()) == 1
    clock.advance(29)
    assert await plain.receive() == []


async def test_an_unacknowledged_message_comes_again(plain: Queue, clock: ManualClock) -> None:
    await plain.send(1)
    [first] = await plain.receive()
    clock.advance(31)
    [second] = await plain.receive()
    assert (second.id, second.receives) == (first.id, 2)


async def test_a_receiver_may_choose_its_visibility(plain: Queue, clock: ManualClock) -> None:
    await plain.send(1)
    await plain.receive(visibility=5)
    clock.advance(6)
    assert len(await plain.receive()) == 1


async def test_extending_keeps_a_message_hidden(plain: Queue, clock: ManualClock) -> None:
    await plain.send(1)
    [message] = await plain.receive()
    clock.advance(20)
    await plain.extend(message, 30)
    clock.advance(20)
    assert await plain.receive() == []
    clock.advance(11)
    assert len(await plain.receive()) == 1


async def test_a_released_message_comes_at_once(plain: Queue) -> None:
    await plain.send(1)
    [message] = await plain.receive()
    await plain.release(message)
    assert len(await plain.receive()) == 1


async def test_a_released_message_can_be_made_to_wait(plain: Queue, clock: ManualClock) -> None:
    await plain.send(1)
    [message] = await plain.receive()
    await plain.release(message, delay=60)
    clock.advance(59)
    assert await plain.receive() == []
    clock.advance(2)
    assert len(await plain.receive()) == 1


async def test_no_more_than_the_limit(plain: Queue) -> None:
    for n in range(5):
        await plain.send(n)
    assert len(await plain.receive(2)) == 2
    assert len(await plain.receive(10)) == 3


@pytest.mark.parametrize("delay", [1, 600, 900, 901, 7 * 86_400, 400 * 86_400])
async def test_a_delay_of_any_length(
    queues: Queues, plain: Queue, clock: ManualClock, delay: int
) -> None:
    await plain.send("later", delay=delay)
    clock.advance(delay - 1)
    await queues.tend()
    assert await plain.receive() == []
    clock.advance(2)
    await queues.tend()
    assert await drained(plain) == ["later"]


async def test_a_delayed_message_is_sent_once(
    queues: Queues, plain: Queue, clock: ManualClock
) -> None:
    await plain.send("later", delay=1000)
    clock.advance(1001)
    await asyncio.gather(queues.tend(), queues.tend())
    await queues.tend()
    assert await drained(plain) == ["later"]


async def test_a_delayed_message_takes_its_place_when_it_is_due(
    queues: Queues, ordered: Queue, clock: ManualClock
) -> None:
    await ordered.send("later", group="a", delay=60)
    await ordered.send("now", group="a")
    assert await drained(ordered) == ["now"]
    clock.advance(61)
    await queues.tend()
    await ordered.send("after", group="a")
    assert await drained(ordered) == ["later", "after"]


async def test_delayed_messages_of_a_group_come_in_the_order_they_are_due(
    queues: Queues, ordered: Queue, clock: ManualClock
) -> None:
    for n in range(10):
        await ordered.send(n, group="a", delay=60 + n)
    clock.advance(80)
    await queues.tend()
    assert await drained(ordered) == list(range(10))


async def test_a_group_is_in_order(ordered: Queue) -> None:
    for n in range(12):
        await ordered.send(n, group="a")
    assert await drained(ordered) == list(range(12))


async def test_a_group_waits_for_its_first_message(ordered: Queue) -> None:
    await ordered.send(1, group="a")
    await ordered.send(2, group="a")
    [first] = await ordered.receive()
    assert await ordered.receive() == []
    await ordered.ack(first)
    [second] = await ordered.receive()
    assert second.decode() == 2


async def test_groups_run_beside_each_other(ordered: Queue) -> None:
    for group in "abc":
        await ordered.send(f"{group}1", group=group)
        await ordered.send(f"{group}2", group=group)
    received = await ordered.receive()
    assert sorted(message.decode() for message in received) == ["a1", "b1", "c1"]


async def test_messages_without_a_group_do_not_wait_for_each_other(ordered: Queue) -> None:
    await ordered.send(1)
    await ordered.send(2)
    received = await ordered.receive()
    assert {(message.decode(), message.group) for message in received} == {(1, None), (2, None)}


async def test_a_released_message_keeps_its_place(ordered: Queue, clock: ManualClock) -> None:
    await ordered.send(1, group="a")
    await ordered.send(2, group="a")
    [first] = await ordered.receive()
    await ordered.release(first, delay=60)
    assert await ordered.receive() == []
    clock.advance(61)
    assert await drained(ordered) == [1, 2]


async def test_a_lapsed_message_keeps_its_place(ordered: Queue, clock: ManualClock) -> None:
    await ordered.send(1, group="a")
    await ordered.send(2, group="a")
    await ordered.receive()
    clock.advance(31)
    assert await drained(ordered) == [1, 2]


async def test_a_dedupe_id_sends_once(ordered: Queue, clock: ManualClock) -> None:
    first = await ordered.send(1, group="a", dedupe="x")
    clock.advance(299)
    assert await ordered.send(2, group="a", dedupe="x") == first
    assert await ordered.send(3, group="a", dedupe="y") != first
    assert await drained(ordered) == [1, 3]


async def test_a_dedupe_id_belongs_to_its_group(
    queues: Queues, ordered: Queue, clock: ManualClock
) -> None:
    ids = {await ordered.send(group, group=group, dedupe="x", delay=60) for group in "ab"}
    assert len(ids) == 2
    clock.advance(61)
    await queues.tend()
    assert sorted(await drained(ordered)) == ["a", "b"]


async def test_a_dedupe_id_sends_once_however_long_the_delays(
    queues: Queues, ordered: Queue, clock: ManualClock
) -> None:
    await ordered.send(1, group="a", dedupe="x", delay=60)
    await ordered.send(2, group="a", dedupe="x", delay=3600)
    clock.advance(7200)
    await queues.tend()
    assert await drained(ordered) == [1]


async def test_a_dedupe_id_is_forgotten_after_five_minutes(
    queues: Queues, ordered: Queue, clock: ManualClock
) -> None:
    await ordered.send(1, group="a", dedupe="x")
    clock.advance(301)
    await queues.tend()
    await ordered.send(2, group="a", dedupe="x")
    assert await drained(ordered) == [1, 2]


async def test_a_message_received_too_often_is_a_dead_letter(plain: Queue) -> None:
    sent = await plain.send("poison")
    await fail(plain, times=3)
    assert await plain.receive() == []
    [letter] = await plain.dead_letters()
    assert (letter.id, msgspec.json.decode(letter.body)) == (sent, "poison")
    assert len(await plain.dead_letters()) == 1


async def test_a_dead_letter_lets_its_group_go_on(ordered: Queue) -> None:
    await ordered.send("poison", group="a")
    await ordered.send("next", group="a")
    await fail(ordered, times=3)
    # SQS may need a receive to put the message aside, and another to give the next.
    found = await drained(ordered) or await drained(ordered)
    assert found == ["next"]


async def test_dead_letters_are_sent_again(ordered: Queue) -> None:
    await ordered.send("poison", group="a", dedupe="x")
    await fail(ordered, times=3)
    await ordered.receive()
    assert await ordered.redrive() == 1
    assert await ordered.dead_letters() == []
    [message] = await ordered.receive()
    assert (message.decode(), message.group, message.receives) == ("poison", "a", 1)


async def test_a_dead_letter_sent_again_does_not_wait_for_a_delayed_message(
    queues: Queues, ordered: Queue, clock: ManualClock
) -> None:
    await ordered.send("poison", group="a")
    await fail(ordered, times=3)
    await ordered.receive()
    await ordered.send("next week", group="a", delay=7 * 86_400)
    assert await ordered.redrive() == 1
    assert await drained(ordered) == ["poison"]
    clock.advance(7 * 86_400 + 1)
    await queues.tend()
    assert await drained(ordered) == ["next week"]


async def test_redriving_is_bounded(plain: Queue) -> None:
    for n in range(3):
        await plain.send(n)
    await fail(plain, times=3)
    await plain.receive()
    assert await plain.redrive(limit=2) == 2
    assert len(await plain.dead_letters()) == 1


async def test_depth_and_age(queues: Queues, plain: Queue, clock: ManualClock) -> None:
    empty = await plain.depth()
    assert (empty.ready, empty.delayed, empty.in_flight, empty.dead) == (0, 0, 0, 0)
    assert empty.oldest_age is None
    await plain.send("poison")
    await fail(plain, times=3)
    await plain.receive()
    await plain.send("worked on")
    clock.advance(10)
    await plain.receive()
    await plain.send("ready")
    await plain.send("soon", delay=60)
    await plain.send("next week", delay=7 * 86_400)
    depth = await plain.depth()
    assert (depth.ready, depth.delayed, depth.in_flight, depth.dead) == (1, 2, 1, 1)
    assert depth.oldest_age == pytest.approx(10, abs=1)


async def test_a_waiting_receiver_hears_of_a_message(plain: Queue) -> None:
    waiting = asyncio.create_task(plain.receive(wait=10))
    await asyncio.sleep(0.05)
    await plain.send("at last")
    [message] = await asyncio.wait_for(waiting, timeout=5)
    assert message.decode() == "at last"


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"value": "x" * 300_000}, "value"),
        ({"value": 1, "delay": -1}, "delay"),
        ({"value": 1, "delay": 1e12}, "delay"),
        ({"value": 1, "delay": float("nan")}, "delay"),
        ({"value": 1, "group": ""}, "group"),
        ({"value": 1, "group": "a b"}, "group"),
        ({"value": 1, "group": "x" * 129}, "group"),
        ({"value": 1, "dedupe": "ü"}, "dedupe"),
    ],
)
async def test_bad_messages_are_refused(
    ordered: Queue, arguments: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await ordered.send(**arguments)
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("arguments", "field"),
    [({"limit": 0}, "limit"), ({"limit": 11}, "limit"), ({"wait": 21}, "wait")],
)
async def test_bad_receives_are_refused(
    plain: Queue, arguments: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await plain.receive(**arguments)
    assert refused.value.field == field


async def test_groups_need_an_ordered_queue(plain: Queue) -> None:
    with pytest.raises(InvalidRequest, match="not ordered"):
        await plain.send(1, group="a")


async def test_an_unknown_queue_is_refused(queues: Queues) -> None:
    with pytest.raises(InvalidRequest, match="nowhere"):
        queues[QueueSpec(name="nowhere")]


class Crew:
    """Eight workers who forget what they hold now and then, before or after having done it."""

    def __init__(self, queue: Queue, chance: random.Random) -> None:
        self.queue = queue
        self.chance = chance
        self.groups = "abcdef"
        self.sent = dict.fromkeys(self.groups, 0)
        self.done: dict[str, list[int]] = {group: [] for group in self.groups}
        self.held: list[list[Message]] = [[] for _ in range(8)]

    async def step(self) -> None:
        if self.chance.random() < 0.3:
            await self.send()
        else:
            await self.work(self.chance.randrange(8))

    async def send(self) -> None:
        group = self.chance.choice(self.groups)
        await self.queue.send(self.sent[group], group=group)
        self.sent[group] += 1

    async def work(self, worker: int) -> None:
        if not self.held[worker]:
            self.held[worker] = await self.queue.receive(self.chance.randint(1, 4))
            return
        message = self.held[worker].pop()
        fate = self.chance.random()
        if fate < 0.15:
            self.held[worker] = []
            return
        self.do(message)
        if fate < 0.3:
            self.held[worker] = []
        else:
            await self.queue.ack(message)

    def do(self, message: Message) -> None:
        assert message.group is not None
        self.done[message.group].append(message.decode())

    def forget(self) -> None:
        self.held = [[] for _ in range(8)]

    async def finish(self) -> None:
        while messages := await self.queue.receive():
            for message in messages:
                self.do(message)
                await self.queue.ack(message)


async def test_order_under_eight_workers_that_crash(ordered: Queue, clock: ManualClock) -> None:
    crew = Crew(ordered, random.Random(7))
    for _ in range(250):
        await crew.step()
        if crew.chance.random() < 0.1:
            crew.forget()  # nobody works longer than the visibility
            clock.advance(31)
    crew.forget()
    for _ in range(4):
        clock.advance(31)
        await crew.finish()
    for group, done in crew.done.items():
        assert done == sorted(done), group
    await ordered.redrive()
    await crew.finish()
    for group, sent in crew.sent.items():
        assert set(crew.done[group]) == set(range(sent)), group
