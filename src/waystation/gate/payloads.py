"""What Slack sends: events, interactions and commands, and the ids in them.

The team that a request claims is read before its signature is checked, to know by whose secret;
everything else after that. A body that two programs could read differently is refused: what was
checked must be what the next one sees.
"""

from __future__ import annotations

import json
import re
from typing import Any, Literal
from urllib.parse import parse_qsl

import msgspec

MAX_FIELDS = 100
_MAX_TEXT = 255
_ID = re.compile(r"[A-Z0-9]{2,40}")
_FORM = "application/x-www-form-urlencoded"

Kind = Literal["event", "interaction", "command", "challenge", "ssl_check"]


class Unreadable(Exception):
    """A body that is not what Slack sends."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A request, as far as the gate looks at it. Ids that it does not have are None."""

    kind: Kind
    type: str
    team: str | None = None
    enterprise: str | None = None
    user: str | None = None
    channel: str | None = None
    event_id: str | None = None
    challenge: str = ""


class _ClaimedTeam(msgspec.Struct):
    id: str = ""


class _Claim(msgspec.Struct):
    team_id: str | None = None
    enterprise_id: str | None = None
    team: _ClaimedTeam | None = None
    enterprise: _ClaimedTeam | None = None


def is_slack_id(text: object) -> bool:
    return isinstance(text, str) and _ID.fullmatch(text) is not None


def claimed_teams(body: bytes, content_type: str) -> list[str]:
    """The team and the organisation that an unchecked request says it is from."""
    try:
        if _is_form(content_type):
            fields = dict(_fields(body))
            if "payload" not in fields:
                found = [fields.get("team_id"), fields.get("enterprise_id")]
                return [text for text in found if text is not None and is_slack_id(text)]
            body = fields["payload"].encode()
        claim = msgspec.json.decode(body, type=_Claim)
    except (Unreadable, msgspec.MsgspecError, UnicodeError, ValueError, RecursionError):
        return []
    found = [claim.team_id, claim.team.id if claim.team else None]
    found += [claim.enterprise_id, claim.enterprise.id if claim.enterprise else None]
    return [text for text in found if text is not None and is_slack_id(text)]


def read(body: bytes, content_type: str) -> Asked:
    """A request whose signature is good; Unreadable when it is not one of Slack's."""
    if not _is_form(content_type):
        return _event(_parsed(body))
    fields: dict[str, str] = {}
    for name, value in _fields(body):
        if name in fields:
            raise Unreadable(f"the field {name[:40]} comes twice")
        fields[name] = value
    if "payload" in fields:
        return _interaction(_parsed(fields["payload"].encode()))
    if fields.get("ssl_check") == "1":
        return Asked(kind="ssl_check", type="ssl_check")
    if "command" not in fields:
        raise Unreadable("it is neither an event nor an interaction nor a command")
    return Asked(
        kind="command",
        type=fields["command"][:_MAX_TEXT],
        team=_id(fields.get("team_id") or None),
        enterprise=_id(fields.get("enterprise_id") or None),
        user=_id(fields.get("user_id") or None),
        channel=_id(fields.get("channel_id") or None),
    )


def _event(given: dict[str, Any]) -> Asked:
    kind = _text(given.get("type"), "type")
    if kind == "url_verification":
        return Asked(kind="challenge", type=kind, challenge=_text(given.get("challenge"), "type"))
    event = given.get("event")
    if (kind == "event_callback") != isinstance(event, dict):
        raise Unreadable("an event_callback has an event, and nothing else has")
    if not isinstance(event, dict):
        event = {"type": kind}  # such as app_rate_limited
    name = _text(event.get("type"), "event.type")
    return Asked(
        kind="event",
        type=name,
        team=_id(given.get("team_id")),
        enterprise=_id(given.get("enterprise_id")),
        user=_user_of(event),
        channel=_same(
            event.get("channel"), event.get("channel_id"), _part(event.get("item"), "channel")
        ),
        event_id=_event_id(given.get("event_id")),
    )


def _interaction(given: dict[str, Any]) -> Asked:
    return Asked(
        kind="interaction",
        type=_text(given.get("type"), "type"),
        team=_id(given.get("team")),
        enterprise=_id(given.get("enterprise")),
        user=_id(given.get("user")),
        channel=_same(given.get("channel"), _part(given.get("container"), "channel_id")),
    )


def _user_of(event: dict[str, Any]) -> str | None:
    """Who did it. A changed message says so inside of it."""
    user = _same(event.get("user"), event.get("user_id"))
    return user if user is not None else _id(_part(event.get("message"), "user"))


def _same(*places: object) -> str | None:
    """An id that may be in several places, and must be the same in all of them."""
    found = {place for each in places if (place := _id(each)) is not None}
    if len(found) > 1:
        raise Unreadable("it names two of what it can be about only one of")
    return found.pop() if found else None


def _id(given: object) -> str | None:
    """An id, alone or in the object that it is the id of."""
    if isinstance(given, dict):
        given = given.get("id")
    if given is None:
        return None
    if not isinstance(given, str) or not _ID.fullmatch(given):
        raise Unreadable("an id is not one of Slack's")
    return given


def _part(given: object, name: str) -> object:
    return given.get(name) if isinstance(given, dict) else None


def _event_id(given: object) -> str | None:
    if given is None:
        return None
    if not isinstance(given, str) or not given.isascii() or not given.isalnum():
        raise Unreadable("its event_id is not one of Slack's")
    return given[:_MAX_TEXT]


def _text(given: object, name: str) -> str:
    if not isinstance(given, str):
        raise Unreadable(f"its {name} is not a text")
    return given[:_MAX_TEXT]


def _is_form(content_type: str) -> bool:
    return content_type.partition(";")[0].strip().lower() == _FORM


def _fields(body: bytes) -> list[tuple[str, str]]:
    try:
        text = body.decode("ascii")
        return parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_FIELDS, errors="strict")
    except (UnicodeError, ValueError):
        raise Unreadable("its form cannot be read") from None


def _parsed(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(
            body.decode(), object_pairs_hook=_without_repetition, parse_constant=_no_constant
        )
    except (UnicodeError, ValueError, RecursionError):
        raise Unreadable("its JSON cannot be read") from None
    if not isinstance(value, dict):
        raise Unreadable("it is not an object")
    return value


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise Unreadable("a name comes twice in one object")
    return found


def _no_constant(text: str) -> None:
    raise Unreadable("it has a number that is none")
