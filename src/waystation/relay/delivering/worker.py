"""Delivering here: new events at once, from memory; and by their timers whatever has waited, or was
left behind by a process that died.

A delivery in memory waits in its connection's lane, is attempted, and its outcome is written.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from waystation.outbound import Reply, seconds_asked
from waystation.patterns import TimedWork, guarded
from waystation.relay.delivering.attempts import Attempts, ClaimRanOut
from waystation.relay.delivering.due import Due
from waystation.relay.delivering.onward import EventRef
from waystation.relay.delivering.outcomes import Outcome, Outcomes
from waystation.relay.delivering.parcels import Parcel
from waystation.relay.delivering.planning import Plan, Planning
from waystation.relay.delivering.renewals import Renewals
from waystation.relay.sources import HOUSE
from waystation.relay.states import leads_nowhere
from waystation.relay.tables import Connection, Event
from waystation.store import key_of

if TYPE_CHECKING:
    from waystation.queues import Message
    from waystation.relay.delivering.alerts import Alerts
    from waystation.relay.delivering.lanes import Lane
    from waystation.relay.delivering.parcels import Held
    from waystation.relay.delivering.tools import Tools
    from waystation.relay.rules.paths import Webhook

log = logging.getLogger(__name__)

INDEX_SECONDS = 1.0
"""After so long, an index of DynamoDB most likely shows what was written."""

_MOST_PROCESSING = 200
_MOST_OF_ONE = 20
"""Events of one account whose rules take long."""

_RENEW_SECONDS = 5.0
_GONE = 410
_UNAVAILABLE = 503
_BUSY = frozenset({429, 502, 504})

Billed = Callable[[bytes, float], Awaitable[bool]]
"""Applies what Stripe says of subscriptions, given how old that is; whether it is done."""


class Worker:
    """Delivers what this process receives, and what is due.

    `parcels` are the events that it has deliveries of in memory, `processing` those whose rules
    take long, with their accounts, `taking` those whose deliveries it is about to create.
    """

    def __init__(
        self, tools: Tools, alerts: Alerts, billed: Billed, stopping: asyncio.Event
    ) -> None:
        self._tools = tools
        self._store = tools.store
        self._lanes = tools.lanes
        self._alerts = alerts
        self._billed = billed
        self._attempts = Attempts(tools)
        self.planning = Planning(tools)
        self.expect = self.planning.expect
        self.dropped = self.planning.dropped
        self.outcomes = Outcomes(tools, self.planning.token)
        self.due = Due(tools, self)
        self.renewals = Renewals(tools, self)
        self.timed = TimedWork(tools.timers, self.due.work, stopping)
        self.parcels: dict[str, Parcel] = {}
        self.processing: dict[str, str] = {}
        self.taking: set[str] = set()

    # New events

    async def plan(self, event: Event, webhook: Webhook) -> Plan:
        parcel = Parcel(event, self._tools.keyring, webhook)
        if event.user_id == HOUSE:
            return self.planning.unfinished(parcel, ours=False)
        connections = await self._tools.directory.connections(event.source_id)
        if not connections:
            leads_nowhere(event)
            return Plan(parcel)
        if self._tools.memory.is_crowded(event.user_id):
            await self._tools.memory.calm(event.user_id)
        plan = self.planning.new(parcel, connections)
        if plan is None:
            plan = self.planning.unfinished(parcel, ours=self._may_process(event))
        return plan

    def _may_process(self, event: Event) -> bool:
        mine = sum(user_id == event.user_id for user_id in self.processing.values())
        return len(self.processing) < _MOST_PROCESSING and mine < _MOST_OF_ONE

    async def written(self, plan: Plan) -> None:
        event = plan.event
        if event.todo is None or plan.held:
            self.begin(plan)
        elif event.claim is None:
            self.timed.kick(event.source_id)  # it is read again when it is its turn
            self.timed.kick_later(event.source_id, INDEX_SECONDS)
        else:
            self.processing[event.event_id] = event.user_id
            self.timed.spawn(self._process_claimed(event))

    async def _process_claimed(self, event: Event) -> None:
        try:
            await self._create(event)
        finally:
            self.processing.pop(event.event_id, None)

    def begin(self, plan: Plan) -> None:
        """Begin with what was planned and written."""
        if plan.held:
            self.parcels[plan.event.event_id] = plan.parcel
        for held in plan.held:
            lane = held.lane = self._lanes.known(held.lane)
            lane.waiting.append(held)
            self.pump(lane)
            if lane.blocked_until > self._store.clock():  # since it was planned
                self.timed.spawn(self.put_back(lane))
        for delivery in plan.rows:
            if delivery.lane is not None and self._lanes.get(delivery.lane) is not None:
                self.timed.kick(delivery.lane)
                self.timed.kick_later(delivery.lane, INDEX_SECONDS)

    async def handle(self, message: Message) -> None:
        """An event that another process has received, from the queue."""
        ref = message.decode(EventRef)
        if self.is_at(ref.event_id):
            return
        event = await self._store.get(Event.key(ref.source_id, ref.received_at, ref.event_id))
        if event is not None and event.todo is not None:
            await self.process(event)

    def is_at(self, event_id: str) -> bool:
        """Whether this process works on an event's deliveries."""
        held = self.parcels.get(event_id)
        at_it = held is not None and bool(held.rowless) and not self._is_over(held)
        return at_it or event_id in self.processing or event_id in self.taking

    def _is_over(self, parcel: Parcel) -> bool:
        """Whether what is still under way of it is no reason to leave its event alone."""
        return parcel.abandoned and (parcel.event.due_at or 0) <= self._tools.now()

    async def process(self, event: Event) -> None:
        """Create an event's deliveries, as far as nobody has, and begin with them. A task that read
        the event while another one took it sees our own claim, and must not act on it."""
        if self.is_at(event.event_id):
            return
        self.taking.add(event.event_id)
        try:
            await self._create(event)
        finally:
            self.taking.discard(event.event_id)

    async def _create(self, event: Event) -> None:
        if event.user_id == HOUSE:
            age = self._store.clock() - event.received_at / 1000
            if await self._billed(event.content, age):
                await self.planning.later(event, [])
            return
        connections = await self._tools.directory.connections(event.source_id)
        plan = await self.planning.later(event, connections)
        if plan is not None:
            self.begin(plan)

    # Lanes

    def look(self, name: str, *, anew: bool = False) -> None:
        if anew:
            self._lanes.reset(name)
        self.timed.kick(name)

    def pump(self, lane: Lane) -> None:
        """Begin as many of a lane's deliveries as there are places for."""
        while lane.waiting and not self.timed.stopping and self._lanes.reserve(lane):
            self.timed.spawn(self._attempt(lane, lane.waiting.popleft()))

    def _freed(self, lane: Lane) -> None:
        """A place is free again: for those that have found none, and then for the same lane."""
        self._lanes.release(lane)
        for each in self._lanes.starved():
            if each is not lane:
                self._go_on(each)
        self._go_on(lane)

    def _go_on(self, lane: Lane) -> None:
        if lane.waiting:
            self.pump(lane)
        if lane.backlog and not lane.waiting:
            self.timed.kick(lane.connection_id)

    # Attempts

    async def _attempt(self, lane: Lane, held: Held) -> None:
        """One attempt in a place of its lane, which it gives back."""
        try:
            outcome = await self._outcome(lane, held)
            if outcome is not None:
                await self._finish(lane, held, outcome)
        finally:
            self.let_go(held)
            self._freed(lane)

    async def _outcome(self, lane: Lane, held: Held) -> Outcome | None:
        """What came of an attempt; None when it is no longer ours to make."""
        delivery, parcel = held.delivery, held.parcel
        if not held.stored and parcel.event.claim != self.planning.token:
            return None
        connection = await self._tools.directory.connection(
            delivery.source_id, delivery.connection_id
        )
        if connection is None or connection.status == "deleted":
            return Outcome(Reply(error="the connection was deleted"), last=True)
        if connection.status != "active":
            return Outcome(None)
        until = held.until - connection.seconds * 1000
        number = delivery.attempts + 1
        try:
            outcome = await self._attempts.send(
                connection, parcel, delivery.delivery_id, number, until
            )
        except ClaimRanOut:
            log.warning("delivery %s had to wait for too long", delivery.delivery_id)
            return None
        outcome.tainted = lane.tainted or bool(connection.failure_streak or connection.alerted_at)
        return outcome

    async def _finish(self, lane: Lane, held: Held, outcome: Outcome) -> None:
        """Write an outcome down, and heed what it says about its endpoint."""
        reply, connection = outcome.reply, outcome.connection
        written = await self.outcomes.settle(held, outcome)
        if reply is None or connection is None or outcome.last or not written:
            return
        if reply.ok:
            self._lanes.succeeded(lane)
            return
        self._lanes.failed(lane)
        asked = seconds_asked(reply.retry_after, self._store.clock())
        if reply.status in _BUSY or (reply.status == _UNAVAILABLE and asked):
            self._lanes.throttle(lane, asked)
        if lane.blocked_until > self._store.clock():
            await self.put_back(lane)
        await self._after_failure(connection, gone=reply.status == _GONE)

    async def _after_failure(self, connection: Connection, *, gone: bool) -> None:
        current = await self._store.get(key_of(connection))
        if current is None:
            return
        if gone:
            await self._alerts.disable(current, "gone")
        else:
            await self._alerts.after_failure(current)

    async def try_out(self, connection: Connection, event: Event, message_id: str) -> Reply:
        """Send an event once, whatever becomes of it."""
        parcel = Parcel(event, self._tools.keyring)
        reply = (await self._attempts.send(connection, parcel, message_id, 1)).reply
        assert reply is not None
        return reply

    # Letting go

    def let_go(self, held: Held) -> None:
        """A delivery is no longer in memory."""
        parcel = held.parcel
        if held.delivery.delivery_id in parcel.rowless:
            parcel.abandoned = True
        self._tools.memory.give(parcel)
        if not parcel.count and self.parcels.get(parcel.event.event_id) is parcel:
            del self.parcels[parcel.event.event_id]

    async def put_back(self, lane: Lane) -> None:
        """Leave what waits in memory for a lane to the table, where others may find it too."""
        waiting = list(lane.waiting)
        lane.waiting.clear()
        if waiting:
            lane.backlog = True
            await asyncio.gather(*(guarded(self._return(held)) for held in waiting))

    async def _return(self, held: Held) -> None:
        try:
            await self.outcomes.settle(held, Outcome(None))
        finally:
            self.let_go(held)

    # Running

    async def run(self, stopping: asyncio.Event) -> None:
        """Look after what is due, and keep what is ours, until told to stop."""
        renewing = asyncio.create_task(self._keep_renewing())
        try:
            await self.timed.run(stopping)
        finally:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)

    async def _keep_renewing(self) -> None:
        while True:
            await guarded(self.renewals.renew())
            await asyncio.sleep(_RENEW_SECONDS)

    async def tend(self) -> None:
        """Do all that is due, once."""
        await self.renewals.renew()
        await self.timed.tick()
        await self.timed.finish()

    async def drain(self, seconds: float) -> None:
        """Finish what is in memory. Once we are to stop, only what is under way: the rest is given
        back. What takes longer is left to others, who find it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                if not self.timed.stopping:
                    await self.timed.finish()
                await asyncio.gather(*(self.put_back(lane) for lane in self._lanes.all()))
        await self.timed.drain(seconds if self.timed.stopping else 0.0)
