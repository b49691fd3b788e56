"""The replay archive: events as they came, encrypted, for so many days. Off unless it is set."""

from __future__ import annotations

import logging
import re
from hashlib import sha256
from typing import TYPE_CHECKING

import msgspec

from waystation.errors import BlobError, SettingsError
from waystation.ids import OrderedIds
from waystation.times import day_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from waystation.blobs import Blobs
    from waystation.clock import Clock
    from waystation.desk.receiving.envelopes import Envelope
    from waystation.patterns import Vault

log = logging.getLogger(__name__)

_PREFIX = "desk-archive"
_KEY = re.compile(rf"{_PREFIX}/(\d{{4}}-\d\d-\d\d)/[0-9a-f]{{40}}")


class Archived(msgspec.Struct):
    """`order` sorts by when it came, also within a moment."""

    received_at: str
    order: str
    body: bytes


class Archive:
    def __init__(self, blobs: Blobs, vault: Vault, days: int, clock: Clock) -> None:
        self._blobs = blobs
        self._vault = vault
        self.days = days
        self._clock = clock
        self._orders = OrderedIds()

    async def keep(self, envelope: Envelope, body: bytes) -> None:
        """Keep an event as it came, if events are kept at all."""
        if not self.days:
            return
        name = sha256(envelope.event_id.encode()).hexdigest()[:40]
        key = f"{_PREFIX}/{day_of(self._clock())}/{name}"
        order = self._orders.next(self._clock())
        packed = msgspec.msgpack.encode(Archived(envelope.received_at, order, body))
        await self._blobs.put(key, self._vault.seal(packed, key), replace=False)

    async def read(self, first: str, last: str) -> AsyncIterator[Archived]:
        """The events of some days, both included, in the order in which they came."""
        days: dict[str, list[str]] = {}
        async for key, _ in self._blobs.walk(f"{_PREFIX}/"):
            found = _KEY.fullmatch(key)
            if found is not None and first <= found[1] <= last:
                days.setdefault(found[1], []).append(key)
        for _, keys in sorted(days.items()):
            kept = [each for key in keys if (each := await self._opened(key)) is not None]
            for archived in sorted(kept, key=lambda each: each.order):
                yield archived

    async def _opened(self, key: str) -> Archived | None:
        sealed = await self._blobs.get(key)
        if sealed is None:
            return None
        try:
            return msgspec.msgpack.decode(self._vault.open(sealed, key), type=Archived)
        except (SettingsError, msgspec.MsgspecError):
            log.warning("an archived event cannot be opened: %s", key)
            return None

    async def sweep(self) -> int:
        """Remove what is older than it is to be kept; also when nothing is kept any more."""
        oldest = day_of(self._clock() - self.days * 86_400)
        removed = 0
        try:
            async for key, _ in self._blobs.walk(f"{_PREFIX}/"):
                found = _KEY.fullmatch(key)
                if found is not None and found[1] < oldest:
                    await self._blobs.delete(key)
                    removed += 1
        except BlobError as error:
            log.warning("the archive could not be swept: %s", error)
        return removed
