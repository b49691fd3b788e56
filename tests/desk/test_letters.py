"""Events that were tried too often: shown, and sent again at a chosen rate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.desk.counter import desk_at, payload

if TYPE_CHECKING:
    from tests.desk.counter import Counter
    from tests.desk.richpanel_server import Vendor
    from waystation.clock import ManualClock

CANCEL = "please cancel my order"
PLACE = "/v1/desk/dead-letters"


async def bury(counter: Counter, count: int) -> None:
    """Dead letters: events that came while the vendor was away for too long."""
    assert counter.vendor is not None
    counter.vendor.always = 500
    for n in range(count):
        await counter.send(payload(CANCEL, f"c{n}"))
    for _ in range(25):
        await counter.later(310)
    counter.vendor.always = None
    assert (await counter.desk.queue.depth()).dead == count


async def redrive(counter: Counter, **given: Any) -> Any:
    answer = await counter.hub.call("POST", f"{PLACE}/redrive", given)
    assert answer.status == 202, answer
    return answer.json


async def progress(counter: Counter) -> tuple[str, int, int]:
    found = await counter.hub.get(f"{PLACE}/redrive")
    return found["status"], found["sent"], found["total"]


async def test_dead_letters_say_what_they_are_and_why(counter: Counter) -> None:
    await bury(counter, 1)
    [letter] = (await counter.hub.get(PLACE))["data"]
    assert letter["event_id"].startswith("evt:rp:c0:")
    assert (letter["conversation_id"], letter["event_type"]) == ("c0", "message_created")
    assert letter["last_error"] == "Richpanel does not answer as it should"
    assert letter["receives"] >= 20
    assert letter["failures"] >= 20
    assert letter["characters"] == len(CANCEL)


async def test_one_dead_letter_is_looked_at(local: Counter) -> None:
    await bury(local, 1)
    [letter] = (await local.hub.get(PLACE))["data"]
    assert await local.hub.get(f"{PLACE}/{letter['id']}") == letter
    assert (await local.hub.call("GET", f"{PLACE}/nope")).status == 404


async def test_they_are_sent_again_at_a_chosen_rate(local: Counter) -> None:
    await bury(local, 5)
    begun = await redrive(local, per_minute=60)
    assert (begun["status"], begun["sent"], begun["total"]) == ("running", 0, 5)
    counts = []
    for _ in range(5):
        await local.desk.letters.tick()
        counts.append((await progress(local))[1])
        local.clock.advance(1)
    assert counts == [1, 2, 3, 4, 5]
    assert await progress(local) == ("done", 5, 5)
    await local.later(600)
    for n in range(5):
        assert await local.done(f"c{n}") == [("route", "success"), ("tag", "success")]


async def test_a_redrive_on_each_engine(counter: Counter) -> None:
    await bury(counter, 1)
    await redrive(counter)
    await counter.desk.letters.tick()
    assert await progress(counter) == ("done", 1, 1)
    await counter.later(600)
    assert await counter.done("c0") == [("route", "success"), ("tag", "success")]


async def test_no_more_than_were_asked_for(local: Counter) -> None:
    await bury(local, 3)
    await redrive(local, per_minute=6_000, most=2)
    for _ in range(5):
        local.clock.advance(1)
        await local.desk.letters.tick()
    assert await progress(local) == ("done", 2, 2)
    assert (await local.desk.queue.depth()).dead == 1


async def test_one_redrive_at_a_time(local: Counter) -> None:
    await bury(local, 2)
    await redrive(local, per_minute=1)
    answer = await local.hub.call("POST", f"{PLACE}/redrive", {})
    assert answer.status == 409


async def test_without_dead_letters_it_is_done_at_once(local: Counter) -> None:
    assert (await redrive(local))["status"] == "done"


async def test_there_is_no_progress_before_the_first(local: Counter) -> None:
    assert (await local.hub.call("GET", f"{PLACE}/redrive")).status == 404


@pytest.mark.parametrize("given", [{"per_minute": 0}, {"most": 0}, {"per_minute": "fast"}])
async def test_a_rate_makes_sense_or_is_refused(local: Counter, given: Any) -> None:
    answer = await local.hub.call("POST", f"{PLACE}/redrive", given)
    assert (answer.status, answer.fields) == (400, list(given))


async def test_several_processes_send_each_letter_once(
    clock: ManualClock, vendor: Vendor, tmp_path: Any
) -> None:
    place = {"store": f"sqlite:///{tmp_path}/w.db", "blobs": f"file:{tmp_path}/b"}
    async with desk_at(clock, vendor, **place) as one, desk_at(clock, vendor, **place) as two:
        await bury(one, 4)
        await redrive(one, per_minute=60)
        for _ in range(6):
            await one.desk.letters.tick()
            await two.desk.letters.tick()
            clock.advance(1)
        assert await progress(one) == ("done", 4, 4)


async def test_a_poisoned_conversation_holds_up_no_other(local: Counter) -> None:
    real = local.desk.judge.rules.decide

    def poisoned(message: Any) -> Any:
        if "poison" in message.text:
            raise RuntimeError("no")
        return real(message)

    local.desk.judge.rules.decide = poisoned  # type: ignore[method-assign]
    await local.send_only("poison", "bad")
    await local.send_only(CANCEL, "good")
    await local.settle()
    assert await local.done("good") == [("route", "success"), ("tag", "success")]
    assert await local.done("bad") == []


async def test_an_event_that_is_dead_gets_another_chance_when_it_is_sent_again(
    local: Counter,
) -> None:
    assert local.vendor is not None
    local.vendor.always = 500
    given = payload(CANCEL, "c1")
    await local.send(given)
    for _ in range(25):
        await local.later(310)
    local.vendor.always = None
    assert (await local.send(given)).json["status"] == "queued"
    await local.settle()
    assert await local.done("c1") == [("route", "success"), ("tag", "success")]


async def test_a_redrive_that_was_cut_short_does_not_bar_the_next(local: Counter) -> None:
    from waystation.errors import QueueUnavailable

    await bury(local, 1)
    await redrive(local)
    real, queue = local.desk.queue.redrive, local.desk.queue

    async def failing(limit: int = 0) -> int:
        raise QueueUnavailable("gone")

    queue.redrive = failing  # type: ignore[method-assign]
    with pytest.raises(QueueUnavailable):
        await local.desk.letters.tick()
    queue.redrive = real  # type: ignore[method-assign]
    local.clock.advance(1)
    await local.desk.letters.tick()
    assert await progress(local) == ("done", 1, 1)
    assert (await local.desk.queue.depth()).dead == 0


async def test_a_redrive_whose_process_died_ends(local: Counter) -> None:
    await bury(local, 1)
    await redrive(local)

    async def dying(limit: int = 0) -> int:
        raise SystemExit

    local.desk.letters._queue, queue = type("Q", (), {"redrive": staticmethod(dying)})(), None
    with pytest.raises(SystemExit):
        await local.desk.letters.tick()
    local.desk.letters._queue = queue or local.desk.queue
    local.clock.advance(61)
    await local.desk.letters.tick()
    assert (await progress(local))[0] == "done"
    assert (await redrive(local))["status"] == "running"
