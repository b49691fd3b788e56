"""What a reader is shown: pages of messages, both kinds merged by id, and counts."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Literal

from waystation.errors import Overloaded
from waystation.inbox.books import sums
from waystation.inbox.states import expiry_of, is_hidden, is_message
from waystation.inbox.tables import PublicEntry
from waystation.inbox.views import CategoryCounts, Counts, MessageView, message_view

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from waystation.inbox.books import Books
    from waystation.inbox.broadcasts import Broadcasts, Live
    from waystation.inbox.readers import Reader
    from waystation.inbox.states import Book
    from waystation.inbox.tables import PublicMessage, Receipt, UserMessage
    from waystation.patterns import Cursors
    from waystation.store import Store

Status = Literal["all", "unread", "read", "archived"]

_MOST_EXAMINED = 1_000
"""Messages that one page looks at: where few of many fit, pages are short and there are more."""

_PAGE = 50
_TRIES = 20


class _State:
    """A reader at a moment: what all of their messages are judged by."""

    def __init__(self, book: Book, live: Live, receipts: dict[str, Receipt], now: int) -> None:
        self.book = book
        self.live = live
        self.receipts = receipts
        self._now = now

    def shown(self) -> list[PublicEntry]:
        """The public messages that are for this reader, oldest first."""
        return [e for e in self.live.entries if e.expires > self._now and self.book.shows(e)]

    def own_view(self, message: UserMessage) -> MessageView:
        entry = self.book.entry(message)
        return message_view(
            message,
            everyone=False,
            read=self.book.is_read(entry),
            read_at=message.readat,
            seen=self.book.is_seen(entry),
            archived=message.archivedat is not None,
        )

    def public_view(self, message: PublicMessage) -> MessageView | None:
        entry = self.live.by_id.get(message.id)
        if entry is None:
            return None
        receipt = self.receipts.get(message.id)
        return message_view(
            message,
            everyone=True,
            read=self.book.is_public_read(entry, receipt),
            read_at=None if receipt is None else receipt.readat,
            seen=entry.number <= self.book.total.public_seen_to,
            archived=receipt is not None and receipt.archivedat is not None,
        )

    def fits(self, row: UserMessage | PublicEntry, status: Status, category: str | None) -> bool:
        if isinstance(row, PublicEntry):
            receipt = self.receipts.get(row.id)
            if receipt is not None and receipt.deletedat is not None:
                return False
            named, read = row.category, self.book.is_public_read(row, receipt)
            archived = is_hidden(receipt)
        else:
            gone = row.id in self.live.withdrawn or expiry_of(row) <= self._now
            if gone or not is_message(row):
                return False
            own = self.book.entry(row)
            named, read = own.category, self.book.is_read(own)
            archived = row.archivedat is not None
        if category is not None and named != category:
            return False
        if status == "archived" or archived:
            return status == "archived" and archived
        return status == "all" or read == (status == "read")


class Reading:
    def __init__(
        self, store: Store, books: Books, broadcasts: Broadcasts, cursors: Cursors
    ) -> None:
        self._store = store
        self._books = books
        self._broadcasts = broadcasts
        self._cursors = cursors

    async def state(self, reader: Reader, *, fresh: bool = False) -> _State:
        live = await self._broadcasts.live(reader.place, fresh=fresh)
        book = await self._books.load(reader)
        receipts: dict[str, Receipt] = {}
        if live.entries:
            query = reader.receipts().between(live.entries[0].id, live.entries[-1].id)
            receipts = {r.id: r async for r in self._store.iterate(query)}
        return _State(book, live, receipts, self._store.now())

    async def counts(self, reader: Reader) -> Counts:
        """Exact at this instant, whatever the database has yet to remove."""
        counts = await self._at_rest(reader)
        named = [n for c in counts.categories.values() for n in (c.total, c.unread)]
        if min(counts.total, counts.unread, counts.unseen, *named) < 0:
            await self._books.recount(reader)  # another service has counted differently
            counts = await self._at_rest(reader)
        return counts

    async def _at_rest(self, reader: Reader) -> Counts:
        """Counts between which nothing has changed: they are read in several steps."""
        for attempt in range(_TRIES):
            state = await self.state(reader, fresh=attempt > 0)
            counts = await self._counted(reader, state)
            if await self._books.is_current(state.book):
                return counts
        raise Overloaded("too much changes here at the same time", retry_after=1.0)

    async def _counted(self, reader: Reader, state: _State) -> Counts:
        book = state.book
        total = book.total
        counts = Counts(total.published, total.unread, total.unseen)
        for name, stats in book.categories.items():
            counts.categories[name] = CategoryCounts(stats.published, stats.unread)
        passed = await self._books.passed(reader)
        for category, gone in sums(book, passed, lambda amounts: amounts).items():
            own_read = gone.read - gone.public_read
            counts.count(category, -gone.published, own_read - gone.published, -gone.unseen)
        await self._leave_out_withdrawn(reader, state, counts)
        seen = book.total.public_seen_to
        for entry in state.shown():
            receipt = state.receipts.get(entry.id)
            if not is_hidden(receipt):
                unread = int(not book.is_public_read(entry, receipt))
                counts.count(entry.category, 1, unread, unread if entry.number > seen else 0)
        counts.categories = {
            c: n for c, n in sorted(counts.categories.items()) if n.total or n.unread
        }
        return counts

    async def _leave_out_withdrawn(self, reader: Reader, state: _State, counts: Counts) -> None:
        """Messages that are withdrawn already, although they still lie there."""
        if not state.live.withdrawn:
            return
        keys = [reader.message(id_) for id_ in state.live.withdrawn]
        for message in await self._store.batch_get(keys):
            if message is None or not is_message(message) or message.archivedat is not None:
                continue
            view = state.own_view(message)
            unread = -int(not view.read)
            counts.count(view.category, -1, unread, 0 if view.seen else unread)

    async def page(
        self,
        reader: Reader,
        status: Status = "all",
        category: str | None = None,
        limit: int = 20,
        cursor: str | None = None,
    ) -> tuple[list[MessageView], str | None]:
        """Messages, newest first, and where to go on. What comes meanwhile is before the first
        page: nothing is shown twice or left out."""
        scope = f"inbox {reader} {status} {category}"
        position = None if cursor is None else self._cursors.open(cursor, scope)
        state = await self.state(reader)
        chosen: list[UserMessage | PublicEntry] = []
        examined = 0
        after: str | None = None
        async for row in self._merged(reader, state, position):
            if len(chosen) == limit or examined == _MOST_EXAMINED:
                return await self._views(chosen, state), self._cursors.seal(after or "", scope)
            examined += 1
            after = f"{_rank(row)}{row.id}"
            if state.fits(row, status, category):
                chosen.append(row)
        return await self._views(chosen, state), None

    async def since(self, reader: Reader, id_: str, most: int) -> list[MessageView] | None:
        """Messages with ids from one on, oldest first; None if there are more than so many."""
        state = await self.state(reader, fresh=True)
        page = await self._store.query(reader.messages().at_least(id_), limit=most)
        public = [entry for entry in state.shown() if entry.id >= id_]
        found: list[UserMessage | PublicEntry] = [*page.items, *public]
        rows = [row for row in found if state.fits(row, "all", None)]
        if page.cursor is not None or len(rows) > most:
            return None
        rows.sort(key=lambda row: row.id)
        return await self._views(rows, state)

    async def _merged(
        self, reader: Reader, state: _State, position: str | None
    ) -> AsyncIterator[UserMessage | PublicEntry]:
        """Both kinds, newest first, after a position: the kind of a message, and its id. An own
        message comes before a public one of the same id. What has expired is among them: whoever
        looks at it has done some work."""
        public = state.shown()
        query = reader.messages()
        if position is not None:
            rank, last = position[0], position[1:]
            public = [e for e in public if e.id < last or (e.id == last and rank == "0")]
            query = query.before(last)
        cursor: str | None = None
        while True:
            page = await self._store.query(
                query, limit=_PAGE, after=cursor, reverse=True, expired=True
            )
            for message in page.items:
                while public and public[-1].id > message.id:
                    yield public.pop()
                yield message
            await asyncio.sleep(0)  # many may have expired, and reading them is never a wait
            cursor = page.cursor
            if cursor is None:
                break
        while public:
            yield public.pop()

    async def _views(
        self, rows: list[UserMessage | PublicEntry], state: _State
    ) -> list[MessageView]:
        place = state.book.reader.place
        wanted = [row.id for row in rows if isinstance(row, PublicEntry)]
        found = await self._store.batch_get([place.message(id_) for id_ in wanted])
        bodies = {message.id: message for message in found if message is not None}
        views: list[MessageView | None] = []
        for row in rows:
            if not isinstance(row, PublicEntry):
                views.append(state.own_view(row))
            elif row.id in bodies:  # otherwise it was withdrawn just now
                views.append(state.public_view(bodies[row.id]))
        return [view for view in views if view is not None]


def _rank(row: UserMessage | PublicEntry) -> str:
    return "1" if isinstance(row, PublicEntry) else "0"
