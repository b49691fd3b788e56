"""What the change feed shows: messages that expired, and rows that other services wrote.

Everything here may come twice, and comes to the same then.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import msgspec

from waystation.errors import TransactionCancelled
from waystation.inbox.books import (
    TRIES,
    foreign_receipt,
    receipt_entry,
    same_entry,
)
from waystation.inbox.broadcasts import again
from waystation.inbox.readers import Place, Reader
from waystation.inbox.states import Amounts, category_of, expiry_of, is_message, unchanged
from waystation.inbox.tables import PublicMessage, Receipt, UserMessage
from waystation.store import Put, Update, absent, exists, key_of, set_to

if TYPE_CHECKING:
    from waystation.inbox.books import Books
    from waystation.inbox.broadcasts import Broadcasts
    from waystation.inbox.metrics import InboxMetrics
    from waystation.inbox.tables import Entry
    from waystation.store import Change, Store

log = logging.getLogger(__name__)


class Watching:
    def __init__(
        self, store: Store, books: Books, broadcasts: Broadcasts, metrics: InboxMetrics
    ) -> None:
        self._store = store
        self._books = books
        self._broadcasts = broadcasts
        self._metrics = metrics

    async def notice(self, change: Change) -> None:
        old, new = change.old, change.new
        if new is None:
            if change.expired and isinstance(old, UserMessage | Receipt):
                await self._books.fold(Reader(old.tenant_key, old.inbox_key, old.uid))
            elif change.expired and isinstance(old, PublicMessage):
                await self._broadcasts.fold(Place(old.tenant_key, old.inbox_key))
        elif isinstance(new, PublicMessage):
            if not new.entered:
                await self._broadcasts.adopt(new)
        elif isinstance(new, UserMessage) and not (
            change.kind == "insert" and new.epoch is not None
        ):
            await self._compare(Reader(new.tenant_key, new.inbox_key, new.uid), new.id)

    async def _compare(self, reader: Reader, id_: str) -> None:
        """See whether another service has written a row, or changed one of ours."""
        for attempt in range(TRIES):
            try:
                await self._adopt(reader, id_)
            except TransactionCancelled:
                await again(attempt)  # somebody has changed it meanwhile
            else:
                return
        # Whatever it is, it must not hold up everybody's changes: a recount will see to it.
        self._metrics.passed_over.inc()
        log.error("a change of message %s was passed over", id_)

    async def _adopt(self, reader: Reader, id_: str) -> None:
        row = await self._books.message(reader, id_)
        if row is None or row.archivedat is not None:
            return
        if not is_message(row):
            if await self._is_open(reader):
                await self._adopt_receipt(reader, row)
            return
        known = await self._store.get(reader.entry(expiry_of(row), id_))
        if known is not None and row.epoch is not None:
            marks = (row.readat is not None, row.unread_epoch)
            if (known.read, known.unread_epoch) == marks:
                return
        if await self._is_open(reader):
            await self._adopt_message(reader, row, known)

    async def _is_open(self, reader: Reader) -> bool:
        """Whether we keep a reader's books. If not, all is counted when they first come."""
        total = await self._store.get(reader.stats())
        return total is not None and total.epoch is not None

    async def _adopt_message(self, reader: Reader, row: UserMessage, known: Entry | None) -> None:
        """Keep an entry for a message as another service has left it. They have counted it, or
        its being read, but not what only we count."""
        book = await self._books.load_one(reader, category_of(row))
        entry = book.entry(row)
        before = Amounts() if known is None else book.amounts(known)
        unseen = book.amounts(entry).unseen - before.unseen
        same = exists() & unchanged(row, "readat", "archivedat", "epoch", "unread_epoch")
        await self._store.transact(
            Update(key_of(row), set_to("epoch", entry.epoch), when=same),
            Put(entry, when=absent() if known is None else same_entry(known)),
            *book.updates({entry.category: Amounts(unseen=unseen)}),
        )

    async def _adopt_receipt(self, reader: Reader, row: UserMessage) -> None:
        """Take another service's receipt for one of ours. They have counted it as read."""
        live = await self._broadcasts.live(reader.place, fresh=True)
        entry = live.alive(row.id, self._store.now())
        if entry is None or row.readat is None:
            return
        book = await self._books.load_one(reader, entry.category)
        known = await self._store.get(reader.receipt(row.id))
        if known is not None and known.foreign:
            return
        if known is None or known.readat is None:
            receipt = foreign_receipt(reader, row, entry)
            if known is not None:
                receipt.archivedat, receipt.deletedat = known.archivedat, known.deletedat
            counted = Amounts(public_read=1)
        else:
            receipt = msgspec.structs.replace(known, foreign=True)
            counted = Amounts(read=-1)  # both have
        when = absent()
        if known is not None:
            fields = ("readat", "archivedat", "deletedat", "unread_epoch", "foreign")
            when = exists() & unchanged(known, *fields)
        await self._store.transact(
            Put(receipt, when=when),
            Put(receipt_entry(receipt)),
            *book.updates({category_of(receipt): counted}),
        )
