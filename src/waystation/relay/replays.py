"""Replays: events once more through filters and transforms, as new deliveries beside the old."""

from __future__ import annotations

from typing import TYPE_CHECKING

from waystation.errors import (
    ConditionFailed,
    Conflict,
    InvalidInput,
    NotFound,
    TooManyRequests,
)
from waystation.ids import is_id, new_id
from waystation.relay.events import events_query, find_event
from waystation.relay.tables import Connection, Delivery, Event, EventStatus, Replay
from waystation.store import add, attr, key_of, remove, set_to

if TYPE_CHECKING:
    from waystation.patterns import Look
    from waystation.relay.delivering.planning import Planning
    from waystation.relay.directory import Directory
    from waystation.relay.wakeups import Wakeups
    from waystation.store import Edit, Store

MAX_EVENTS = 100_000
"""Events that one replay takes at most."""

MAX_IDS = 1_000
_PAGE = 25
_KEPT_SECONDS = 30 * 86_400


class Replays:
    def __init__(
        self, store: Store, directory: Directory, planning: Planning, wakeups: Wakeups
    ) -> None:
        self._store = store
        self._directory = directory
        self._planning = planning
        self._wakeups = wakeups

    async def one(self, event: Event, connection_ids: list[str]) -> tuple[str, list[Delivery]]:
        """Replay one event now; the replay's id, and its deliveries."""
        connections = await self.wanted(event.source_id, connection_ids)
        if not connections:
            raise Conflict("the source has no connections")
        replay_id = new_id("rpl")
        deliveries = await self._planning.again(event, connections, replay_id)
        if not deliveries:
            raise Conflict("the event is changing; try again")
        await self._wakeups.wake(connection.connection_id for connection in connections)
        return replay_id, deliveries

    async def wanted(self, source_id: str, connection_ids: list[str]) -> list[Connection]:
        """The connections of a source to replay to: all of them, or those that were named."""
        found = await self._directory.list_connections(source_id)
        if not connection_ids:
            return found
        known = {connection.connection_id: connection for connection in found}
        for n, connection_id in enumerate(connection_ids):
            if connection_id not in known:
                field = f"connection_ids[{n}]"
                raise InvalidInput(field, "the source has no such connection")
        return [known[connection_id] for connection_id in dict.fromkeys(connection_ids)]

    async def begin(
        self,
        user_id: str,
        source_id: str,
        *,
        status: EventStatus | None,
        from_ms: int,
        to_ms: int,
        event_ids: list[str],
        connection_ids: list[str],
    ) -> Replay:
        """Begin a bulk replay, which goes on in the background."""
        await self.wanted(source_id, connection_ids)
        now = self._store.clock()
        replay = Replay(
            replay_id=new_id("rpl"),
            user_id=user_id,
            source_id=source_id,
            event_status=status,
            from_ms=from_ms,
            to_ms=to_ms,
            event_ids=event_ids,
            connection_ids=connection_ids,
            created_at=int(now * 1000),
            expires_at=int(now) + _KEPT_SECONDS,
        )
        await self._wakeups.expect([replay.replay_id])
        await self._store.put(replay)
        await self._wakeups.wake([replay.replay_id])
        return replay

    async def get(self, user_id: str, replay_id: str) -> Replay:
        if not is_id(replay_id):
            raise NotFound("there is no such replay")
        replay = await self._store.get(Replay.key(replay_id))
        if replay is None or replay.user_id != user_id:
            raise NotFound("there is no such replay")
        return replay

    async def work(self, replay_id: str, look: Look) -> int | None:
        """Go on with a replay until it is done; when to look again if it is not."""
        while not look.stopping:
            replay = await self._store.get(Replay.key(replay_id))
            if replay is None or replay.status != "running":
                return None
            try:
                done = await self._step(replay)
            except (InvalidInput, NotFound, TooManyRequests) as error:
                await self._save(replay, set_to("status", "failed"), set_to("error", str(error)))
                return None
            if done:
                return None
            await look.keep()
        return int(self._store.clock() * 1000)

    async def _step(self, replay: Replay) -> bool:
        """Replay the next few events, and remember how far we are; whether that was all."""
        connections = await self.wanted(replay.source_id, replay.connection_ids)
        events, position = await self._next(replay)
        created = 0
        for event in events:
            created += len(await self._planning.again(event, connections, replay.replay_id))
        total = replay.events + len(events)
        done = position is None or total >= MAX_EVENTS
        changes: list[Edit] = [add("events", len(events)), add("deliveries", created)]
        changes.append(remove("position") if position is None else set_to("position", position))
        if done:
            changes.append(set_to("status", "done"))
            changes.append(set_to("finished_at", int(self._store.clock() * 1000)))
            if position is not None:
                changes.append(set_to("error", f"stopped after {MAX_EVENTS} events"))
        await self._save(replay, *changes)
        await self._wakeups.wake(connection.connection_id for connection in connections)
        return done

    async def _save(self, replay: Replay, *changes: Edit) -> None:
        """Record progress, unless another process has done so."""
        where = attr("position")
        same = where.absent() if replay.position is None else where == replay.position
        try:
            await self._store.update(
                key_of(replay), *changes, when=same & (attr("status") == "running")
            )
        except ConditionFailed:
            return

    async def _next(self, replay: Replay) -> tuple[list[Event], str | None]:
        """The next events, and the position after them; None at the end."""
        if replay.event_ids:
            start = int(replay.position or 0)
            ids = replay.event_ids[start : start + _PAGE]
            found = [await find_event(self._store, replay.user_id, id_) for id_ in ids]
            chosen = [e for e in found if e is not None and self._fits(replay, e)]
            end = start + len(ids)
            return chosen, str(end) if end < len(replay.event_ids) else None
        query = events_query(replay.source_id, replay.event_status, replay.from_ms, replay.to_ms)
        page = await self._store.query(query, limit=_PAGE, after=replay.position)
        return list(page.items), page.cursor

    @staticmethod
    def _fits(replay: Replay, event: Event) -> bool:
        return (
            event.source_id == replay.source_id
            and replay.from_ms <= event.received_at <= replay.to_ms
            and replay.event_status in (None, event.status)
        )
