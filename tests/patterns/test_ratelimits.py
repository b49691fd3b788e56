"""Sliding windows."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest

from waystation.errors import TooManyRequests
from waystation.patterns import Limit, LocalLimiter, SharedLimiter

if TYPE_CHECKING:
    from waystation.clock import ManualClock
    from waystation.store import Store

LIMIT = Limit(5, 60)


@pytest.fixture
def local(clock: ManualClock) -> LocalLimiter:
    return LocalLimiter(clock)


def allowed(local: LocalLimiter, tries: int, limit: Limit = LIMIT) -> int:
    count = 0
    for _ in range(tries):
        try:
            local.take("key", limit)
        except TooManyRequests:
            continue
        count += 1
    return count


def test_no_more_than_the_limit(local: LocalLimiter) -> None:
    assert allowed(local, 8) == 5


def test_keys_do_not_share(local: LocalLimiter) -> None:
    allowed(local, 5)
    local.take("other", LIMIT)


def test_the_window_slides(local: LocalLimiter, clock: ManualClock) -> None:
    allowed(local, 3)
    clock.advance(30)
    assert allowed(local, 5) == 2
    clock.advance(31)
    assert allowed(local, 5) == 3


def test_what_was_refused_is_not_counted(local: LocalLimiter, clock: ManualClock) -> None:
    """Whoever hammers on gets its share all the same."""
    allowed(local, 5)
    for _ in range(59):
        clock.advance(1)
        assert allowed(local, 10) == 0
    clock.advance(2)
    assert allowed(local, 10) == 5


def test_the_wait_that_is_told_is_long_enough(local: LocalLimiter, clock: ManualClock) -> None:
    allowed(local, 5)
    clock.advance(20)
    with pytest.raises(TooManyRequests) as refused:
        local.take("key", LIMIT)
    assert refused.value.retry_after == pytest.approx(40, abs=1.1)
    clock.advance(refused.value.retry_after + 0.001)
    local.take("key", LIMIT)


def test_a_limit_of_nothing_refuses(local: LocalLimiter) -> None:
    with pytest.raises(TooManyRequests):
        local.take("key", Limit(0, 60))


def test_never_more_than_the_limit_in_any_window(local: LocalLimiter, clock: ManualClock) -> None:
    chance = random.Random(3)
    times: list[float] = []
    for _ in range(3000):
        clock.advance(chance.choice([0, 0.1, 1, 7, 25]))
        if allowed(local, 1):
            times.append(clock())
    for n in range(5, len(times)):
        assert times[n] - times[n - 5] >= 60


async def test_a_shared_limit_holds_under_contention(store: Store, name: str) -> None:
    limiter = SharedLimiter(store, "test", LIMIT)
    tried = await asyncio.gather(*(limiter.take(name) for _ in range(8)), return_exceptions=True)
    got = len([error for error in tried if error is None])
    assert 1 <= got <= 5
    for _ in range(5 - got):
        await limiter.take(name)
    with pytest.raises(TooManyRequests):
        await limiter.take(name)


async def test_a_shared_limit_slides(store: Store, name: str, clock: ManualClock) -> None:
    limiter = SharedLimiter(store, "test", LIMIT)
    for _ in range(5):
        await limiter.take(name)
    with pytest.raises(TooManyRequests):
        await limiter.take(name)
    clock.advance(62)
    await limiter.take(name)


async def test_one_can_be_given_back(store: Store, name: str) -> None:
    limiter = SharedLimiter(store, "test", LIMIT)
    for _ in range(20):
        await limiter.take(name)
        await limiter.give_back(name)
    for _ in range(5):
        await limiter.take(name)
