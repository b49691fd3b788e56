"""Giving a message to many users, and taking it back: list by list, in whichever process finds it.

Each user's copy is written together with their counters. Who has the message already, or has
deleted it since, does not get it again, so that a list can be worked through any number of times.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from waystation.errors import ConditionFailed, Overloaded, TransactionCancelled, WaystationError
from waystation.inbox.books import TRIES
from waystation.inbox.broadcasts import again
from waystation.inbox.readers import Place
from waystation.inbox.tables import Audiences, Part, Publication, Taxonomy, UserMessage
from waystation.patterns import RESCUE_MS, TimedWork, Timers
from waystation.store import Check, Delete, Put, Update, absent, add, attr, exists, key_of, set_to

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Sequence

    from waystation.inbox.books import Books
    from waystation.inbox.broadcasts import Broadcasts
    from waystation.inbox.marks import Marks
    from waystation.inbox.states import Book
    from waystation.patterns import Look
    from waystation.store import Action, Store

log = logging.getLogger(__name__)

FEW = 20
"""Users whose copies and counters fit into one transaction."""

PART = 500
_GROUPS_AT_ONCE = 4
_INLINE_SECONDS = 2.0


class Distribution:
    """Where there is no background work in this process, others go on with what is left."""

    def __init__(
        self,
        store: Store,
        books: Books,
        broadcasts: Broadcasts,
        marks: Marks,
        stopping: asyncio.Event,
        *,
        background: bool,
    ) -> None:
        self._store = store
        self._books = books
        self._broadcasts = broadcasts
        self._marks = marks
        self._background = background
        self._shares: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._timers = Timers(store, "inbox")
        self.timed = TimedWork(self._timers, self._work, stopping)

    async def expect(self, id_: str) -> None:
        """Call it before there is more to do for a message: it is found, whatever happens."""
        await self._timers.expect(id_, self._timers.now() + RESCUE_MS)

    async def hurry(self, id_: str) -> None:
        """Do what there is to do for a message, as far as a caller would wait for it; the rest goes
        on in the background. It is accepted, whatever goes wrong now: its timer leads to it."""
        ends = time.monotonic() + _INLINE_SECONDS
        try:
            while time.monotonic() < ends:
                if not await self._step(id_):
                    return
            await self._timers.ensure(id_, self._timers.now())
        except WaystationError as error:
            log.warning("message %s is not given out yet: %s", id_, error)
        if self._background:
            self.timed.kick(id_)

    async def _work(self, id_: str, look: Look) -> int | None:
        while not look.stopping:
            if not await self._step(id_):
                return None
            await look.keep()
        return self._timers.now()

    async def _step(self, id_: str) -> bool:
        """Work through the next list of a message; whether there may be more."""
        publication = await self._store.get(Publication.key(id_))
        if publication is None or publication.status in ("published", "withdrawn"):
            return False
        number = publication.done
        if number >= publication.parts + bool(publication.uids):
            return await self._end(publication)
        uids = await self._list(publication, number)
        share = self._shares.setdefault(publication.account, asyncio.Lock())
        async with share:  # one list at a time for each account
            if publication.status == "publishing":
                await self._give(publication, uids)
                edits = [add("done", 1), add("delivered", len(uids))]
            else:
                await self._take(publication, uids)
                edits = [add("done", 1)]
        same = (attr("done") == number) & (attr("status") == publication.status)
        with suppress(ConditionFailed):  # another process has done the same, or it is withdrawn
            await self._store.update(key_of(publication), *edits, when=same)
        return True

    async def _list(self, publication: Publication, number: int) -> list[str]:
        if publication.uids:
            if number == 0:
                return publication.uids
            number -= 1
        part = await self._store.get(Part.key(publication.id, number))
        return [] if part is None else part.uids

    async def _end(self, publication: Publication) -> bool:
        """Nothing is left to do, unless there is by now."""
        same = (attr("done") == publication.done) & (attr("parts") == publication.parts)
        if publication.status == "publishing":
            when = same & (attr("status") == "publishing")
            try:
                await self._store.update(
                    key_of(publication), set_to("status", "published"), when=when
                )
            except ConditionFailed:
                return True
            return False
        place = place_of(publication)
        with suppress(TransactionCancelled):
            await self._store.transact(
                Update(
                    key_of(publication),
                    set_to("status", "withdrawn"),
                    when=exists() & (attr("status") == "withdrawing"),
                ),
                Delete(place.withdrawal(publication.id)),
                Update(place.stats(), add("revision", 1)),
            )
        self._broadcasts.forget(place)
        return False

    async def _give(self, publication: Publication, uids: Sequence[str]) -> None:
        missing = await self._without(publication, uids)
        groups = [missing[n : n + FEW] for n in range(0, len(missing), FEW)]
        await self._some_at_once(self._give_group(publication, group) for group in groups)

    async def _give_group(self, publication: Publication, uids: list[str]) -> None:
        wanted = Check(key_of(publication), attr("status") == "publishing")
        for attempt in range(TRIES):
            copies = await self.copies(publication, uids)
            try:
                await self._store.transact(wanted, *copies)
            except TransactionCancelled as error:
                if error.reasons[0] is not None:
                    return  # it is withdrawn
                await again(attempt)
                uids = await self._without(publication, uids)
                if not uids:
                    return
            else:
                return
        raise Overloaded("too much changes here at the same time", retry_after=1.0)

    async def _without(self, publication: Publication, uids: Sequence[str]) -> list[str]:
        """Those who have neither the message nor deleted it."""
        readers = [place_of(publication).reader(uid) for uid in uids]
        copies = await self._store.batch_get([r.message(publication.id) for r in readers])
        deleted = await self._store.batch_get([r.tombstone(publication.id) for r in readers])
        found = zip(uids, copies, deleted, strict=True)
        return [uid for uid, copy, gone in found if copy is None and gone is None]

    async def _take(self, publication: Publication, uids: Sequence[str]) -> None:
        place = place_of(publication)
        removals = (self._marks.remove(place.reader(uid), publication.id) for uid in uids)
        await self._some_at_once(removals)

    async def _some_at_once(self, work: Iterable[Coroutine[Any, Any, None]]) -> None:
        """A share of the writer that leaves room for others. What fails stops none of the rest."""
        places = asyncio.Semaphore(_GROUPS_AT_ONCE)

        async def one(each: Coroutine[Any, Any, None]) -> None:
            async with places:
                await each

        outcomes = await asyncio.gather(*(one(each) for each in work), return_exceptions=True)
        for outcome in outcomes:
            if outcome is not None:
                raise outcome

    async def copies(self, publication: Publication, uids: Sequence[str]) -> list[Action]:
        """What gives a message to some users, with their counters."""
        readers = [place_of(publication).reader(uid) for uid in uids]
        books = await self._books.load_some(readers, publication.category)
        return [action for book in books for action in self._copy(book, publication)]

    def _copy(self, book: Book, publication: Publication) -> list[Action]:
        category = publication.category
        message = UserMessage(
            id=publication.id,
            host_system_id=publication.host_system_id,
            sender=publication.sender,
            audiences=Audiences("users", publication.label),
            received=publication.received,
            delivered=int(self._store.clock() * 1000),
            expiredat=publication.expires_at,
            taxonomy=None if category is None else Taxonomy(category),
            type=publication.type,
            message=publication.message,
            epoch=book.epoch,
            tenant_key=publication.tenant_key,
            inbox_key=publication.inbox_key,
            uid=book.reader.uid,
        )
        entry = book.entry(message)
        counted = book.updates({category: book.amounts(entry)})
        return [Put(message, when=absent()), Put(entry), *counted]


def place_of(publication: Publication) -> Place:
    return Place(publication.tenant_key, publication.inbox_key)
