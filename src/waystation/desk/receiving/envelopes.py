"""Envelopes: what a vendor's payload says, in our words. What cannot be identified is refused."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from waystation.desk.receiving.texts import MOST, normalised, plain
from waystation.errors import InvalidInput
from waystation.patterns import redact

if TYPE_CHECKING:
    from collections.abc import Iterator

Author = Literal["customer", "agent", "system"]

CHANNELS = (
    "email",
    "livechat",
    "phone",
    "sms",
    "whatsapp",
    "facebook",
    "instagram",
    "tiktok",
    "social",
    "contact_form",
    "unknown",
)
_CHANNEL_NAMES = {
    "aircall": "phone",
    "call": "phone",
    "voice": "phone",
    "mail": "email",
    "gmail": "email",
    "chat": "livechat",
    "live_chat": "livechat",
    "messenger": "livechat",
    "web": "livechat",
    "facebook_message": "facebook",
    "facebook_messenger": "facebook",
    "facebook_feed_comment": "facebook",
    "instagram_comment": "instagram",
    "instagram_message": "instagram",
    "tiktok_shop": "tiktok",
    "twitter": "social",
    "x": "social",
    "form": "contact_form",
}
_PLAIN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_HASHED_ID = re.compile(r"~[0-9a-f]{40}")
_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/ -]{0,63}")
_UPDATE = re.compile(
    r"updat|assign|tag|clos|resolv|status|merg|snooz|priorit|delet|archiv|open|rating|csat",
    re.IGNORECASE,
)
_SAID = re.compile(r"messag|comment|reply|replied|creat", re.IGNORECASE)
_MANY_DIGITS = re.compile(r"(?:\d\D{0,2}){5}")
_MOST_ID = 1_000
_MOST_MESSAGES = 500
_CLOSED = {
    *("closed", "resolved", "solved", "archived", "spam", "deleted", "completed", "complete"),
    *("done", "merged", "trash", "trashed"),
}
_OPEN = {"open", "new", "reopened", "pending", "snoozed", "on-hold", "on_hold"}
_AGENTS = {"agent", "operator", "admin", "staff", "user", "outbound"}
_CUSTOMERS = {"customer", "end_user", "end-user", "requester", "contact", "visitor", "inbound"}
_SYSTEMS = {"system", "bot", "automation", "workflow"}

_CONVERSATION = ("conversation_id", "ticket_id", "ticket.id", "conversation.id")
_MESSAGE = ("message_id", "message.id", "event_id")
_EVENT_TYPE = ("event_type", "type", "event", "topic", "event.type", "trigger")
_CREATED = ("message.created_at", "ticket_created_at", "created_at")
_CHANNEL = ("via.channel", "channel", "ticket.via.channel", "conversation.channel")
_TEXT = (
    "customer_message",
    "message",
    "message.text",
    "message.body",
    "body",
    "text",
    "comment",
    "comment.body",
    "content",
    "subject",
)
_LISTS = ("messages", "comments", "conversation.messages", "ticket.messages", "ticket.comments")
_AUTHOR = (
    "message.author.type",
    "message.sender_type",
    "message.author_type",
    "author.type",
    "sender_type",
    "author_type",
    "direction",
)
_IS_AGENT = ("message.is_operator", "is_operator", "message.is_agent", "is_agent")
_STATUS = (
    "ticket.status",
    "ticket.status.name",
    "conversation.status",
    "conversation.status.name",
    "ticket_status",
    "conversation_status",
    "status",
    "status.name",
)
_IS_CLOSED = ("ticket.closed", "conversation.closed", "closed")
_UPDATED = ("updated_at", "ticket.updated_at", "conversation.updated_at")
_ATTACHMENTS = ("attachments", "message.attachments", "comment.attachments")
_RECIPIENT = ("customer.email", "customer_email", "email", "ticket.customer.email", "from.address")


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """A support event. `conversation` is the id as the vendor knows it, `conversation_id` as we
    keep it. It travels sealed, because of the text and the recipient in it."""

    event_id: str
    conversation_id: str
    conversation: str
    reference: str
    """The message's id, or the hash that stands for it: the last part of every key."""

    message_id: str | None = None
    event_type: str
    update: bool = False
    """Whether it says that something changed, rather than that somebody wrote."""

    channel: str = "unknown"
    author: Author = "customer"
    text: str = ""
    cut: bool = False
    created_at: str | None = None
    closed: bool | None = None
    attachments: int = 0
    recipient: str | None = None
    received_at: str
    payload_sha256: str
    payload_bytes: int


def read(body: bytes, received_at: str) -> Envelope:
    """The envelope of a payload; InvalidInput when it cannot be told what it is about."""
    payload = _decoded(body)
    conversation = _identifier(payload, _CONVERSATION)
    if conversation is None:
        raise InvalidInput(
            "conversation_id",
            "is needed, as conversation_id, ticket_id, ticket.id or conversation.id",
        )
    event_type = _event_type(payload)
    message = _identifier(payload, _MESSAGE)
    text = plain(_text(payload))
    status = _word(payload, _STATUS)
    closed = _closed(payload, status)
    attachments = _count(payload)
    created = _created(payload)
    conversation_id = kept_id(conversation)
    update = bool(_UPDATE.search(event_type)) and not _SAID.search(event_type)
    if update and closed is not None:
        reference = _of_status(payload, f"{event_type} {status} {message}", received_at)
    elif message is not None:
        reference = kept_id(message)
    else:
        said = normalised(text[:MOST]) or f"{event_type} {status or ''} {attachments}"
        reference = _digest(said + _bucket(created))
    normal = msgspec.json.encode(payload, order="deterministic")
    return Envelope(
        event_id=f"evt:rp:{conversation_id}:{reference}",
        conversation_id=conversation_id,
        conversation=conversation,
        reference=reference,
        message_id=None if message is None else kept_id(message),
        event_type=event_type,
        update=update,
        channel=_channel(payload),
        author=_author(payload, event_type),
        text=text[:MOST],
        cut=len(text) > MOST,
        created_at=created,
        closed=closed,
        attachments=attachments,
        recipient=_recipient(payload),
        received_at=received_at,
        payload_sha256=sha256(normal).hexdigest(),
        payload_bytes=len(normal),
    )


def _closed(payload: dict[str, Any], status: str | None) -> bool | None:
    if status in _CLOSED or True in _values(payload, _IS_CLOSED):
        return True
    return False if status in _OPEN or False in _values(payload, _IS_CLOSED) else None


def _of_status(payload: dict[str, Any], what: str, received_at: str) -> str:
    """What a change of status is known by. It is not the message that it comes with, and the same
    change may come again: without an id or a time of its own, it is one of this minute."""
    if (own := _identifier(payload, ("event_id",))) is not None:
        return kept_id(own)
    updated = next((at for v in _values(payload, _UPDATED) if (at := _time(v))), None)
    return _digest(what + (updated or _bucket(received_at)))


def _digest(text: str) -> str:
    return sha256(text.encode("utf-8", "replace")).hexdigest()


def kept_id(given: str) -> str:
    """An id as keys have it. One that could be an address, or does not fit into a key, is known by
    its hash."""
    if _PLAIN_ID.fullmatch(given):
        return given
    return "~" + sha256(given.encode("utf-8", "replace")).hexdigest()[:40]


def shown_id(given: str) -> str:
    """The id that is meant by one who asks: as the vendor has it, or as we show it."""
    return given if _HASHED_ID.fullmatch(given) else kept_id(given)


def _decoded(body: bytes) -> dict[str, Any]:
    try:
        payload = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InvalidInput("body", "must be JSON") from None
    if not isinstance(payload, dict):
        raise InvalidInput("body", "must be a JSON object")
    return payload


def _at(payload: dict[str, Any], path: str) -> Any:
    found: Any = payload
    for name in path.split("."):
        if not isinstance(found, dict):
            return None
        found = found.get(name)
    return found


def _values(payload: dict[str, Any], paths: tuple[str, ...]) -> Iterator[Any]:
    return (value for path in paths if (value := _at(payload, path)) is not None)


def _strings(payload: dict[str, Any], paths: tuple[str, ...]) -> Iterator[str]:
    return (v.strip() for v in _values(payload, paths) if isinstance(v, str) and v.strip())


def _identifier(payload: dict[str, Any], paths: tuple[str, ...]) -> str | None:
    for value in _values(payload, paths):
        if isinstance(value, bool | float | dict | list):
            continue
        if text := str(value).strip():
            if len(text) > _MOST_ID:
                raise InvalidInput(paths[0], f"must have at most {_MOST_ID} characters")
            if text in (".", ".."):
                raise InvalidInput(paths[0], "must be an id")
            return text
    return None


def _event_type(payload: dict[str, Any]) -> str:
    for text in _strings(payload, _EVENT_TYPE):
        if _TYPE.fullmatch(text):
            readable = redact(text) == text and not _MANY_DIGITS.search(text)
            return text if readable else "other"
    raise InvalidInput("event_type", "is needed: letters, digits and _.:/- , at most 64")


def _word(payload: dict[str, Any], paths: tuple[str, ...]) -> str | None:
    found = next(_strings(payload, paths), None)
    return None if found is None else found[:64].lower()


def _channel(payload: dict[str, Any]) -> str:
    named = (_word(payload, _CHANNEL) or "").replace("-", "_").replace(" ", "_")
    named = _CHANNEL_NAMES.get(named, named)
    return named if named in CHANNELS else "unknown"


def _text(payload: dict[str, Any]) -> str:
    found = next(_strings(payload, _TEXT), None)
    return found if found is not None else _newest(payload)


def _newest(payload: dict[str, Any]) -> str:
    """The newest customer's message of a list; without times, the last one."""
    for messages in _values(payload, _LISTS):
        if not isinstance(messages, list):
            continue
        of_customers = [
            message
            for message in messages[-_MOST_MESSAGES:]
            if isinstance(message, dict) and _author(message, "") == "customer"
        ]
        of_customers.sort(key=_moment)
        for message in reversed(of_customers):
            if found := next(_strings(message, ("text", "body", "plain_body", "content")), None):
                return found
    return ""


def _moment(message: dict[str, Any]) -> str:
    return _time(message.get("created_at")) or ""


def _author(payload: dict[str, Any], event_type: str) -> Author:
    word = _word(payload, _AUTHOR)
    if word in _SYSTEMS:
        return "system"
    if word in _AGENTS or any(map(_is_true, _values(payload, _IS_AGENT))):
        return "agent"
    if word in _CUSTOMERS:
        return "customer"
    return "agent" if re.search(r"agent|operator", event_type, re.IGNORECASE) else "customer"


def _is_true(value: Any) -> bool:
    return value is True or value == 1 or str(value).strip().lower() in ("true", "yes", "1")


def _count(payload: dict[str, Any]) -> int:
    found = [value for value in _values(payload, _ATTACHMENTS) if isinstance(value, list)]
    return min(1_000, sum(map(len, found)))


def _recipient(payload: dict[str, Any]) -> str | None:
    found = next((text for text in _strings(payload, _RECIPIENT) if "@" in text), None)
    return None if found is None else found[:320].lower()


def _created(payload: dict[str, Any]) -> str | None:
    return next((at for v in _values(payload, _CREATED) if (at := _time(v)) is not None), None)


def _time(value: Any) -> str | None:
    """A time as we write it; one that is not a time stays the text that it is."""
    try:
        if isinstance(value, int | float) and not isinstance(value, bool):
            moment = datetime.fromtimestamp(value / 1000 if value > 1e11 else value, UTC)
        elif isinstance(value, str) and value.strip():
            moment = datetime.fromisoformat(value.strip())
            moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
            moment = moment.astimezone(UTC)
        else:
            return None
    except (ValueError, OverflowError, OSError):
        return value.strip()[:64] if isinstance(value, str) else None
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _bucket(created: str | None) -> str:
    """The minute of a message's creation. It is the sender's, and the same at each delivery."""
    return (created or "")[:16]
