"""Messages to everyone: stored once, numbered in the order in which they are stored, and few enough
alive at a time that every process can keep a list of them."""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import msgspec

from waystation.errors import Conflict, NotFound, Overloaded, TransactionCancelled
from waystation.inbox.readers import Place
from waystation.inbox.states import category_of, expiry_of
from waystation.inbox.tables import PublicEntry
from waystation.store import Delete, Put, Update, absent, add, attr, exists, key_of, set_to

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from waystation.inbox.tables import PublicMessage, PublicStats
    from waystation.store import Action, Condition, Edit, Store

MOST_LIVE = 2_000
"""Public messages of one inbox that can be alive at a time: every count looks at all of them."""

_FRESH_SECONDS = 1.0
_MOST_KEPT = 100_000
_AT_ONCE = 40
_TRIES = 30


class Live(msgspec.Struct, frozen=True):
    """The public messages of an inbox at a moment, by id, and what is being withdrawn from users.

    Some of them may have expired since.
    """

    revision: int
    entries: list[PublicEntry]
    by_id: dict[str, PublicEntry]
    withdrawn: frozenset[str]
    at: float

    def alive(self, id_: str, now: int) -> PublicEntry | None:
        entry = self.by_id.get(id_)
        return entry if entry is not None and entry.expires > now else None


class Broadcasts:
    """What others publish or withdraw is seen within a second."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: OrderedDict[Place, Live] = OrderedDict()
        self._looking: dict[Place, asyncio.Task[Live]] = {}
        self._turns: WeakValueDictionary[Place, asyncio.Lock] = WeakValueDictionary()
        self._kept = 0

    async def live(self, place: Place, *, fresh: bool = False) -> Live:
        if fresh:
            return await self._look(place)
        known = self._known.get(place)
        if known is not None and 0 <= self._store.clock() - known.at < _FRESH_SECONDS:
            return known
        looking = self._looking.get(place)
        if looking is None:  # those who come at the same time wait for one look
            looking = self._looking[place] = asyncio.create_task(self._look(place))
            looking.add_done_callback(lambda _: self._looking.pop(place, None))
        return await asyncio.shield(looking)

    async def _look(self, place: Place) -> Live:
        now = self._store.clock()
        known = self._known.get(place)
        stats = await self._store.get(place.stats())
        if stats is None or stats.revision is None:
            stats = await self._adopt_all(place, stats)
        revision = 0 if stats is None else stats.revision or 0
        if known is not None and known.revision == revision:
            loaded = msgspec.structs.replace(known, at=now)
        else:
            loaded = await self._load(place, revision, now)
        self._keep(place, loaded)
        return loaded

    async def _load(self, place: Place, revision: int, now: float) -> Live:
        query = place.entries().at_least(int(now) + 1)
        entries = [entry async for entry in self._store.iterate(query)]
        entries.sort(key=lambda entry: entry.id)
        withdrawn = [found.id async for found in self._store.iterate(place.withdrawals())]
        by_id = {entry.id: entry for entry in entries}
        return Live(revision, entries, by_id, frozenset(withdrawn), now)

    def _keep(self, place: Place, live: Live) -> None:
        self.forget(place)
        self._known[place] = live
        self._kept += 1 + len(live.entries)
        while self._kept > _MOST_KEPT and len(self._known) > 1:
            _, old = self._known.popitem(last=False)
            self._kept -= 1 + len(old.entries)

    def forget(self, place: Place) -> None:
        known = self._known.pop(place, None)
        if known is not None:
            self._kept -= 1 + len(known.entries)

    async def publish(self, message: PublicMessage, place: Place, *more: Action) -> None:
        """Store a message to everyone, with whatever else belongs to it. TransactionCancelled has
        the reasons of `more` first."""
        turn = self._turns.setdefault(place, asyncio.Lock())
        async with turn:  # numbers are given one by one
            await self._publish(message, place, more)

    async def _publish(
        self, message: PublicMessage, place: Place, more: tuple[Action, ...]
    ) -> None:
        for attempt in range(_TRIES):
            live = await self.live(place, fresh=True)
            now = self._store.now()
            if sum(entry.expires > now for entry in live.entries) >= MOST_LIVE:
                raise Conflict(f"an inbox has at most {MOST_LIVE} live messages to everyone")
            stats = await self._store.get(place.stats())
            revision = None if stats is None else stats.revision
            try:
                await self._store.transact(
                    *more, Put(message, when=absent()), *_numbered(message, place, revision, 1)
                )
            except TransactionCancelled as error:
                if any(error.reasons[: len(more)]):
                    raise
                await again(attempt)
            else:
                self.forget(place)
                return
        raise Overloaded("too much is published here at the same time", retry_after=1.0)

    async def withdraw(self, place: Place, id_: str) -> None:
        """Take a message from everyone."""
        for attempt in range(_TRIES):
            await self.live(place, fresh=True)  # which adopts it, if another service wrote it
            message = await self._store.get(place.message(id_))
            if message is None:
                raise NotFound("there is no such message")
            entry = place.entry(expiry_of(message), id_)
            try:
                await self._store.transact(
                    Delete(key_of(message), when=exists()),
                    Delete(entry, when=exists()),
                    *_counted(place, [category_of(message)], -1, add("revision", 1)),
                )
            except TransactionCancelled:
                await again(attempt)
                continue
            self.forget(place)
            return
        raise Overloaded("too much changes here at the same time", retry_after=1.0)

    async def fold(self, place: Place) -> None:
        """Take what has expired out of the counters."""
        while True:
            query = place.entries().at_most(self._store.now())
            passed = (await self._store.query(query, limit=_AT_ONCE)).items
            if not passed:
                return
            gone = [entry.category for entry in passed]
            try:
                await self._store.transact(
                    *(Delete(key_of(entry), when=exists()) for entry in passed),
                    *_counted(place, gone, -1, add("revision", 1)),
                )
            except TransactionCancelled:
                continue  # another process was quicker

    async def adopt(self, message: PublicMessage) -> None:
        """Give a message that another service wrote a number."""
        place = _place_of(message)
        for attempt in range(_TRIES):
            stats = await self._store.get(place.stats())
            revision = None if stats is None else stats.revision
            adopted = (attr("entered").absent()) & exists()
            try:
                await self._store.transact(
                    Update(key_of(message), set_to("entered", True), when=adopted),
                    *_numbered(message, place, revision, 0),
                )
            except TransactionCancelled as error:
                if error.reasons[0] is not None:
                    return  # it is gone, or was adopted
                await again(attempt)
            else:
                self.forget(place)
                return
        raise Overloaded("too much is published here at the same time", retry_after=1.0)

    async def _adopt_all(self, place: Place, stats: PublicStats | None) -> PublicStats | None:
        """Begin with what another service has published."""
        found = False
        async for message in self._store.iterate(place.messages()):
            found = True
            await self.adopt(message)
        if not found and stats is None:
            return None
        await self.recount(place)
        return await self._store.get(place.stats())

    async def recount(self, place: Place, *, fix: bool = True) -> dict[str, tuple[int, int]]:
        """Which counters are not what they should be: what they say, and what is right."""
        for attempt in range(_TRIES):
            await self.fold(place)
            total = await self._store.get(place.stats())
            entries = [entry async for entry in self._store.iterate(place.entries())]
            expected: dict[str, int] = {"*": 0}
            for entry in entries:
                expected["*"] += 1
                if entry.category is not None:
                    expected[entry.category] = expected.get(entry.category, 0) + 1
            wrong = await self._wrong(place, expected)
            if not fix or (not wrong and total is not None and total.revision is not None):
                return wrong
            guard = _at(None if total is None else total.revision)
            if total is not None and total.odd:
                guard = exists()
            updates = [
                Update(place.stats(category), set_to("published", right))
                for category, (_, right) in wrong.items()
                if category != "*"
            ]
            revision = 0 if total is None else total.revision or 0
            sets = [set_to("published", expected["*"]), set_to("revision", revision + 1)]
            whole = Update(place.stats(), *sets, when=guard)
            try:
                await self._store.transact(whole, *updates[:99])
            except TransactionCancelled:
                await again(attempt)
                continue
            self.forget(place)
            return wrong
        raise Overloaded("too much changes here at the same time", retry_after=1.0)

    async def _wrong(self, place: Place, expected: dict[str, int]) -> dict[str, tuple[int, int]]:
        categories = list(expected)
        found = await self._store.batch_get([place.stats(category) for category in categories])
        counted = [0 if stats is None else stats.published for stats in found]
        pairs = zip(categories, counted, strict=True)
        return {c: (number, expected[c]) for c, number in pairs if number != expected[c]}


def _numbered(
    message: PublicMessage, place: Place, revision: int | None, published: int
) -> list[Action]:
    """What makes a message one of the list, at the end of it."""
    number = (revision or 0) + 1
    entry = PublicEntry(
        tenant_key=place.tenant,
        inbox_key=place.inbox,
        expires=expiry_of(message),
        id=message.id,
        number=number,
        category=category_of(message),
        backfill=bool(message.backfill),
    )
    edits: list[Edit] = [set_to("revision", number)]
    counted = _counted(place, [entry.category], published, *edits, when=_at(revision))
    return [Put(entry), *counted]


def _at(revision: int | None) -> Condition:
    place = attr("revision")
    if revision is None:  # or what is no number
        return ~place.is_type("N")
    return place == revision


def _counted(
    place: Place,
    categories: Iterable[str | None],
    each: int,
    *edits: Edit,
    when: Condition | None = None,
) -> Sequence[Action]:
    """Changes of the counters of some messages."""
    named = list(categories)
    sums: dict[str, int] = {}
    for category in named:
        if category is not None:
            sums[category] = sums.get(category, 0) + each
    total = each * len(named)
    counting = [add("published", total)] if total else []
    updates = [Update(place.stats(), *edits, *counting, when=when)]
    updates += [
        Update(place.stats(category), add("published", number))
        for category, number in sums.items()
        if number
    ]
    return updates


def _place_of(message: PublicMessage) -> Place:
    return Place(message.tenant_key, message.inbox_key)


async def again(attempt: int) -> None:
    """Wait a moment after others were quicker, longer each time."""
    await asyncio.sleep(random.random() * 0.002 * attempt)  # noqa: S311 - jitter
