"""The question for the order's number, and what becomes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.desk.counter import desk_at
from waystation.desk.deciding.orders import order_number
from waystation.desk.tables import ConversationState

if TYPE_CHECKING:
    from tests.desk.counter import Counter
    from waystation.clock import ManualClock

WHERE_IS_IT = "Where is my order?"


def said(counter: Counter) -> list[str]:
    assert counter.vendor is not None
    return counter.vendor.tickets["c1"].said


async def flow(counter: Counter) -> tuple[str, int] | None:
    found = (await counter.state())["pending_flow"]
    return None if found is None else (found["type"], found["attempts"])


async def endings(counter: Counter) -> list[str]:
    return [e["payload"]["ended"] for e in await counter.audit() if e["action_type"] == "flow"]


async def test_a_question_and_its_answer(counter: Counter) -> None:
    await counter.automate()
    await counter.write(WHERE_IS_IT)
    assert "we need its number" in said(counter)[0]
    assert await flow(counter) == ("need_order_number", 1)
    counter.clock.advance(700)
    await counter.write("it's 778812")
    assert "on its way" in said(counter)[1]
    assert await flow(counter) is None
    assert await endings(counter) == ["done"]


async def test_only_a_hash_and_four_digits_of_the_number_are_kept(local: Counter) -> None:
    await local.automate()
    await local.write("Where is my order #778812?")
    assert (await local.state())["order_last4"] == "8812"
    row = await local.hub.runtime.store.get(ConversationState.key("c1"))
    assert row is not None
    assert "778812" not in repr(row)


async def test_who_answers_at_once_need_not_wait(local: Counter) -> None:
    """The ten minutes between two replies do not count for the answer to our own question."""
    await local.automate()
    await local.write(WHERE_IS_IT)
    local.clock.advance(60)
    await local.write("it's 778812")
    assert len(said(local)) == 2


async def test_an_answer_that_may_not_be_acted_on_yet_is_still_waited_for(local: Counter) -> None:
    await local.automate()
    await local.write(WHERE_IS_IT)
    await local.set(templates={"order_status": False})
    await local.write("it's 778812")
    assert await flow(local) == ("need_order_number", 1)


async def test_two_questions_are_enough(local: Counter) -> None:
    await local.automate()
    for text in (WHERE_IS_IT, "hm", "I have no idea", WHERE_IS_IT):
        await local.write(text)
        local.clock.advance(700)
    assert len(said(local)) == 2
    assert await flow(local) is None
    assert await endings(local) == ["cancelled: a person has to look"]


async def test_the_desk_waits_for_a_week(local: Counter) -> None:
    await local.automate()
    await local.write(WHERE_IS_IT)
    local.clock.advance(7 * 86_400)
    await local.write("778812")
    assert len(said(local)) == 1
    assert await endings(local) == ["expired"]


async def test_it_still_waits_just_before_that(local: Counter) -> None:
    await local.automate()
    await local.write(WHERE_IS_IT)
    local.clock.advance(7 * 86_400 - 1)
    await local.write("778812")
    assert len(said(local)) == 2


async def test_an_agent_or_the_end_of_the_ticket_cancels_it(local: Counter) -> None:
    await local.automate()
    await local.write(WHERE_IS_IT)
    await local.write("Let me see", author={"type": "agent"})
    assert await flow(local) is None
    assert await endings(local) == ["cancelled: an agent has answered"]


async def test_closing_the_ticket_cancels_it(local: Counter) -> None:
    await local.automate()
    await local.write(WHERE_IS_IT)
    await local.write("", event_type="ticket_updated", status="closed")
    assert await flow(local) is None
    assert await endings(local) == ["cancelled: closed"]


async def test_an_escalation_cancels_it(local: Counter) -> None:
    await local.automate()
    await local.write(WHERE_IS_IT)
    local.clock.advance(700)
    await local.write("My lawyer says it is order 778812")
    assert len(said(local)) == 1
    assert await flow(local) is None


async def test_an_order_that_is_not_found_goes_to_a_person(local: Counter) -> None:
    await local.automate()
    await local.write("Where is my order #9000001?")
    assert said(local) == []
    assert (await local.audit())[0]["payload"]["no_reply"] == "the order could not be looked up"


async def test_without_a_lookup_nothing_is_asked(clock: ManualClock) -> None:
    async with desk_at(clock, desk_orders=None) as desk:
        await desk.automate()
        await desk.write(WHERE_IS_IT)
        assert (await desk.audit())[0]["payload"]["no_reply"] == "orders cannot be looked up"


async def test_a_question_that_could_not_be_sent_is_not_waited_for(local: Counter) -> None:
    await local.automate()
    assert local.vendor is not None
    local.vendor.troubles["reply"] = [422]
    await local.write(WHERE_IS_IT)
    assert await flow(local) is None
    assert (await local.state())["last_auto_reply"] is None
    await local.write(WHERE_IS_IT)  # and it does not count towards the limit
    assert len(said(local)) == 1


@pytest.mark.parametrize(
    ("text", "asked", "number"),
    [
        ("my order #12345 please", False, "12345"),
        ("order number is ab-7788", False, "AB-7788"),
        ("#1234567890", False, "1234567890"),
        ("order 2 shirts", False, None),
        ("This is not what I ordered", False, None),
        ("12345", False, None),
        ("12345", True, "12345"),
        ("it is SO-10042, thanks", True, "SO-10042"),
        ("I ordered in 2026", True, None),
        ("it cost $1200", True, None),
        ("on 12/03/2026", True, None),
    ],
)
def test_order_numbers_are_found(text: str, asked: bool, number: str | None) -> None:
    assert order_number(text, asked=asked) == number
