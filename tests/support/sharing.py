"""A store on a file that another one writes into."""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from waystation.store import open_store
from waystation.store.sqlite import SqliteStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from waystation.clock import Clock
    from waystation.store import Table


@asynccontextmanager
async def shared(
    url: str, tables: Sequence[Table], env: str = "dev", clock: Clock = time.time
) -> AsyncIterator[SqliteStore]:
    """A store whose transactions another one carries out, in the same process."""
    left, found = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with left, found:
        left.setblocking(False)
        found.setblocking(False)
        async with writing(url, tables, found, env, clock):
            store = await open_store(url, tables, env=env, clock=clock, meeting=left)
            assert isinstance(store, SqliteStore)
            async with store:
                await until_shared(store)
                yield store


@asynccontextmanager
async def writing(
    url: str,
    tables: Sequence[Table],
    meeting: socket.socket,
    env: str = "dev",
    clock: Clock = time.time,
) -> AsyncIterator[SqliteStore]:
    """A store that writes for others, until none of them is left."""
    store = await open_store(url, tables, env=env, clock=clock)
    assert isinstance(store, SqliteStore)
    async with store:
        stopping = asyncio.Event()
        task = asyncio.create_task(store.write_for_others(meeting, stopping))
        try:
            yield store
        finally:
            stopping.set()
            await task


async def until_shared(store: SqliteStore) -> None:
    async with asyncio.timeout(10):
        while not store.is_shared:
            await asyncio.sleep(0)
