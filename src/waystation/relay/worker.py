"""The relay's background work: new events, lanes with something due, and replays.

The first attempts for events of this process come straight from memory. Everything else, and
whatever a crash has left, is found by its timer.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from waystation.errors import TooManyRequests, WaystationError
from waystation.ids import nanoid
from waystation.outbound import seconds_asked
from waystation.patterns import RESCUE_MS, Limit, SharedLimiter, TimedWork, guarded
from waystation.relay.adoption import MARK, Adoption
from waystation.relay.alerts import Alerts
from waystation.relay.dispatch import CLAIM_MS
from waystation.relay.lanes import stored_limit
from waystation.relay.replays import Replays
from waystation.relay.service import EventRef
from waystation.relay.tables import Connection, Delivery, Event
from waystation.store import Put, attr, key_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from waystation.patterns import Look
    from waystation.queues import Message
    from waystation.relay.service import Relay
    from waystation.store import Query

log = logging.getLogger(__name__)

I = TypeVar("I", Event, Delivery)  # noqa: E741 - I for Item

INDEX_SECONDS = 1.0
"""After so long, an index of DynamoDB most likely shows what was written."""

_PAGE = 50
_MOST_IN_MEMORY = 200
_MOST_WAITING = 20
"""Events of one account whose rules take long."""

_STRANDED_MS = 5_000
"""Younger events are most likely in somebody's memory."""

_FULL_SECONDS = 20.0
_GONE = 410
_UNAVAILABLE = 503
_BUSY = frozenset({429, 502, 504})


class Worker:
    """`special` processes the events of sources that have no connections, and says whether it
    is done with one."""

    def __init__(
        self,
        relay: Relay,
        special: Mapping[str, Callable[[Event], Awaitable[bool]]] | None = None,
        stopping: asyncio.Event | None = None,
    ) -> None:
        self._relay = relay
        self._store = relay.store
        self._special = special or {}
        self.timed = TimedWork(relay.timers, self._work, stopping)
        self.adoption = Adoption(relay)
        self.alerts = Alerts(relay)
        self.replays = Replays(relay)
        self.in_memory: set[str] = set()
        self._waiting: Counter[str] = Counter()

    async def tend(self) -> None:
        """Do all that is due, once."""
        await self.timed.tick()
        await self.timed.finish()

    # New events

    def begin(self, event: Event, deliveries: list[Delivery]) -> None:
        """Attempt the deliveries of a new event that are ours to attempt now."""
        for delivery in deliveries:
            if delivery.claim is not None:
                self.timed.spawn(self._attempt(delivery, event))
            elif delivery.lane is not None and delivery.lane in self._relay.lanes:
                self.timed.kick(delivery.lane)
                self.timed.kick_later(delivery.lane, INDEX_SECONDS)

    async def take(self, event: Event) -> None:
        """Process a new event that was written without its deliveries."""
        if len(self.in_memory) >= _MOST_IN_MEMORY or self._waiting[event.user_id] >= _MOST_WAITING:
            self.timed.kick(event.source_id)  # it is read again when it is its turn
            return
        self.in_memory.add(event.event_id)
        self._waiting[event.user_id] += 1
        self.timed.spawn(self._process_waiting(event))

    async def _process_waiting(self, event: Event) -> None:
        try:
            await self._process(event)
        finally:
            self._waiting[event.user_id] -= 1
            if not self._waiting[event.user_id]:
                del self._waiting[event.user_id]

    async def _process(self, event: Event) -> None:
        """Create an event's deliveries, and begin with them."""
        try:
            special = self._special.get(event.source_id)
            if special is None:
                connections = await self._relay.directory.connections(event.source_id)
                self.begin(event, await self._relay.dispatch.first(event, connections))
            elif await special(event):
                await self._relay.dispatch.first(event, [])
        finally:
            self.in_memory.discard(event.event_id)

    async def handle(self, message: Message) -> None:
        """An event that another process has received, from the queue."""
        ref = message.decode(EventRef)
        key = Event.key(ref.source_id, ref.received_at, ref.event_id)
        event = await self._store.get(key)
        if event is not None and event.todo is not None:
            await self._process(event)

    # Attempts

    async def _attempt(self, delivery: Delivery, event: Event | None) -> None:
        """One attempt in a place of its lane, which it gives back."""
        connection_id = delivery.connection_id
        lanes = self._relay.lanes
        try:
            reply = await self._relay.deliver.attempt(delivery, event)
            if reply is not None and reply.ok:
                lanes.succeeded(connection_id)
            elif reply is not None:
                lanes.failed(connection_id)
                asked = seconds_asked(reply.retry_after, self._store.clock())
                if reply.status in _BUSY or (reply.status == _UNAVAILABLE and asked):
                    lanes.throttle(connection_id, asked)
                await self._after_failure(delivery, gone=reply.status == _GONE)
        finally:
            if lanes.release(connection_id):
                self.timed.kick(connection_id)

    async def _after_failure(self, delivery: Delivery, *, gone: bool) -> None:
        key = Connection.key(delivery.source_id, delivery.connection_id)
        connection = await self._store.get(key)
        if connection is None:
            return
        if gone:
            await self.alerts.disable(connection, "gone")
        else:
            await self.alerts.after_failure(connection)

    # What is due

    async def _work(self, name: str, look: Look) -> int | None:
        """Do what is due for a name; when to look again."""
        if name.startswith("rpl_"):
            return await self.replays.work(name, look)
        if name.startswith("src_"):
            return await self._stranded(name, look)
        if name.startswith(MARK):
            if (event := await self.adoption.due(name)) is not None:
                await self._process(event)
            return None
        lane = await self._lane(name, look)
        if name.startswith("conn_"):
            return lane
        # Another service gave it its id, which does not say whether it is a source's.
        stranded = await self._stranded(name, look)
        return min((at for at in (lane, stranded) if at is not None), default=None)

    async def _stranded(self, source_id: str, look: Look) -> int | None:
        """Process events whose process has died before it could."""
        query = Event.query(source_id, index="GSI2")
        before = self._now() - (_STRANDED_MS if look.due else 0)
        cursor = None
        while not look.stopping:
            page = await self._store.query(query.at_most(max(0, before)), limit=_PAGE, after=cursor)
            found = [e for e in page.items if e.event_id not in self.in_memory]
            await asyncio.gather(*(guarded(self._rescue(event)) for event in found))
            await look.keep()
            cursor = page.cursor
            if cursor is None:
                break
        return self._now() + RESCUE_MS if await self._first(query, 1) else None

    async def _rescue(self, event: Event) -> None:
        current = await self._store.get(key_of(event))  # the index may lag
        if current is not None and current.todo is not None:
            await self._process(current)

    async def _lane(self, connection_id: str, look: Look) -> int | None:
        """Attempt what is due for a connection, as far as its lane lets us."""
        query = Delivery.query(connection_id, index="GSI2")
        while not look.stopping:
            connection = await self._connection(connection_id, query)
            if connection is None or connection.status == "deleted":
                await self._cancel(connection_id, look)
                return None
            if connection.status != "active":
                self._relay.lanes.forget(connection_id)
                return None  # whoever resumes it wakes it
            lane = self._relay.lanes.current(connection)
            if lane.blocked_until > self._store.clock():
                lane.backlog = True
                return int(lane.blocked_until * 1000) + 1
            lane.backlog = False
            lane.freed.clear()
            due = await self._first(query.at_most(self._now()), _PAGE)
            if not due:
                break
            lane.backlog = True
            if not await self._claim_some(connection, due):
                if lane.blocked_until > self._store.clock():
                    continue
                if lane.running:
                    await self._wait_for_room(lane.freed)
                else:
                    return self._now() + 1_000  # the whole process is busy
            await look.keep()
        first = await self._first(query, 1)
        return first[0].due_at if first else None

    async def _connection(self, connection_id: str, lane: Query[Delivery]) -> Connection | None:
        """A connection by its id, or, where another service wrote it, by its deliveries."""
        found = await self._relay.directory.find_connection(connection_id)
        if found is None and (waiting := await self._first(lane, 1)):
            key = Connection.key(waiting[0].source_id, connection_id)
            found = await self._store.get(key)
        return found

    async def _wait_for_room(self, freed: asyncio.Event) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_FULL_SECONDS):
                await freed.wait()

    async def _claim_some(self, connection: Connection, due: list[Delivery]) -> int:
        """Claim deliveries that there is room for, and begin with them; how many were tried."""
        lanes = self._relay.lanes
        chosen: list[Delivery] = []
        for delivery in due:
            if not lanes.reserve(connection):
                break
            if not await self._is_within_rate(connection):
                lanes.release(connection.connection_id)
                break
            chosen.append(delivery)
        claims = [self._claim(delivery) for delivery in chosen]
        for delivery, ours in zip(chosen, await asyncio.gather(*claims), strict=True):
            if ours:
                self.timed.spawn(self._attempt(delivery, None))
            else:
                lanes.release(connection.connection_id)
                if (window := self._rate(connection)) is not None:
                    await window.give_back(connection.connection_id)
                await asyncio.sleep(0.01)  # the index may take a moment to forget it
        return len(chosen)

    async def _is_within_rate(self, connection: Connection) -> bool:
        """Whether all processes together may send one more now."""
        window = self._rate(connection)
        if window is None:
            return True
        try:
            await window.take(connection.connection_id)
        except TooManyRequests as refused:
            self._relay.lanes.block(connection, refused.retry_after)
            return False
        return True

    def _rate(self, connection: Connection) -> SharedLimiter | None:
        if connection.rate_limit is None:
            return None
        limit = stored_limit(connection.rate_limit)
        return SharedLimiter(self._store, "relay-rate", Limit(limit.count, limit.seconds))

    async def _claim(self, delivery: Delivery) -> bool:
        """Claim a delivery for this process, unless another has been quicker."""
        seen = attr("due_at") == delivery.due_at  # all of it is written: it must be as we read it
        delivery.claim, delivery.due_at = nanoid(), self._now() + CLAIM_MS
        try:
            await self._relay.batches.write(delivery.user_id, [Put(delivery, when=seen)], [])
        except WaystationError:
            return False
        return True

    async def _cancel(self, connection_id: str, look: Look) -> None:
        """End the deliveries of a connection that is gone."""
        query = Delivery.query(connection_id, index="GSI2")
        while (found := await self._first(query, _PAGE)) and not look.stopping:
            for delivery in found:
                if await self._claim(delivery):
                    await self._relay.deliver.attempt(delivery, None)
            await asyncio.sleep(0.01)  # the index may take a moment to forget them

    async def _first(self, query: Query[I], limit: int) -> list[I]:
        """The first few of a query. A page may be empty and yet not the last: what has expired
        may still lie in the index."""
        found: list[I] = []
        cursor = None
        while len(found) < limit:
            page = await self._store.query(query, limit=limit - len(found), after=cursor)
            found += page.items
            cursor = page.cursor
            if cursor is None:
                break
        return found

    def _now(self) -> int:
        return int(self._store.clock() * 1000)
