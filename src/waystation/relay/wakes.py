"""Wakes: when somebody must look at a source, a connection or a replay again.

Whoever writes open work makes sure first that a wake is due soon enough, so that whatever a crash
leaves behind is found. One wake serves all the work of a name: while one is known to be due in
time, writing more work costs nothing.
"""

from __future__ import annotations

import asyncio
import zlib
from collections import OrderedDict
from typing import TYPE_CHECKING

from waystation.errors import ConditionFailed, Overloaded
from waystation.relay.tables import Wake
from waystation.store import attr, key_of

if TYPE_CHECKING:
    from collections.abc import Container

    from waystation.store import Store

SHARDS = 4
HOLD_MS = 60_000
"""How long whoever takes a wake has before another takes over."""

_MARGIN_MS = 10_000
"""A wake that is due sooner may be gone before we have written what relies on it."""

_LINGER_MS = 60_000
_MOST_KNOWN = 100_000
_TRIES = 20


class Wakes:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: OrderedDict[str, int] = OrderedDict()
        self._ensuring: dict[str, asyncio.Task[None]] = {}

    async def ensure(self, name: str, at: int) -> None:
        """Somebody looks at `name` at the latest at a time, whatever happens to us."""
        while not self._is_known(name, at):
            task = self._ensuring.get(name)
            if task is not None:  # one at a time: most often what another needs is enough
                await asyncio.wait({task})
                continue
            task = asyncio.create_task(self._ensure(name, at))
            self._ensuring[name] = task
            task.add_done_callback(lambda _: self._ensuring.pop(name, None))
            await asyncio.shield(task)
            return

    def _is_known(self, name: str, at: int) -> bool:
        known = self._known.get(name)
        return known is not None and self._now() + _MARGIN_MS < known <= at

    async def _ensure(self, name: str, at: int) -> None:
        for attempt in range(_TRIES):
            wake = await self._store.get(Wake.key(name))
            if wake is None:
                wake = Wake(name=name, shard=shard_of(name), due_at=at)
            elif not wake.held and self._now() + _MARGIN_MS < wake.due_at <= at:
                self._remember(wake)
                return
            # One that is due by now is written too: whoever is looking must look again.
            wake.due_at = min(at, max(wake.due_at, self._now())) if wake.version else at
            wake.idle = wake.held = False
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
        self._known[wake.name] = wake.due_at
        self._known.move_to_end(wake.name)
        if len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)

    def _now(self) -> int:
        return int(self._store.clock() * 1000)


def shard_of(name: str) -> int:
    return zlib.crc32(name.encode()) % SHARDS
