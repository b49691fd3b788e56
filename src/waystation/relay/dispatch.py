"""From an event to its deliveries: one for each connection, written in one transaction."""

from __future__ import annotations

import base64
import logging
from hashlib import sha256
from typing import TYPE_CHECKING

from waystation.accounts import PLANS, User
from waystation.errors import NotFound, TransactionCancelled
from waystation.ids import nanoid
from waystation.patterns import RESCUE_MS
from waystation.relay import usage
from waystation.relay.retries import GRACE_SECONDS, remaining, stored_delays
from waystation.relay.states import (
    Outcomes,
    encode_outcomes,
    event_status,
    next_status,
    outcomes_of,
    set_by_others,
    unchanged,
)
from waystation.relay.stats import day_tally, hour_tally
from waystation.relay.tables import Connection, Delivery, Event
from waystation.store import Put, Update, absent, add, key_of, remove, set_to

if TYPE_CHECKING:
    from collections.abc import Sequence

    from waystation.patterns import Tally, Timers, WriteBatches
    from waystation.relay.lanes import Lanes
    from waystation.relay.rules.evaluation import Decision, Rules
    from waystation.store import Edit, Store

log = logging.getLogger(__name__)

CLAIM_MS = 60_000
"""How long an attempt may take, with everything around it, before another worker tries too."""

_TRIES = 10


class Dispatch:
    def __init__(
        self, store: Store, batches: WriteBatches, timers: Timers, lanes: Lanes, rules: Rules
    ) -> None:
        self._store = store
        self._batches = batches
        self._timers = timers
        self._lanes = lanes
        self._rules = rules

    def planned(self, event: Event, connections: Sequence[Connection]) -> list[Delivery] | None:
        """The deliveries of an event that is about to be written, to be written with it. Those
        that have a claim have a place in their lane. None if its rules may take long."""
        decisions = self._rules.try_now(event, connections)
        if decisions is None:
            return None
        deliveries = self._new(event, connections, decisions, None)
        outcomes = _with(outcomes_of(event), deliveries)
        event.outcomes, event.status = encode_outcomes(outcomes), event_status(outcomes)
        event.processed_at = event.received_at
        event.expires_at = max(delivery.expires_at for delivery in deliveries)
        event.revision = 1
        return deliveries

    async def first(self, event: Event, connections: Sequence[Connection]) -> list[Delivery]:
        """Create the deliveries of an event that was written without them; an empty list if another
        worker has done so."""
        decisions = await self._rules.decide(event, connections)
        deliveries = self._new(event, connections, decisions, None)
        event.processed_at = self._now()
        changes = [remove("todo"), set_to("processed_at", event.processed_at)]
        kept_until = max((delivery.expires_at for delivery in deliveries), default=0)
        if kept_until > event.expires_at:
            changes.append(set_to("expires_at", kept_until))
            event.expires_at = kept_until
        return deliveries if await self._write(event, deliveries, changes) else []

    async def again(
        self, event: Event, connections: Sequence[Connection], replay_id: str
    ) -> list[Delivery]:
        """New deliveries beside the old ones. The same replay makes each of them once."""
        decisions = await self._rules.decide(event, connections)
        for _ in range(_TRIES):
            deliveries = self._new(event, connections, decisions, replay_id)
            if await self._write(event, deliveries, [], [await self._usage(event)]):
                return deliveries
            keys = [key_of(delivery) for delivery in deliveries]
            there = await self._store.batch_get(keys)
            if any(there):
                return [delivery for delivery in there if delivery is not None]
            current = await self._store.get(key_of(event))
            if current is None:
                return []  # it has expired meanwhile
            event = current
        log.warning("event %s changes too often to be replayed now", event.event_id)
        return []

    def _new(
        self,
        event: Event,
        connections: Sequence[Connection],
        decisions: Sequence[Decision],
        replay_id: str | None,
    ) -> list[Delivery]:
        now = self._now()
        deliveries: list[Delivery] = []
        try:
            for connection, (status, error) in zip(connections, decisions, strict=True):
                delivery = Delivery(
                    event_id=event.event_id,
                    delivery_id=delivery_id(event.event_id, connection.connection_id, replay_id),
                    connection_id=connection.connection_id,
                    source_id=event.source_id,
                    user_id=event.user_id,
                    received_at=event.received_at,
                    replay_id=replay_id,
                    status=status,
                    error=error,
                    created_at=now,
                    updated_at=now,
                    expires_at=event.expires_at,
                )
                deliveries.append(delivery)
                if status == "pending":
                    delivery.lane, delivery.due_at = connection.connection_id, now
                    if replay_id is None:
                        self._claim(delivery, connection, now)
            if replay_id is None:
                _keep_longer(deliveries, connections, self._store.clock())
        except BaseException:
            self.release(deliveries)
            raise
        return deliveries

    def _claim(self, delivery: Delivery, connection: Connection, now: int) -> None:
        """A delivery is ours at once if its lane has room, and else waits behind the others. Where
        the rate is limited it always waits there: it is counted only once it is written."""
        if connection.status != "active":
            return
        lane = self._lanes.of(connection)
        if lane.backlog or connection.rate_limit is not None or not self._lanes.reserve(connection):
            lane.backlog = True
            return
        delivery.claim = nanoid()
        delivery.due_at = now + CLAIM_MS

    async def _usage(self, event: Event) -> Tally:
        """What a replay costs: as much as an event that comes in."""
        user = await self._store.get(User.key(event.user_id))
        if user is None:
            raise NotFound("the account no longer exists")
        return usage.usage_tally(event.user_id, PLANS[user.plan], self._store.clock())

    async def _write(
        self,
        event: Event,
        deliveries: list[Delivery],
        changes: list[Edit],
        costs: Sequence[Tally] = (),
    ) -> bool:
        """Write the deliveries and what they make of the event; False when it has changed."""
        outcomes = _with(outcomes_of(event), deliveries)
        kept = set_by_others(event) and not costs  # a replay begins anew
        status = event.status if kept else event_status(outcomes)
        update = Update(
            key_of(event),
            *changes,
            set_to("outcomes", encode_outcomes(outcomes)),
            set_to("status", status),
            add("revision", 1),
            when=unchanged(event),
        )
        try:
            await self.expect(deliveries)
            puts = [Put(delivery, when=absent()) for delivery in deliveries]
            tallies = [*self.tallies(event, deliveries), *costs]
            await self._batches.write(event.user_id, [*puts, update], tallies)
        except BaseException as error:
            self.release(deliveries)
            if not isinstance(error, TransactionCancelled):
                raise
            if costs and (refused := error.reasons[-1]) is not None:
                await usage.settle_refusal(self._store, event.user_id, refused.item)
            return False
        event.outcomes, event.status = encode_outcomes(outcomes), status
        event.revision += 1
        event.todo = None
        return True

    async def expect(self, deliveries: list[Delivery]) -> None:
        """Set the timers of deliveries that are about to be written, so that they are found."""
        for delivery in deliveries:
            if delivery.lane is not None:
                await self._timers.expect(delivery.lane, self._now() + RESCUE_MS)

    def release(self, deliveries: list[Delivery]) -> None:
        """Give back the places of deliveries that were not written after all."""
        for delivery in deliveries:
            if delivery.claim is not None:
                self._lanes.release(delivery.connection_id)

    def tallies(self, event: Event, deliveries: list[Delivery]) -> list[Tally]:
        """The counters of what was decided without an attempt."""
        now = self._store.clock()
        failed = sum(delivery.status == "failed" for delivery in deliveries)
        unwanted = bool(deliveries) and all(
            delivery.status == "filtered" for delivery in deliveries
        )
        adds = {"failed": failed} if failed else {}
        tallies = []
        if failed:
            tallies.append(day_tally(event.user_id, event.source_id, now, failed=failed))
        if unwanted:
            adds["filtered"] = 1
        if adds:
            tallies.append(hour_tally(event.user_id, now, **adds))
        return tallies

    def _now(self) -> int:
        return int(self._store.clock() * 1000)


def _keep_longer(deliveries: list[Delivery], connections: Sequence[Connection], now: float) -> None:
    """What must wait is kept for as long as all its attempts would take, and a day."""
    waiting = {d.connection_id for d in deliveries if d.lane is not None and d.claim is None}
    spans = [
        remaining(stored_delays(c.retry_config), 0)
        for c in connections
        if c.connection_id in waiting
    ]
    if spans:
        needed = int(now + max(spans)) + GRACE_SECONDS
        for delivery in deliveries:
            delivery.expires_at = max(delivery.expires_at, needed)


def _with(outcomes: Outcomes, deliveries: list[Delivery]) -> Outcomes:
    for delivery in deliveries:
        before = outcomes.get(delivery.connection_id)
        outcomes[delivery.connection_id] = next_status(before, delivery.status)
    return outcomes


def delivery_id(event_id: str, connection_id: str, replay_id: str | None) -> str:
    """The same for the same event, connection and replay, so that none is created twice."""
    named = f"{event_id} {connection_id} {replay_id or ''}".encode()
    return "dlv_" + base64.urlsafe_b64encode(sha256(named).digest()[:15]).decode()
