"""Deadlines: put off as often as one likes, called once, and gone without a trace."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from typing import Any

from waystation.deadlines import Deadline

SOON = 0.02


class Caller:
    """Remembers when it was called."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.calls: list[float] = []
        self.called = asyncio.Event()
        self.deadline = Deadline(self.loop, self.call)

    def call(self) -> None:
        self.calls.append(time.monotonic())
        self.called.set()

    def set(self, seconds: float) -> None:
        self.deadline.set(self.loop.time() + seconds)

    async def wait(self) -> None:
        await asyncio.wait_for(self.called.wait(), 10)


async def test_it_calls_at_its_moment_and_once() -> None:
    caller, later = Caller(), Caller()
    begun = time.monotonic()
    caller.set(SOON)
    later.set(4 * SOON)
    await later.wait()
    assert len(caller.calls) == 1
    assert caller.calls[0] - begun > SOON * 0.9


async def test_it_can_be_put_off() -> None:
    caller = Caller()
    begun = time.monotonic()
    for times in range(1, 5):
        caller.set(times * SOON)
    await caller.wait()
    assert len(caller.calls) == 1
    assert caller.calls[0] - begun > 4 * SOON * 0.9


async def test_it_can_be_brought_forward() -> None:
    caller = Caller()
    caller.set(1_000)
    caller.set(SOON)
    await caller.wait()


async def test_it_can_be_set_again_once_it_has_called() -> None:
    caller = Caller()
    for _ in range(2):
        caller.called.clear()
        caller.set(SOON)
        await caller.wait()
    assert len(caller.calls) == 2


async def test_what_is_cleared_is_not_called() -> None:
    cleared, stopped, later = Caller(), Caller(), Caller()
    cleared.set(SOON)
    stopped.set(SOON)
    cleared.deadline.clear()
    stopped.deadline.stop()
    later.set(3 * SOON)
    await later.wait()
    assert cleared.calls == stopped.calls == []
    cleared.set(SOON)
    await cleared.wait()


async def test_what_is_stopped_is_not_kept() -> None:
    caller = Caller()
    caller.set(1_000)
    kept: Any = weakref.ref(caller)
    caller.deadline.stop()
    del caller
    gc.collect()
    assert kept() is None
