"""What readers do with messages: read, unread, archived, deleted, all read, seen.

Each is one transaction with its counters, made from what was read before, and made anew when
somebody has changed that meanwhile. Done twice it is the same as once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from waystation.errors import NotFound, Overloaded, TransactionCancelled
from waystation.inbox.books import TRIES, receipt_entry
from waystation.inbox.broadcasts import again
from waystation.inbox.states import (
    NOTHING,
    Amounts,
    category_of,
    expiry_of,
    is_message,
    unchanged,
)
from waystation.inbox.tables import Receipt, Taxonomy, Tombstone, UserStats
from waystation.store import (
    Check,
    Delete,
    Put,
    Update,
    absent,
    add,
    exists,
    key_of,
    set_or_remove,
    set_to,
)

if TYPE_CHECKING:
    from waystation.inbox.books import Books
    from waystation.inbox.broadcasts import Broadcasts
    from waystation.inbox.readers import Reader
    from waystation.inbox.states import Book
    from waystation.inbox.tables import PublicEntry, UserMessage
    from waystation.store import Action, Edit, Store

Mark = Literal["read", "unread", "archive", "unarchive", "delete"]

_MOST_CATEGORIES = 90


class Marks:
    def __init__(self, store: Store, books: Books, broadcasts: Broadcasts) -> None:
        self._store = store
        self._books = books
        self._broadcasts = broadcasts

    async def mark(self, reader: Reader, id_: str, mark: Mark) -> None:
        for attempt in range(TRIES):
            actions = await self._actions(reader, id_, mark, fresh=attempt > 0)
            if not actions:
                return
            try:
                await self._store.transact(*actions)
            except TransactionCancelled:
                await again(attempt)
            else:
                return
        raise Overloaded("this message is changed by too many at once", retry_after=1.0)

    async def _actions(self, reader: Reader, id_: str, mark: Mark, *, fresh: bool) -> list[Action]:
        live = await self._broadcasts.live(reader.place, fresh=fresh)
        if id_ in live.withdrawn:
            raise NotFound("there is no such message")
        message = await self._books.message(reader, id_)
        now = int(self._store.clock() * 1000)
        if message is not None and is_message(message):
            book = await self._books.load_one(reader, category_of(message))
            return _own_actions(book, message, mark, now)
        entry = live.alive(id_, self._store.now())
        if entry is None:  # it may have come since
            live = await self._broadcasts.live(reader.place, fresh=True)
            entry = live.alive(id_, self._store.now())
        if entry is None:
            if mark == "delete" and await self._store.get(reader.tombstone(id_)) is not None:
                return []
            raise NotFound("there is no such message")
        book = await self._books.load_one(reader, entry.category)
        receipt = await self._store.get(reader.receipt(id_))
        gone = receipt is not None and receipt.deletedat is not None
        if (gone and mark != "delete") or not book.shows(entry):
            raise NotFound("there is no such message")
        return _public_actions(book, entry, receipt, mark, now)

    async def remove(self, reader: Reader, id_: str) -> None:
        """Take back a message that was withdrawn, as if it had never been sent."""
        for attempt in range(TRIES):
            message = await self._books.message(reader, id_)
            if message is None or not is_message(message):
                return
            book = await self._books.load_one(reader, category_of(message))
            try:
                await self._store.transact(*_own_actions(book, message, "delete", 0))
            except TransactionCancelled:
                await again(attempt)
            else:
                return
        raise Overloaded("this message is changed by too many at once", retry_after=1.0)

    async def read_all(self, reader: Reader, category: str | None) -> None:
        """Read everything that is there, or all of a category, by one mark."""
        for attempt in range(TRIES):
            book = await self._books.load(reader)
            if category is None and len(book.categories) > _MOST_CATEGORIES:
                for each in book.categories:  # more than fit into a transaction
                    await self.read_all(reader, each)
                book = await self._books.load(reader)
            if category is not None and category not in book.categories:
                live = await self._broadcasts.live(reader.place)
                if not any(entry.category == category for entry in live.entries):
                    return
            live = await self._broadcasts.live(reader.place, fresh=True)
            actions = _read_all(book, category, live.revision)
            try:
                await self._store.transact(*actions)
            except TransactionCancelled:
                await again(attempt)
            else:
                return
        raise Overloaded("too much changes here at the same time", retry_after=1.0)

    async def see(self, reader: Reader) -> None:
        """The bell was opened: everything that is there is seen."""
        for attempt in range(TRIES):
            book = await self._books.load(reader)
            total = book.total
            live = await self._broadcasts.live(reader.place, fresh=True)
            if not total.unseen and total.public_seen_to >= live.revision:
                return
            edits = [
                set_to("seen_epoch", book.epoch + 1),
                set_to("public_seen_to", max(live.revision, total.public_seen_to)),
                set_to("unseen", 0),
                *_new_epoch(book),
            ]
            changed = Update(key_of(total), *edits, when=unchanged(total, "revision"))
            others = [s for s in book.categories.values() if s.unseen][:_MOST_CATEGORIES]
            zeros = [Update(key_of(stats), set_to("unseen", 0)) for stats in others]
            try:
                await self._store.transact(changed, *zeros)
            except TransactionCancelled:
                await again(attempt)
            else:
                return
        raise Overloaded("too much changes here at the same time", retry_after=1.0)


def _own_actions(book: Book, message: UserMessage, mark: Mark, now: int) -> list[Action]:
    """What a mark on an own message means; nothing where it is so already."""
    after = msgspec.structs.replace(message)
    before = book.entry(message)
    after.epoch = before.epoch
    read = book.is_read(before)
    if mark == "read" and not read:
        after.readat, after.unread_epoch = now, None
    elif mark == "unread" and read:
        after.readat, after.unread_epoch = None, book.epoch
    elif mark == "archive" and message.archivedat is None:
        after.archivedat = now
    elif mark == "unarchive" and message.archivedat is not None:
        after.archivedat = None
    elif mark != "delete":
        return []
    entry = book.entry(after)
    counted = NOTHING if message.archivedat is not None else book.amounts(before).negated()
    fields = ("readat", "archivedat", "epoch", "unread_epoch")
    same = exists() & unchanged(message, *fields)
    actions: list[Action] = []
    if mark == "delete":
        actions += [Delete(key_of(message), when=same), Delete(key_of(entry))]
        actions.append(Put(_tombstone(book.reader, message)))
    else:
        edits = [set_or_remove(name, getattr(after, name)) for name in fields]
        actions.append(Update(key_of(message), *edits, when=same))
        if after.archivedat is None:
            actions.append(Put(entry))
            counted = counted.plus(book.amounts(entry))
        else:
            actions.append(Delete(key_of(entry)))
    return [*actions, *book.updates({entry.category: counted})]


def _tombstone(reader: Reader, message: UserMessage) -> Tombstone:
    return Tombstone(
        tenant_key=reader.tenant,
        uid=reader.uid,
        inbox_key=reader.inbox,
        id=message.id,
        expiredat=expiry_of(message),
    )


def _public_actions(
    book: Book, entry: PublicEntry, receipt: Receipt | None, mark: Mark, now: int
) -> list[Action]:
    """What a mark on a public message means: a receipt, counted if it says that it was read."""
    before = receipt or _new_receipt(book.reader, entry)
    after = msgspec.structs.replace(before)
    read = book.is_public_read(entry, receipt)
    if mark == "read" and not read:
        after.readat, after.unread_epoch = now, None
    elif mark == "unread" and read:
        after.readat, after.unread_epoch = None, book.epoch
    elif mark == "archive" and before.archivedat is None:
        after.archivedat = now
    elif mark == "unarchive" and before.archivedat is not None:
        after.archivedat = None
    elif mark == "delete" and before.deletedat is None:
        after.deletedat = now
    else:
        return []
    fields = ("readat", "archivedat", "deletedat", "unread_epoch")
    same = absent() if receipt is None else exists() & unchanged(receipt, *fields)
    actions: list[Action] = [
        Check(book.reader.place.message(entry.id), exists()),
        Put(after, when=same),
    ]
    counted = int(after.readat is not None) - int(before.readat is not None)
    if counted > 0:
        actions.append(Put(receipt_entry(after)))
    elif counted < 0:
        actions.append(Delete(key_of(receipt_entry(after))))
    change = {entry.category: Amounts(read=counted, public_read=counted)}
    return [*actions, *book.updates(change)]


def _new_receipt(reader: Reader, entry: PublicEntry) -> Receipt:
    return Receipt(
        tenant_key=reader.tenant,
        uid=reader.uid,
        inbox_key=reader.inbox,
        id=entry.id,
        taxonomy=None if entry.category is None else Taxonomy(entry.category),
        expiredat=entry.expires,
    )


def _read_all(book: Book, category: str | None, number: int) -> list[Action]:
    epoch = book.epoch + 1
    if category is None:
        whole = Update(
            key_of(book.total),
            *_all_read(book.total, number, epoch),
            *_new_epoch(book),
            when=unchanged(book.total, "revision"),
        )
        others = [
            Update(key_of(stats), *_counters_read(stats))
            for stats in book.categories.values()
            if stats.unseen or stats.unread
        ]
        return [whole, *others]
    reader = book.reader
    stats = book.categories.get(category) or UserStats(
        tenant_key=reader.tenant, inbox_key=reader.inbox, uid=reader.uid, category=category
    )
    changed = [add("read", stats.unread), add("unseen", -stats.unseen), *_new_epoch(book)]
    return [
        Update(key_of(book.total), *changed, when=unchanged(book.total, "revision")),
        Update(reader.stats(category), *_all_read(stats, number, epoch)),
    ]


def _all_read(stats: UserStats, number: int, epoch: int) -> list[Edit]:
    return [
        *_counters_read(stats),
        set_to("public_to", max(number, stats.public_to)),
        set_to("read_epoch", epoch),
    ]


def _counters_read(stats: UserStats) -> list[Edit]:
    return [set_to("read", stats.published + stats.public_read), set_to("unseen", 0)]


def _new_epoch(book: Book) -> list[Edit]:
    return [set_to("epoch", book.epoch + 1), add("revision", 1)]
