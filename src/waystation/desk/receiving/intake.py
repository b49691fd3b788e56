"""Taking support events in: read, remembered if they came before, and queued durably."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from waystation.desk.receiving.envelopes import read
from waystation.desk.receiving.sealing import seal
from waystation.desk.tables import PROCESSING, EventRecord
from waystation.ids import secret_hash
from waystation.patterns import Newest
from waystation.times import iso

if TYPE_CHECKING:
    from waystation.desk.archive import Archive
    from waystation.desk.metrics import DeskMetrics
    from waystation.desk.receiving.credentials import Credentials
    from waystation.desk.receiving.envelopes import Envelope
    from waystation.patterns import Vault
    from waystation.queues import Queue
    from waystation.store import Store

_MOST_RECENT = 50_000
_RECENT_SECONDS = 240.0
"""Shorter than the queue remembers: what we skip, it would have skipped as well."""


class Receipt(msgspec.Struct):
    """The answer to an event that was taken."""

    event_id: str
    status: Literal["queued", "duplicate"]


class Intake:
    def __init__(
        self,
        store: Store,
        vault: Vault,
        queue: Queue,
        credentials: Credentials,
        archive: Archive,
        metrics: DeskMetrics,
    ) -> None:
        self._store = store
        self._vault = vault
        self._queue = queue
        self.credentials = credentials
        self._archive = archive
        self._metrics = metrics
        self._recent: Newest[str, float] = Newest(_MOST_RECENT)

    def now(self) -> float:
        return self._store.clock()

    async def take(self, body: bytes) -> Receipt:
        """Queue an event. It is durable when this returns."""
        envelope = read(body, iso(self.now()))
        if await self._came_before(envelope.event_id):
            self._metrics.received.labels("duplicate").inc()
            return Receipt(envelope.event_id, "duplicate")
        await self._archive.keep(envelope, body)
        await self.queue(envelope)
        self._metrics.received.labels("queued").inc()
        return Receipt(envelope.event_id, "queued")

    async def queue(self, envelope: Envelope) -> None:
        await self._queue.send(
            seal(self._vault, envelope),
            group=envelope.conversation_id,
            dedupe=secret_hash(envelope.event_id),
        )
        self._recent[envelope.event_id] = self.now()

    async def _came_before(self, event_id: str) -> bool:
        """Whether an event is queued already, or has been dealt with. One that others have given up
        on is neither: it gets another chance."""
        if self.now() - self._recent.get(event_id, float("-inf")) < _RECENT_SECONDS:
            return True
        record = await self._store.get(EventRecord.key(event_id))
        return record is not None and record.status != PROCESSING
