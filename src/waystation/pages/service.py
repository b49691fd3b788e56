"""The pages of all sites: what can be done with them, apart from serving them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Literal

import msgspec

from waystation.pages.keeping.entries import Held, entry_of
from waystation.pages.keeping.memory import Memory
from waystation.pages.keeping.places import Place
from waystation.pages.keeping.publishing import Publisher
from waystation.pages.keeping.purges import PurgeBook
from waystation.pages.keeping.regeneration import Regeneration
from waystation.pages.keeping.shelf import Shelf
from waystation.pages.metrics import PageMetrics
from waystation.pages.serving.answers import Answers
from waystation.pages.serving.limits import Allowance
from waystation.pages.tables import Listed, PageLock, PageMeta

if TYPE_CHECKING:
    from waystation.blobs import Blobs
    from waystation.pages.keeping.entries import Entry
    from waystation.pages.keeping.purges import Kind
    from waystation.store import Store

Mode = Literal["soft", "hard"]

MEMORY_BYTES = 64 * 1024 * 1024
_MOST_TRIED = 10_000
_MOST_LOOKED_AT = 200
_MOST_SHOWN = 20


class Inspected(msgspec.Struct):
    """A page, and everything that decides how it is used."""

    held: Held
    lock: PageLock | None


class Matches(msgspec.Struct):
    """The pages that a purge would be about. `complete` says that all were looked at."""

    count: int
    urls: list[str]
    complete: bool


class Pages:
    """A cache of pages in a store, for any number of tenants."""

    def __init__(self, store: Store, blobs: Blobs, memory_bytes: int = MEMORY_BYTES) -> None:
        self.store = store
        self.blobs = blobs
        self.memory = Memory(memory_bytes)
        self.metrics = PageMetrics(self.memory)
        self.purges = PurgeBook(store)
        self.shelf = Shelf(store, blobs, self.memory, self.purges)
        self.publisher = Publisher(self.shelf)
        self.regeneration = Regeneration(self.shelf, self.publisher, Allowance(store.clock))
        self.answers = Answers(self.shelf, self.regeneration, self.metrics)

    async def inspect(self, tenant: str | None, url: str) -> list[Inspected]:
        """The pages of a URL: one, or its variants."""
        places = [Place(tenant, url)]
        scope = places[0].scope
        page = await self.store.query(Listed.query(scope).begins_with(url), limit=_MOST_LOOKED_AT)
        places += [
            Place(tenant, url, row.variant) for row in page.items if row.url == url and row.variant
        ]
        found = [await self.inspected(place) for place in places[:_MOST_SHOWN]]
        return [each for each in found if each is not None]

    async def inspected(self, place: Place) -> Inspected | None:
        held = await self.shelf.find(place, now=True)
        if held is None:
            return None
        return Inspected(held, await self.store.get(place.lock, expired=True))

    async def entries(
        self, tenant: str | None, prefix: str, limit: int, after: str | None
    ) -> tuple[list[Entry], str | None]:
        """Pages whose URLs begin with a prefix, and where to go on."""
        scope = Place(tenant, "").scope
        query = Listed.query(scope).begins_with(prefix)
        page = await self.store.query(query, limit=limit, after=after)
        metas = await self.store.batch_get([PageMeta.key(row.pk_of) for row in page.items])
        found = []
        for row, meta in zip(page.items, metas, strict=True):
            if meta is not None:
                place = Place(tenant, row.url, row.variant or "")
                entry = entry_of(place, meta, self.store.clock())
                if entry is not None:
                    found.append(entry)
        return found, page.cursor

    async def revalidate(self, tenant: str | None, kind: Kind, target: str, mode: Mode) -> int:
        """Purge pages: everywhere, by the time this returns."""
        scope = Place(tenant, "").scope
        return await self.purges.purge(scope, kind, target, hard=mode == "hard")

    async def matches(self, tenant: str | None, kind: Kind, target: str) -> Matches:
        """What a purge would be about, found by looking at every page that might be."""
        prefix = {"all": "/", "tag": "/"}.get(kind, target)
        count, urls, seen = 0, [], 0
        cursor: str | None = None
        while seen < _MOST_TRIED:
            entries, cursor = await self.entries(tenant, prefix, 200, cursor)
            seen += 200
            for entry in entries:
                if _is_about(kind, target, entry):
                    count += 1
                    urls.append(entry.place.url)
            if cursor is None:
                break
            await asyncio.sleep(0)
        shown = list(dict.fromkeys(urls))[:_MOST_SHOWN]
        return Matches(count, shown, cursor is None)

    async def rollback(
        self, tenant: str | None, url: str, selected: str = "", owner: str | None = None
    ) -> Held:
        """Make a page what it was before, until it is purged."""
        return await self.publisher.rollback(Place(tenant, url, selected), owner)

    async def close(self) -> None:
        await self.regeneration.close()
        await self.publisher.close()


def _is_about(kind: Kind, target: str, entry: Entry) -> bool:
    if kind == "tag":
        return target in entry.tags
    if kind == "path":
        return entry.place.path == target
    if kind == "url":
        return entry.place.url == target
    return kind == "all" or entry.place.path.startswith(target)
