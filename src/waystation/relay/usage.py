"""What an account has used of its plan this month, counted with the events themselves."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from waystation.accounts import PLANS, Limits, Plan, User
from waystation.errors import ConditionFailed, NotFound, TooManyRequests
from waystation.patterns import Tally
from waystation.store import Condition, attr, exists, set_to
from waystation.times import month_of, next_month

if TYPE_CHECKING:
    from waystation.store import Store


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
    month, limit = month_of(now), limits.events_per_month

    def within(adds: dict[str, int]) -> Condition:
        current = exists() & (attr("usage_period_start") >= month)
        if limit is None:
            return current
        return current & (attr("usage_this_month") <= limit - adds["usage_this_month"])

    return Tally(key=User.key(user_id), adds={"usage_this_month": 1}, when=within)


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
