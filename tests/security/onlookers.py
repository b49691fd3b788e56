"""What everybody else sees while somebody attacks."""

from __future__ import annotations

import asyncio
import resource
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.site import Site

PATIENCE = 1.5
"""Seconds that an answer may take here, where tests share the cores and attackers the process with
the server. The attacks took from 4 to 26."""


class Onlooker:
    """Somebody who asks for `/healthz` all the time."""

    def __init__(self) -> None:
        self.slowest = 0.0
        self.asked = 0


@asynccontextmanager
async def watching(server: Site) -> AsyncIterator[Onlooker]:
    """Ask for `/healthz` while a block runs; afterwards nobody must have waited for long."""
    onlooker, over = Onlooker(), asyncio.Event()

    async def ask() -> None:
        while not over.is_set():
            begun = time.perf_counter()
            assert (await server.get("/healthz")).status == 200
            onlooker.slowest = max(onlooker.slowest, time.perf_counter() - begun)
            onlooker.asked += 1
            await asyncio.sleep(0.002)

    asking = asyncio.create_task(ask())
    try:
        yield onlooker
    finally:
        over.set()
        await asking
    assert onlooker.asked > 0
    assert onlooker.slowest < PATIENCE


def megabytes() -> float:
    """The most memory that this process has ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
