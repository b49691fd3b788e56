"""Statistics: counted as things happen, by the hour, so that reading them costs the same always.

An overview reads one item per hour of its period, and one per day and active source for the
busiest sources. Percentiles come from bands, and are right within the width of their band.
"""

from __future__ import annotations

from bisect import bisect_left
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import msgspec

from waystation.patterns import Tally
from waystation.relay.tables import Hour, SourceDay
from waystation.times import day_of, hour_of

if TYPE_CHECKING:
    from waystation.store import Store

Period = Literal["24h", "7d", "30d"]
HOURS: dict[Period, int] = {"24h": 24, "7d": 7 * 24, "30d": 30 * 24}
BANDS = (1, 2, 3, 5, 8, 12, 20, 30, 50, 80, 120, 200, 300, 500, 800, 1200, 2000, 5000, 15000)
"""Upper ends in milliseconds; the last band is open."""

_KEPT_SECONDS = 32 * 86_400
_TOP = 10
_MOST_DAYS_READ = 20_000


def hour_tally(user_id: str, now: float, **adds: int) -> Tally:
    return _hour_tally(user_id, int(now) // 3600 * 3600, tuple(adds.items()))


@lru_cache(maxsize=1_000)
def _hour_tally(user_id: str, hour: int, adds: tuple[tuple[str, int], ...]) -> Tally:
    return Tally(
        key=Hour.key(user_id, hour_of(hour)),
        adds=dict(adds),
        defaults={"expires_at": hour + _KEPT_SECONDS},
    )


def day_tally(user_id: str, source_id: str, now: float, **adds: int) -> Tally:
    return _day_tally(user_id, source_id, int(now) // 86_400 * 86_400, tuple(adds.items()))


@lru_cache(maxsize=1_000)
def _day_tally(user_id: str, source_id: str, day: int, adds: tuple[tuple[str, int], ...]) -> Tally:
    return Tally(
        key=SourceDay.key(user_id, day_of(day), source_id),
        adds=dict(adds),
        defaults={"expires_at": day + _KEPT_SECONDS},
    )


def latency_field(milliseconds: int) -> str:
    return f"latency_{bisect_left(BANDS, milliseconds)}"


class Latency(msgspec.Struct):
    """Milliseconds until an endpoint answered, for attempts that succeeded."""

    p50: float | None
    p95: float | None
    p99: float | None


class Totals(msgspec.Struct, kw_only=True):
    """`received` and `filtered` count events; `delivered` and `failed` deliveries; `retried`
    attempts that failed and were scheduled again."""

    received: int = 0
    filtered: int = 0
    delivered: int = 0
    failed: int = 0
    retried: int = 0

    def count(self, hour: Hour) -> None:
        for name in Totals.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(hour, name))


class Day(Totals, kw_only=True):
    date: str


class TopSource(msgspec.Struct):
    source_id: str
    received: int
    delivered: int
    failed: int


class Overview(msgspec.Struct, kw_only=True):
    period: Period
    since: str
    totals: Totals
    success_rate: float | None
    latency_ms: Latency
    days: list[Day]
    top_sources: list[TopSource]


class Statistics:
    def __init__(self, store: Store) -> None:
        self._store = store

    async def overview(self, user_id: str, period: Period) -> Overview:
        """What an account's events did in a period that ends with the current hour."""
        now = datetime.fromtimestamp(self._store.clock(), UTC)
        since = now - timedelta(hours=HOURS[period] - 1)
        first = hour_of(since.timestamp())
        query = Hour.query(user_id).at_least(first)
        totals, days, bands = Totals(), dict[str, Day](), [0] * (len(BANDS) + 1)
        async for hour in self._store.iterate(query):
            totals.count(hour)
            date = hour.hour[:10]
            days.setdefault(date, Day(date=date)).count(hour)
            for n in range(len(bands)):
                bands[n] += getattr(hour, f"latency_{n}")
        ended = totals.delivered + totals.failed
        return Overview(
            period=period,
            since=f"{first}:00:00Z",
            totals=totals,
            success_rate=round(totals.delivered / ended, 4) if ended else None,
            latency_ms=Latency(*(percentile(bands, share) for share in (0.5, 0.95, 0.99))),
            days=[days[date] for date in sorted(days)],
            top_sources=await self._top(user_id, first[:10]),
        )

    async def _top(self, user_id: str, first: str) -> list[TopSource]:
        """The busiest sources, by whole days."""
        found: dict[str, TopSource] = {}
        read = 0
        async for day in self._store.iterate(SourceDay.query(user_id).at_least(first)):
            top = found.setdefault(day.source_id, TopSource(day.source_id, 0, 0, 0))
            top.received += day.received
            top.delivered += day.delivered
            top.failed += day.failed
            read += 1
            if read >= _MOST_DAYS_READ:
                break
        return sorted(found.values(), key=lambda top: -top.received)[:_TOP]


def percentile(bands: list[int], share: float) -> float | None:
    """The value below which a share of what the bands count lies, somewhere within its band."""
    total = sum(bands)
    if not total:
        return None
    wanted, seen = share * total, 0
    for n, count in enumerate(bands):
        if seen + count >= wanted and count:
            low = float(BANDS[n - 1]) if n else 0.0
            high = float(BANDS[n]) if n < len(BANDS) else low * 2
            return round(low + (high - low) * (wanted - seen) / count, 1)
        seen += count
    raise AssertionError(bands)
