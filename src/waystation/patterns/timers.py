"""Timers: by when somebody must look at a thing that has open work.

Whoever writes open work makes sure first that a timer is due soon enough, so that whatever a crash
leaves behind is found. One timer serves all the work of a name: while one is known to be due in
time, writing more work costs nothing. A timer goes only after two looks, a minute apart, that found
nothing, and with nobody asking for it between them.
"""

from __future__ import annotations

import asyncio
import zlib
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakValueDictionary

from waystation.errors import ConditionFailed, Overloaded
from waystation.patterns.bounded import Newest
from waystation.store import Index, Item, Table, attr, key_of

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from waystation.store import Store

SHARDS = 4
HOLD_MS = 60_000
"""How long whoever takes a timer has before another takes over."""

RESCUE_MS = 30_000
"""How soon somebody should look after work whose writer may have died."""

_SAFE_MS = 10_000
"""For how long after its time a timer may still be relied on: it lingers for longer."""

_FRESH_MS = 45_000
"""For how long we believe what we have read: others need a minute and two looks to delete it."""

_LINGER_MS = 60_000
_MOST_KNOWN = 100_000
_TRIES = 20

timers = Table("waystation-timers", pk="pk", indexes=[Index("due", pk="due_pk", sk="due_sk")])


class Timer(
    Item,
    table=timers,
    pk="TIMER#{space}#{name}",
    indexes={"due": ("DUE#{space}#{shard}", "{due_at:013d}#{name}")},
    version="version",
    kw_only=True,
):
    """When somebody must look at a name again. `space` is the system that it belongs to.

    `held` says that somebody is looking, `idle` that the last look found nothing to do soon.
    """

    space: str
    name: str
    shard: int
    due_at: int
    held: bool = False
    idle: bool = False
    version: int = 0


class _Known(NamedTuple):
    due_at: int
    safe_until: int


class Timers:
    """The timers of one system. Times are milliseconds."""

    def __init__(self, store: Store, space: str) -> None:
        self.store = store
        self._space = space
        self._known: Newest[str, _Known] = Newest(_MOST_KNOWN)
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def expect(self, name: str, at: int) -> None:
        """Call it before open work is written: the work is found, whatever happens to its writer.

        A look that is due before the work is written may miss it; the next one, a minute later,
        does not.
        """
        if not self.is_expected(name, at):
            await self._renew(name, at, self.is_expected)

    def is_expected(self, name: str, at: int) -> bool:
        """Whether `expect` would have nothing to do."""
        known = self._known.get(name)
        return known is not None and known.due_at <= at and self.now() < known.safe_until

    async def ensure(self, name: str, at: int) -> None:
        """Call it after open work was written: the next look comes no later than `at`."""
        if not self._is_ensured(name, at):
            await self._renew(name, at, self._is_ensured)

    def _is_ensured(self, name: str, at: int) -> bool:
        known = self._known.get(name)
        return known is not None and self.now() < min(known) and known.due_at <= at

    async def _renew(self, name: str, at: int, is_known: Callable[[str, int], bool]) -> None:
        """One at a time: most often what another needs is enough."""
        lock = self._locks.setdefault(name, asyncio.Lock())
        async with lock:
            if not is_known(name, at):
                await self._renew_alone(name, at)

    async def _renew_alone(self, name: str, at: int) -> None:
        for attempt in range(_TRIES):
            timer = await self.store.get(Timer.key(self._space, name))
            if timer is None:
                timer = Timer(space=self._space, name=name, shard=shard_of(name), due_at=at)
            elif timer.held or timer.idle or timer.due_at > at:
                timer.due_at = min(at, max(timer.due_at, self.now()))
                timer.held = timer.idle = False
            else:
                self._remember(timer)
                return
            try:
                await self.store.put(timer)
            except ConditionFailed:
                await asyncio.sleep(0.002 * attempt)
            else:
                self._remember(timer)
                return
        raise Overloaded("too many writers change what is due at the same time", retry_after=1.0)

    async def due(self, limit: int, busy: Container[str]) -> list[Timer]:
        """Timers whose time has come, oldest first in each shard, without those that are busy."""
        found: list[Timer] = []
        for shard in range(SHARDS):
            taken = 0
            query = Timer.query(self._space, shard, index="due").at_most(self.now())
            async for timer in self.store.iterate(query):
                if timer.name not in busy:
                    found.append(timer)
                    taken += 1
                if taken >= limit:
                    break
        return found

    async def take(self, timer: Timer) -> Timer | None:
        """Keep a timer from others for a while; None when another was quicker, or it is gone."""
        current = await self.store.get(key_of(timer))  # the index may lag
        if current is None or current.due_at > self.now():
            return None
        return await self.hold(current)

    async def hold(self, timer: Timer) -> Timer | None:
        """Keep a timer that is ours for longer; None when somebody has changed it."""
        timer.due_at, timer.held = self.now() + HOLD_MS, True
        try:
            await self.store.put(timer)
        except ConditionFailed:
            return None
        return timer

    async def settle(self, timer: Timer, next_at: int | None) -> None:
        """End a look. A timer moves far ahead, or goes, only after a second look that finds no
        reason not to: an index may not have shown us everything, and others rely on it coming."""
        soon = self.now() + _LINGER_MS
        first_look = (next_at is None or next_at > soon) and not timer.idle
        try:
            if next_at is None and not first_look:
                await self.store.delete(key_of(timer), when=attr("version") == timer.version)
                self._known.pop(timer.name, None)
                return
            timer.held, timer.idle = False, first_look
            timer.due_at = soon if first_look or next_at is None else next_at
            await self.store.put(timer)
        except ConditionFailed:
            self._known.pop(timer.name, None)  # somebody has more work for it: their timer stays
        else:
            self._remember(timer)

    def _remember(self, timer: Timer) -> None:
        if timer.idle:  # the next look may be the last
            self._known.pop(timer.name, None)
            return
        now = self.now()
        safe_until = min(max(timer.due_at, now) + _SAFE_MS, now + _FRESH_MS)
        self._known[timer.name] = _Known(timer.due_at, safe_until)

    def now(self) -> int:
        return int(self.store.clock() * 1000)


def shard_of(name: str) -> int:
    return zlib.crc32(name.encode()) % SHARDS
