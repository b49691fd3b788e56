"""Timed work: looks at each name when its timer is due, or at once when somebody asks.

One look at a time for each name in this process, and, by its timer, in all of them. Whatever fails
is found again by its timer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from waystation.errors import WaystationError
from waystation.patterns.timers import RESCUE_MS

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from waystation.patterns.timers import Timer, Timers

log = logging.getLogger(__name__)

_POLL_SECONDS = 1.0
_LOOKS_AT_ONCE = 100
_FAILED = "some work failed, and will be tried again"


class Look:
    """One look at a name. `due` says that its timer has led here, not somebody in a hurry."""

    def __init__(self, owner: TimedWork, timer: Timer | None) -> None:
        self._owner = owner
        self._timer = timer

    @property
    def due(self) -> bool:
        return self._timer is not None

    @property
    def stopping(self) -> bool:
        """Whether to leave the rest to others."""
        return self._owner.stopping

    async def keep(self) -> None:
        """Work for longer: renew the timer if it is due soon, so that others stay away."""
        timer, timers = self._timer, self._owner.timers
        if timer is not None and timer.due_at - timers.now() < RESCUE_MS:
            await timers.hold(timer)


Work = Callable[[str, Look], Awaitable[int | None]]
"""Does what is due for a name, and says when to look again: a millisecond, or None for never."""


class TimedWork:
    def __init__(self, timers: Timers, work: Work, stopping: asyncio.Event | None = None) -> None:
        """Once `stopping` is set, nothing new is begun."""
        self.timers = timers
        self._stopping = stopping or asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._cancelling = False
        self._work = work
        self._tasks: set[asyncio.Task[None]] = set()
        self._looking: dict[str, bool] = {}
        self._later: set[str] = set()

    @property
    def stopping(self) -> bool:
        return self._cancelling or self._stopping.is_set()

    def kick(self, name: str) -> None:
        """Look at a name now; again if somebody is looking already."""
        if name in self._looking:
            self._looking[name] = True
        elif not self.stopping:
            self._looking[name] = False
            self.spawn(self._look(name, None))

    def kick_later(self, name: str, seconds: float) -> None:
        """Look once an index that lags shows what was just written."""

        def look() -> None:
            self._later.discard(name)
            self.kick(name)

        if name not in self._later:
            self._later.add(name)
            self._loop.call_later(seconds, look)

    async def tick(self) -> None:
        """Take what is due, and begin with it."""
        for timer in await self.timers.due(_LOOKS_AT_ONCE, self._looking):
            if timer.name in self._looking or self.stopping:
                continue
            self._looking[timer.name] = False
            self.spawn(self._look(timer.name, timer))

    async def _look(self, name: str, timer: Timer | None) -> None:
        try:
            held = None
            if timer is not None:
                held = await self.timers.take(timer)
                if held is None:
                    return
            look = Look(self, held)
            while True:
                self._looking[name] = False
                next_at = await self._work(name, look)
                if not self._looking[name] or self.stopping:
                    break
            if held is not None:
                await self.timers.settle(held, next_at)
            elif next_at is not None:
                await self.timers.ensure(name, next_at)
            if next_at is not None:
                self._remind(name, next_at)
        finally:
            if self._looking.pop(name):
                self.kick(name)  # there was more while we were ending

    def _remind(self, name: str, at: int) -> None:
        """Look again sooner than the next poll would."""
        wait = (at - self.timers.now()) / 1000
        if 0 < wait < _POLL_SECONDS:
            self._loop.call_later(max(0.02, wait), self.kick, name)

    async def run(self, stopping: asyncio.Event) -> None:
        """Work until told to stop, then finish what was begun."""
        while not stopping.is_set():
            try:
                await self.tick()
            except WaystationError as error:
                log.warning("what is due cannot be read: %s", error)
            with suppress(TimeoutError):
                async with asyncio.timeout(_POLL_SECONDS):
                    await stopping.wait()
        await self.finish()

    async def finish(self) -> None:
        """Wait until nothing is under way."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def drain(self, seconds: float) -> None:
        """Finish what was begun; what takes longer is left to others, who find it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.finish()
        self._cancelling = True
        left = list(self._tasks)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        self._cancelling = False

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something beside everything else; `finish` waits for it."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error(_FAILED, exc_info=error)


async def guarded(work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except Exception:
        log.exception(_FAILED)
