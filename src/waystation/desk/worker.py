"""The worker: claims an event, decides once, acts, and closes it with the conversation's new state.

Messages of a conversation come one at a time and in order. A crash between any two steps leaves a
claim that runs out and, where something was to be done outside, the plan: the next worker goes on
from there.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from typing import TYPE_CHECKING

import msgspec

from waystation.backoff import backoff
from waystation.desk.acting.carrying import DRY_RUN, FAILED, SKIPPED, SUCCESS
from waystation.desk.acting.plans import Plan
from waystation.desk.receiving.sealing import Parcel, unseal
from waystation.desk.tables import (
    PROCESSED,
    PROCESSING,
    EventRecord,
)
from waystation.errors import (
    ConditionFailed,
    LeaseLost,
    OutcomeUnknown,
    SettingsError,
    TransactionCancelled,
    TryLater,
    WaystationError,
)
from waystation.ids import nanoid
from waystation.patterns import Leases
from waystation.store import Update, add, attr, remove, set_or_remove, set_to
from waystation.times import iso

if TYPE_CHECKING:
    from waystation.desk.acting.carrying import Carrier
    from waystation.desk.acting.planning import Planner
    from waystation.desk.acting.plans import Action
    from waystation.desk.conversations import Conversations
    from waystation.desk.metrics import DeskMetrics
    from waystation.desk.receiving.envelopes import Envelope
    from waystation.desk.switches import SwitchBoard, SwitchState
    from waystation.desk.tables import ConversationState
    from waystation.patterns import Lease, Vault
    from waystation.queues import Message
    from waystation.store import Edit, Store

log = logging.getLogger(__name__)

LEASE_SECONDS = 60
_LONGEST = 840.0
_FIRST_WAIT, _LONGEST_WAIT = 1.0, 300.0
_LONGEST_ASKED = 3_600.0
_TRIES = 5
_UNSAID = (FAILED, SKIPPED)


class Worker:
    def __init__(
        self,
        store: Store,
        vault: Vault,
        switches: SwitchBoard,
        conversations: Conversations,
        planner: Planner,
        carrier: Carrier,
        metrics: DeskMetrics,
        *,
        event_days: int,
        known_intents: set[str],
    ) -> None:
        self._store = store
        self._vault = vault
        self._switches = switches
        self._conversations = conversations
        self._planner = planner
        self._carrier = carrier
        self._metrics = metrics
        self._event_days = event_days
        self._known_intents = known_intents
        self._leases = Leases(store, seconds=LEASE_SECONDS, longest=_LONGEST)

    async def handle(self, message: Message) -> None:
        """Deal with a queued event. Whatever goes wrong, it comes again, later and later, and what
        is said about it has nothing of the event's content."""
        wait = backoff(message.receives, first=_FIRST_WAIT, longest=_LONGEST_WAIT)
        try:
            parcel = message.decode(Parcel)
            envelope = unseal(self._vault, parcel)
        except (msgspec.MsgspecError, SettingsError, ValueError) as error:
            raise TryLater(
                f"it cannot be opened: {type(error).__name__}", retry_after=wait
            ) from None
        try:
            await self._process(envelope)
        except TryLater as later:
            self._metrics.processed.labels("postponed").inc()
            wait = max(wait, min(later.retry_after, _LONGEST_ASKED))
            raise TryLater(str(later), retry_after=wait) from None
        except Exception as error:  # noqa: BLE001 - whatever it is, the event comes again
            self._metrics.processed.labels("failed").inc()
            raise TryLater(_named(error), retry_after=wait) from None

    async def _process(self, envelope: Envelope) -> None:
        switches = await self._switches.current()
        lease = await self._claim(envelope, switches)
        if lease is None:
            self._metrics.processed.labels("duplicate").inc()
            return
        worker = asyncio.current_task()
        assert worker is not None
        async with lease.kept(worker):
            try:
                await self._work(envelope, switches, lease)
            except asyncio.CancelledError:
                if lease.lost.is_set() and worker.uncancel() == 0:
                    raise TryLater("another worker has taken over", retry_after=1.0) from None
                await asyncio.shield(lease.release())
                raise
            except LeaseLost:
                raise TryLater("another worker has taken over", retry_after=1.0) from None
            except Exception as error:
                await self._let_go(lease, error)
                raise
        self._metrics.processed.labels("processed").inc()

    # The claim

    async def _claim(self, envelope: Envelope, switches: SwitchState) -> Lease | None:
        """The lease on an event that is yet to be dealt with; None when it has been."""
        now = self._store.clock()
        record = EventRecord(
            event_id=envelope.event_id,
            created_at=iso(now),
            last_processed_at=iso(now),
            received_at=envelope.received_at,
            expires_at=self._expiry(self._event_days),
            status=PROCESSING,
            mode="route_only",
            conversation_id=envelope.conversation_id,
            safe_mode=switches.safe_mode,
            automation_enabled=switches.automation_enabled,
            source_message_id=envelope.message_id,
            payload_sha256=envelope.payload_sha256,
            payload_bytes=envelope.payload_bytes,
        )
        token = nanoid(21)
        try:
            return await self._leases.create(record, token)
        except OutcomeUnknown:
            pass
        except ConditionFailed as failed:
            if failed.item is None or failed.item.status != PROCESSING:
                return None
        try:
            return await self._leases.claim(
                EventRecord.key(envelope.event_id), when=attr("status") == PROCESSING, token=token
            )
        except ConditionFailed as failed:
            if failed.item is None or failed.item.status != PROCESSING:
                return None
            ends = failed.item.lease_expires_at or 0
            wait = max(1.0, ends + self._leases.skew - self._store.clock())
            raise TryLater("another worker has it", retry_after=wait) from None

    async def _let_go(self, lease: Lease, error: Exception) -> None:
        """Let the next worker have it at once, and say what went wrong."""
        lease.ended = True
        what = str(error) if isinstance(error, TryLater) else _named(error)
        giving_up = lease.closing(add("failures", 1), set_to("last_error", what[:200]))
        try:
            await self._store.update(giving_up.key, *giving_up.changes, when=giving_up.when)
        except WaystationError as failure:
            log.warning("the claim will have to run out: %s", type(failure).__name__)
        if not isinstance(error, TryLater):
            log.error("an event failed: %s", _named(error))

    # The work

    async def _work(self, envelope: Envelope, switches: SwitchState, lease: Lease) -> None:
        plan = self._saved(lease)
        dry_run = self._planner.is_dry(envelope)
        known: tuple[ConversationState | None] | None = None
        if plan is None:
            state = await self._conversations.get(envelope.conversation_id)
            plan = await self._planner.plan(envelope, state, switches)
            self._count(plan)
            if plan.steps(dry_run=dry_run):
                await self._save(envelope, plan, state, lease)
            else:
                known = (state,)

        async def second_thoughts(action: Action) -> str | None:
            current = await self._switches.current()
            state = await self._conversations.get(envelope.conversation_id)
            return self._planner.second_thoughts(envelope, plan, action, state, current)

        results: dict[str, str] = {}
        for action in plan.steps(dry_run=dry_run):
            results[action.key] = await self._carrier.do(
                envelope, plan, action, lease, second_thoughts
            )
        await self._finish(envelope, plan, results, lease, known)

    def _count(self, plan: Plan) -> None:
        if plan.intent is not None:
            intent = plan.intent if plan.intent in self._known_intents else "other"
            self._metrics.decisions.labels(intent).inc()

    def _saved(self, lease: Lease) -> Plan | None:
        row = lease.row
        if not isinstance(row, EventRecord) or row.plan is None:
            return None
        opened = self._vault.open(row.plan, _plan_context(row.event_id))
        return msgspec.json.decode(opened, type=Plan)

    async def _save(
        self, envelope: Envelope, plan: Plan, state: ConversationState | None, lease: Lease
    ) -> None:
        """Write the plan down before any of it is done, with what holds from now on."""
        sealed = self._vault.seal(msgspec.json.encode(plan), _plan_context(envelope.event_id))
        reserved = self._conversations.reserved(envelope, plan, state)
        if reserved is None:
            await lease.refresh(set_to("plan", sealed))
            return
        try:
            await self._store.transact(
                reserved, Update(lease.key, set_to("plan", sealed), when=lease.owned())
            )
        except TransactionCancelled as error:
            if error.reasons[-1] is not None:
                raise LeaseLost("another worker has taken over") from None
            raise TryLater("the conversation was changed meanwhile", retry_after=0.5) from None

    async def _finish(
        self,
        envelope: Envelope,
        plan: Plan,
        results: dict[str, str],
        lease: Lease,
        known: tuple[ConversationState | None] | None,
    ) -> None:
        """Write the state, what is only recorded, and the end of the event, together. `known` is
        the state as it was read a moment ago, if it was."""
        reply = plan.reply()
        spoken = reply is not None and not results.get(reply.key, SUCCESS).startswith(_UNSAID)
        after = plan.replied if spoken else plan.silent
        local = [action for action in plan.actions if action.key not in results]
        for _ in range(_TRIES):
            state = known[0] if known else await self._conversations.get(envelope.conversation_id)
            known = None
            recorded = [
                self._carrier.records(envelope, plan, action, _local_result(action))
                for action in local
            ]
            try:
                await lease.publish(
                    self._conversations.changed(envelope, plan, after, state),
                    *(write for some in recorded for write in some),
                    closing=lease.closing(*self._closing(plan)),
                )
            except TransactionCancelled as error:
                local = await self._still_open(local, error)
                continue
            for action in local:
                self._carrier.count(action, _local_result(action))
            return
        raise TryLater("the conversation is changed by others all the time", retry_after=1.0)

    async def _still_open(self, local: list[Action], error: TransactionCancelled) -> list[Action]:
        """What is left to record when another service has done something of it."""
        if error.reasons[0] is not None:
            return local  # the state has changed
        found = await self._store.batch_get([EventRecord.key(action.key) for action in local])
        return [action for action, there in zip(local, found, strict=True) if there is None]

    def _closing(self, plan: Plan) -> list[Edit]:
        return [
            set_to("status", PROCESSED),
            set_to("last_processed_at", iso(self._store.clock())),
            set_to("expires_at", self._expiry(self._event_days)),
            set_to("mode", plan.mode),
            set_to("safe_mode", plan.safe_mode),
            set_to("automation_enabled", plan.automation_enabled),
            set_or_remove("intent", plan.intent),
            remove("plan"),
        ]

    def _expiry(self, days: int) -> int:
        return self._store.now() + days * 86_400


def _local_result(action: Action) -> str:
    return SUCCESS if action.call == "none" else DRY_RUN


def _plan_context(event_id: str) -> str:
    return f"desk plan {event_id}"


def _named(error: BaseException) -> str:
    """An error by its kind and its place: its text may have the customer's in it."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{place}"
