"""Messages that wait longer than SQS can: kept in the store until they are due."""

from __future__ import annotations

import asyncio
import logging
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING

from waystation.errors import (
    ConditionFailed,
    TransactionCancelled,
    WaystationError,
)
from waystation.ids import nanoid
from waystation.queues.base import DEDUPE_SECONDS
from waystation.store import Claims, Item, Put, Table, absent, exists, key_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from waystation.store import Store

    Send = Callable[["Parked"], Awaitable[None]]

log = logging.getLogger(__name__)

_SHARDS = 8
_BATCH = 50
_CLAIM_SECONDS = 60

_CLAIMS = Claims("claim", "claimed_until")

parked = Table("waystation-parked", pk="pk", sk="sk", ttl="expires_at")


class Parked(
    Item,
    table=parked,
    pk="QUEUE#{queue}#{shard:02d}",
    sk="DUE#{due:015d}#{id}",
    kw_only=True,
):
    """A message and the millisecond it is due at. It has no TTL: it leaves when it was sent."""

    queue: str
    shard: int
    due: int
    id: str
    body: bytes
    group: str | None = None
    claim: str | None = None
    claimed_until: int = 0


class Seen(Item, table=parked, pk="SEEN#{queue}#{id}", sk="SEEN", kw_only=True):
    """That a message with a dedupe id was parked lately."""

    queue: str
    id: str
    expires_at: int


class Lot:
    """The parked messages of one queue."""

    def __init__(self, store: Store, queue: str) -> None:
        self._store = store
        self._queue = queue

    async def park(
        self, id_: str, body: bytes, group: str | None, dedupe: str | None, delay: float
    ) -> None:
        """Keep a message until its delay is over, unless one with its dedupe id was parked."""
        now = self._store.clock()
        item = Parked(
            queue=self._queue,
            shard=zlib.crc32((group or id_).encode()) % _SHARDS,  # a group stays in order
            due=int((now + delay) * 1000),
            id=id_,
            body=body,
            group=group,
        )
        if dedupe is None:
            await self._store.put(item)
            return
        seen = Seen(queue=self._queue, id=id_, expires_at=int(now) + DEDUPE_SECONDS)
        with suppress(TransactionCancelled):
            await self._store.transact(Put(seen, when=absent()), Put(item))

    async def count(self) -> int:
        counts = [
            await self._store.count(Parked.query(self._queue, shard)) for shard in range(_SHARDS)
        ]
        return sum(counts)

    async def send_due(self, send: Send) -> int:
        """Send what is due, then forget it: after a crash in between it is sent once more."""
        sent = await asyncio.gather(*(self._send_shard(n, send) for n in range(_SHARDS)))
        return sum(sent)

    async def _send_shard(self, shard: int, send: Send) -> int:
        """Send what is due in a shard; after a failure the rest of that group waits."""
        due = Parked.query(self._queue, shard).at_most(int(self._store.clock() * 1000))
        sent, stuck, cursor = 0, set[str](), None
        while True:
            page = await self._store.query(due, limit=_BATCH, after=cursor)
            for item in page.items:
                if item.group is not None and item.group in stuck:
                    continue
                if await self._send_one(item, send):
                    sent += 1
                elif item.group is not None:
                    stuck.add(item.group)
            cursor = page.cursor
            if cursor is None:
                return sent

    async def _send_one(self, item: Parked, send: Send) -> bool:
        try:
            if not await self._claim(item):
                return False
            await send(item)
            await self._store.delete(key_of(item))
        except WaystationError as error:
            log.warning("message %s of %s stays parked: %s", item.id, self._queue, error)
            return False
        return True

    async def _claim(self, item: Parked) -> bool:
        """Keep other processes from sending the same message, for a minute."""
        now = self._store.now()
        try:
            await self._store.update(
                key_of(item),
                *_CLAIMS.take(nanoid(), now + _CLAIM_SECONDS),
                when=exists() & _CLAIMS.free(now),
            )
        except ConditionFailed:
            return False
        return True
