"""When a delivery that failed is tried again."""

from __future__ import annotations

import random
from functools import lru_cache
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from waystation.errors import InvalidInput
from waystation.outbound import seconds_asked

SCHEDULE = (30, 120, 900, 3_600, 14_400, 43_200, 86_400)
"""Seconds before attempts 2 to 8."""

MAX_ATTEMPTS = 20
_LONGEST_DELAY = 7 * 86_400
_LONGEST_RETRY_AFTER = 86_400
_JITTER = 0.1
GRACE_SECONDS = 86_400
"""How long what is to be tried again is kept beyond its last scheduled attempt."""


class Retry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A schedule of one's own: listed delays, or a first delay that grows."""

    schedule: Annotated[
        list[int] | None, Meta(description="seconds before each further attempt")
    ] = None
    strategy: Annotated[
        Literal["exponential", "linear"] | None, Meta(description="how the first delay grows")
    ] = None
    first: Annotated[int, Meta(ge=1, le=_LONGEST_DELAY)] = 30
    attempts: (
        Annotated[int, Meta(ge=1, le=MAX_ATTEMPTS, description="in all; 8 without a schedule")]
        | None
    ) = None

    def delays(self) -> tuple[int, ...]:
        if self.schedule is not None:
            return tuple(self.schedule)
        again = len(SCHEDULE) if self.attempts is None else self.attempts - 1
        if self.strategy is None:
            return SCHEDULE[:again]
        grown = (
            self.first * (2**n if self.strategy == "exponential" else n + 1) for n in range(again)
        )
        return tuple(min(_LONGEST_DELAY, delay) for delay in grown)


def check_retry(retry: Retry) -> None:
    if retry.schedule is None:
        if retry.strategy is None and (retry.attempts or 0) > len(SCHEDULE) + 1:
            raise InvalidInput("retry.attempts", "more than 8 need a strategy or a schedule")
        return
    if retry.attempts not in (None, len(retry.schedule) + 1):
        raise InvalidInput("retry.attempts", "a schedule has one attempt more than it has delays")
    if retry.strategy is not None:
        raise InvalidInput("retry.strategy", "give either a schedule or a strategy, not both")
    if len(retry.schedule) >= MAX_ATTEMPTS:
        raise InvalidInput("retry.schedule", f"must have at most {MAX_ATTEMPTS - 1} delays")
    if not all(1 <= delay <= _LONGEST_DELAY for delay in retry.schedule):
        raise InvalidInput("retry.schedule", f"delays must be 1 to {_LONGEST_DELAY} seconds")


@lru_cache(maxsize=1024)
def stored_delays(text: str | None) -> tuple[int, ...]:
    """The delays of a connection. What another service wrote is read as far as it makes sense: a
    list is a schedule, and anything else is ours."""
    if text is None:
        return SCHEDULE
    try:
        found = msgspec.json.decode(text, type=Retry | list[float])
        if not isinstance(found, Retry):
            found = Retry(schedule=[int(d) for d in found])
        retry = found if found.schedule is None else msgspec.structs.replace(found, attempts=None)
        check_retry(retry)
    except (msgspec.MsgspecError, InvalidInput, ValueError, OverflowError):
        return SCHEDULE
    return retry.delays()


def next_delay(
    delays: tuple[int, ...], attempts: int, retry_after: str | None, now: float
) -> float | None:
    """Seconds until the next attempt after so many; None when that was the last.

    Never sooner than the schedule, nor than the other side asks, within a day.
    """
    if attempts > len(delays):
        return None
    asked = min(_LONGEST_RETRY_AFTER, seconds_asked(retry_after, now))
    wait = max(float(delays[attempts - 1]), asked)
    return wait * (1 + random.random() * _JITTER)  # noqa: S311 - jitter, not a secret


def remaining(delays: tuple[int, ...], attempts: int) -> float:
    """Seconds that all further attempts may take, on schedule."""
    return sum(delays[attempts:]) * (1 + _JITTER)
