"""Keeping what is ours: claims of what waits in memory are renewed long before they run out."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import msgspec

from waystation.errors import TransactionCancelled, WaystationError
from waystation.relay.delivering.parcels import CLAIM_MS
from waystation.relay.states import unchanged
from waystation.store import Claims, Put, Revise, key_of

if TYPE_CHECKING:
    from waystation.patterns import Tally
    from waystation.relay.delivering.parcels import Held, Parcel
    from waystation.relay.delivering.tools import Tools
    from waystation.relay.delivering.worker import Worker
    from waystation.relay.tables import Event
    from waystation.store import Action, Key

log = logging.getLogger(__name__)

_RENEW_MS = 40_000
"""What has less of its claim left than this is renewed."""

_CLAIMS = Claims("claim", "due_at")


class _Renewal:
    """An event's claim, for longer. It follows what others write of the event before it."""

    def __init__(self, parcel: Parcel, until: int) -> None:
        self._parcel = parcel
        self._until = until
        self._after = parcel.event

    @property
    def key(self) -> Key[Event]:
        return self._parcel.key

    def build(self) -> tuple[list[Action], list[Tally]]:
        before = self._parcel.event
        self._after = before
        if before.claim is None or not self._parcel.rowless:
            return [], []
        self._after = msgspec.structs.replace(
            before, due_at=self._until, revision=before.revision + 1
        )
        return [Revise(before, self._after, when=unchanged(before))], []

    def written(self) -> None:
        self._parcel.event = self._after


class Renewals:
    def __init__(self, tools: Tools, worker: Worker) -> None:
        self._tools = tools
        self._worker = worker

    async def renew(self) -> None:
        """Renew whatever runs out soon."""
        soon, until = self._tools.now() + _RENEW_MS, self._tools.now() + CLAIM_MS
        work = [
            self._event(parcel, until)
            for parcel in self._worker.parcels.values()
            if parcel.rowless
            and not parcel.abandoned
            and parcel.event.claim == self._worker.planning.token
            and (parcel.event.due_at or 0) < soon
        ]
        work += [
            self._row(held, until)
            for lane in self._tools.lanes.all()
            for held in lane.waiting
            if held.stored and held.until < soon
        ]
        await asyncio.gather(*work)

    async def _event(self, parcel: Parcel, until: int) -> None:
        event = parcel.event
        renewal = _Renewal(parcel, until)
        try:
            await self._tools.batches.write_together(event.user_id, renewal, event.size)
        except TransactionCancelled:
            # Whoever has changed it may have taken it over, which its claim shows.
            current = await self._tools.store.get(key_of(event))
            if current is None or current.claim != event.claim:
                log.warning("event %s was taken over", event.event_id)
                parcel.event = current or msgspec.structs.replace(event, claim=None, due_at=0)
            else:
                parcel.event = current
        except WaystationError as error:
            log.warning("the claim of %s is not renewed yet: %s", event.event_id, error)

    async def _row(self, held: Held, until: int) -> None:
        after = msgspec.structs.replace(held.delivery, due_at=until)
        put = Put(after, when=_CLAIMS.owned(after.claim))
        try:
            await self._tools.batches.write(after.user_id, [put], [])
        except TransactionCancelled:
            log.warning("delivery %s was taken over", after.delivery_id)
        except WaystationError as error:
            log.warning("the claim of %s is not renewed yet: %s", after.delivery_id, error)
        else:
            held.delivery.due_at = until
