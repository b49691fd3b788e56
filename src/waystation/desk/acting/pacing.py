"""A vendor's budget: so many calls in a stretch of time, and none while it asks for a pause.

Both are shared by all processes.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING

from waystation.desk.tables import Cooldown
from waystation.errors import ConditionFailed, StoreError, TooManyRequests, TryLater
from waystation.patterns import Limit, SharedLimiter
from waystation.store import absent, attr

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from waystation.store import Store

log = logging.getLogger(__name__)

BUDGET = Limit(50, 30)
LONGEST_TURN = 60.0
"""Seconds that a call waits for its turn here: a burst takes its time and costs no tries. For
longer, its event goes back to the queue."""

_LONGEST_COOLDOWN = 86_400.0


class Pace:
    def __init__(
        self,
        store: Store,
        vendor: str,
        budget: Limit = BUDGET,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._store = store
        self._vendor = vendor
        self._limiter = SharedLimiter(store, "desk-vendor", budget)
        self._sleep = sleep

    async def turn(self) -> None:
        """Wait for our turn, or raise TryLater."""
        while True:
            wait = await self._pause()
            if not wait:
                try:
                    await self._limiter.take(self._vendor)
                except TooManyRequests as error:
                    wait = max(0.05, error.retry_after)
                else:
                    return
            if wait > LONGEST_TURN:
                raise TryLater(f"{self._vendor} gets no more calls for now", retry_after=wait)
            await self._sleep(wait * (1 + random.random() / 10))  # noqa: S311 - jitter

    async def _pause(self) -> float:
        cooling = await self._store.get(Cooldown.key(self._vendor))
        return 0.0 if cooling is None else max(0.0, cooling.until - self._store.clock())

    async def cool_down(self, seconds: float, reason: str) -> None:
        """Leave the vendor alone, everywhere."""
        until = self._store.clock() + min(seconds, _LONGEST_COOLDOWN)
        cooling = Cooldown(
            vendor=self._vendor, until=until, reason=reason, expires_at=int(until) + 60
        )
        try:
            await self._store.put(cooling, when=absent() | (attr("until") < until))
        except ConditionFailed:
            pass  # it is to be left alone for longer still
        except StoreError as error:
            log.warning("the others do not hear of %s's pause: %s", self._vendor, error)
