"""Reading events: lists newest first, and one with everything that became of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from waystation.errors import NotFound
from waystation.ids import is_id
from waystation.relay.states import delivery_of, new_delivery, outcomes_of
from waystation.relay.tables import Attempt, Delivery, DeliveryStatus, Event, EventStatus
from waystation.store import key_of, partition

if TYPE_CHECKING:
    from waystation.patterns import Cursors
    from waystation.store import Query, Store

MAX_LIMIT = 100
_MOST_PARTS = 5_000


class Events:
    def __init__(self, store: Store, cursors: Cursors) -> None:
        self._store = store
        self._cursors = cursors

    async def page(
        self,
        source_id: str,
        *,
        status: EventStatus | None,
        from_ms: int,
        to_ms: int,
        limit: int,
        cursor: str | None,
    ) -> tuple[list[Event], str | None]:
        """Up to `limit` events, and the cursor for those after them, if there are any."""
        scope = f"events {source_id} {status} {from_ms} {to_ms}"
        query = events_query(source_id, status, from_ms, to_ms)
        return await self._cursors.page(self._store, query, limit, cursor, scope, reverse=True)

    async def get(self, user_id: str, event_id: str) -> Event:
        event = await find_event(self._store, user_id, event_id)
        if event is None:
            raise NotFound("there is no such event")
        return event

    async def parts(self, event: Event) -> tuple[list[Delivery], list[Attempt]]:
        """An event's deliveries and attempts. Those that have no row of their own are put together
        from what there is."""
        deliveries: list[Delivery] = []
        attempts: list[Attempt] = []
        async for item in self._store.iterate(partition([Delivery, Attempt], event.event_id)):
            if isinstance(item, Delivery):
                deliveries.append(item)
            elif isinstance(item, Attempt):
                attempts.append(item)
            if len(deliveries) + len(attempts) >= _MOST_PARTS:
                break
        return deliveries + _rowless(event, deliveries, attempts), attempts


def _rowless(event: Event, deliveries: list[Delivery], attempts: list[Attempt]) -> list[Delivery]:
    """Deliveries that ended with their first attempt, are under way to it, or were filtered."""
    rows = {delivery.delivery_id for delivery in deliveries}
    last = {a.delivery_id: a for a in sorted(attempts, key=lambda a: a.sequence) if a.delivery_id}
    found = [delivery_of(attempt, event) for id_, attempt in last.items() if id_ not in rows]
    there = {delivery.connection_id for delivery in (*deliveries, *found)}
    for connection_id, status in outcomes_of(event).items():
        if connection_id not in there:
            found.append(_untried(event, connection_id, status))
    return found


def _untried(event: Event, connection_id: str, status: DeliveryStatus) -> Delivery:
    at = event.processed_at or event.received_at
    delivery = new_delivery(event, connection_id, None, at)
    delivery.status = status
    return delivery


async def find_event(store: Store, user_id: str, event_id: str) -> Event | None:
    """An event by its id alone, if it is the account's."""
    if not is_id(event_id):
        return None
    page = await store.query(Event.query(event_id, index="GSI1"))
    for event in page.items:
        current = await store.get(key_of(event))  # the index may lag
        if current is not None and current.user_id == user_id:
            return current
    return None


def events_query(
    source_id: str, status: EventStatus | None, from_ms: int, to_ms: int
) -> Query[Event]:
    """A source's events in a stretch of time, those of one status by their own index."""
    if status is None:
        return Event.query(source_id).between(from_ms, to_ms)
    return Event.query(source_id, status, index="GSI3").between(from_ms, to_ms)
