"""Plans and what they allow. None means without a limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from waystation.accounts.tables import Plan

_HOUR = 3600
_DAY = 24 * _HOUR


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan allows. Retention is in seconds."""

    events_per_minute: int | None
    events_per_month: int | None
    sources: int | None
    connections_per_source: int | None
    retention: int


PLANS: dict[Plan, Limits] = {
    "free": Limits(
        events_per_minute=100,
        events_per_month=5_000,
        sources=3,
        connections_per_source=2,
        retention=24 * _HOUR,
    ),
    "starter": Limits(
        events_per_minute=500,
        events_per_month=100_000,
        sources=10,
        connections_per_source=5,
        retention=7 * _DAY,
    ),
    "pro": Limits(
        events_per_minute=2_000,
        events_per_month=1_000_000,
        sources=50,
        connections_per_source=20,
        retention=30 * _DAY,
    ),
    "team": Limits(
        events_per_minute=10_000,
        events_per_month=5_000_000,
        sources=200,
        connections_per_source=50,
        retention=90 * _DAY,
    ),
    "unlimited": Limits(
        events_per_minute=None,
        events_per_month=None,
        sources=None,
        connections_per_source=None,
        retention=90 * _DAY,
    ),
}
