"""The shelf: pages in memory, behind them the rows and bodies that all processes share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from waystation.errors import UnreadableItem
from waystation.pages.http.variants import MOST_NAMES, is_header
from waystation.pages.keeping.entries import Entry, Held, entry_of
from waystation.patterns import Newest

if TYPE_CHECKING:
    from waystation.blobs import Blobs
    from waystation.pages.keeping.memory import Memory
    from waystation.pages.keeping.places import Place
    from waystation.pages.keeping.purges import PurgeBook
    from waystation.pages.tables import PageVariants
    from waystation.store import Store

LOOK_AGAIN = 1.0
"""After so many seconds a page's row is looked at again: another service may have changed it."""

_MOST_NAMES = 20_000
SUFFIXES = {"": "", "gzip": ".gz", "zstd": ".zst"}


class Shelf:
    """Where pages are found, and put once they are published."""

    def __init__(self, store: Store, blobs: Blobs, memory: Memory, purges: PurgeBook) -> None:
        self.store = store
        self.blobs = blobs
        self.memory = memory
        self.purges = purges
        self._names: Newest[str, tuple[float, tuple[str, ...]]] = Newest(_MOST_NAMES)

    async def find(self, place: Place, *, now: bool = False) -> Held | None:
        """A page, with what purges mean for it. `now` is for who cannot do with a second ago."""
        state = await self.purges.state(place.scope, now=now)
        moment = self.store.clock()
        held = self.memory.get(place)
        if (
            held is not None
            and not now
            and held.seq == state.seq
            and 0 <= moment - held.checked < LOOK_AGAIN
        ):
            return held
        entry = await self._entry(place, held)
        if entry is None:
            self.memory.drop(place)
            return None
        if held is None or held.entry is not entry:
            held = Held(entry, {})
        if held.seq != state.seq:
            held.verdict = await self.purges.verdict(entry, state)
            held.seq = state.seq
        held.checked = moment
        self.memory.put(place, held)
        return held

    async def _entry(self, place: Place, known: Held | None) -> Entry | None:
        """What the row says. Its TTL is for clearing up: until it is cleared up, it is there."""
        try:
            meta = await self.store.get(place.meta, expired=True)
        except UnreadableItem:
            return None
        if meta is None:
            return None
        if known is not None and known.entry.is_of(meta):
            return known.entry
        return entry_of(place, meta, self.store.clock())

    async def body(self, held: Held, encoding: str = "") -> tuple[str, bytes] | None:
        """A page's body in an encoding, or else the plain one. None where the row has outlived
        it."""
        for name in dict.fromkeys((encoding, "")):
            found = held.bodies.get(name)
            if found is not None:
                return name, found
            found = await self.blobs.get(held.entry.s3_key + SUFFIXES[name])
            if found is not None:
                held.bodies[name] = found
                self.memory.put(held.entry.place, held)
                return name, found
        held.gone = True
        return None

    def put(self, entry: Entry, bodies: dict[str, bytes], seq: int) -> Held:
        """Keep a page in memory that was just published."""
        held = Held(entry, bodies, seq=seq, checked=self.store.clock())
        self.memory.put(entry.place, held)
        return held

    async def varies_by(self, place: Place) -> tuple[str, ...] | None:
        """The request headers that the pages of a URL depend on; None where that is not known."""
        moment = self.store.clock()
        known = self._names.get(place.pk)
        if known is not None and 0 <= moment - known[0] < LOOK_AGAIN:
            return known[1]
        try:
            row = await self.store.get(place.variants)
        except UnreadableItem:
            row = None
        if row is None:
            return None
        names = tuple(name for name in row.names if is_header(name))[:MOST_NAMES]
        self._names[place.pk] = (moment, names)
        return names

    async def set_variants(self, place: Place, row: PageVariants) -> None:
        await self.store.put(row)
        self._names[place.pk] = (self.store.clock(), tuple(row.names))
