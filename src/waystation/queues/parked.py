"""Messages that wait longer than SQS can: kept in the store until they are due."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from waystation.errors import ConditionFailed
from waystation.store import Item, Table, attr, exists, key_of, set_to

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from waystation.store import Store

_SHARDS = 8
_BATCH = 50
_CLAIM_SECONDS = 60

parked = Table("waystation-parked", pk="pk", sk="sk")


class Parked(
    Item,
    table=parked,
    pk="QUEUE#{queue}#{shard:02d}",
    sk="DUE#{due:015d}#{id}",
    kw_only=True,
):
    """A message and the millisecond it is due at. There is no TTL: it leaves when it was sent."""

    queue: str
    shard: int
    due: int
    id: str
    body: bytes
    group: str | None = None
    dedupe: str | None = None
    claimed_until: int = 0


class Lot:
    """The parked messages of one queue."""

    def __init__(self, store: Store, queue: str) -> None:
        self._store = store
        self._queue = queue

    async def park(
        self, id_: str, body: bytes, group: str | None, dedupe: str | None, delay: float
    ) -> None:
        """Keep a message until its delay is over."""
        item = Parked(
            queue=self._queue,
            shard=zlib.crc32(id_.encode()) % _SHARDS,
            due=int((self._store.clock() + delay) * 1000),
            id=id_,
            body=body,
            group=group,
            dedupe=dedupe,
        )
        await self._store.put(item)

    async def count(self) -> int:
        counts = [
            await self._store.count(Parked.query(self._queue, shard)) for shard in range(_SHARDS)
        ]
        return sum(counts)

    async def send_due(self, send: Callable[[Parked], Awaitable[None]]) -> int:
        """Send what is due, then forget it: after a crash in between it is sent once more."""
        now = self._store.clock()
        sent = 0
        for shard in range(_SHARDS):
            due = Parked.query(self._queue, shard).at_most(int(now * 1000))
            page = await self._store.query(due, limit=_BATCH)
            for item in page.items:
                if await self._claim(item, int(now)):
                    await send(item)
                    await self._store.delete(key_of(item))
                    sent += 1
        return sent

    async def _claim(self, item: Parked, now: int) -> bool:
        """Keep other processes from sending the same message, for a minute."""
        try:
            await self._store.update(
                key_of(item),
                set_to("claimed_until", now + _CLAIM_SECONDS),
                when=exists() & (attr("claimed_until") <= now),
            )
        except ConditionFailed:
            return False
        return True
