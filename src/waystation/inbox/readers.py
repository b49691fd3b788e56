"""Whose inbox it is, and which names there can be."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from waystation.errors import InvalidInput
from waystation.inbox.tables import (
    PUBLIC,
    TOTAL,
    Entry,
    InboxConfig,
    Member,
    PublicEntry,
    PublicMessage,
    PublicStats,
    Receipt,
    Tombstone,
    UserMessage,
    UserStats,
    Withdrawal,
)

if TYPE_CHECKING:
    from waystation.store import Key, Query

_LONGEST = 128
_REFUSED = "#/\\?\U0010ffff"


class Place(NamedTuple):
    """An inbox of a tenant."""

    tenant: str
    inbox: str

    def config(self) -> Key[InboxConfig]:
        return InboxConfig.key(self.tenant, self.inbox)

    def message(self, id_: str) -> Key[PublicMessage]:
        return PublicMessage.key(self.tenant, self.inbox, id_)

    def messages(self) -> Query[PublicMessage]:
        return PublicMessage.query(self.tenant, self.inbox)

    def stats(self, category: str = TOTAL) -> Key[PublicStats]:
        return PublicStats.key(self.tenant, self.inbox, category)

    def entry(self, expires: int, id_: str) -> Key[PublicEntry]:
        return PublicEntry.key(self.tenant, self.inbox, expires, id_)

    def entries(self) -> Query[PublicEntry]:
        return PublicEntry.query(self.tenant, self.inbox)

    def withdrawal(self, id_: str) -> Key[Withdrawal]:
        return Withdrawal.key(self.tenant, self.inbox, id_)

    def withdrawals(self) -> Query[Withdrawal]:
        return Withdrawal.query(self.tenant, self.inbox)

    def members(self) -> Query[Member]:
        return Member.query(self.tenant, self.inbox)

    def reader(self, uid: str) -> Reader:
        return Reader(self.tenant, self.inbox, uid)


class Reader(NamedTuple):
    """A user's own inbox."""

    tenant: str
    inbox: str
    uid: str

    @property
    def place(self) -> Place:
        return Place(self.tenant, self.inbox)

    def message(self, id_: str) -> Key[UserMessage]:
        return UserMessage.key(self.tenant, self.uid, self.inbox, id_)

    def messages(self) -> Query[UserMessage]:
        return UserMessage.query(self.tenant, self.uid, self.inbox)

    def receipt(self, id_: str) -> Key[Receipt]:
        return Receipt.key(self.tenant, self.uid, self.inbox, id_)

    def receipts(self) -> Query[Receipt]:
        return Receipt.query(self.tenant, self.uid, self.inbox)

    def tombstone(self, id_: str) -> Key[Tombstone]:
        return Tombstone.key(self.tenant, self.uid, self.inbox, id_)

    def entry(self, expires: int, id_: str) -> Key[Entry]:
        return Entry.key(self.tenant, self.uid, self.inbox, expires, id_)

    def entries(self) -> Query[Entry]:
        return Entry.query(self.tenant, self.uid, self.inbox)

    def stats(self, category: str = TOTAL) -> Key[UserStats]:
        return UserStats.key(self.tenant, self.uid, self.inbox, category)

    def all_stats(self) -> Query[UserStats]:
        return UserStats.query(self.tenant, self.uid, self.inbox)


def check_name(field: str, name: str) -> str:
    """A tenant, an inbox or a user by a name that keys and paths can have."""
    if not 0 < len(name) <= _LONGEST:
        raise InvalidInput(field, f"must have 1 to {_LONGEST} characters")
    if name == PUBLIC:
        raise InvalidInput(field, f"{PUBLIC} stands for everyone")
    if not name.isprintable() or any(c in _REFUSED for c in name) or name in (".", ".."):
        raise InvalidInput(field, "must have printable characters only, and none of # / \\ ?")
    return name


def check_category(field: str, name: str) -> str:
    if name == TOTAL:
        raise InvalidInput(field, f"{TOTAL} stands for all categories")
    return check_name(field, name)
