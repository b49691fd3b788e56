"""Time is injected: everything that asks what time it is takes a clock."""

from __future__ import annotations

from collections.abc import Callable

Clock = Callable[[], float]
"""Seconds since the epoch. `time.time` is one."""


class ManualClock:
    """A clock that moves only when told to, for tests."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds
