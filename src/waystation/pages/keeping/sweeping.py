"""Sweeping: bodies that nothing points to any more, and lists of pages that are gone."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from waystation.errors import UnreadableItem
from waystation.pages.keeping.places import BLOBS
from waystation.pages.keeping.shelf import SUFFIXES
from waystation.pages.tables import Listed, PageMeta, PageVersion, Sweep
from waystation.patterns import Leases
from waystation.store import key_of

if TYPE_CHECKING:
    from waystation.blobs import Blobs
    from waystation.store import Store

GRACE_SECONDS = 3_600
"""A body is younger than this while its page is being published."""

_AT_ONCE = 100
_PAUSE = 0.01


class Sweeper:
    """Removes what was left behind."""

    def __init__(self, store: Store, blobs: Blobs) -> None:
        self._store = store
        self._blobs = blobs
        self._leases = Leases(store, seconds=60, longest=12 * 3_600)

    async def sweep(self) -> int:
        """Remove orphans, unless another process does so; how many were removed."""
        async with self._leases.hold(Sweep.key()) as lease:
            if lease is None:
                return 0
            return await self._bodies() + await self._lists()

    async def _bodies(self) -> int:
        """Remove the bodies that no page and no version points to."""
        removed = 0
        before = self._store.clock() - GRACE_SECONDS
        group: list[str] = []
        async for key, written in self._blobs.walk(BLOBS):
            if written < before:
                group.append(key)
            if len(group) >= _AT_ONCE:
                removed += await self._orphans(group)
                group = []
                await asyncio.sleep(_PAUSE)
        return removed + await self._orphans(group)

    async def _orphans(self, keys: list[str]) -> int:
        removed = 0
        used: dict[str, set[str]] = {}
        for key in keys:
            pk = _partition(key)
            if pk is None:
                continue
            if pk not in used:
                try:
                    used[pk] = await self._used(pk)
                except UnreadableItem:
                    continue  # nobody knows what its rows point to
            if _plain(key) not in used[pk]:
                await self._blobs.delete(key)
                removed += 1
        return removed

    async def _used(self, pk: str) -> set[str]:
        """The bodies that a page and its versions point to, as long as their rows are there."""
        meta = await self._store.get(PageMeta.key(pk), expired=True)
        found = set() if meta is None else {meta.s3_key}
        async for version in self._store.iterate(PageVersion.query(pk)):
            found.add(version.s3_key)
        return found

    async def _is_there(self, row: Listed) -> bool:
        return await self._store.get(PageMeta.key(row.pk_of), expired=True) is not None

    async def _lists(self) -> int:
        """Remove from lists the pages that are gone."""
        removed = 0
        cursor: str | None = None
        while True:
            page = await self._store.scan(Listed, limit=_AT_ONCE, after=cursor)
            for row in page.items:
                if await self._is_there(row):
                    continue
                await self._store.delete(key_of(row))
                removed += 1
                if await self._is_there(row):  # published again just now
                    await self._store.put(row)
            cursor = page.cursor
            if cursor is None:
                return removed
            await asyncio.sleep(_PAUSE)


def _plain(key: str) -> str:
    """The key of a body in any of its encodings."""
    for suffix in SUFFIXES.values():
        if suffix and key.endswith(suffix):
            return key.removesuffix(suffix)
    return key


def _partition(key: str) -> str | None:
    """The page that a body was written for; None where it is none of ours."""
    parts = key.split("/")
    hashed, dash, _ = parts[-1].partition("-")
    if len(parts) != 3 or not dash or len(hashed) != 64:
        return None
    tenant = parts[1]
    return f"CACHE#{hashed}" if tenant == "=" else f"TENANT#{tenant}#CACHE#{hashed}"
