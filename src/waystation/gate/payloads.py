"""What Slack sends: events, interactions and commands, and the ids in them.

A little is read before the signature is checked, to know by whose secret; everything else after
that. A body that two programs could read differently is refused: what was checked must be what the
next one sees.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from email.message import Message
from functools import lru_cache
from typing import Any, Literal
from urllib.parse import parse_qsl

import msgspec

SHORT = 16 * 1024
"""Bytes that are read on the event loop."""

_SMALL_FORM = 4 * 1024
_MAX_FIELDS = 100
_MAX_TEXT = 255
_MOST_CLAIMED = 3
_ID = re.compile(r"[A-Z0-9]{2,40}")
_FORM = "application/x-www-form-urlencoded"
_JSON = "application/json"
_ID_AT = re.compile(rb"([A-Z0-9]{2,40})(?:&|%22|$)")
_TEAMS_IN_FORM = (
    b"&team_id=",
    b"&enterprise_id=",
    b"%22team%22%3A%7B%22id%22%3A%22",
    b"%22enterprise%22%3A%7B%22id%22%3A%22",
)
_APP_IN_FORM = (b"&api_app_id=", b"%22api_app_id%22%3A%22")
_WITHOUT_EVENT = frozenset({"app_rate_limited"})
_FIELD = re.compile(r"[a-z0-9_]{1,60}")
_NESTED = ("event", "message", "previous_message", "item", "assistant_thread", "authorizations")
"""Parts that some programs look into one inside the other; Slack's never are."""

_NOT_IN_EVENTS = ("command", "payload", "actions", "view", "container", *_NESTED[1:5])
_NOT_IN_INTERACTIONS = ("event", "command", "payload", "challenge", "authorizations", *_NESTED[3:5])
_AUTHORIZATION = frozenset(
    {"enterprise_id", "team_id", "user_id", "is_bot", "is_enterprise_install"}
)
_EVENT_TYPES = frozenset({"event_callback", "url_verification", *_WITHOUT_EVENT})

Kind = Literal["event", "interaction", "command", "challenge", "ssl_check"]


class Unreadable(Exception):
    """A body that is not what Slack sends."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A request, as far as the gate looks at it. Ids that it does not have are None.

    `team` is the one whose app got it. `origin` is where it happened, if that is another team, in
    a channel that both share.
    """

    kind: Kind
    type: str
    app: str | None = None
    team: str | None = None
    origin: str | None = None
    enterprise: str | None = None
    user: str | None = None
    channel: str | None = None
    event_id: str | None = None
    challenge: str = ""


class Claim(msgspec.Struct, frozen=True):
    """Whose an unchecked request says it is."""

    teams: list[str]
    app: str | None = None


class _Named(msgspec.Struct):
    id: str = ""


class _Authorization(msgspec.Struct):
    team_id: str | None = None
    enterprise_id: str | None = None


class _Unchecked(msgspec.Struct):
    api_app_id: str | None = None
    team_id: str | None = None
    context_team_id: str | None = None
    enterprise_id: str | None = None
    authorizations: list[_Authorization] = []


def is_slack_id(text: object) -> bool:
    return isinstance(text, str) and _ID.fullmatch(text) is not None


def claimed(body: bytes, content_type: str) -> Claim:
    """Whose a request says it is. Long forms are only searched for it: to read them takes time."""
    if _kind(content_type) == _FORM:
        with suppress(Unreadable):
            if len(body) <= _SMALL_FORM:
                asked = read(body, content_type)
                return Claim([t for t in (asked.team, asked.enterprise) if t], asked.app)
        return Claim(_found(body, _TEAMS_IN_FORM), next(iter(_found(body, _APP_IN_FORM)), None))
    try:
        given = msgspec.json.decode(body, type=_Unchecked)
    except (msgspec.MsgspecError, UnicodeError, ValueError, RecursionError):
        return Claim([])
    found = [given.context_team_id, given.team_id, given.enterprise_id]
    for each in given.authorizations[:1]:
        found = [each.team_id, each.enterprise_id, *found]
    teams = [text for text in dict.fromkeys(found) if text is not None and is_slack_id(text)]
    return Claim(teams[:_MOST_CLAIMED], given.api_app_id)


def _found(body: bytes, marks: tuple[bytes, ...]) -> list[str]:
    """The ids after the first of each mark, as Slack writes them."""
    places = ((body.find(mark), len(mark)) for mark in marks)
    ids = (_ID_AT.match(body, at + length) for at, length in places if at >= 0)
    return [found[1].decode() for found in ids if found]


def read(body: bytes, content_type: str) -> Asked:
    """A request whose signature is good; Unreadable when it is not one of Slack's."""
    kind, is_object = _kind(content_type), body.lstrip()[:1] == b"{"
    if not _is_utf8(content_type):
        raise Unreadable("it is not UTF-8, as its content type says")
    if kind == _JSON and body[:1] == b"{":
        return _event(_parsed(body))
    if kind != _FORM or is_object:  # some programs go by the first character, others by the header
        raise Unreadable("it is neither JSON nor a form, as its content type says")
    return _form(body)


def _form(body: bytes) -> Asked:
    fields: dict[str, str] = {}
    for name, value in _fields(body):
        if name in fields:
            raise Unreadable(f"the field {name[:40]} comes twice")
        fields[name] = value
    if "payload" in fields:
        if len(fields) > 1:
            raise Unreadable("it has more than a payload")
        return _interaction(_parsed(fields["payload"].encode()))
    if "ssl_check" in fields:
        if fields["ssl_check"] != "1" or not fields.keys() <= {"ssl_check", "token"}:
            raise Unreadable("it is not just a check of our certificate")
        return Asked(kind="ssl_check", type="ssl_check")
    if "command" not in fields:
        raise Unreadable("it is neither an event nor an interaction nor a command")
    ids = {name: _id(fields.get(name) or None) for name in _COMMAND_IDS}
    if ids["user_id"] is None:
        raise Unreadable("a command has a user")
    return Asked(
        kind="command",
        type=_text(fields["command"], "command"),
        app=ids["api_app_id"],
        team=ids["team_id"],
        enterprise=ids["enterprise_id"],
        user=ids["user_id"],
        channel=ids["channel_id"],
    )


_COMMAND_IDS = ("api_app_id", "team_id", "enterprise_id", "user_id", "channel_id")


def _event(given: dict[str, Any]) -> Asked:
    _check_names(given, _NOT_IN_EVENTS)
    kind = _text(given.get("type"), "type")
    event = given.get("event")
    if (kind == "event_callback") != (event is not None):
        raise Unreadable("an event_callback has an event, and nothing else has")
    if kind == "url_verification":
        challenge = _text(given.get("challenge"), "challenge")
        return Asked(kind="challenge", type=kind, challenge=challenge)
    if event is None and kind in _WITHOUT_EVENT:
        event = {"type": kind}
    if not isinstance(event, dict):
        raise Unreadable("it is not an event")
    _check_names(event, ("event", "authorizations"))
    enterprise = _enterprise(given, event)
    team, origin = _teams(given, event, enterprise)
    item, message = _object(event, "item"), _object(event, "message")
    before, thread = _object(event, "previous_message"), _object(event, "assistant_thread")
    for part in (item, message, before, thread):
        if part:
            _check_names(part, _NESTED)
    return Asked(
        kind="event",
        type=_text(event.get("type"), "event.type"),
        app=_id(_plain(given, "api_app_id")),
        team=team,
        origin=origin,
        enterprise=enterprise,
        user=_same(
            *(
                event.get("user"),
                _plain(event, "user_id"),
                message.get("user"),
                _plain(message, "user_id"),
            ),
            *(before.get("user"), _plain(before, "user_id"), _plain(thread, "user_id")),
            *(given.get("user"), _plain(given, "user_id")),
        ),
        channel=_same(
            *(event.get("channel"), _plain(event, "channel_id")),
            *(item.get("channel"), _plain(item, "channel_id")),
            *(thread.get("channel"), _plain(thread, "channel_id")),
            *(given.get("channel"), _plain(given, "channel_id")),
        ),
        event_id=_event_id(given.get("event_id")),
    )


def _teams(
    given: dict[str, Any], event: dict[str, Any], enterprise: str | None
) -> tuple[str | None, str | None]:
    """The team whose app got an event, and the one where it happened, if that is another. In a
    shared channel the first is named by the authorizations."""
    inside = [event.get("team"), _plain(event, "team_id")]
    if event.get("user_team") != enterprise:  # in an organisation it may be named instead
        inside.append(event.get("user_team"))
    named = [_plain(_authorization(given), "team_id"), _plain(given, "team_id"), given.get("team")]
    context = _plain(given, "context_team_id")
    view, user = _object(event, "view"), _object(event, "user")
    views = [_plain(view, "app_installed_team_id"), _plain(view, "team_id")]
    if any(place is not None for place in named):
        return _one_or_two([named[0], context, *named[1:], *inside])
    inside += [*views, _plain(user, "team_id")]  # where others look then, whatever the context is
    if context is not None:
        return _one_or_two([context, *inside])
    return _same(*inside), None


def _one_or_two(places: list[Any]) -> tuple[str | None, str | None]:
    found: list[str] = []
    for place in places:
        if place is not None and (each := _id(place)) is not None and each not in found:
            found.append(each)
    if len(found) > 2:
        raise Unreadable("it names too many teams")
    return found[0] if found else None, found[1] if len(found) > 1 else None


def _enterprise(given: dict[str, Any], event: dict[str, Any]) -> str | None:
    return _same(
        *(_plain(given, "enterprise_id"), given.get("enterprise")),
        *(_plain(event, "enterprise_id"), event.get("enterprise")),
        *(
            _plain(_object(given, "team"), "enterprise_id"),
            _plain(_object(event, "team"), "enterprise_id"),
        ),
        _plain(_authorization(given), "enterprise_id"),
    )


def _authorization(given: dict[str, Any]) -> dict[str, Any]:
    listed = given.get("authorizations")
    first = listed[0] if isinstance(listed, list) and listed else {}
    if not isinstance(first, dict) or not first.keys() <= _AUTHORIZATION:
        raise Unreadable("its authorizations are not like Slack's")
    return first


def _interaction(given: dict[str, Any]) -> Asked:
    _check_names(given, _NOT_IN_INTERACTIONS)
    kind = _text(given.get("type"), "type")
    if kind in _EVENT_TYPES:
        raise Unreadable("an event does not come in a form")
    container, view = _object(given, "container"), _object(given, "view")
    user = _same(given.get("user"), _plain(given, "user_id"))
    if user is None:
        raise Unreadable("an interaction has a user")
    # A view may have been opened in a channel that another team shares.
    team, origin = _one_or_two(
        [_plain(view, "app_installed_team_id"), given.get("team"), _plain(given, "team_id")]
    )
    if team is None:  # as in an app of a whole organisation
        team = _same(_plain(_object(given, "user"), "team_id"), _plain(view, "team_id"))
    return Asked(
        kind="interaction",
        type=kind,
        app=_id(_plain(given, "api_app_id")),
        team=team,
        origin=origin,
        enterprise=_same(
            *(given.get("enterprise"), _plain(given, "enterprise_id")),
            _plain(_object(given, "team"), "enterprise_id"),
        ),
        user=user,
        channel=_same(
            given.get("channel"), _plain(given, "channel_id"), _plain(container, "channel_id")
        ),
    )


def _check_names(given: dict[str, Any], strangers: tuple[str, ...]) -> None:
    """Refuse what belongs to another kind of request, and names that differ only in their case."""
    for name in strangers:
        if name in given and given[name] is not None:
            raise Unreadable(f"it has a {name}, which belongs to another kind of request")
    if len(set(map(str.lower, given))) != len(given):
        raise Unreadable("two names differ only in their case")


def _plain(given: dict[str, Any], name: str) -> str | None:
    """An id that stands alone where others have the whole object."""
    found = given.get(name)
    if found is not None and not isinstance(found, str):
        raise Unreadable("an id is not one of Slack's")
    return found


def _same(*places: object) -> str | None:
    """An id that may be in several places, and must be the same in all of them."""
    found: str | None = None
    for place in places:
        if place is None or (each := _id(place)) is None:
            continue
        if found is not None and each != found:
            raise Unreadable("it names two of what it can be about only one of")
        found = each
    return found


def _id(given: object) -> str | None:
    """An id, alone or in the object that it is the id of."""
    if isinstance(given, dict):
        given = given.get("id")
    if given is None:
        return None
    if not isinstance(given, str) or not _ID.fullmatch(given):
        raise Unreadable("an id is not one of Slack's")
    return given


def _object(given: dict[str, Any], name: str) -> dict[str, Any]:
    found = given.get(name)
    return found if isinstance(found, dict) else {}


def _event_id(given: object) -> str | None:
    if given is None:
        return None
    if not isinstance(given, str) or not given.isascii() or not given.isalnum():
        raise Unreadable("its event_id is not one of Slack's")
    return given[:_MAX_TEXT]


def _text(given: object, name: str) -> str:
    if not isinstance(given, str) or not (given.isascii() or _is_text(given[:_MAX_TEXT])):
        raise Unreadable(f"its {name} is not a text")
    return given[:_MAX_TEXT]


def _is_text(given: str) -> bool:
    """Half a character, as JSON may have it, cannot be written down."""
    return not any("\ud800" <= c <= "\udfff" for c in given)


@lru_cache(100)
def _kind(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


@lru_cache(100)
def _is_utf8(content_type: str) -> bool:
    """Whether a body is UTF-8, as far as its content type says."""
    message = Message()
    message["content-type"] = content_type
    return str(message.get_param("charset", "utf-8")).lower() in ("utf-8", "utf8")


def _fields(body: bytes) -> list[tuple[str, str]]:
    if b";" in body:  # which some programs take for another &
        raise Unreadable("its form cannot be read")
    try:
        fields = parse_qsl(
            body.decode("ascii"),
            keep_blank_values=True,
            max_num_fields=_MAX_FIELDS,
            errors="strict",
        )
    except ValueError:
        raise Unreadable("its form cannot be read") from None
    if not all(_FIELD.fullmatch(name) for name, _ in fields):
        raise Unreadable("a field has a name that Slack's have not")
    return fields


def _parsed(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(
            body.decode(), object_pairs_hook=_without_repetition, parse_constant=_no_constant
        )
    except (ValueError, RecursionError):
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
