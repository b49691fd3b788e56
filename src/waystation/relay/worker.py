"""The relay's background work: new events, lanes with something due, and replays.

The first attempts for events of this process come straight from memory. Everything else, and
whatever a crash has left, is found by its wake.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

import msgspec

from waystation.errors import WaystationError
from waystation.ids import nanoid
from waystation.relay.alerts import Alerts
from waystation.relay.dispatch import CLAIM_MS, RESCUE_MS
from waystation.relay.replays import Replays
from waystation.relay.tables import Connection, Delivery, Event, Wake
from waystation.store import Put, attr, key_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from typing import Any

    from waystation.queues import Message
    from waystation.relay.service import Relay
    from waystation.store import Query

log = logging.getLogger(__name__)

I = TypeVar("I", Event, Delivery)  # noqa: E741 - I for Item

INDEX_SECONDS = 1.0
"""After so long, an index of DynamoDB most likely shows what was written."""

_POLL_SECONDS = 1.0
_WAKES_AT_ONCE = 100
_PAGE = 50
_STRANDED_MS = 5_000
"""Younger events are most likely in somebody's memory."""

_FULL_SECONDS = 20.0
_GONE = 410


class EventRef(msgspec.Struct):
    """An event, as it is told to another process."""

    source_id: str
    received_at: int
    event_id: str


class Worker:
    """`special` processes the events of sources that have no connections, and says whether it
    is done with one."""

    def __init__(
        self, relay: Relay, special: dict[str, Callable[[Event], Awaitable[bool]]] | None = None
    ) -> None:
        self._relay = relay
        self._store = relay.store
        self._special = special or {}
        self.alerts = Alerts(relay)
        self.replays = Replays(relay)
        self._in_memory: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._handling: dict[str, bool] = {}
        self._later: set[str] = set()
        self._stopping = False

    # New events

    def begin(self, event: Event, made: list[Delivery]) -> None:
        """Attempt the deliveries of a new event that are ours to attempt now."""
        for delivery in made:
            if delivery.claim is not None:
                self._spawn(self._attempt(delivery, event))
            elif delivery.lane is not None and delivery.lane in self._relay.lanes:
                self.kick(delivery.lane)
                self._kick_later(delivery.lane)

    async def take(self, event: Event) -> None:
        """Process a new event that was written without its deliveries."""
        self._in_memory.add(event.event_id)
        self._spawn(self._process(event))

    async def _process(self, event: Event) -> None:
        """Make an event's deliveries, and begin with them."""
        try:
            special = self._special.get(event.source_id)
            if special is None:
                connections = await self._relay.directory.connections(event.source_id)
                self.begin(event, await self._relay.dispatch.first(event, connections))
            elif await special(event):
                await self._relay.dispatch.first(event, [])
        finally:
            self._in_memory.discard(event.event_id)

    async def handle(self, message: Message) -> None:
        """An event that another process has received, from the queue."""
        told = message.decode(EventRef)
        key = Event.key(told.source_id, told.received_at, told.event_id)
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
                await self._after_failure(delivery, gone=reply.status == _GONE)
        finally:
            if lanes.release(connection_id):
                self.kick(connection_id)

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

    def kick(self, name: str) -> None:
        """Look at a source, connection or replay now; again if somebody is looking already."""
        if name in self._handling:
            self._handling[name] = True
        elif not self._stopping:
            self._handling[name] = False
            self._spawn(self._look(name, None))

    def _kick_later(self, name: str) -> None:
        """Look again once an index that lags shows what was just written."""

        def look() -> None:
            self._later.discard(name)
            self.kick(name)

        if name not in self._later:
            self._later.add(name)
            asyncio.get_running_loop().call_later(INDEX_SECONDS, look)

    async def tick(self) -> None:
        """Take what is due, and begin with it."""
        for wake in await self._relay.wakes.due(_WAKES_AT_ONCE, self._handling):
            if wake.name in self._handling or self._stopping:
                continue
            self._handling[wake.name] = False
            self._spawn(self._look(wake.name, wake))

    async def _look(self, name: str, wake: Wake | None) -> None:
        wakes = self._relay.wakes
        try:
            held = None
            if wake is not None:
                held = await wakes.take(wake)
                if held is None:
                    return
            while True:
                self._handling[name] = False
                next_at = await self._work(name, held)
                if not self._handling[name] or self._stopping:
                    break
            if held is not None:
                await wakes.settle(held, next_at)
            elif next_at is not None:
                await wakes.ensure(name, next_at)
            if next_at is not None:
                self._remind(name, next_at)
        finally:
            if self._handling.pop(name):
                self.kick(name)  # there was more while we were ending

    def _remind(self, name: str, at: int) -> None:
        """Look again sooner than the next poll would."""
        wait = at / 1000 - self._store.clock()
        if 0 < wait < _POLL_SECONDS:
            asyncio.get_running_loop().call_later(max(0.02, wait), self.kick, name)

    async def _work(self, name: str, held: Wake | None) -> int | None:
        """Do what is due for a name; when to look again."""
        if name.startswith("conn_"):
            return await self._lane(name, held)
        if name.startswith("rpl_"):
            return await self.replays.work(name, held, lambda: self._stopping)
        return await self._stranded(name, held)

    async def _stranded(self, source_id: str, held: Wake | None) -> int | None:
        """Process events that nobody has in memory any more."""
        query = Event.query(source_id, index="GSI2")
        before = self._now() - (_STRANDED_MS if held is not None else 0)
        cursor = None
        while not self._stopping:
            page = await self._store.query(query.at_most(max(0, before)), limit=_PAGE, after=cursor)
            found = [e for e in page.items if e.event_id not in self._in_memory]
            await asyncio.gather(*(self._guarded(self._rescue(event)) for event in found))
            await self._keep(held)
            cursor = page.cursor
            if cursor is None:
                break
        return self._now() + RESCUE_MS if await self._first(query, 1) else None

    async def _rescue(self, event: Event) -> None:
        current = await self._store.get(key_of(event))  # the index may lag
        if current is not None and current.todo is not None:
            await self._process(current)

    async def _lane(self, connection_id: str, held: Wake | None) -> int | None:
        """Attempt what is due for a connection, as far as its lane lets us."""
        query = Delivery.query(connection_id, index="GSI2")
        while not self._stopping:
            connection = await self._relay.directory.find_connection(connection_id)
            if connection is None or connection.status == "deleted":
                await self._cancel(connection_id)
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
            await self._keep(held)
        first = await self._first(query, 1)
        return first[0].due_at if first else None

    async def _wait_for_room(self, freed: asyncio.Event) -> None:
        try:
            async with asyncio.timeout(_FULL_SECONDS):
                await freed.wait()
        except TimeoutError:
            pass

    async def _claim_some(self, connection: Connection, due: list[Delivery]) -> int:
        """Claim deliveries that there is room for, and begin with them; how many were tried."""
        lanes = self._relay.lanes
        chosen: list[Delivery] = []
        for delivery in due:
            if not lanes.reserve(connection):
                break
            chosen.append(delivery)
        claims = [self._claim(delivery) for delivery in chosen]
        for delivery, ours in zip(chosen, await asyncio.gather(*claims), strict=True):
            if ours:
                self._spawn(self._attempt(delivery, None))
            else:
                lanes.release(connection.connection_id)
                await asyncio.sleep(0.01)  # the index may take a moment to forget it
        return len(chosen)

    async def _claim(self, delivery: Delivery) -> bool:
        """Make a delivery ours, unless somebody has been quicker."""
        seen = attr("due_at") == delivery.due_at
        delivery.claim, delivery.due_at = nanoid(), self._now() + CLAIM_MS
        try:
            await self._relay.ledger.write(delivery.user_id, [Put(delivery, when=seen)], [])
        except WaystationError:
            return False
        return True

    async def _cancel(self, connection_id: str) -> None:
        """End the deliveries of a connection that is gone."""
        query = Delivery.query(connection_id, index="GSI2")
        while (found := await self._first(query, _PAGE)) and not self._stopping:
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

    async def _keep(self, held: Wake | None) -> None:
        """Keep a wake that we hold for longer, if it is time to."""
        if held is not None and held.due_at - self._now() < RESCUE_MS:
            await self._relay.wakes.hold(held)

    # Running

    async def run(self, stopping: asyncio.Event) -> None:
        """Work until told to stop, then finish what was begun."""
        self._stopping = False
        while not stopping.is_set():
            try:
                await self.tick()
            except WaystationError as error:
                log.warning("what is due cannot be read: %s", error)
            try:
                async with asyncio.timeout(_POLL_SECONDS):
                    await stopping.wait()
            except TimeoutError:
                pass
        self._stopping = True
        await self.finish()

    async def finish(self) -> None:
        """Wait until nothing is under way."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def end(self, seconds: float) -> None:
        """Finish what was begun, or leave it to others, who find it."""
        self._stopping = True
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.finish()
        left = list(self._tasks)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(self._guarded(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        """Whatever fails is found again by its wake."""
        try:
            await work
        except Exception:
            log.exception("some work of the relay failed and will be tried again")

    def _now(self) -> int:
        return int(self._store.clock() * 1000)
