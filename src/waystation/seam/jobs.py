"""Background work: how a system says what is to be done beside answering requests."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

Job = Callable[[asyncio.Event], Awaitable[None]]
"""Works until the event is set, then finishes what it has begun."""


def every(seconds: float, work: Callable[[], Awaitable[object]]) -> Job:
    """A job that does something again and again, until told to stop."""

    async def job(stopping: asyncio.Event) -> None:
        while not stopping.is_set():
            await work()
            await pause(stopping, seconds * (0.9 + random.random() / 5))  # noqa: S311 - jitter

    return job


async def pause(stopping: asyncio.Event, seconds: float) -> None:
    """Wait, but not once we are to stop."""
    try:
        async with asyncio.timeout(seconds):
            await stopping.wait()
    except TimeoutError:
        pass
