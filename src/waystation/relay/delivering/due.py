"""What is due: lanes with deliveries in the table, events that were left behind, and replays."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from waystation.errors import StoreError, TooManyRequests, WaystationError
from waystation.ids import nanoid
from waystation.outbound import Reply
from waystation.patterns import RESCUE_MS, Limit, SharedLimiter, guarded
from waystation.relay.delivering.adoption import MARK, Adoption
from waystation.relay.delivering.lanes import Lane, stored_limit
from waystation.relay.delivering.outcomes import Outcome
from waystation.relay.delivering.parcels import CLAIM_MS, Held, Parcel
from waystation.relay.replays import Replays
from waystation.relay.tables import Connection, Delivery, Event
from waystation.relay.wakeups import Wakeups
from waystation.store import Claims, Put, attr, key_of, remove

if TYPE_CHECKING:
    from waystation.patterns import Look
    from waystation.relay.delivering.tools import Tools
    from waystation.relay.delivering.worker import Worker
    from waystation.store import Query

log = logging.getLogger(__name__)

I = TypeVar("I", Event, Delivery)  # noqa: E741 - I for Item

_PAGE = 100
_FULL_SECONDS = 20.0
_CLAIMS = Claims("claim", "due_at")


class Due:
    """Takes what is due out of the table, and gives it to the worker."""

    def __init__(self, tools: Tools, worker: Worker) -> None:
        self._tools = tools
        self._store = tools.store
        self._lanes = tools.lanes
        self._worker = worker
        self.adoption = Adoption(tools)
        wakeups = Wakeups(tools.timers, worker)
        self.replays = Replays(tools.store, tools.directory, worker.planning, wakeups)

    async def work(self, name: str, look: Look) -> int | None:
        """Do what is due for a name; when to look again."""
        if name.startswith("rpl_"):
            return await self.replays.work(name, look)
        if name.startswith("src_"):
            return await self._stranded(name, look)
        if name.startswith(MARK):
            if (event := await self.adoption.due(name)) is not None:
                await self._worker.process(event)
            return None
        lane = await self._lane(name, look)
        if name.startswith("conn_"):
            return lane
        # Another service gave it its id, which does not say whether it is a source's.
        stranded = await self._stranded(name, look)
        return min((at for at in (lane, stranded) if at is not None), default=None)

    # Events that were left behind

    async def _stranded(self, source_id: str, look: Look) -> int | None:
        """Process events that wait for somebody, or whose process has died."""
        query = Event.query(source_id, index="GSI2")
        cursor = None
        while not look.stopping:
            page = await self._store.query(
                query.at_most(self._tools.now()), limit=_PAGE, after=cursor
            )
            await asyncio.gather(*(guarded(self._rescue(event)) for event in page.items))
            await look.keep()
            cursor = page.cursor
            if cursor is None:
                break
        first = await self._first(query, 1)
        if not first:
            return None
        due, now = first[0].due_at or 0, self._tools.now()
        return due if due > now else now + RESCUE_MS  # it could not be done

    async def _rescue(self, event: Event) -> None:
        if self._worker.is_at(event.event_id):
            return
        current = await self._store.get(key_of(event))  # the index may lag
        if current is not None and current.todo is not None:
            await self._worker.process(current)

    # Deliveries in the table

    async def _lane(self, connection_id: str, look: Look) -> int | None:
        """Take what is due for a connection into memory, as far as its lane lets us."""
        query = Delivery.query(connection_id, index="GSI2")
        while not look.stopping:
            connection = await self._connection(connection_id, query)
            if connection is None or connection.status == "deleted":
                await self._cancel(connection_id, look)
                return None
            if connection.status != "active":
                self._lanes.forget(connection_id)
                return None  # whoever resumes it wakes it
            lane = self._lanes.current(connection)
            if lane.blocked_until > self._store.clock():
                lane.backlog = True
                return int(lane.blocked_until * 1000) + 1
            lane.backlog = False
            lane.freed.clear()
            due = await self._first(query.at_most(self._tools.now()), _PAGE)
            if not due:
                self._worker.pump(lane)
                break
            lane.backlog = True
            if not await self._take(connection, lane, due):
                if lane.blocked_until > self._store.clock():
                    continue
                if lane.idle:
                    return self._tools.now() + 1_000  # the whole process is busy
                await self._wait_for_room(lane.freed)
            await look.keep()
        first = await self._first(query, 1)
        return first[0].due_at if first else None

    async def _connection(self, connection_id: str, lane: Query[Delivery]) -> Connection | None:
        """A connection by its id, or, where another service wrote it, by its deliveries."""
        found = await self._tools.directory.find_connection(connection_id)
        if found is None and (waiting := await self._first(lane, 1)):
            key = Connection.key(waiting[0].source_id, connection_id)
            found = await self._store.get(key)
        return found

    async def _wait_for_room(self, freed: asyncio.Event) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_FULL_SECONDS):
                await freed.wait()

    async def _take(self, connection: Connection, lane: Lane, due: list[Delivery]) -> int:
        """Claim deliveries that there is room for, and begin with them; how many were tried.

        As many again as are under way wait in memory, so that a place that is given back is filled
        at once. Where the rate is limited none waits: each is counted for the moment it is sent."""
        if not self._tools.memory.has_room(connection.user_id):
            return 0
        rate = self._rate(connection)
        rounds = 1 if lane.broken or rate is not None else 2
        room = rounds * lane.places - lane.running - len(lane.waiting)
        chosen = due[: max(0, room)]
        rest = 0.0
        if rate is not None:
            allowed, rest = await self._within_rate(rate, connection, len(chosen))
            chosen = chosen[:allowed]
        outcomes = await asyncio.gather(*(self._claim(delivery) for delivery in chosen))
        held = [
            await self._hold(lane, delivery)
            for delivery, ours in zip(chosen, outcomes, strict=True)
            if ours
        ]
        self._worker.pump(lane)
        if rate is not None:
            for _ in range(outcomes.count(False) + len(lane.waiting)):
                await rate.give_back(connection.connection_id)
            await self._worker.put_back(lane)
            if all(outcomes):  # otherwise there may be some to be had now
                self._lanes.block(lane, rest)
        if not all(outcomes):
            await asyncio.sleep(0.01)  # the index may take a moment to forget them
        return len(chosen) - held.count(False)

    async def _hold(self, lane: Lane, delivery: Delivery) -> bool:
        """Have a delivery that is ours wait in memory; False if there is no room for it."""
        parcel = await self._parcel(delivery)
        if parcel is None:
            await self._drop(delivery)
            return True
        held = Held(delivery, parcel, lane, stored=True)
        if not self._tools.memory.take(parcel):
            await self._worker.outcomes.settle(held, Outcome(None))
            return False
        self._worker.parcels.setdefault(delivery.event_id, parcel)
        lane.waiting.append(held)
        return True

    async def _parcel(self, delivery: Delivery) -> Parcel | None:
        held = self._worker.parcels.get(delivery.event_id)
        if held is not None:
            return held
        key = Event.key(delivery.source_id, delivery.received_at, delivery.event_id)
        event = await self._store.get(key)
        return None if event is None else Parcel(event, self._tools.keyring)

    async def _within_rate(
        self, rate: SharedLimiter, connection: Connection, wanted: int
    ) -> tuple[int, float]:
        """How many of so many all processes together may send now, and how long to rest then."""
        for taken in range(wanted):
            try:
                await rate.take(connection.connection_id)
            except TooManyRequests as refused:
                return taken, refused.retry_after
        return wanted, 0.0

    def _rate(self, connection: Connection) -> SharedLimiter | None:
        if connection.rate_limit is None:
            return None
        limit = stored_limit(connection.rate_limit)
        return SharedLimiter(self._store, "relay-rate", Limit(limit.count, limit.seconds))

    async def _claim(self, delivery: Delivery) -> bool:
        """Claim a delivery for this process, unless another has been quicker."""
        seen = attr("due_at") == delivery.due_at  # all of it is written: it must be as we read it
        delivery.claim, delivery.due_at = nanoid(), self._tools.now() + CLAIM_MS
        try:
            await self._tools.batches.write(delivery.user_id, [Put(delivery, when=seen)], [])
        except WaystationError:
            return False
        return True

    async def _drop(self, delivery: Delivery) -> None:
        """The event has expired: there is nothing left to deliver."""
        try:
            await self._store.update(
                key_of(delivery),
                *(remove("claim"), remove("lane"), remove("due_at")),
                when=_CLAIMS.owned(delivery.claim),
            )
        except StoreError as error:
            log.info("delivery %s is not ours any more: %s", delivery.delivery_id, error)

    async def _cancel(self, connection_id: str, look: Look) -> None:
        """End the deliveries of a connection that is gone."""
        query = Delivery.query(connection_id, index="GSI2")
        lane = Lane(connection_id)
        gone = Outcome(Reply(error="the connection was deleted"), last=True)
        while (found := await self._first(query, _PAGE)) and not look.stopping:
            for delivery in found:
                if not await self._claim(delivery):
                    continue
                parcel = await self._parcel(delivery)
                if parcel is None:
                    await self._drop(delivery)
                else:
                    held = Held(delivery, parcel, lane, stored=True)
                    await self._worker.outcomes.settle(held, gone)
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
