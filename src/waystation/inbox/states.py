"""What counts: the rules by which a message is read, seen or shown, without a database.

A message is read by its own mark, or by lying at or below the point up to which everything was read
at once, of all or of its category, unless it was set back to unread after that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from waystation.inbox.readers import Reader
from waystation.inbox.tables import TOTAL, UserStats
from waystation.store import Update, add, attr

if TYPE_CHECKING:
    from waystation.inbox.tables import Entry, Message, PublicEntry, Receipt, UserMessage
    from waystation.store import Condition, Item

NEVER = 9_999_999_999
"""When a message expires for which nobody has said it."""


class Amounts(NamedTuple):
    """A change of counters."""

    published: int = 0
    read: int = 0
    public_read: int = 0
    unseen: int = 0

    def plus(self, other: Amounts) -> Amounts:
        return Amounts(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))

    def negated(self) -> Amounts:
        return Amounts(*(-each for each in self))


NOTHING = Amounts()


class Book(msgspec.Struct):
    """A reader's counters: of all, and of categories. They are as they were read; changes are made
    under the condition that their epoch is still the same."""

    reader: Reader
    total: UserStats
    categories: dict[str, UserStats]

    @property
    def epoch(self) -> int:
        assert self.total.epoch is not None
        return self.total.epoch

    @property
    def seen_to(self) -> str:
        return self.total.seen_to or ""

    def is_read(self, id_: str, category: str | None, marked: bool, unread_epoch: Any) -> bool:
        """Whether an own message is; `marked` says that it has a mark of its own."""
        if marked:
            return True
        since = unread_epoch if isinstance(unread_epoch, int) else -1
        stats = self._stats(category)
        return any(id_ <= (s.read_to or "") and s.read_epoch > since for s in stats)

    def read_at_once(self, id_: str, category: str | None) -> bool:
        """Whether a message that comes now lies where everything counts as read."""
        return self.is_read(id_, category, marked=False, unread_epoch=None)

    def is_public_read(self, entry: PublicEntry, receipt: Receipt | None) -> bool:
        if receipt is not None and receipt.readat is not None:
            return True
        since = -1
        if receipt is not None and receipt.unread_epoch is not None:
            since = receipt.unread_epoch
        stats = self._stats(entry.category)
        return any(entry.number <= s.public_to and s.read_epoch > since for s in stats)

    def shows(self, entry: PublicEntry) -> bool:
        """Whether a public message is for this reader, or was there before they came."""
        return entry.backfill or entry.number > self.total.floor

    def _stats(self, category: str | None) -> list[UserStats]:
        named = None if category is None else self.categories.get(category)
        return [self.total] if named is None else [self.total, named]

    def amounts(self, entry: Entry) -> Amounts:
        """What an entry stands for in the counters."""
        if not entry.own:
            return Amounts(read=1, public_read=1)
        read = self.is_read(entry.id, entry.category, entry.read, entry.unread_epoch)
        unseen = not read and entry.id > self.seen_to
        return Amounts(published=1, read=int(read), unseen=int(unseen))

    def updates(self, changes: dict[str | None, Amounts]) -> list[Update[UserStats]]:
        """The counters' changes by category, and their sum's, if the epoch is still the same."""
        total = NOTHING
        updates = []
        for category, amounts in changes.items():
            total = total.plus(amounts)
            if category is not None and amounts != NOTHING:
                updates.append(Update(self.reader.stats(category), *_adds(amounts)))
        guarded = attr("epoch") == self.epoch
        first = Update(self.reader.stats(), *_adds(total), add("revision", 1), when=guarded)
        return [first, *updates]


def _adds(amounts: Amounts) -> list[Any]:
    given = zip(Amounts._fields, amounts, strict=True)
    return [add(name, number) for name, number in given if number]


def unchanged(item: Item, *fields: str) -> Condition:
    """That some fields of an item are still as they were read."""
    conditions = [_still(field, getattr(item, field)) for field in fields]
    found = conditions[0]
    for condition in conditions[1:]:
        found &= condition
    return found


def _still(field: str, value: object) -> Condition:
    place = attr(field)
    if value is None:  # others may write that there is nothing
        return place.absent() | place.is_type("NULL")
    if value == 0:  # or what is no number, or count from nothing
        return (place == value) | ~place.is_type("N")
    return place == value


def category_of(row: Message | Receipt) -> str | None:
    """The category of a message or a receipt, if it is one that can be counted by."""
    found = None if row.taxonomy is None else row.taxonomy.category
    if found is None or not 0 < len(found) <= 128 or found == TOTAL or "#" in found:
        return None
    return found


def expiry_of(row: Message | Receipt) -> int:
    """When a message expires, in epoch seconds."""
    found = row.expiredat
    return found if found is not None and 0 < found < NEVER else NEVER


def is_message(row: UserMessage) -> bool:
    """Whether a row below `m#` is a message, and not another service's receipt."""
    return row.message is not None


def is_hidden(receipt: Receipt | None) -> bool:
    """Whether a user has put a public message away."""
    return receipt is not None and (receipt.archivedat is not None or receipt.deletedat is not None)
