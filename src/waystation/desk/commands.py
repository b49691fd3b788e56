"""`waystation desk`: decide, evaluate, switches, audit, dead letters, replay."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from waystation.errors import InvalidInput

if TYPE_CHECKING:
    from waystation.desk.deciding.evaluation import Evaluation
    from waystation.desk.deciding.judging import Judge
    from waystation.seam import Call, Commands

_POLL_SECONDS = 0.5
_ON = {"on": True, "off": False}
_MOST_CONFUSIONS = 20


def add_commands(commands: Commands) -> None:
    desk = commands.group("desk", "support conversations")
    decide = desk.add("decide", _decide, help="show what would be decided, and why")
    decide.add_argument("text", help="what a customer writes, or - to read it")
    decide.add_argument("--channel", default="unknown", help="the channel it came by")
    evaluate = desk.add("evaluate", _evaluate, help="score the decider on labelled messages")
    evaluate.add_argument(
        "file", type=Path, help="lines of JSON, or CSV, with text and intent", metavar="FILE"
    )
    for parser in (decide, evaluate):
        parser.add_argument("--rules", type=Path, metavar="FILE", help="other rules than usual")
        parser.add_argument("--decider", metavar="MODULE:FUNCTION", help="another decider")
    switches = desk.add("switches", _switches, help="show the switches, or set them", calls=True)
    switches.add_argument("--safe-mode", choices=list(_ON), help="route only, whatever else is on")
    switches.add_argument("--automation", choices=list(_ON), help="automatic replies")
    switches.add_argument(
        "--channels", metavar="NAME,…", help="those that may get automatic replies, or all"
    )
    switches.add_argument(
        "--template", action="append", default=[], metavar="NAME=on|off", help="a template"
    )
    switches.add_argument("--source", metavar="ID", help="the relay's source to tell, or none")
    audit = desk.add("audit", _audit, help="what was done in a conversation", calls=True)
    audit.add_argument("conversation")
    audit.add_argument("--limit", type=int, default=20)
    desk.add("dead-letters", _letters, help="events that were tried too often", calls=True)
    redrive = desk.add("redrive", _redrive, help="send dead letters again", calls=True)
    redrive.add_argument("--rate", type=int, default=60, metavar="N", help="how many a minute")
    redrive.add_argument("--most", type=int, default=100_000, metavar="N", help="how many in all")
    replay = desk.add("replay", _replay, help="queue archived events that were never dealt with")
    replay.add_argument("--from", dest="first", required=True, metavar="DAY")
    replay.add_argument("--to", dest="last", required=True, metavar="DAY")


def _judge(call: Call) -> Judge:
    """The decider that the server would use, or the one that is named."""
    from waystation.desk.deciding.judging import Judge, imported
    from waystation.desk.deciding.rules import load_rules
    from waystation.desk.settings import DeskSettings

    settings = call.settings.of(DeskSettings)
    named = call.options.rules or (Path(settings.desk_rules) if settings.desk_rules else None)
    decider = call.options.decider or settings.desk_decider
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # a decider beside which the command is called
    return Judge(
        load_rules(named),
        imported("decider", decider) if decider else None,
        settings.desk_decider_seconds,
    )


async def _decide(call: Call) -> None:
    from waystation.desk.deciding.decisions import Message

    text = sys.stdin.read() if call.options.text == "-" else call.options.text
    decision = await _judge(call)(Message(text=text, channel=call.options.channel))
    shown: dict[str, Any] = {
        name: getattr(decision, name)
        for name in ("intent", "team", "confidence", "intents", "risk_flags", "escalated", "reply")
    }
    shown["reasons"] = decision.reasons
    lines = [f"{decision.intent}  {decision.confidence:.2f}  team {decision.team or 'none'}"]
    if decision.escalated:
        lines.append(f"escalated: {', '.join(decision.risk_flags) or 'yes'}")
    if decision.reply:
        lines.append(f"would reply with {decision.reply}")
    if others := [name for name in decision.intents if name != decision.intent]:
        lines.append(f"also: {', '.join(others)}")
    call.show(shown, "\n".join([*lines, *(f"  because {reason}" for reason in decision.reasons)]))


async def _evaluate(call: Call) -> None:
    import msgspec

    from waystation.desk.deciding.evaluation import evaluate, read_labelled

    judged = await evaluate(_judge(call), read_labelled(call.options.file))
    call.show(msgspec.to_builtins(judged), _scores(judged))


def _scores(judged: Evaluation) -> str:
    width = max(len(score.intent) for score in judged.intents)
    lines = [f"{'intent':<{width}}  messages  precision  recall"]
    lines += [
        f"{score.intent:<{width}}  {score.messages:>8}  {_share(score.precision):>9}  "
        f"{_share(score.recall):>6}"
        for score in judged.intents
    ]
    lines.append(f"{judged.accuracy:.1%} of {judged.messages} right")
    for confusion in judged.confusions[:_MOST_CONFUSIONS]:
        lines.append(f"  {confusion.intent} taken for {confusion.decided}: {confusion.count}")
    return "\n".join(lines)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


async def _switches(call: Call) -> None:
    wanted = _wanted(call)
    async with call.client() as api:
        if wanted:
            shown = await api.call("PUT", "/v1/desk/switches", wanted)
        else:
            shown = await api.call("GET", "/v1/desk/switches")
    lines = [
        f"safe mode    {_word(shown['safe_mode'])}",
        f"automation   {_word(shown['automation_enabled'])}",
        f"channels     {'all' if shown['channels'] is None else ', '.join(shown['channels'])}",
        f"source       {shown['source_id'] or 'none'}",
        f"outbound     {_word(shown['outbound'])}",
    ]
    lines += [f"template     {name} {_word(on)}" for name, on in shown["templates"].items()]
    call.show(shown, "\n".join(lines))


def _word(on: bool) -> str:
    return "on" if on else "off"


def _wanted(call: Call) -> dict[str, Any]:
    options = call.options
    wanted: dict[str, Any] = {}
    if options.safe_mode is not None:
        wanted["safe_mode"] = _ON[options.safe_mode]
    if options.automation is not None:
        wanted["automation_enabled"] = _ON[options.automation]
    if options.channels is not None:
        named = [name.strip() for name in options.channels.split(",") if name.strip()]
        wanted["channels"] = None if named == ["all"] else named
    for given in options.template:
        name, _, on = given.partition("=")
        if on not in _ON:
            raise InvalidInput("--template", "must be NAME=on or NAME=off")
        wanted.setdefault("templates", {})[name] = _ON[on]
    if options.source is not None:
        wanted["source_id"] = None if options.source == "none" else options.source
    return wanted


async def _audit(call: Call) -> None:
    place = f"/v1/desk/conversations/{quote(call.options.conversation, safe='')}/audit"
    async with call.client() as api:
        found = (await api.call("GET", f"{place}?limit={call.options.limit}"))["data"]
    lines = [
        f"{each['at']}  {each['action_type']:<10}  {each['result']:<10}  {_about(each['payload'])}"
        for each in found
    ]
    call.show(found, "\n".join(lines) or "nothing was done in this conversation")


def _about(payload: Any) -> str:
    if not isinstance(payload, dict):
        return ""
    names = ("team", "tag", "template", "intent", "confidence", "ended", "no_reply")
    return "  ".join(f"{name} {payload[name]}" for name in names if payload.get(name) is not None)


async def _letters(call: Call) -> None:
    async with call.client() as api:
        found = (await api.call("GET", "/v1/desk/dead-letters?limit=100"))["data"]
    lines = [
        f"{each['id']}  {each['queued_at']}  {each['event_id'] or '-'}  "
        f"{each['last_error'] or each['problem'] or ''}".rstrip()
        for each in found
    ]
    call.show(found, "\n".join(lines) or "there are no dead letters")


async def _redrive(call: Call) -> None:
    place, given = "/v1/desk/dead-letters/redrive", call.options
    async with call.client() as api:
        shown = await api.call("POST", place, {"per_minute": given.rate, "most": given.most})
        while shown["status"] == "running":
            if not given.json:
                print(f"{shown['sent']} of {shown['total']}", file=sys.stderr, flush=True)
            await asyncio.sleep(_POLL_SECONDS)
            shown = await api.call("GET", place)
    call.show(shown, f"{shown['sent']} of {shown['total']} dead letters were sent again")


async def _replay(call: Call) -> None:
    async with call.house() as provided:
        queued, found = await provided["desk"].replay(call.options.first, call.options.last)
    call.show(
        {"queued": queued, "archived": found},
        f"{queued} of {found} archived events were queued again",
    )
