"""Wakes: when somebody must look at a source, a connection or a replay again.

Whoever writes open work makes sure first that a wake is due soon enough, so that whatever a crash
leaves behind is found. One wake serves all the work of a name: while one is known to be due in
time, writing more work costs nothing. A wake goes only after two looks, a minute apart, that found
nothing, and with nobody asking for it between them.
"""

from __future__ import annotations

import asyncio
import zlib
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakValueDictionary

from waystation.errors import ConditionFailed, Overloaded
from waystation.relay.tables import Wake
from waystation.store import attr, key_of

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from waystation.store import Store

SHARDS = 4
HOLD_MS = 60_000
"""How long whoever takes a wake has before another takes over."""

_SAFE_MS = 10_000
"""For how long after its time a wake may still be relied on: it lingers for longer."""

_FRESH_MS = 45_000
"""For how long we believe what we have read: others need a minute and two looks to delete it."""

_LINGER_MS = 60_000
_MOST_KNOWN = 100_000
_TRIES = 20


class _Known(NamedTuple):
    due_at: int
    safe_until: int


class Wakes:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def expect(self, name: str, at: int) -> None:
        """For work that is about to be written: it is found, whatever happens to us. A look that
        is due before it is written may miss it; the next one, a minute later, does not."""

        def is_known() -> bool:
            known = self._known.get(name)
            return known is not None and known.due_at <= at and self._now() < known.safe_until

        if not is_known():
            await self._renew(name, at, is_known)

    async def ensure(self, name: str, at: int) -> None:
        """For work that is written: somebody has yet to look, and does at the latest at a time."""

        def is_known() -> bool:
            known = self._known.get(name)
            return known is not None and self._now() < min(known) and known.due_at <= at

        if not is_known():
            await self._renew(name, at, is_known)

    async def _renew(self, name: str, at: int, is_known: Callable[[], bool]) -> None:
        """One at a time: most often what another needs is enough."""
        lock = self._locks.setdefault(name, asyncio.Lock())
        async with lock:
            if not is_known():
                await self._renew_alone(name, at)

    async def _renew_alone(self, name: str, at: int) -> None:
        for attempt in range(_TRIES):
            wake = await self._store.get(Wake.key(name))
            if wake is None:
                wake = Wake(name=name, shard=shard_of(name), due_at=at)
            elif wake.held or wake.idle or wake.due_at > at:
                wake.due_at = min(at, max(wake.due_at, self._now()))
                wake.held = wake.idle = False
            else:
                self._remember(wake)
                return
            try:
                await self._store.put(wake)
            except ConditionFailed:
                await asyncio.sleep(0.002 * attempt)
            else:
                self._remember(wake)
                return
        raise Overloaded("too many at once change what is due", retry_after=1.0)

    async def due(self, limit: int, busy: Container[str]) -> list[Wake]:
        """Wakes whose time has come, oldest first in each shard, without those that are busy."""
        found: list[Wake] = []
        for shard in range(SHARDS):
            taken = 0
            query = Wake.query(shard, index="GSI2").at_most(self._now())
            async for wake in self._store.iterate(query):
                if wake.name not in busy:
                    found.append(wake)
                    taken += 1
                if taken >= limit:
                    break
        return found

    async def take(self, wake: Wake) -> Wake | None:
        """Keep a wake from others for a while; None when another was quicker, or it is gone."""
        current = await self._store.get(key_of(wake))  # the index may lag
        if current is None or current.due_at > self._now():
            return None
        return await self.hold(current)

    async def hold(self, wake: Wake) -> Wake | None:
        """Keep a wake that is ours for longer; None when somebody has changed it."""
        wake.due_at, wake.held = self._now() + HOLD_MS, True
        try:
            await self._store.put(wake)
        except ConditionFailed:
            return None
        return wake

    async def settle(self, wake: Wake, next_at: int | None) -> None:
        """Done for now. A wake moves far ahead, or goes, only after a second look that finds no
        reason not to: an index may not have shown us everything, and others rely on it coming."""
        soon = self._now() + _LINGER_MS
        first_look = (next_at is None or next_at > soon) and not wake.idle
        try:
            if next_at is None and not first_look:
                await self._store.delete(key_of(wake), when=attr("version") == wake.version)
                self._known.pop(wake.name, None)
                return
            wake.held, wake.idle = False, first_look
            wake.due_at = soon if first_look or next_at is None else next_at
            await self._store.put(wake)
        except ConditionFailed:
            self._known.pop(wake.name, None)  # somebody has more work for it: their wake stays
        else:
            self._remember(wake)

    def _remember(self, wake: Wake) -> None:
        if wake.idle:  # the next look may be the last
            self._known.pop(wake.name, None)
            return
        now = self._now()
        safe_until = min(max(wake.due_at, now) + _SAFE_MS, now + _FRESH_MS)
        self._known[wake.name] = _Known(wake.due_at, safe_until)
        self._known.move_to_end(wake.name)
        if len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)

    def _now(self) -> int:
        return int(self._store.clock() * 1000)


def shard_of(name: str) -> int:
    return zlib.crc32(name.encode()) % SHARDS
