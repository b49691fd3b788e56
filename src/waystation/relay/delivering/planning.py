"""From an event to its deliveries: which connections want it, and which of its deliveries are held
in memory from the beginning."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import msgspec

from waystation.accounts import PLANS, User
from waystation.errors import NotFound, SettingsError, TransactionCancelled
from waystation.ids import nanoid
from waystation.patterns import RESCUE_MS
from waystation.relay import usage
from waystation.relay.delivering.parcels import CLAIM_MS, Held, Parcel
from waystation.relay.delivering.retries import GRACE_SECONDS, remaining, stored_delays
from waystation.relay.states import (
    delivery_id,
    follow,
    new_delivery,
    outcomes_of,
    unchanged,
)
from waystation.relay.stats import day_tally, hour_tally
from waystation.relay.tables import Connection, Delivery, Event
from waystation.store import Put, Revise, absent, key_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from waystation.patterns import Tally
    from waystation.relay.delivering.tools import Tools
    from waystation.relay.rules.evaluation import Decision
    from waystation.store import Action

log = logging.getLogger(__name__)

_TRIES = 10


class Plan:
    """What is to be written with an event: `rows` are the deliveries that have to wait, or are over
    before they begin. `held` are those that this process begins with at once."""

    __slots__ = ("held", "parcel", "rows")

    def __init__(self, parcel: Parcel) -> None:
        self.parcel = parcel
        self.held: list[Held] = []
        self.rows: list[Delivery] = []

    @property
    def event(self) -> Event:
        return self.parcel.event


class Planning:
    def __init__(self, tools: Tools) -> None:
        self.token = nanoid()
        """What this process signs its claims of events with."""

        self._tools = tools
        self._store = tools.store
        self._lanes = tools.lanes
        self._memory = tools.memory
        self._rules = tools.rules

    # A new event

    def new(self, parcel: Parcel, connections: Sequence[Connection]) -> Plan | None:
        """Complete an event that is about to be written; None if its rules may take long."""
        event = parcel.event
        try:
            decisions = self._rules.try_now(event.source_id, parcel.webhook, connections)
            plan = None if decisions is None else self._plan(parcel, connections, decisions)
        except Exception:
            log.exception("the deliveries of %s are created later", event.event_id)
            return None
        if plan is not None:
            event.processed_at = event.received_at
            event.revision = 1
        return plan

    def unfinished(self, parcel: Parcel, *, ours: bool) -> Plan:
        """An event whose deliveries are created after it is written: by us, or by whoever comes."""
        event = parcel.event
        self.claim(event)
        if not ours:
            event.claim, event.due_at = None, self._tools.now()
        return Plan(parcel)

    def claim(self, event: Event) -> None:
        event.todo, event.claim = event.source_id, self.token
        event.due_at = self._tools.now() + CLAIM_MS

    def dropped(self, plan: Plan) -> None:
        """The event was not written after all."""
        for held in plan.held:
            self._memory.give(held.parcel)

    # An event that was written without its deliveries, or whose process has died

    async def later(self, event: Event, connections: Sequence[Connection]) -> Plan | None:
        """Take an event over, and create those of its deliveries that nobody has. None when another
        is at it."""
        now = self._tools.now()
        claimed = event.claim not in (None, self.token) and (event.due_at or 0) > now
        if claimed or (event.todo is None and event.revision):
            return None
        parcel = Parcel(event, self._tools.keyring)
        before = msgspec.structs.replace(event)
        missing, gone = await self._missing(event, connections)
        plan = self._plan(parcel, missing, await self._decisions(parcel, missing))
        self._end(plan, gone)
        event.processed_at = event.processed_at or now
        if not plan.held:
            event.todo = event.claim = event.due_at = None
        written = False
        try:
            written = await self._write(before, plan)
        finally:
            if not written:
                self.dropped(plan)
        return plan if written else None

    async def _decisions(
        self, parcel: Parcel, connections: Sequence[Connection]
    ) -> Sequence[Decision]:
        try:
            return await self._rules.decide(parcel.event, parcel.webhook, connections)
        except SettingsError as error:
            return [("failed", str(error))] * len(connections)

    async def _missing(
        self, event: Event, connections: Sequence[Connection]
    ) -> tuple[Sequence[Connection], list[str]]:
        """The connections that an event has neither reached nor has a row for, and the ids of those
        among them that are no more."""
        outcomes = outcomes_of(event)
        if not outcomes:
            return connections, []
        pending = [id_ for id_, status in outcomes.items() if status == "pending"]
        keys = [Delivery.key(event.event_id, delivery_id(event.event_id, p, None)) for p in pending]
        rows = await self._store.batch_get(keys)
        left = {id_ for id_, row in zip(pending, rows, strict=True) if row is None}
        known = {connection.connection_id for connection in connections}
        return [c for c in connections if c.connection_id in left], sorted(left - known)

    # A replay

    async def again(
        self, event: Event, connections: Sequence[Connection], replay_id: str
    ) -> list[Delivery]:
        """New deliveries beside the old ones, in the table. The same replay makes each once."""
        for _ in range(_TRIES):
            parcel = Parcel(event, self._tools.keyring)
            before = msgspec.structs.replace(event)
            decisions = await self._decisions(parcel, connections)
            plan = self._plan(parcel, connections, decisions, replay_id)
            if await self._write(before, plan, [await self._usage(event)]):
                return plan.rows
            there = await self._store.batch_get([key_of(delivery) for delivery in plan.rows])
            if any(there):
                return [delivery for delivery in there if delivery is not None]
            current = await self._store.get(key_of(before))
            if current is None:
                return []  # it has expired meanwhile
            event = current
        log.warning("event %s changes too often to be replayed now", event.event_id)
        return []

    async def _usage(self, event: Event) -> Tally:
        """What a replay costs: as much as an event that comes in."""
        user = await self._store.get(User.key(event.user_id))
        if user is None:
            raise NotFound("the account no longer exists")
        return usage.usage_tally(event.user_id, PLANS[user.plan], self._store.clock())

    # What they share

    def _plan(
        self,
        parcel: Parcel,
        connections: Sequence[Connection],
        decisions: Sequence[Decision],
        replay_id: str | None = None,
    ) -> Plan:
        """Create the deliveries, and make of the event what follows from them."""
        plan = Plan(parcel)
        event = parcel.event
        replaying = replay_id is not None
        waiting: list[Connection] = []
        now = self._tools.now()
        try:
            for connection, (status, error) in zip(connections, decisions, strict=True):
                if status == "filtered" and error is None and not replaying:
                    continue  # which the event itself says
                delivery = new_delivery(event, connection.connection_id, replay_id, now)
                delivery.status, delivery.error = status, error
                if status != "pending":
                    plan.rows.append(delivery)
                elif not replaying and self._lanes.takes(connection) and self._memory.take(parcel):
                    lane = self._lanes.of(connection)
                    plan.held.append(Held(delivery, parcel, lane, stored=False))
                    parcel.rowless.add(delivery.delivery_id)
                else:
                    delivery.lane, delivery.due_at = connection.connection_id, delivery.created_at
                    plan.rows.append(delivery)
                    waiting.append(connection)
                    if connection.status == "active":
                        self._lanes.of(connection).backlog = True
            if waiting and not replaying:
                _keep_longer(plan, waiting, self._store.clock())
            decided = zip(connections, decisions, strict=True)
            follow(event, [(c.connection_id, status) for c, (status, _) in decided], anew=replaying)
        except BaseException:
            self.dropped(plan)
            raise
        if plan.held:
            self.claim(event)
        return plan

    def _end(self, plan: Plan, gone: Sequence[str]) -> None:
        """End the deliveries to connections that are no more."""
        event = plan.event
        for connection_id in gone:
            delivery = new_delivery(event, connection_id, None, self._tools.now())
            delivery.status, delivery.error = "failed", "the connection was deleted"
            plan.rows.append(delivery)
        follow(event, [(connection_id, "failed") for connection_id in gone])

    async def _write(self, before: Event, plan: Plan, costs: Sequence[Tally] = ()) -> bool:
        """Write rows, and what they make of the event; False when it has changed."""
        event = plan.event
        event.revision = before.revision + 1
        try:
            await self.expect(plan)
            actions: list[Action] = [Put(delivery, when=absent()) for delivery in plan.rows]
            actions.append(Revise(before, event, when=unchanged(before)))
            tallies = [*plan_tallies(plan, self._store.clock()), *costs]
            await self._tools.batches.write(event.user_id, actions, tallies, plan.parcel.size)
        except TransactionCancelled as error:
            if costs and (refused := error.reasons[-1]) is not None:
                await usage.settle_refusal(self._store, event.user_id, refused.item)
            return False
        return True

    async def expect(self, plan: Plan) -> None:
        """Set the timers of what is about to be written, so that it is found."""
        timers, soon = self._tools.timers, self._tools.now() + RESCUE_MS
        names = [delivery.lane for delivery in plan.rows if delivery.lane is not None]
        if plan.event.todo is not None:
            names.append(plan.event.source_id)
        for name in names:
            if not timers.is_expected(name, soon):
                await timers.expect(name, soon)


def plan_tallies(plan: Plan, now: float) -> list[Tally]:
    """The counters of what was decided without an attempt."""
    event = plan.event
    failed = sum(delivery.status == "failed" for delivery in plan.rows)
    unwanted = event.status == "filtered"
    if not failed and not unwanted:
        return []
    adds = {"failed": failed} if failed else {}
    tallies = []
    if failed:
        tallies.append(day_tally(event.user_id, event.source_id, now, failed=failed))
    if unwanted:
        adds["filtered"] = 1
    tallies.append(hour_tally(event.user_id, now, **adds))
    return tallies


def _keep_longer(plan: Plan, waiting: Sequence[Connection], now: float) -> None:
    """What must wait is kept for as long as all its attempts would take, and a day."""
    spans = [remaining(stored_delays(c.retry_config), 0) for c in waiting]
    needed = int(now + max(spans)) + GRACE_SECONDS
    plan.event.expires_at = max(plan.event.expires_at, needed)
    for delivery in (*plan.rows, *(held.delivery for held in plan.held)):
        delivery.expires_at = max(delivery.expires_at, needed)
