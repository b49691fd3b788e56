"""How an event goes on once it is received: delivered by this process, or by a worker elsewhere.

One of the two is chosen at the start, and nothing else asks which.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

import msgspec

from waystation.errors import WaystationError
from waystation.patterns import RESCUE_MS
from waystation.relay.delivering.parcels import Parcel
from waystation.relay.delivering.planning import Plan
from waystation.relay.states import leads_nowhere

if TYPE_CHECKING:
    from waystation.patterns import Timers
    from waystation.queues import Queue
    from waystation.relay.directory import Directory
    from waystation.relay.keyring import Keyring
    from waystation.relay.rules.paths import Webhook
    from waystation.relay.tables import Event

log = logging.getLogger(__name__)


class EventRef(msgspec.Struct):
    """What the queue carries: enough to find an event."""

    source_id: str
    received_at: int
    event_id: str


class Onward(Protocol):
    async def plan(self, event: Event, webhook: Webhook) -> Plan:
        """Complete an event that is about to be written, and say what is written with it."""
        ...

    async def expect(self, plan: Plan) -> None:
        """Set the timers by which it is found, whatever happens after it is written."""
        ...

    async def written(self, plan: Plan) -> None:
        """It is durable: go on with it."""
        ...

    def dropped(self, plan: Plan) -> None:
        """It was not written after all."""
        ...

    def look(self, name: str, *, anew: bool = False) -> None:
        """Look at a source, connection or replay now; `anew` forgets a connection's failures."""
        ...


class Elsewhere:
    """Workers in other processes hear of new events by a queue. If that fails, an event's timer
    leads them to it later."""

    def __init__(
        self, queue: Queue, directory: Directory, timers: Timers, keyring: Keyring
    ) -> None:
        self._queue = queue
        self._directory = directory
        self._timers = timers
        self._keyring = keyring

    async def plan(self, event: Event, webhook: Webhook) -> Plan:
        if await self._directory.leads_anywhere(event.source_id):
            event.todo, event.due_at = event.source_id, event.received_at
        else:
            leads_nowhere(event)
        return Plan(Parcel(event, self._keyring, webhook))

    async def expect(self, plan: Plan) -> None:
        if plan.event.todo is not None:
            await self._timers.expect(plan.event.source_id, self._timers.now() + RESCUE_MS)

    async def written(self, plan: Plan) -> None:
        event = plan.event
        if event.todo is None:
            return
        ref = EventRef(event.source_id, event.received_at, event.event_id)
        try:
            await self._queue.send(ref)
        except WaystationError as error:
            log.warning("event %s was not passed on at once: %s", event.event_id, error)

    def dropped(self, plan: Plan) -> None:
        """Nothing was begun."""

    def look(self, name: str, *, anew: bool = False) -> None:
        """Their timers lead others to it."""
