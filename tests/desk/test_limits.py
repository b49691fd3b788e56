"""When the desk keeps quiet: switches, throttles, agents, closed tickets, allow-lists."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.desk.counter import WHERE, desk_at
from waystation.desk.switches import SwitchState
from waystation.desk.tables import Switches, desk
from waystation.store import Item

if TYPE_CHECKING:
    from tests.desk.counter import Counter
    from tests.desk.richpanel_server import Vendor
    from waystation.clock import ManualClock


def replies(counter: Counter, conversation: str = "c1") -> int:
    assert counter.vendor is not None
    return len(counter.vendor.tickets[conversation].said)


async def why_not(counter: Counter) -> str | None:
    routed = [e for e in await counter.audit() if e["action_type"] in ("route", "escalate")]
    found: str | None = routed[-1]["payload"].get("no_reply")
    return found


async def test_one_reply_in_ten_minutes(counter: Counter) -> None:
    await counter.automate()
    await counter.write(WHERE)
    counter.clock.advance(599)
    await counter.write(WHERE)
    assert replies(counter) == 1
    assert await why_not(counter) == "there was a reply less than 10 minutes ago"
    counter.clock.advance(2)
    await counter.write(WHERE)
    assert replies(counter) == 2


async def test_three_replies_in_a_day(local: Counter) -> None:
    await local.automate()
    for _ in range(5):
        await local.write(WHERE)
        local.clock.advance(3_600)
    assert replies(local) == 3
    assert await why_not(local) == "there were 3 replies within a day"
    local.clock.advance(86_400)
    await local.write(WHERE)
    assert replies(local) == 4


async def test_conversations_have_limits_of_their_own(local: Counter) -> None:
    await local.automate()
    await local.write(WHERE, "c1")
    await local.write(WHERE, "c2")
    assert (replies(local, "c1"), replies(local, "c2")) == (1, 1)


async def test_an_agent_has_the_conversation_to_themselves(local: Counter) -> None:
    await local.automate()
    await local.write("I am looking into it", author={"type": "agent"})
    await local.write(WHERE)
    assert replies(local) == 0
    assert await why_not(local) == "an agent has answered"


async def test_our_own_reply_is_not_an_agents(local: Counter) -> None:
    await local.automate()
    await local.write(WHERE)
    assert local.vendor is not None
    own = local.vendor.tickets["c1"].said[0]
    await local.write(f"<p>{own}</p>", author={"type": "operator"})
    assert (await local.state())["agent_replied_at"] is None
    local.clock.advance(601)
    await local.write(WHERE)
    assert replies(local) == 2


async def test_closed_tickets_get_no_reply_until_they_are_opened_again(local: Counter) -> None:
    await local.automate()
    await local.write("", event_type="ticket_closed", status="closed")
    await local.write(WHERE)
    assert (replies(local), await why_not(local)) == (0, "it is closed")
    await local.write(WHERE, status="open")
    assert replies(local) == 1


async def test_attachments_alone_get_no_reply(local: Counter) -> None:
    await local.automate()
    await local.write("", attachments=[{"name": "photo.jpg"}])
    assert replies(local) == 0
    assert (await local.audit())[-1]["payload"]["no_reply"] == "there is no text, only attachments"


@pytest.mark.parametrize(
    ("switches", "reason"),
    [
        ({"safe_mode": True}, "safe mode is on"),
        ({"automation_enabled": False}, "automation is off"),
        ({"channels": ["livechat"]}, "the channel email is switched off"),
        ({"templates": {"order_status": False}}, "the template order_status is switched off"),
    ],
)
async def test_each_switch_keeps_the_desk_quiet(
    local: Counter, switches: dict[str, Any], reason: str
) -> None:
    await local.automate()
    await local.set(**switches)
    await local.write(WHERE)
    assert (replies(local), await why_not(local)) == (0, reason)


async def test_switches_stay_until_they_are_set_again(counter: Counter) -> None:
    await counter.set(safe_mode=False, automation_enabled=True, channels=["email"])
    shown = await counter.set(templates={"order_status": True})
    assert (shown["safe_mode"], shown["automation_enabled"], shown["channels"]) == (
        False,
        True,
        ["email"],
    )
    assert (await counter.set(channels=None))["channels"] is None


async def test_every_change_of_a_switch_is_written_down(counter: Counter) -> None:
    await counter.automate()
    counter.clock.advance(1)
    await counter.set(safe_mode=True)
    me = (await counter.hub.get("/v1/me"))["id"]
    page = await counter.hub.get("/v1/desk/switches/changes?limit=1")
    first = page["data"][0]
    assert (first["by"], first["before"]["safe_mode"], first["after"]["safe_mode"]) == (
        me,
        False,
        True,
    )
    rest = await counter.hub.get(f"/v1/desk/switches/changes?cursor={page['cursor']}")
    assert [each["after"]["safe_mode"] for each in rest["data"]] == [False]


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"channels": ["fax"]}, "channels"),
        ({"templates": {"nope": True}}, "templates"),
        ({"source_id": "src_nobodys"}, "source_id"),
        ({"safe_mode": "yes"}, "safe_mode"),
        ({"safemode": True}, "safemode"),
    ],
)
async def test_a_wrong_switch_is_refused(local: Counter, given: Any, field: str) -> None:
    answer = await local.hub.call("PUT", "/v1/desk/switches", given)
    assert (answer.status, answer.fields) == (400, [field])


class Odd(Item, table=desk, pk="SWITCHES", sk="NOW", kw_only=True):
    """Switches as no version of the desk writes them."""

    safe_mode: str
    automation_enabled: bool


async def test_switches_that_cannot_be_read_are_on_their_safe_side(local: Counter) -> None:
    await local.automate()
    await local.hub.runtime.store.put(Odd(safe_mode="off", automation_enabled=True))
    local.clock.advance(1)
    assert await local.desk.switches.current() == SwitchState()
    assert SwitchState().safe_mode is True
    assert SwitchState().automation_enabled is False


async def test_switches_that_cannot_be_read_can_be_set_anew(local: Counter) -> None:
    await local.hub.runtime.store.put(Odd(safe_mode="off", automation_enabled=True))
    assert (await local.hub.get("/v1/desk/switches"))["safe_mode"] is True
    assert (await local.set(automation_enabled=True))["automation_enabled"] is True


async def test_one_template_is_switched_without_the_others(local: Counter) -> None:
    await local.set(templates={"order_status": False})
    shown = await local.set(templates={"need_order_number": False})
    assert shown["templates"] == {"order_status": False, "need_order_number": False}


async def test_a_message_that_is_cut_short_gets_no_reply(local: Counter) -> None:
    """Something that matters may be said at its end."""
    await local.automate()
    await local.write(WHERE + " please" * 1_500 + " or my lawyer will write")
    assert (replies(local), await why_not(local)) == (0, "it is too long to be read whole")


async def test_what_is_said_late_in_a_message_counts(local: Counter) -> None:
    await local.automate()
    await local.write(WHERE + " please" * 1_000 + " or my lawyer will write")
    assert (await local.state())["risk_flags"] == ["legal_threat"]


async def test_switches_that_nobody_has_set_are_on_their_safe_side(local: Counter) -> None:
    await local.automate()
    await local.hub.runtime.store.delete(Switches.key())
    local.clock.advance(1)
    assert await local.desk.switches.current() == SwitchState()


async def test_without_the_store_switches_hold_for_half_a_minute(
    local: Counter, monkeypatch: pytest.MonkeyPatch
) -> None:
    from waystation.errors import StoreUnavailable

    await local.automate()
    board = local.desk.switches

    async def failing(*_: Any, **__: Any) -> None:
        raise StoreUnavailable("gone")

    monkeypatch.setattr(local.hub.runtime.store, "get", failing)
    local.clock.advance(29)
    assert (await board.current()).safe_mode is False
    local.clock.advance(2)
    assert (await board.current()).safe_mode is True


async def test_others_heed_a_switch_within_seconds(clock: ManualClock, tmp_path: Any) -> None:
    place = {"store": f"sqlite:///{tmp_path}/w.db", "blobs": f"file:{tmp_path}/b"}
    async with desk_at(clock, **place) as one, desk_at(clock, **place) as two:
        await one.automate()
        assert (await two.desk.switches.current()).automation_enabled is True


async def test_only_listed_recipients_are_acted_on(clock: ManualClock, vendor: Vendor) -> None:
    async with desk_at(clock, vendor, desk_recipients=["Tester@example.com"]) as desk:
        await desk.automate()
        await desk.write(WHERE, "c1", customer={"email": "somebody@example.org"})
        await desk.write(WHERE, "c2", customer={"email": "tester@EXAMPLE.com"})
        await desk.write(WHERE, "c3")
        assert {result for _, result in await desk.done("c1")} == {"dry_run"}
        assert {result for _, result in await desk.done("c2")} == {"success"}
        assert {result for _, result in await desk.done("c3")} == {"dry_run"}
        assert set(vendor.tickets) == {"c2"}
