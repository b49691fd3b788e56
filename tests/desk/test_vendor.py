"""A vendor that is slow, full, broken, or cuts the line: what is repeated, what waits, and what a
person has to look at."""

from __future__ import annotations

from email.utils import formatdate
from typing import TYPE_CHECKING, Any

import pytest

from tests.desk.counter import WHERE, desk_at
from waystation.desk.acting import pacing
from waystation.errors import StoreUnavailable, TryLater

if TYPE_CHECKING:
    from tests.desk.counter import Counter
    from tests.desk.richpanel_server import Vendor
    from waystation.clock import ManualClock


def troubled(counter: Counter) -> Vendor:
    assert counter.vendor is not None
    return counter.vendor


@pytest.mark.parametrize("trouble", [500, 502, 503, 504, "hang", "cut"])
async def test_what_may_be_repeated_is_repeated(local: Counter, trouble: int | str) -> None:
    vendor = troubled(local)
    vendor.troubles["assign"] = [trouble]
    vendor.troubles["tag"] = [trouble, trouble]
    await local.write("please cancel my order")
    assert vendor.tickets["c1"].assigned == ["backend"]
    assert vendor.tickets["c1"].tags == ["cancel_order"]
    assert await local.done() == [("route", "success"), ("tag", "success")]


@pytest.mark.parametrize("status", [400, 404, 409, 422, 301])
async def test_a_refusal_is_written_down_and_not_repeated(local: Counter, status: int) -> None:
    vendor = troubled(local)
    vendor.troubles["assign"] = [status]
    event_id = await local.write("please cancel my order")
    assert vendor.calls["assign"] == 1
    assert await local.done() == [
        ("route", f"failed: Richpanel answered {status}"),
        ("tag", "success"),
    ]
    assert (await local.event(event_id))["status"] == "processed"


async def test_an_outage_is_waited_out(counter: Counter) -> None:
    vendor = troubled(counter)
    vendor.always = 503
    event_id = await counter.write("please cancel my order")
    assert (await counter.event(event_id))["status"] == "processing"
    for _ in range(6):
        await counter.later(300)
    vendor.always = None
    await counter.later(300)
    assert await counter.done() == [("route", "success"), ("tag", "success")]
    assert (await counter.desk.queue.depth()).dead == 0


@pytest.mark.parametrize("header", ["120", "date"])
async def test_a_vendor_that_asks_for_a_pause_gets_it_from_everybody(
    local: Counter, header: str
) -> None:
    vendor = troubled(local)
    vendor.retry_after = formatdate(local.clock() + 120) if header == "date" else header
    vendor.troubles["assign"] = [429]
    await local.write("please cancel my order", "c1")
    await local.write("please cancel my order", "c2")
    assert vendor.calls.total() == 1
    await local.later(100)
    assert vendor.calls.total() == 1
    await local.later(400)
    assert await local.done("c1") == await local.done("c2") != []


async def test_a_pause_outlives_the_process(
    clock: ManualClock, vendor: Vendor, tmp_path: Any
) -> None:
    place = {"store": f"sqlite:///{tmp_path}/w.db", "blobs": f"file:{tmp_path}/b"}
    vendor.retry_after = "60"
    vendor.troubles["assign"] = [429]
    async with desk_at(clock, vendor, **place) as desk:
        await desk.write("please cancel my order", "c1")
    async with desk_at(clock, vendor, **place) as desk:
        await desk.write("please cancel my order", "c2")
        assert vendor.calls.total() == 1


async def test_fifty_calls_in_thirty_seconds(local: Counter) -> None:
    vendor = troubled(local)
    for n in range(40):
        await local.send_only("please cancel my order", f"c{n}")
    await local.settle()
    assert vendor.calls.total() == 50
    await local.later(31)
    assert vendor.calls.total() == 80


async def test_a_key_that_is_refused_loses_nothing(clock: ManualClock, vendor: Vendor) -> None:
    async with desk_at(clock, vendor, richpanel_api_key="wrong") as desk:
        event_id = await desk.write("please cancel my order")
        event = await desk.event(event_id)
        assert event["status"] == "processing"
        assert event["last_error"] == "Richpanel refuses our key: 401"


# A reply is said once, or a person looks.


@pytest.mark.parametrize(
    "trouble", ["done_then_cut", "done_then_hang", "done_then_500", "done_then_503"]
)
async def test_a_reply_that_was_said_is_found_and_not_said_again(
    local: Counter, trouble: str
) -> None:
    vendor = troubled(local)
    await local.automate()
    vendor.troubles["reply"] = [trouble]
    await local.write(WHERE)
    assert len(vendor.tickets["c1"].said) == 1
    assert (await local.done())[-1] == ("auto_reply", "success")


@pytest.mark.parametrize("trouble", ["cut", "hang", 500, 503])
async def test_a_reply_of_which_nobody_knows_is_left_to_a_person(
    counter: Counter, trouble: int | str
) -> None:
    vendor = troubled(counter)
    await counter.automate()
    vendor.troubles["reply"] = [trouble]
    event_id = await counter.write(WHERE)
    assert vendor.calls["reply"] == 1
    kind, result = (await counter.done())[-1]
    assert (kind, result.partition(":")[0]) == ("auto_reply", "unknown")
    assert (await counter.event(event_id))["status"] == "processed"
    parked = (await counter.hub.get("/v1/desk/unknown"))["data"]
    assert [(p["conversation_id"], p["template"]) for p in parked] == [("c1", "order_status")]
    assert (await counter.state())["last_auto_reply"] is not None


async def test_a_person_may_take_their_time(local: Counter) -> None:
    await local.automate()
    troubled(local).troubles["reply"] = ["cut"]
    await local.write(WHERE)
    parked = (await local.hub.get("/v1/desk/unknown"))["data"][0]
    local.clock.advance(31 * 86_400)  # its record is gone by now
    place = f"/v1/desk/unknown/{parked['id']}"
    assert (await local.hub.call("POST", place, {"outcome": "sent"})).status == 204


@pytest.mark.parametrize("outcome", ["sent", "not_sent"])
async def test_a_person_says_what_became_of_it(counter: Counter, outcome: str) -> None:
    await counter.automate()
    troubled(counter).troubles["reply"] = ["cut"]
    await counter.write(WHERE)
    parked = (await counter.hub.get("/v1/desk/unknown"))["data"][0]
    counter.clock.advance(1)
    place = f"/v1/desk/unknown/{parked['id']}"
    assert (await counter.hub.call("POST", place, {"outcome": outcome})).status == 204
    assert (await counter.hub.get("/v1/desk/unknown"))["data"] == []
    kind, result = (await counter.done())[-1]
    assert (kind, result.partition(":")[0]) == (
        "settled",
        "success" if outcome == "sent" else "failed",
    )
    assert (await counter.hub.call("POST", place, {"outcome": outcome})).status == 404


async def test_a_look_that_fails_is_made_again_later(local: Counter) -> None:
    vendor = troubled(local)
    await local.automate()
    vendor.troubles["reply"] = ["done_then_cut"]
    vendor.troubles["look"] = [500, 500, 500]
    await local.write(WHERE)
    assert [kind for kind, _ in await local.done()] == ["route", "tag"]
    await local.later(300)
    assert (await local.done())[-1] == ("auto_reply", "success")
    assert vendor.calls["reply"] == 1


async def test_a_reply_that_was_certainly_not_said_is_said_later(local: Counter) -> None:
    vendor = troubled(local)
    await local.automate()
    vendor.troubles["reply"] = [429] * 3
    await local.write(WHERE)
    for _ in range(3):
        await local.later(300)
    assert len(vendor.tickets["c1"].said) == 1
    assert (await local.done())[-1] == ("auto_reply", "success")


async def test_a_vendor_that_is_not_there_is_waited_for(clock: ManualClock, vendor: Vendor) -> None:
    """Nothing was sent: that is certain, even of a reply."""
    async with desk_at(clock, vendor, richpanel_url="http://127.0.0.1:9/v1") as desk:
        await desk.automate()
        event_id = await desk.write(WHERE)
        assert (await desk.event(event_id))["status"] == "processing"
        assert (await desk.hub.get("/v1/desk/unknown"))["data"] == []


async def test_odd_ids_reach_the_vendor_as_they_are(local: Counter) -> None:
    await local.write("please cancel my order", "<a/b?c@mail.example>")
    assert set(troubled(local).tickets) == {"<a/b?c@mail.example>"}


async def test_an_older_reply_with_the_same_words_is_not_this_one(local: Counter) -> None:
    vendor = troubled(local)
    await local.automate()
    await local.write(WHERE)
    local.clock.advance(700)
    vendor.troubles["reply"] = ["cut"]
    await local.write(WHERE)
    assert (await local.done())[-1][1].startswith("unknown")


async def test_a_longer_pause_is_not_shortened(local: Counter) -> None:
    pace = troubled_pace(local)
    await pace.cool_down(3_000, "first")
    await pace.cool_down(30, "second")
    with pytest.raises(TryLater) as later:
        await pace.turn()
    assert later.value.retry_after == 3_000


def troubled_pace(counter: Counter) -> Any:
    assert counter.desk.vendor is not None
    return counter.desk.vendor._pace


async def test_a_turn_is_waited_for(local: Counter, monkeypatch: pytest.MonkeyPatch) -> None:
    """A burst takes its time: it costs no tries, and nothing becomes a dead letter."""
    monkeypatch.setattr(pacing, "LONGEST_TURN", 60.0)
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        local.clock.advance(seconds)

    pace = pacing.Pace(local.hub.runtime.store, "other", sleep=sleep)
    for _ in range(120):
        await pace.turn()
    assert 60 <= sum(slept) < 75


async def test_an_absurd_pause_holds_nobody_up_for_longer_than_an_hour(local: Counter) -> None:
    vendor = troubled(local)
    vendor.retry_after = "999999999"
    vendor.troubles["assign"] = [503]
    await local.write("please cancel my order")
    vendor.retry_after = None
    await local.later(3_700)
    assert await local.done() == [("route", "success"), ("tag", "success")]


async def test_a_hiccup_before_a_reply_is_begun_leaves_no_doubt(
    local: Counter, monkeypatch: pytest.MonkeyPatch
) -> None:
    await local.automate()
    vendor: Any = local.desk.vendor

    async def failing() -> None:
        raise StoreUnavailable("gone")

    with monkeypatch.context() as patch:
        patch.setattr(vendor, "turn", failing)
        await local.write(WHERE)
    await local.later(300)
    assert (await local.done())[-1] == ("auto_reply", "success")


@pytest.mark.parametrize("comment", ["<style>" * 60_000, "\u0f73" * 40_000, "&#" + "9" * 5_000])
async def test_hostile_comments_of_a_ticket_hold_nobody_up(local: Counter, comment: str) -> None:
    vendor = troubled(local)
    await local.automate()
    vendor.troubles["reply"] = ["done_then_cut"]
    vendor.tickets["c1"].said.append(comment)
    vendor.tickets["c1"].said_at.append(local.clock())
    await local.write(WHERE)
    assert (await local.done())[-1] == ("auto_reply", "success")
