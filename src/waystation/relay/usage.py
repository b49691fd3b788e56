"""What an account has used of its plan, counted with the events themselves.

A month belongs to the account and a minute to each of its sources.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from waystation.accounts import PLANS, Limits, Plan, User
from waystation.errors import ConditionFailed, NotFound, TooManyRequests
from waystation.patterns import Tally
from waystation.store import Condition, attr, exists, key_of, set_to
from waystation.times import iso, month_of, next_month

if TYPE_CHECKING:
    from waystation.relay.directory import Known
    from waystation.store import Store


SKEW_MINUTES = 2


class Usage(msgspec.Struct, kw_only=True):
    """This month's usage. A limit of None means there is none."""

    plan: Plan
    events: int
    events_limit: int | None
    period_start: str
    period_end: str
    sources: int
    sources_limit: int | None
    events_per_minute_limit: int | None
    connections_per_source_limit: int | None
    retention_seconds: int


def usage_tally(user_id: str, limits: Limits, now: float) -> Tally:
    """One more event this month, unless that is more than the plan has."""
    limit = limits.events_per_month
    current = exists() & (attr("usage_period_start") >= month_of(now))

    def within(adds: dict[str, int]) -> Condition:
        if limit is None:
            return current
        return current & (attr("usage_this_month") <= limit - adds["usage_this_month"])

    return Tally(key=User.key(user_id), adds={"usage_this_month": 1}, when=within)


def source_tally(known: Known, now: float) -> Tally:
    """One more event of a source, unless it is paused or has had its share of the minute."""
    limit, minute = _per_minute(known), int(now // 60)
    status = attr("status")  # which another service may have left out
    active = exists() & (status.absent() | (status == "active"))

    def within(adds: dict[str, int]) -> Condition:
        if limit is None:
            return active
        current = attr("minute").between(minute, minute + SKEW_MINUTES)
        return active & current & (attr("minute_count") <= limit - adds["minute_count"])

    adds = {"event_count": 1} if limit is None else {"event_count": 1, "minute_count": 1}
    sets: dict[str, object] = {"last_event_at": iso(now)}
    return Tally(key=key_of(known.source), adds=adds, sets=sets, when=within)


async def begin_minute(store: Store, known: Known, minute: int) -> None:
    """Begin to count a source's minute, in one of the processes. One that lies further ahead than
    clocks are apart is somebody's mistake."""
    last = attr("minute")
    other = last.absent() | (last < minute) | (last > minute + SKEW_MINUTES)
    with suppress(ConditionFailed):  # another process has begun it
        await store.update(
            key_of(known.source),
            set_to("minute", minute),
            set_to("minute_count", 0),
            when=exists() & other,
        )


def minute_is_full(limit: int, now: float) -> TooManyRequests:
    return TooManyRequests(
        f"too many: at most {limit} are allowed in a minute", retry_after=60 - now % 60
    )


def _per_minute(known: Known) -> int | None:
    return known.limits.events_per_minute if known.limits else None


async def settle_refusal(store: Store, user_id: str, refused: object) -> None:
    """Begin a new month where that is why a tally was refused; otherwise raise the reason."""
    now = store.clock()
    if not isinstance(refused, User):
        raise NotFound("the account no longer exists")
    if (refused.usage_period_start or "") >= month_of(now):
        raise TooManyRequests(
            f"the plan {refused.plan} allows {PLANS[refused.plan].events_per_month} events a month",
            retry_after=next_month(now).timestamp() - now,
        )
    start = attr("usage_period_start")
    with suppress(ConditionFailed):  # another process has begun it
        await store.update(
            User.key(user_id),
            set_to("usage_this_month", 0),
            set_to("usage_period_start", month_of(now)),
            when=exists() & (start.absent() | (start < month_of(now))),
        )


def shown(user: User, now: float) -> Usage:
    limits = PLANS[user.plan]
    this_month = (user.usage_period_start or "") >= month_of(now)
    return Usage(
        plan=user.plan,
        events=user.usage_this_month if this_month else 0,
        events_limit=limits.events_per_month,
        period_start=month_of(now),
        period_end=next_month(now).strftime("%Y-%m-%d"),
        sources=user.source_count,
        sources_limit=limits.sources,
        events_per_minute_limit=limits.events_per_minute,
        connections_per_source_limit=limits.connections_per_source,
        retention_seconds=limits.retention,
    )
