"""One message's way: taken in, decided, acted on, written down."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.desk.counter import WHERE, payload

if TYPE_CHECKING:
    from tests.desk.counter import Counter


async def test_a_message_is_routed_tagged_and_answered(counter: Counter) -> None:
    await counter.automate()
    event_id = await counter.write(WHERE)
    assert counter.vendor is not None
    ticket = counter.vendor.tickets["c1"]
    assert (ticket.assigned, ticket.tags) == (["email"], ["order_status"])
    assert len(ticket.said) == 1
    assert "Your order is on its way." in ticket.said[0]
    assert await counter.done() == [
        ("route", "success"),
        ("tag", "success"),
        ("auto_reply", "success"),
    ]
    event = await counter.event(event_id)
    assert (event["status"], event["mode"]) == ("processed", "automation_candidate")
    state = await counter.state()
    assert (state["last_intent"], state["last_routed_team"]) == ("order_status", "email")
    assert state["last_auto_reply"]["type"] == "order_status"


async def test_without_switches_it_only_routes(counter: Counter) -> None:
    event_id = await counter.write(WHERE)
    assert await counter.done() == [("route", "success"), ("tag", "success")]
    event = await counter.event(event_id)
    assert (event["mode"], event["safe_mode"], event["automation_enabled"]) == (
        "route_only",
        True,
        False,
    )
    assert (await counter.audit())[0]["payload"]["no_reply"] == "safe mode is on"


async def test_a_dry_run_records_what_would_have_happened(dry: Counter) -> None:
    await dry.automate()
    await dry.write(WHERE)
    assert await dry.done() == [("route", "dry_run"), ("tag", "dry_run"), ("auto_reply", "dry_run")]


async def test_the_same_message_again_is_a_duplicate(counter: Counter) -> None:
    given = payload(WHERE)
    first = await counter.send(given)
    again = await counter.send(given)
    await counter.settle()
    counter.clock.advance(86_400)
    a_day_later = await counter.send(given)
    assert [a.json["status"] for a in (first, again, a_day_later)] == [
        "queued",
        "duplicate",
        "duplicate",
    ]
    assert len({a.json["event_id"] for a in (first, again, a_day_later)}) == 1
    await counter.settle()
    assert len(await counter.done()) == 2


async def test_a_message_that_comes_twice_through_the_queue_is_handled_once(
    counter: Counter,
) -> None:
    given = payload(WHERE)
    await counter.send(given)
    counter.clock.advance(301)  # neither we nor the queue remember having queued it
    await counter.send(given)
    await counter.settle()
    assert len(await counter.done()) == 2


async def test_without_a_message_id_text_and_minute_identify_a_message(local: Counter) -> None:
    first = await local.send(payload("Any news?", message_id=None))
    other_spaces = await local.send(payload(" any  NEWS? ", message_id=None))
    next_minute = await local.send(
        payload("Any news?", message_id=None, created_at="2026-11-18T12:01:00Z")
    )
    assert first.json["event_id"] == other_spaces.json["event_id"] != next_minute.json["event_id"]


async def test_keys_are_those_of_the_document(local: Counter) -> None:
    await local.automate()
    event_id = await local.write(WHERE, "c1", message_id="m77")
    assert event_id == "evt:rp:c1:m77"
    assert [each["idempotency_key"] for each in await local.audit()] == [
        "act:rp_assign:c1:email:m77",
        "act:rp_tag:c1:order_status:m77",
        "act:rp_reply:c1:m77",
    ]
    for each in await local.audit():
        record = await local.event(each["idempotency_key"])
        assert (record["status"], record["conversation_id"]) == ("processed", "c1")


ESCALATIONS = [
    ("I will dispute this charge with my bank. Where is my order #12345?", "chargebacks"),
    ("My lawyer will contact you. Where is my order #12345?", "leadership"),
    ("Where is my order #12345? My card was stolen, I did not place this order", "leadership"),
]


@pytest.mark.parametrize(("text", "team"), ESCALATIONS)
async def test_escalations_are_never_answered_by_a_machine(
    local: Counter, text: str, team: str
) -> None:
    await local.automate()
    await local.write(text)
    assert [kind for kind, _ in await local.done()] == ["escalate", "tag"]
    assert (await local.state())["last_routed_team"] == team
    await local.write(WHERE)  # nor is anything after it
    assert "auto_reply" not in {kind for kind, _ in await local.done()}


async def test_what_is_nearly_certain_goes_to_the_default_team_marked_so(local: Counter) -> None:
    await local.write("It is about my order")
    audit = await local.audit()
    assert [each["payload"].get("team") or each["payload"]["tag"] for each in audit] == [
        "email",
        "uncertain",
        "order_status",
    ]


async def test_what_nobody_understands_is_left_to_people(local: Counter) -> None:
    await local.write("Lorem ipsum dolor sit amet")
    assert [(e["action_type"], e["payload"]["tag"]) for e in await local.audit()] == [
        ("tag", "manual-triage")
    ]
    assert local.vendor is not None
    assert local.vendor.tickets["c1"].assigned == []


async def test_some_channels_have_a_team_of_their_own(local: Counter) -> None:
    await local.write("Lorem ipsum dolor sit amet", channel=None, via={"channel": "TikTok Shop"})
    state = await local.state()
    assert (state["channel"], state["last_routed_team"]) == ("tiktok", "tiktok")


async def test_what_a_message_says_is_found_wherever_the_vendor_puts_it(local: Counter) -> None:
    """A test of shapes: the conversation, the message and its text by other names."""
    shapes: list[dict[str, Any]] = [
        {"ticket_id": 1, "message": "please cancel my order"},
        {"ticket": {"id": "2"}, "message": {"id": "x", "text": "please cancel my order"}},
        {"conversation": {"id": "3"}, "comment": {"body": "<p>please cancel<br>my order</p>"}},
        {"conversation_id": "4", "subject": "Please cancel my order"},
        {
            "conversation_id": "5",
            "messages": [
                {"author": {"type": "customer"}, "body": "hi", "created_at": "2026-01-01"},
                {
                    "author": {"type": "customer"},
                    "body": "please cancel my order",
                    "created_at": "2026-01-02",
                },
                {"author": {"type": "agent"}, "body": "hello", "created_at": "2026-01-03"},
            ],
        },
        {
            "conversation_id": "6",
            "text": "please cancel my order\nOn Monday Ann wrote:\n> refund",
        },
    ]
    for n, shape in enumerate(shapes, 1):
        answer = await local.send({"type": "ticket_updated", **shape})
        assert answer.status == 200, answer
        await local.settle()
        assert (await local.state(str(n)))["last_intent"] == "cancel_order", shape


async def test_a_change_of_the_ticket_is_not_a_new_message(local: Counter) -> None:
    """What we do to a ticket makes the vendor tell us of it, with all that was said before."""
    await local.automate()
    await local.write(WHERE, created_at="2026-11-18T12:00:00Z")
    for n, kind in enumerate(("ticket_updated", "ticket_assigned", "ticket_tagged") * 3):
        local.clock.advance(700)
        await local.write(WHERE, event_type=kind, message_id=None, event_id=f"e{n}")
    assert len(await local.done()) == 3


async def test_a_ticket_is_closed_by_an_event_that_repeats_its_message(local: Counter) -> None:
    await local.write(WHERE, message_id="m1")
    await local.write(WHERE, message_id="m1", event_type="ticket_closed", status="closed")
    assert (await local.state())["closed"] is True
    assert len(await local.done()) == 2


async def test_a_ticket_is_closed_opened_and_closed_again(local: Counter) -> None:
    for status in ("closed", "open", "closed"):
        kind = "ticket_updated"
        await local.write("hello", message_id=None, event_type=kind, subject="x", status=status)
        local.clock.advance(60)
    assert (await local.state())["closed"] is True


@pytest.mark.parametrize(
    "status",
    [
        {"status": "completed"},
        {"ticket": {"status": {"name": "Closed"}}},
        {"ticket": {"closed": True}},
    ],
)
async def test_closed_has_many_names(local: Counter, status: dict[str, Any]) -> None:
    await local.write("hello", **status)
    assert (await local.state())["closed"] is True


async def test_an_agent_may_be_said_to_be_one_in_words(local: Counter) -> None:
    await local.automate()
    await local.write(WHERE, is_operator="true")
    assert await local.done() == []


async def test_a_change_of_the_ticket_gets_no_reply(local: Counter) -> None:
    await local.automate()
    await local.write(WHERE, event_type="ticket_tagged")
    assert [kind for kind, _ in await local.done()] == ["route", "tag"]
