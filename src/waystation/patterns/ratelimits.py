"""Sliding windows: so many in any stretch of time, and what was refused is not counted."""

from __future__ import annotations

import asyncio
import ipaddress
import random
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from waystation.errors import ConditionFailed, Overloaded, TooManyRequests
from waystation.ids import secret_hash
from waystation.patterns.bounded import Newest
from waystation.store import Item, Table

if TYPE_CHECKING:
    from collections.abc import Callable

    from waystation.clock import Clock
    from waystation.store import Store

_SLICES = 60
_MAX_KEYS = 100_000
_MOST_SENDERS = 10_000
_TRIES = 40

limits = Table("waystation-limits", pk="pk", ttl="expires_at")


class Limit(msgspec.Struct, frozen=True):
    """At most `count` in any `seconds`."""

    count: int
    seconds: float

    def slice_at(self, now: float) -> int:
        return int(now * _SLICES / self.seconds)

    def wait(self, used: dict[int, int], now: float) -> float:
        """Seconds until one more fits in; 0 when it does now. Forgets slices that have passed.

        A slice counts until all of it has left the window, so there are never more than `count`
        in a window, and a caller waits at most a sixtieth of it longer than it had to.
        """
        oldest = self.slice_at(now) - _SLICES
        for passed in [n for n in used if n < oldest]:
            del used[passed]
        over = sum(used.values()) + 1 - self.count
        if over <= 0:
            return 0.0
        leaves = now
        for n in sorted(used):
            if over <= 0:
                break
            over -= used[n]
            leaves = (n + 1 + _SLICES) * self.seconds / _SLICES
        return self.seconds if over > 0 else max(0.0, leaves - now)


class LocalLimiter:
    """Windows of one process, in memory: nothing is read or written to decide."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._windows: Newest[tuple[str, float], dict[int, int]] = Newest(_MAX_KEYS)

    def check(self, key: str, limit: Limit) -> None:
        """Raise TooManyRequests where one more would; count nothing."""
        used = self._windows.get((key, limit.seconds))
        if used and (wait := limit.wait(used, self._clock())):
            raise _refusal(limit, wait)

    def take(self, key: str, limit: Limit) -> None:
        """Count one, or raise TooManyRequests."""
        now = self._clock()
        place = (key, limit.seconds)  # slices of different lengths do not mix
        used = self._windows[place] = self._windows.get(place) or {}
        _count(used, limit, now)

    def give_back(self, key: str, limit: Limit) -> None:
        """Take back the last one counted: it turned out not to matter."""
        _uncount(self._windows.get((key, limit.seconds)) or {}, self._clock())


class _Window(Item, table=limits, pk="LIMIT#{name}#{key_hash}", version="version", kw_only=True):
    """What was counted lately under a key."""

    name: str
    key_hash: str
    used: dict[str, int] = msgspec.field(default_factory=dict)
    version: int = 0
    expires_at: int


class SharedLimiter:
    """Windows that all processes share and that outlive them, for what is rare and matters."""

    def __init__(self, store: Store, name: str, limit: Limit) -> None:
        self._store = store
        self._name = name
        self._limit = limit

    async def take(self, key: str) -> None:
        """Count one, or raise TooManyRequests."""
        await self._change(key, lambda used, now: _count(used, self._limit, now))

    async def give_back(self, key: str) -> None:
        """Take back the last one counted: it turned out not to matter."""
        await self._change(key, _uncount)

    async def _change(self, key: str, change: Callable[[dict[int, int], float], None]) -> None:
        hashed = secret_hash(f"{self._limit.seconds} {key}")
        for attempt in range(_TRIES):
            now = self._store.clock()
            expires = int(now + 2 * self._limit.seconds) + 1
            window = await self._store.get(_Window.key(self._name, hashed))
            if window is None:
                window = _Window(name=self._name, key_hash=hashed, expires_at=expires)
            used = {int(n): count for n, count in window.used.items()}
            change(used, now)
            window.used = {str(n): count for n, count in used.items()}
            window.expires_at = expires
            try:
                await self._store.put(window)
            except ConditionFailed:
                # Somebody else counted at the same moment: look again.
                await asyncio.sleep(random.random() * 0.01 * attempt)  # noqa: S311 - jitter
            else:
                return
        raise Overloaded("too many at the same time", retry_after=1.0)


def _count(used: dict[int, int], limit: Limit, now: float) -> None:
    if wait := limit.wait(used, now):
        raise _refusal(limit, wait)
    n = limit.slice_at(now)
    used[n] = used.get(n, 0) + 1


def _refusal(limit: Limit, wait: float) -> TooManyRequests:
    return TooManyRequests(
        f"too many: at most {limit.count} are allowed in {limit.seconds:g} seconds",
        retry_after=wait,
    )


def _uncount(used: dict[int, int], now: float) -> None:
    if used:
        last = max(used)
        used[last] -= 1
        if not used[last]:
            del used[last]


@lru_cache(_MOST_SENDERS)
def sender_key(host: str | None) -> str:
    """Whom to throttle when all that is known of a caller is an address: that address, or all of
    an IPv6 customer's."""
    try:
        address = ipaddress.ip_address(host or "")
    except ValueError:
        return host or "unknown"
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)
