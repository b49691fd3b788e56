"""Order lookups: asked of the user's own code, bounded, and remembered for an hour, sealed."""

from __future__ import annotations

import hmac
import logging
from typing import TYPE_CHECKING

import msgspec

from waystation.desk.deciding.decisions import Order
from waystation.desk.deciding.judging import bounded
from waystation.desk.tables import EventRecord, OrderTrace
from waystation.errors import SettingsError, StoreError
from waystation.times import iso

if TYPE_CHECKING:
    from waystation.desk.deciding.decisions import OrderLookup
    from waystation.desk.receiving.envelopes import Envelope
    from waystation.patterns import Vault
    from waystation.store import Store

log = logging.getLogger(__name__)

_KEPT_SECONDS = 3_600


class Lookups:
    def __init__(
        self, store: Store, vault: Vault, look: OrderLookup | None, seconds: float
    ) -> None:
        self._store = store
        self._vault = vault
        self._look = look
        self._seconds = seconds
        self._key = vault.key("desk orders")

    @property
    def possible(self) -> bool:
        return self._look is not None

    def trace(self, number: str) -> OrderTrace:
        """All that is kept of an order's number."""
        return OrderTrace(self._hash(number), number[-4:] if len(number) > 4 else "")

    async def find(self, envelope: Envelope, number: str) -> Order | None:
        """What is known of an order; None when nothing is, or it cannot be asked."""
        if self._look is None:
            return None
        key = f"act:shopify_lookup:{envelope.conversation_id}:{self._hash(number)}"
        if (known := await self._remembered(key)) is not None:
            return known
        try:
            found = await bounded(self._look(number), self._seconds)
            order = None if found is None else msgspec.convert(msgspec.to_builtins(found), Order)
        except Exception as error:  # noqa: BLE001 - it is the user's own code
            log.warning("an order lookup failed with %s", type(error).__name__)
            return None
        if order is not None:
            await self._remember(key, envelope, order)
        return order

    async def _remembered(self, key: str) -> Order | None:
        record = await self._store.get(EventRecord.key(key))
        if record is None or record.answer is None:
            return None
        try:
            return msgspec.json.decode(self._vault.open(record.answer, key), type=Order)
        except (SettingsError, msgspec.MsgspecError):
            return None  # another key's, or another service's

    async def _remember(self, key: str, envelope: Envelope, order: Order) -> None:
        now = self._store.clock()
        record = EventRecord(
            event_id=key,
            created_at=iso(now),
            last_processed_at=iso(now),
            received_at=envelope.received_at,
            expires_at=int(now) + _KEPT_SECONDS,
            mode="automation_candidate",
            conversation_id=envelope.conversation_id,
            safe_mode=False,
            automation_enabled=True,
            source_message_id=envelope.message_id,
            payload_sha256=envelope.payload_sha256,
            payload_bytes=envelope.payload_bytes,
            answer=self._vault.seal(msgspec.json.encode(order), key),
        )
        try:
            await self._store.put(record)
        except StoreError as error:
            log.warning("an order lookup is not remembered: %s", type(error).__name__)

    def _hash(self, number: str) -> str:
        return hmac.digest(self._key, number.encode(), "sha256").hex()[:32]
