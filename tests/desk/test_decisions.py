"""Rules, deciders of one's own, and how their worth is measured."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web

from tests.desk.counter import WHERE, desk_at
from tests.support.endpoint import served
from waystation.desk import Decision, Labelled, Message, evaluate, load_rules
from waystation.desk.deciding.evaluation import read_labelled
from waystation.desk.deciding.phrases import Phrases
from waystation.desk.deciding.rules import DEFAULT
from waystation.errors import InvalidInput, SettingsError

if TYPE_CHECKING:
    from tests.desk.counter import Counter
    from tests.desk.richpanel_server import Vendor
    from waystation.clock import ManualClock

DATA = Path(__file__).parent / "data"
RULES = load_rules()
ESCALATIONS = {"chargeback", "legal_threat", "harassment", "fraud"}


def decided(text: str, **more: Any) -> Decision:
    return RULES.decide(Message(text=text, **more))


@pytest.mark.parametrize(
    ("phrase", "text", "found"),
    [
        ("late", "my chocolate", False),
        ("late", "it is LATE!", True),
        ("charge", "a charger", False),
        ("refund*", "two refunds", True),
        ("refund*", "a prefund", False),
        ("cancel/stop my order", "please stop my order", True),
        ("cancel my order", "cancel this my order", False),
        ("cancel ... order", "cancel this very last big order", True),
        ("cancel ... order", "cancel one two three four five order", False),
        ("don't ship", "Please DON\u2019T ship it", True),
        ("don't ship", "dont ship", True),
        ("café", "at the CAFE", True),
        ("a b", "a, b", True),
        ("a ... b ... c", "a x b x x b c", True),
    ],
)
def test_phrases_are_whole_words(phrase: str, text: str, found: bool) -> None:
    assert bool(Phrases([phrase]).found(text)) is found


@pytest.mark.parametrize(
    ("text", "intent", "team"),
    [
        ("I want a chargeback and a refund", "chargeback", "chargebacks"),
        ("cancel my order and refund me", "cancel_order", "backend"),
        ("it never arrived, I want a refund", "not_received", "returns"),
        ("I want a refund, where is my order", "refund", "returns"),
        ("where is my order? I cannot log in", "order_status", "email"),
        ("I cannot log in. Do you sell shoes?", "technical", "technical"),
        ("Do you sell shoes?", "sales", "sales"),
    ],
)
def test_levels_go_before_certainty(text: str, intent: str, team: str) -> None:
    decision = decided(text)
    assert (decision.intent, decision.team) == (intent, team)


def test_a_decision_says_why() -> None:
    decision = decided("please cancel my order")
    assert "cancel_order: the words “please cancel”" in decision.reasons


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (('default_team = "email"', 'default_team = "nobody"'), "default_team: 'nobody'"),
        (('level = "sales"', 'level = "top"'), "intents.sales.level: 'top' is not one of"),
        (('"wholesale"', '"..."'), "intents.sales: '...'"),
        (("{status}", "{password}"), "templates.order_status: there is no {password}"),
        (("route_at = 0.60", "route_at = 0.40"), "uncertain_at"),
        (('name = "sales"', 'name = "refund"'), "two are called refund"),
        (("route_at = 0.60", "routeat = 0.60"), "routeat"),
        (('phone = "phone"', 'fax = "phone"'), "channels: 'fax'"),
    ],
)
def test_wrong_rules_are_refused_by_name(
    tmp_path: Path, change: tuple[str, str], complaint: str
) -> None:
    text = DEFAULT.read_text()
    assert change[0] in text
    file = tmp_path / "rules.toml"
    file.write_text(text.replace(*change))
    with pytest.raises(SettingsError, match=complaint.replace("...", ".*").replace("{", r"\{")):
        load_rules(file)


async def test_rules_of_ones_own(clock: ManualClock, tmp_path: Path) -> None:
    file = tmp_path / "rules.toml"
    extra = '\n[[intents]]\nname = "pets"\nlevel = "sales"\nteam = "sales"\nstrong = ["hamster*"]\n'
    file.write_text(DEFAULT.read_text() + extra)
    async with desk_at(clock, desk_rules=str(file)) as counter:
        await counter.write("two hamsters, please")
        assert (await counter.state())["last_intent"] == "pets"


# A decider of one's own


async def sure(message: Message) -> Decision:
    return Decision(intent="vip", team="leadership", confidence=0.99, tags=["gold"])


async def broken(message: Message) -> Decision:
    raise RuntimeError("no")


async def hanging(message: Message) -> Decision:
    await asyncio.sleep(3_600)
    raise AssertionError


async def cancelled(message: Message) -> Decision:
    raise asyncio.CancelledError


async def odd_team(message: Message) -> Decision:
    return Decision(intent="vip", team="nobody", confidence=0.9)


async def odd_confidence(message: Message) -> Decision:
    return Decision(intent="vip", confidence=9.0)


async def odd_kind(message: Message) -> Any:
    return {"intent": "vip"}


async def eager(message: Message) -> Decision:
    return Decision(intent="vip", team="sales", confidence=0.9, reply_text="Buy more!")


async def stubborn(message: Message) -> Decision:
    while True:
        try:
            await asyncio.sleep(0.5)
        except asyncio.CancelledError:
            continue
        return Decision(intent="vip", confidence=0.9)


async def telling(message: Message) -> Decision:
    return Decision(intent="vip", confidence=0.9, tags=["order-112233445"])


async def quoting(message: Message) -> Decision:
    reasons = ["they write that my wife Anna left", "a formal tone"]
    return Decision(intent="vip", team="sales", confidence=0.9, reasons=reasons)


async def forgetful(message: Message) -> Decision:
    return Decision(intent="vip", confidence=0.9, escalated="angry" in message.text)


async def unsure(message: Message) -> Decision:
    return Decision(intent="uncertain", confidence=0.55)


def not_async(message: Message) -> Decision:
    raise AssertionError


async def test_a_decider_decides(clock: ManualClock) -> None:
    async with desk_at(clock, desk_decider="tests.desk.test_decisions:sure") as counter:
        await counter.write("hello")
        audit = await counter.audit()
        assert (audit[0]["action_type"], audit[0]["payload"]["team"]) == ("route", "leadership")
        assert [e["payload"]["tag"] for e in audit[1:]] == ["vip", "gold"]


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("broken", "RuntimeError"),
        ("hanging", "TimeoutError"),
        ("cancelled", "Cancelled"),
        ("odd_team", "ValueError"),
        ("odd_confidence", "ValueError"),
        ("odd_kind", "ValueError"),
        ("stubborn", "TimeoutError"),
        ("telling", "ValueError"),
    ],
)
async def test_where_a_decider_fails_the_rules_decide(
    clock: ManualClock, name: str, error: str
) -> None:
    decider = f"tests.desk.test_decisions:{name}"
    async with desk_at(clock, desk_decider=decider, desk_decider_seconds=0.05) as counter:
        await counter.write("please cancel my order")
        first = (await counter.audit())[0]["payload"]
        assert first["team"] == "backend"
        assert first["reasons"][0] == f"the decider failed with {error}, so the rules decided"


async def test_an_escalation_is_one_whatever_a_decider_says(
    clock: ManualClock, vendor: Vendor
) -> None:
    decider = "tests.desk.test_decisions:eager"
    async with desk_at(clock, vendor, desk_decider=decider) as counter:
        await counter.automate()
        await counter.set(templates={"custom": True})
        await counter.write("my lawyer will write to you", "c1")
        assert vendor.tickets["c1"].said == []
        assert (await counter.state("c1"))["risk_flags"] == ["legal_threat"]
        await counter.write("hello", "c2")
        assert vendor.tickets["c2"].said == ["Buy more!"]


async def test_reasons_that_quote_the_customer_are_not_kept(clock: ManualClock) -> None:
    async with desk_at(clock, desk_decider="tests.desk.test_decisions:quoting") as counter:
        await counter.write("I am sad because my wife Anna left me")
        assert (await counter.audit())[0]["payload"]["reasons"] == [
            "a reason that repeats the message",
            "a formal tone",
        ]


async def test_an_escalation_without_a_name_is_remembered(
    clock: ManualClock, vendor: Vendor
) -> None:
    async with desk_at(clock, vendor, desk_decider="tests.desk.test_decisions:forgetful") as desk:
        await desk.automate()
        await desk.write("I am angry")
        assert (await desk.state())["risk_flags"] == ["escalated"]


async def test_a_decider_may_be_unsure(clock: ManualClock) -> None:
    async with desk_at(clock, desk_decider="tests.desk.test_decisions:unsure") as counter:
        await counter.write("hello")
        assert [e["payload"].get("tag") for e in await counter.audit()] == [None, "uncertain"]


async def test_words_of_a_deciders_own_are_off_unless_switched_on(
    clock: ManualClock, vendor: Vendor
) -> None:
    async with desk_at(clock, vendor, desk_decider="tests.desk.test_decisions:eager") as counter:
        await counter.automate()
        await counter.write("hello")
        assert vendor.tickets["c1"].said == []


@pytest.mark.parametrize("path", ["nowhere:x", "tests.desk.test_decisions:nope"])
async def test_a_decider_that_is_not_there_is_an_error_at_the_start(
    clock: ManualClock, path: str
) -> None:
    with pytest.raises(SettingsError, match="desk_decider"):
        async with desk_at(clock, desk_decider=path):
            raise AssertionError


async def test_a_decider_that_would_block_everybody_is_refused(clock: ManualClock) -> None:
    with pytest.raises(SettingsError, match="must be an async function"):
        async with desk_at(clock, desk_decider="tests.desk.test_decisions:not_async"):
            raise AssertionError


# The example of the documentation


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The decider that the documentation shows."""
    page = (Path(__file__).parents[2] / "docs" / "desk.md").read_text()
    [code] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    module = ModuleType("desk_example")
    exec(code, module.__dict__)
    monkeypatch.setitem(sys.modules, "desk_example", module)
    return module


async def routed_by_model(
    clock: ManualClock, example: ModuleType, handle: Any
) -> tuple[str, list[str]]:
    async with served(handle) as url:
        example.MODEL_URL = url  # type: ignore[attr-defined]
        settings = {"desk_decider": "desk_example:decide", "desk_decider_seconds": 0.5}
        async with desk_at(clock, **settings) as counter:
            await counter.write("please cancel my order, mail ann@example.com")
            payload = (await counter.audit())[0]["payload"]
            return payload["team"], payload["reasons"]


async def test_a_language_model_decides(clock: ManualClock, example: ModuleType) -> None:
    asked: list[str] = []

    async def model(request: web.Request) -> web.StreamResponse:
        asked.append((await request.json())["messages"][0]["content"])
        content = '{"intent": "vip", "team": "leadership", "confidence": 0.9}'
        return web.json_response({"choices": [{"message": {"content": content}}]})

    team, reasons = await routed_by_model(clock, example, model)
    assert (team, reasons) == ("leadership", ["decided by the model"])
    assert "***@***" in asked[0]
    assert "ann@" not in asked[0]


@pytest.mark.parametrize("trouble", ["500", "hang", "nonsense", "no team"])
async def test_a_language_model_may_fail(
    clock: ManualClock, example: ModuleType, trouble: str
) -> None:
    async def model(request: web.Request) -> web.StreamResponse:
        if trouble == "500":
            return web.Response(status=500)
        if trouble == "hang":
            await asyncio.sleep(1)
        content = '{"intent": "vip", "team": "nobody", "confidence": 0.9}'
        if trouble == "nonsense":
            content = "I think that it is about an order."
        return web.json_response({"choices": [{"message": {"content": content}}]})

    team, reasons = await routed_by_model(clock, example, model)
    assert team == "backend"
    assert reasons[0].startswith("the decider failed with ")


# Order lookups

lookups: list[str] = []


async def counted(number: str) -> Any:
    from waystation.desk import Order

    lookups.append(number)
    return Order(status="packed")


async def test_an_order_is_looked_up_once_in_an_hour(clock: ManualClock, vendor: Vendor) -> None:
    lookups.clear()
    async with desk_at(clock, vendor, desk_orders="tests.desk.test_decisions:counted") as counter:
        await counter.automate()
        await counter.write(WHERE)
        clock.advance(700)
        await counter.write(WHERE)
        assert lookups == ["12345"]
        clock.advance(3_600)
        await counter.write(WHERE)
        assert lookups == ["12345"] * 2
        assert vendor.tickets["c1"].said[0].startswith("Thank you for your message. Your order is")


async def cancelled_lookup(number: str) -> Any:
    raise asyncio.CancelledError


async def test_a_lookup_that_is_cancelled_holds_nothing_up(
    clock: ManualClock, vendor: Vendor
) -> None:
    orders = "tests.desk.test_decisions:cancelled_lookup"
    async with desk_at(clock, vendor, desk_orders=orders) as counter:
        await counter.automate()
        event_id = await counter.write(WHERE)
        assert (await counter.event(event_id))["status"] == "processed"


# What a decider is worth


async def test_precision_recall_and_confusions() -> None:
    messages = [
        Labelled(text="please cancel my order", intent="cancel_order"),
        Labelled(text="please cancel my order", intent="refund"),
        Labelled(text="I want a refund", intent="refund"),
        Labelled(text="qwerty", intent="unknown"),
    ]
    judged = await evaluate(RULES, messages)
    scores = {score.intent: (score.precision, score.recall) for score in judged.intents}
    assert scores == {"cancel_order": (0.5, 1.0), "refund": (1.0, 0.5), "unknown": (1.0, 1.0)}
    assert [(c.intent, c.decided, c.count) for c in judged.confusions] == [
        ("refund", "cancel_order", 1)
    ]
    assert judged.accuracy == 0.75


async def test_the_figures_of_the_documentation() -> None:
    """How good the rules are on messages that nobody looked at while they were written."""
    judged = await evaluate(RULES, read_labelled(DATA / "messages.jsonl"))
    page = (Path(__file__).parents[2] / "docs" / "desk.md").read_text()
    assert f"{judged.accuracy:.1%} of {judged.messages} messages" in page
    taken = [m for m in read_labelled(DATA / "messages.jsonl") if decided(m.text).escalated]
    right = [m for m in taken if m.intent in ESCALATIONS]
    assert f"{len(right)} of {len(taken)} are one" in page


async def test_the_rules_do_well_on_what_they_were_written_with() -> None:
    judged = await evaluate(RULES, read_labelled(DATA / "tuned_messages.jsonl"))
    assert judged.accuracy > 0.95


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("a.jsonl", "", "has no messages"),
        ("a.jsonl", "{", "line 1 is not JSON"),
        ("a.jsonl", '{"text": "x"}', "message 1: .*intent"),
        ("a.csv", "text,other\nx,y\n", "message 1: .*intent"),
    ],
)
def test_labels_that_cannot_be_read_are_refused(
    tmp_path: Path, name: str, content: str, complaint: str
) -> None:
    file = tmp_path / name
    file.write_text(content)
    with pytest.raises(InvalidInput, match=complaint):
        read_labelled(file)


def test_labels_may_be_csv(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text('text,intent\n"please, cancel",cancel_order\n')
    assert read_labelled(file) == [Labelled(text="please, cancel", intent="cancel_order")]


async def test_routing_waits_for_nobody(local: Counter) -> None:
    """A long and hostile text is decided on at once."""
    await local.write("cancel order is the " * 1_500)
    assert (await local.state())["last_intent"] == "cancel_order"
