"""Deadlines that are put off again and again, which costs next to nothing."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable


class Deadline:
    """Calls something once its moment has come, by the loop's time.

    A timer of the loop is set for the first moment only. When that comes, it is set anew for
    whatever the moment is by then.
    """

    __slots__ = ("_at", "_call", "_loop", "_timer", "_timer_at")

    def __init__(self, loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
        self._loop = loop
        self._call = call
        self._at = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf

    def set(self, at: float) -> None:
        self._at = at
        if at < self._timer_at:
            self._wait()

    def clear(self) -> None:
        """There is nothing to be called for now."""
        self._at = math.inf

    def stop(self) -> None:
        """The same for good: nothing of this is kept."""
        self._at = self._timer_at = math.inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = self._at
        self._timer = self._loop.call_at(self._at, self._look)

    def _look(self) -> None:
        self._timer, self._timer_at = None, math.inf
        if self._at <= self._loop.time():
            self._at = math.inf
            self._call()
        elif self._at < math.inf:
            self._wait()
