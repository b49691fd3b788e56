"""Messages as readers see them, whoever wrote them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import msgspec

from waystation.ids import base36
from waystation.inbox.states import NEVER, category_of, expiry_of
from waystation.inbox.tables import Content
from waystation.times import LAST_MS, iso, iso_of_ms

if TYPE_CHECKING:
    from waystation.inbox.tables import Message

_LONGEST_TITLE = 1_000


class ContentView(msgspec.Struct, kw_only=True):
    title: str
    body: Any
    cta_uri: str | None


class MessageView(msgspec.Struct, kw_only=True):
    """A message in a reader's inbox."""

    id: str
    audience: Literal["users", "everyone"]
    sender: str
    category: str | None
    type: str | None
    message: ContentView
    read: bool
    read_at: str | None
    seen: bool
    archived: bool
    created_at: str | None
    expires_at: str | None


class CategoryCounts(msgspec.Struct):
    total: int = 0
    unread: int = 0


class Counts(msgspec.Struct):
    """How many messages a reader has that are not archived."""

    total: int = 0
    unread: int = 0
    unseen: int = 0
    categories: dict[str, CategoryCounts] = msgspec.field(default_factory=dict)

    def count(self, category: str | None, total: int, unread: int, unseen: int) -> None:
        self.total += total
        self.unread += unread
        self.unseen += unseen
        if category is not None:
            named = self.categories.setdefault(category, CategoryCounts())
            named.total += total
            named.unread += unread


def message_view(
    row: Message, *, everyone: bool, read: bool, read_at: int | None, seen: bool, archived: bool
) -> MessageView:
    received = row.received or time_of(row.id)
    expires = expiry_of(row)
    return MessageView(
        id=row.id,
        audience="everyone" if everyone else "users",
        sender=row.sender,
        category=category_of(row),
        type=row.type,
        message=content_view(row.message),
        read=read,
        read_at=_moment(read_at),
        seen=seen or read,
        archived=archived,
        created_at=_moment(received),
        expires_at=None if expires == NEVER else iso(expires),
    )


def content_view(content: Content | None) -> ContentView:
    given = content or Content("")
    link = given.cta_uri
    return ContentView(
        title=given.title[:_LONGEST_TITLE],
        body=_plain(given.body),
        cta_uri=link if link is not None and is_link(link) else None,
    )


def is_link(link: str) -> bool:
    """Whether a browser may follow it: a web address, or a path of the page's own site."""
    if len(link) > 2_000 or not link.isprintable() or any(c in link for c in ' "<>\\'):
        return False
    try:
        parts = urlsplit(link)
    except ValueError:
        return False
    if parts.scheme:
        return parts.scheme in ("http", "https") and bool(parts.hostname)
    return link.startswith("/") and not link.startswith("//")


def time_of(id_: str) -> int | None:
    """The time in an id, if it looks like one."""
    try:
        found = int(id_[:8], 36)
    except ValueError:
        return None
    return found if base36(found, 8) == id_[:8] and 10**12 < found < LAST_MS else None


def _moment(milliseconds: int | None) -> str | None:
    if milliseconds is None or not 0 < milliseconds < LAST_MS:
        return None
    return iso_of_ms(milliseconds)


def _plain(value: Any) -> Any:
    """A body that JSON can say, whatever a table can hold."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, dict):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(inner) for inner in value]
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return msgspec.to_builtins(value)
