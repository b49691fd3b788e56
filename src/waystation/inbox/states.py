"""What counts: the rules by which a message is read, seen or shown, without a database.

A reader's time has epochs: one ends whenever everything is read, or seen, at once. A message is
read by its own mark, or if it came before the epoch in which everything, or all of its category,
was read, unless it was set back to unread after that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from waystation.inbox.readers import Reader
from waystation.inbox.tables import TOTAL, Entry, UserStats
from waystation.store import Update, add, attr, exists

if TYPE_CHECKING:
    from waystation.inbox.tables import Message, PublicEntry, Receipt, UserMessage
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
        return self.total.epoch or 0

    def is_read(self, entry: Entry) -> bool:
        """Whether an own message is."""
        since = entry.epoch if entry.unread_epoch is None else entry.unread_epoch
        return entry.read or any(since < s.read_epoch for s in self._stats(entry.category))

    def is_seen(self, entry: Entry) -> bool:
        return entry.epoch < self.total.seen_epoch

    def entry(self, message: UserMessage) -> Entry:
        """What stands for an own message in the books. One without an epoch has just come."""
        reader = self.reader
        return Entry(
            tenant_key=reader.tenant,
            uid=reader.uid,
            inbox_key=reader.inbox,
            expires=expiry_of(message),
            id=message.id,
            category=category_of(message),
            read=message.readat is not None,
            epoch=self.epoch if message.epoch is None else message.epoch,
            unread_epoch=message.unread_epoch,
        )

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
        read = self.is_read(entry)
        unseen = not read and not self.is_seen(entry)
        return Amounts(published=1, read=int(read), unseen=int(unseen))

    def updates(self, changes: dict[str | None, Amounts]) -> list[Update[UserStats]]:
        """The counters' changes by category, and their sum's, if the epoch is still the same."""
        total = NOTHING
        updates = []
        for category, amounts in changes.items():
            total = total.plus(amounts)
            if category is not None and amounts != NOTHING:
                known = self.categories.get(category)
                # Total and category may have been read at different moments.
                same = _still("read_epoch", 0 if known is None else known.read_epoch)
                updates.append(Update(self.reader.stats(category), *_adds(amounts), when=same))
        guarded = attr("epoch") == self.epoch
        first = Update(self.reader.stats(), *_adds(total), add("revision", 1), when=guarded)
        return [first, *updates]


def _adds(amounts: Amounts) -> list[Any]:
    given = zip(Amounts._fields, amounts, strict=True)
    return [add(name, number) for name, number in given if number]


def unchanged(item: Item, *fields: str) -> Condition:
    """That some fields of an item are still as they were read. Of one that was mended, only that
    it is there can be said."""
    if getattr(item, "odd", None):
        return exists()
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
