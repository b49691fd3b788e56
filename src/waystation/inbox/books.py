"""The books: a reader's counters, kept so that they equal a recount at any instant.

Every message that the counters contain has an entry, in order of expiry. What has expired is left
out of a count by its entry, and an entry goes in the same transaction in which the counters fall:
once, however often somebody asks for it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

import msgspec

from waystation.errors import ConditionFailed, Overloaded, TransactionCancelled
from waystation.inbox.broadcasts import again
from waystation.inbox.states import (
    NOTHING,
    Amounts,
    Book,
    category_of,
    expiry_of,
    is_message,
    unchanged,
)
from waystation.inbox.tables import MARKS, TOTAL, Entry, Member, Receipt, Taxonomy, UserStats
from waystation.store import (
    Check,
    Delete,
    Item,
    Put,
    Update,
    absent,
    exists,
    key_of,
    set_or_remove,
    set_to,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence

    from waystation.inbox.broadcasts import Broadcasts, Live
    from waystation.inbox.metrics import InboxMetrics
    from waystation.inbox.readers import Reader
    from waystation.inbox.tables import PublicEntry, UserMessage
    from waystation.store import Action, Condition, Edit, Query, Store

I = TypeVar("I", bound=Item)  # noqa: E741 - I for Item

TRIES = 30
_FOLDED_AT_ONCE = 40
_FIXED_AT_ONCE = 90
_ALL_READ = ("public_to", "read_epoch", "floor", "seen_epoch", "public_seen_to")
_YIELD_EVERY = 200


class Drift(msgspec.Struct):
    """A counter that is not what it should be."""

    category: str
    counter: str
    counted: int
    actual: int


class Books:
    def __init__(self, store: Store, broadcasts: Broadcasts, metrics: InboxMetrics) -> None:
        self._store = store
        self._broadcasts = broadcasts
        self._metrics = metrics

    async def load(self, reader: Reader) -> Book:
        """All counters of a reader."""
        while True:
            found = [stats async for stats in self._store.iterate(reader.all_stats())]
            book = _book(reader, found)
            if book is not None:
                return book
            await self.join(reader)

    async def load_some(self, readers: Sequence[Reader], category: str | None) -> list[Book]:
        """The totals of some readers, and their counters of one category."""
        while True:
            # First the totals: whoever goes by a category that is newer is refused by the epoch.
            totals = await self._store.batch_get([reader.stats() for reader in readers])
            named: list[UserStats | None] = [None] * len(readers)
            if category is not None:
                named = await self._store.batch_get([r.stats(category) for r in readers])
            books = []
            for reader, *found in zip(readers, totals, named, strict=True):
                book = _book(reader, [stats for stats in found if stats is not None])
                if book is None:
                    await self.join(reader)
                else:
                    books.append(book)
            if len(books) == len(readers):
                return books

    async def load_one(self, reader: Reader, category: str | None) -> Book:
        return (await self.load_some([reader], category))[0]

    async def join(self, reader: Reader) -> None:
        """Open the book of a reader who was not seen before, or whom another service knows."""
        if await self._is_known(reader):
            await self.recount(reader)
            return
        live = await self._broadcasts.live(reader.place, fresh=True)
        total = _new_total(reader)
        total.epoch, total.floor, total.revision = 1, live.revision, 1
        try:
            await self._store.transact(Put(total, when=absent()), Put(self._member(reader)))
        except TransactionCancelled:
            return  # it was opened meanwhile

    async def _is_known(self, reader: Reader) -> bool:
        for query in (reader.all_stats(), reader.messages(), reader.receipts()):
            if (await self._store.query(query, limit=1, expired=True)).items:
                return True
        return False

    def _member(self, reader: Reader) -> Member:
        return Member(
            tenant_key=reader.tenant,
            inbox_key=reader.inbox,
            uid=reader.uid,
            joined_at=self._store.now(),
        )

    async def message(self, reader: Reader, id_: str) -> UserMessage | None:
        """A row below `m#`, with marks that conditions can speak of."""
        found = await self._store.get(reader.message(id_))
        if found is None or not found.odd:
            return found
        edits = [set_or_remove(name, getattr(found, name)) for name in MARKS]
        with suppress(ConditionFailed):  # it is gone
            await self._store.update(key_of(found), *edits, when=exists())
        return await self._store.get(reader.message(id_))

    async def is_current(self, book: Book) -> bool:
        """Whether a book is still as it was read."""
        total = await self._store.get(book.reader.stats())
        return (None if total is None else total.revision) == book.total.revision

    async def passed(self, reader: Reader) -> list[Entry]:
        """What the counters contain although it has expired."""
        query = reader.entries().at_most(self._store.now())
        first = await self._store.query(query, limit=_FOLDED_AT_ONCE + 1)
        if len(first.items) <= _FOLDED_AT_ONCE:
            return list(first.items)
        await self.fold(reader)  # so that the next count finds less
        return [entry async for entry in self._paced(query)]

    async def fold(self, reader: Reader) -> None:
        """Take what has expired out of the counters."""
        for attempt in range(TRIES):
            query = reader.entries().at_most(self._store.now())
            passed = (await self._store.query(query, limit=_FOLDED_AT_ONCE)).items
            if not passed:
                return
            book = await self.load(reader)
            changes = sums(book, passed, lambda amounts: amounts.negated())
            try:
                await self._store.transact(
                    *(Delete(key_of(entry), when=same_entry(entry)) for entry in passed),
                    *book.updates(changes),
                )
            except TransactionCancelled:
                await again(attempt)
        # There is more, or others are at it: the next look goes on.

    async def recount(self, reader: Reader, *, fix: bool = True) -> list[Drift]:
        """Count anew what a reader has, and say which counters are wrong. Unless they are only to
        be looked at, they are right afterwards."""
        for attempt in range(TRIES):
            found = [stats async for stats in self._store.iterate(reader.all_stats())]
            if _book(reader, found) is not None:
                await self.fold(reader)  # what has expired is no drift
                found = [stats async for stats in self._store.iterate(reader.all_stats())]
            stats = {each.category: each for each in found}
            total = stats.pop(TOTAL, None)
            recount = _Recount(
                Book(reader, total or _new_total(reader), stats), total, self._store.now()
            )
            live = await self._broadcasts.live(reader.place, fresh=True)
            await self._look(recount, live)
            drift = recount.drift()
            if not fix:
                if await self.is_current(recount.book):
                    return drift
                continue
            try:
                await self._settle(recount)
            except TransactionCancelled:
                await again(attempt)
                continue
            if recount.known:
                for each in drift:
                    self._metrics.drift.labels(each.counter).inc(abs(each.counted - each.actual))
            return drift
        raise Overloaded("too much changes here at the same time", retry_after=1.0)

    async def _look(self, recount: _Recount, live: Live) -> None:
        reader = recount.book.reader
        async for receipt in self._paced(reader.receipts()):
            recount.add_receipt(receipt)
        async for message in self._paced(reader.messages()):
            recount.add_message(message, live)
        async for entry in self._paced(reader.entries()):
            recount.compare(entry)

    async def _paced(self, query: Query[I]) -> AsyncIterator[I]:
        """Everything of a query, in pages so small that others come in between."""
        cursor: str | None = None
        while True:
            page = await self._store.query(query, limit=_YIELD_EVERY, after=cursor)
            for item in page.items:
                yield item
            await asyncio.sleep(0)
            cursor = page.cursor
            if cursor is None:
                return

    async def _settle(self, recount: _Recount) -> None:
        """Write what was found, as long as nothing changes meanwhile."""
        book, total = recount.book, recount.total
        if total is None:
            guard = absent()
        elif recount.known:
            guard = unchanged(total, "revision")
        elif total.odd:
            guard = exists()
        else:
            guard = unchanged(total, "epoch", "published", "read")
        expected = recount.expected()
        categories = [
            Update(book.reader.stats(category), *_sets(expected.get(category, NOTHING)))
            for category in {*expected, *book.categories} - {TOTAL}
        ]
        changes = [*recount.fixes(), *categories]
        check = Check(book.reader.stats(), guard)
        while len(changes) > _FIXED_AT_ONCE:
            await self._store.transact(*changes[:_FIXED_AT_ONCE], check)
            changes = changes[_FIXED_AT_ONCE:]
        sets = [
            *_sets(expected.get(TOTAL, NOTHING)),
            set_to("epoch", book.epoch + 1),
            set_to("revision", (book.total.revision or 0) + 1),
        ]
        if book.total.odd:
            sets += [set_to(name, getattr(book.total, name)) for name in _ALL_READ]
        whole_total = Update(book.reader.stats(), *sets, when=guard)
        await self._store.transact(whole_total, Put(self._member(book.reader)), *changes)


class _Recount:
    """What a reader should have, from what lies there. `total` is None where nobody has counted."""

    def __init__(self, book: Book, total: UserStats | None, now: int) -> None:
        self.book = book
        self.total = total
        self._now = now
        self._entries: dict[tuple[int, str], Entry] = {}
        self._receipts: set[str] = set()
        self._new_messages: list[UserMessage] = []
        self._new_receipts: list[Receipt] = []
        self._same: set[tuple[int, str]] = set()
        self._stale: list[Entry] = []

    @property
    def known(self) -> bool:
        """Whether these were our own counters before."""
        return self.total is not None and self.total.epoch is not None

    def add_receipt(self, receipt: Receipt) -> None:
        self._receipts.add(receipt.id)
        if receipt.readat is not None:
            self._add(receipt_entry(receipt))

    def add_message(self, message: UserMessage, live: Live) -> None:
        if is_message(message):
            if message.archivedat is None:
                self._add(self.book.entry(message))
            if message.epoch is None:
                self._new_messages.append(message)
            return
        entry = live.alive(message.id, self._now)
        if entry is not None and message.id not in self._receipts and message.readat is not None:
            receipt = foreign_receipt(self.book.reader, message, entry)
            self._new_receipts.append(receipt)
            self._add(receipt_entry(receipt))

    def _add(self, entry: Entry) -> None:
        self._entries[entry.expires, entry.id] = entry

    def compare(self, entry: Entry) -> None:
        place = (entry.expires, entry.id)
        if place not in self._entries:
            self._stale.append(entry)
        elif self._entries[place] == entry:
            self._same.add(place)

    def expected(self) -> dict[str, Amounts]:
        found: dict[str, Amounts] = {}
        for entry in self._entries.values():
            amounts = self.book.amounts(entry)
            for category in {TOTAL, entry.category or TOTAL}:
                found[category] = found.get(category, NOTHING).plus(amounts)
        return found

    def drift(self) -> list[Drift]:
        expected = self.expected()
        found = []
        for category, stats in {TOTAL: self.book.total, **self.book.categories}.items():
            right = expected.pop(category, NOTHING)
            found += _differences(category, _amounts_of(stats), right)
        for category, right in expected.items():
            found += _differences(category, NOTHING, right)
        return found

    def fixes(self) -> list[Action]:
        fixes: list[Action] = [Delete(key_of(entry)) for entry in self._stale]
        fixes += [Put(entry) for at, entry in self._entries.items() if at not in self._same]
        fixes += [Put(receipt, when=absent()) for receipt in self._new_receipts]
        fixes += [
            Update(key_of(message), set_to("epoch", self.book.epoch), when=exists())
            for message in self._new_messages
        ]
        return fixes


def sums(
    book: Book, entries: Iterable[Entry], of: Callable[[Amounts], Amounts]
) -> dict[str | None, Amounts]:
    """What entries stand for, by category."""
    found: dict[str | None, Amounts] = {}
    for entry in entries:
        amounts = of(book.amounts(entry))
        found[entry.category] = found.get(entry.category, NOTHING).plus(amounts)
    return found


def same_entry(entry: Entry) -> Condition:
    return unchanged(entry, "id", "read", "epoch", "unread_epoch")


def receipt_entry(receipt: Receipt) -> Entry:
    return Entry(
        tenant_key=receipt.tenant_key,
        uid=receipt.uid,
        inbox_key=receipt.inbox_key,
        expires=expiry_of(receipt),
        id=receipt.id,
        own=False,
        category=category_of(receipt),
        read=True,
    )


def foreign_receipt(reader: Reader, row: UserMessage, entry: PublicEntry) -> Receipt:
    """Another service's receipt for a message, as one of ours."""
    category = entry.category
    return Receipt(
        tenant_key=reader.tenant,
        uid=reader.uid,
        inbox_key=reader.inbox,
        id=row.id,
        taxonomy=None if category is None else Taxonomy(category),
        readat=row.readat or 0,
        foreign=True,
        expiredat=entry.expires,
    )


def _book(reader: Reader, found: list[UserStats]) -> Book | None:
    stats = {each.category: each for each in found}
    total = stats.pop(TOTAL, None)
    return None if total is None or total.epoch is None else Book(reader, total, stats)


def _new_total(reader: Reader) -> UserStats:
    return UserStats(tenant_key=reader.tenant, inbox_key=reader.inbox, uid=reader.uid)


def _amounts_of(stats: UserStats) -> Amounts:
    return Amounts(stats.published, stats.read, stats.public_read, stats.unseen)


def _sets(amounts: Amounts) -> list[Edit]:
    return [set_to(name, n) for name, n in zip(Amounts._fields, amounts, strict=True)]


def _differences(category: str, counted: Amounts, right: Amounts) -> list[Drift]:
    compared = zip(Amounts._fields, counted, right, strict=True)
    return [Drift(category, name, has, should) for name, has, should in compared if has != should]
