"""Change feeds at work: each watcher hears of every change of its table, in one process at a time.

Whoever holds the watcher's lease reads, hands the changes over one by one, and moves the position
only after the watcher is done with them. After a crash, another process goes on from there, so
that a change may come again but none is left out, and those of an item come in order. A watcher
that fails is tried again, later and later, and holds up its own feed only.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from typing import TYPE_CHECKING

from waystation.errors import TransactionCancelled
from waystation.patterns import Leases
from waystation.seam import pause
from waystation.store import FeedHolder

if TYPE_CHECKING:
    from waystation.patterns import Lease
    from waystation.seam import Watcher
    from waystation.store import ChangeFeed, Store

log = logging.getLogger(__name__)

LEASE_SECONDS = 15
_MOST = 100
_BATCH_SECONDS = 0.5


class WatcherCancelled(Exception):
    """A watcher awaited something that was cancelled."""


class _TakenOver(Exception):
    """Another process holds the lease by now."""


class FeedRunner:
    """Runs one watcher. `behind_since` is the time of the change that waits to be dealt with."""

    def __init__(self, store: Store, watcher: Watcher, *, leases: Leases | None = None) -> None:
        self.watcher = watcher
        self.name = f"watch {watcher.name}"
        self.behind_since: float | None = None
        self.lost = False
        self._store = store
        self._leases = leases or Leases(store, seconds=LEASE_SECONDS, longest=math.inf)
        self._key = FeedHolder.key(watcher.table.name, watcher.name)
        self._failed: str | None = None
        self._limit = 1

    @property
    def lag(self) -> float:
        """Seconds that the oldest change which this process knows of has waited."""
        if self.behind_since is None:
            return 0.0
        return max(0.0, self._store.clock() - self.behind_since)

    async def run(self, stopping: asyncio.Event) -> None:
        """Follow the table for as long as nobody else does."""
        while not stopping.is_set():
            lease = await self._take()
            if lease is None:
                self.behind_since = None  # it is another's to say
                await pause(stopping, self._leases.seconds / 5)
                continue
            self._limit = 1  # so that something is got done however soon we must stop
            try:
                await self._while_held(lease, stopping)
            finally:
                await lease.release()

    async def _take(self) -> Lease | None:
        holder = await self._store.get(self._key)
        if holder is not None and (holder.lease_expires_at or 0) > self._store.now():
            return None  # asked without writing
        return await self._leases.acquire(self._key)

    async def _while_held(self, lease: Lease, stopping: asyncio.Event) -> None:
        """Follow until we are to stop. Losing the lease ends it at once: whoever has it now must
        not be overtaken by what we still had in hand."""
        following = asyncio.create_task(self._follow(lease, stopping))
        async with lease.kept(following):
            try:
                await asyncio.wait({following})
            finally:
                following.cancel()
                await asyncio.wait({following})
        if following.cancelled():
            if not lease.lost.is_set():
                raise WatcherCancelled(f"{self.name} was cancelled by what it waited for")
        elif not isinstance(error := following.exception(), _TakenOver | None):
            raise error

    async def _follow(self, lease: Lease, stopping: asyncio.Event) -> None:
        feed = self._store.changes(self.watcher.table, self.watcher.name)
        while lease.held and not stopping.is_set():
            begun = time.monotonic()
            changes = await feed.read(1 if self._failed else self._limit)
            self._note_loss(feed)
            try:
                for change in changes:
                    self.behind_since = change.at
                    if not lease.held:
                        return
                    await self.watcher.handle(change)
                    if change.id == self._failed:
                        self._failed = None
            except Exception:
                # From now on one by one: those before it need not come again with it each time.
                self._failed = change.id
                raise
            try:
                await feed.commit(lease.check())
            except TransactionCancelled as error:
                raise _TakenOver from error
            self.behind_since = None
            if feed.moved:
                # What is dealt with between two positions should take about a second.
                slow = time.monotonic() - begun > _BATCH_SECONDS
                self._limit = max(1, self._limit // 2) if slow else min(_MOST, self._limit * 2)
            else:
                self._failed = None
                await pause(stopping, feed.idle_seconds)

    def _note_loss(self, feed: ChangeFeed) -> None:
        if feed.lost and not self.lost:
            self.lost = True
            log.error("%s went unread for so long that changes were lost", self.name)
