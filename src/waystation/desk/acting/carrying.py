"""Carrying out the actions of a plan: each once in our records, whatever fails in between.

What may be done twice without harm is done, then recorded. A reply is recorded as begun first: who
finds one that was begun looks whether it was said, and if that cannot be told, a person has to.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec

from waystation.desk.acting.richpanel import OutcomeOpen, VendorRefused
from waystation.desk.tables import BEGUN, PROCESSED, AuditAction, EventRecord, Unknown
from waystation.errors import (
    LeaseLost,
    NotFound,
    TooManyRequests,
    TransactionCancelled,
    TryLater,
)
from waystation.ids import secret_hash
from waystation.patterns import redact
from waystation.store import Delete, Put, Update, absent, attr, exists, key_of, set_to
from waystation.times import iso, seconds_of

if TYPE_CHECKING:
    from waystation.desk.acting.plans import Action, Plan
    from waystation.desk.acting.richpanel import Richpanel
    from waystation.desk.metrics import DeskMetrics
    from waystation.desk.receiving.envelopes import Envelope
    from waystation.patterns import Lease
    from waystation.seam import Offer
    from waystation.store import Action as Write
    from waystation.store import Store

SecondThoughts = Callable[["Action"], Awaitable[str | None]]
"""Why a reply that was planned is not sent after all, if it is not."""

SUCCESS = "success"
DRY_RUN = "dry_run"
FAILED = "failed"
UNKNOWN = "unknown"
SKIPPED = "skipped"
_LONGEST_FOR_RELAY = 60.0
_MOST_PAYLOAD = 4_000


class Carrier:
    def __init__(
        self,
        store: Store,
        vendor: Richpanel | None,
        hand_over: Offer,
        metrics: DeskMetrics,
        *,
        event_days: int,
        audit_days: int,
    ) -> None:
        self._store = store
        self._vendor = vendor
        self._hand_over = hand_over
        self._metrics = metrics
        self._event_days = event_days
        self._audit_days = audit_days

    async def do(
        self,
        envelope: Envelope,
        plan: Plan,
        action: Action,
        lease: Lease,
        second_thoughts: SecondThoughts,
    ) -> str:
        """Do one thing, unless it was done; what came of it. Before a reply is begun, it is asked
        whether there are second thoughts about it."""
        known = await self._store.get(EventRecord.key(action.key))
        if known is not None and known.status != BEGUN:
            return known.result or SUCCESS
        if action.call != "reply":
            result = await self._repeatable(envelope, action)
        elif known is not None:
            why = "the work was interrupted while sending"
            result = await self._looked(envelope, action, seconds_of(known.created_at), why)
        else:
            result = await self._reply(envelope, plan, action, lease, second_thoughts)
        await self._transact(lease, *self.records(envelope, plan, action, result))
        self.count(action, result)
        return result

    def count(self, action: Action, result: str) -> None:
        self._metrics.actions.labels(action.type, result.partition(":")[0]).inc()

    def records(self, envelope: Envelope, plan: Plan, action: Action, result: str) -> list[Write]:
        """That an action was done, and the audit of it: written together, and once."""
        record = self._record(envelope, plan, action, result)
        # A reply that was begun has a record; whatever else has one was done before.
        fresh = absent() | (attr("status") == BEGUN)
        writes: list[Write] = [Put(record, when=fresh), Put(self._audit(envelope, action, result))]
        if result.startswith(UNKNOWN):
            writes.append(Put(self._parked(envelope, action, result)))
        return writes

    def _record(
        self, envelope: Envelope, plan: Plan, action: Action, result: str, status: str = PROCESSED
    ) -> EventRecord:
        now = self._store.clock()
        return EventRecord(
            event_id=action.key,
            created_at=iso(now),
            last_processed_at=iso(now),
            received_at=envelope.received_at,
            expires_at=int(now) + self._event_days * 86_400,
            status=status,
            mode=plan.mode,
            conversation_id=envelope.conversation_id,
            safe_mode=plan.safe_mode,
            automation_enabled=plan.automation_enabled,
            source_message_id=envelope.message_id,
            payload_sha256=envelope.payload_sha256,
            payload_bytes=envelope.payload_bytes,
            intent=plan.intent,
            result=result,
        )

    def _audit(self, envelope: Envelope, action: Action, result: str) -> AuditAction:
        now = self._store.clock()
        return AuditAction(
            conversation_id=envelope.conversation_id,
            timestamp=iso(now),
            action_id=f"{action.place:02d}{secret_hash(action.key)[:14]}",  # in order, in a moment
            action_type=action.type,
            action_payload_redacted=msgspec.json.encode(action.payload).decode()[:_MOST_PAYLOAD],
            idempotency_key=action.key,
            result=result,
            expires_at=int(now) + self._audit_days * 86_400,
            event_id=envelope.event_id,
        )

    def _parked(self, envelope: Envelope, action: Action, result: str) -> Unknown:
        now = self._store.clock()
        return Unknown(
            at=iso(now),
            unknown_id=secret_hash(action.key)[:16],
            conversation_id=envelope.conversation_id,
            idempotency_key=action.key,
            template=action.template or "",
            detail=result,
            expires_at=int(now) + self._audit_days * 86_400,
        )

    # What is done

    async def _repeatable(self, envelope: Envelope, action: Action) -> str:
        try:
            if action.call == "relay":
                return await self._relay(envelope, action)
            assert self._vendor is not None
            if action.call == "assign":
                await self._vendor.assign(envelope.conversation, action.value)
            else:
                await self._vendor.tag(envelope.conversation, action.value)
        except VendorRefused as error:
            return _failed(error)
        return SUCCESS

    async def _relay(self, envelope: Envelope, action: Action) -> str:
        try:
            await self._hand_over(
                action.payload["user_id"],
                action.payload["source_id"],
                action.value.encode(),
                {"content-type": "application/json", "x-waystation-type": "desk.decided"},
                sender="desk",
                dedupe=envelope.event_id,
            )
        except NotFound as error:
            return _failed(error)
        except TooManyRequests as error:
            if error.retry_after > _LONGEST_FOR_RELAY:  # nobody's support waits for a quota
                return _failed(error)
            raise TryLater(f"the relay is full: {error}", retry_after=error.retry_after) from None
        return SUCCESS

    async def _reply(
        self,
        envelope: Envelope,
        plan: Plan,
        action: Action,
        lease: Lease,
        second_thoughts: SecondThoughts,
    ) -> str:
        assert self._vendor is not None
        await self._vendor.turn()
        if (reason := await second_thoughts(action)) is not None:
            return f"{SKIPPED}: {reason}"
        begun = self._store.clock()
        mark = self._record(envelope, plan, action, "", BEGUN)
        await self._transact(lease, Put(mark, when=absent()))
        try:
            await self._vendor.reply(envelope.conversation, action.value)
        except VendorRefused as error:
            return _failed(error)
        except OutcomeOpen as error:
            return await self._looked(envelope, action, begun, str(error))
        except TryLater:
            await self._unmark(action)  # it was not sent: that much is known
            raise
        return SUCCESS

    async def _unmark(self, action: Action) -> None:
        await self._store.delete(
            EventRecord.key(action.key), when=absent() | (attr("status") == BEGUN)
        )

    async def _looked(self, envelope: Envelope, action: Action, since: float, why: str) -> str:
        """What became of a reply that may have been sent."""
        assert self._vendor is not None
        try:
            if await self._vendor.was_said(envelope.conversation, action.value, since):
                return SUCCESS
        except (VendorRefused, OutcomeOpen) as error:
            why = f"{why}; {error}"
        return f"{UNKNOWN}: {redact(why)[:200]}"

    async def _transact(self, lease: Lease, *writes: Write) -> None:
        """Write while the event is still ours."""
        try:
            await self._store.transact(*writes, lease.check())
        except TransactionCancelled as error:
            if error.reasons[-1] is not None:
                raise LeaseLost("another worker has taken over") from None
            raise TryLater("another worker has been here", retry_after=1.0) from None

    # A person has looked

    async def settle(self, parked: Unknown, *, sent: bool) -> None:
        """Write down what a person has found out about a reply."""
        result = SUCCESS if sent else f"{FAILED}: a person found that it was not sent"
        audit = AuditAction(
            conversation_id=parked.conversation_id,
            timestamp=iso(self._store.clock()),
            action_id=f"{parked.unknown_id}-settled",
            action_type="settled",
            action_payload_redacted=msgspec.json.encode({"template": parked.template}).decode(),
            idempotency_key=parked.idempotency_key,
            result=result,
            expires_at=self._store.now() + self._audit_days * 86_400,
        )
        writes: list[Write] = [Put(audit), Delete(key_of(parked), when=exists())]
        key = EventRecord.key(parked.idempotency_key)
        if await self._store.get(key) is not None:  # it is not kept for as long as the audit
            writes.append(Update(key, set_to("result", result), when=exists()))
        await self._store.transact(*writes)


def _failed(error: Exception) -> str:
    return f"{FAILED}: {redact(str(error))[:200]}"
