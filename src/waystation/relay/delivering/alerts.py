"""Endpoints that keep failing: alerts on the way, and an end to it.

An alert is an event of the account's own source of alerts, and travels like any other.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Literal

from waystation.errors import ConditionFailed, WaystationError
from waystation.relay.directory import Known
from waystation.relay.receiving.dedupe import Dedupe
from waystation.relay.sources import alerts_id
from waystation.relay.states import own_event
from waystation.relay.tables import Event
from waystation.store import attr, key_of, set_to
from waystation.times import iso

if TYPE_CHECKING:
    from waystation.relay.directory import Directory
    from waystation.relay.tables import Connection
    from waystation.store import Store

log = logging.getLogger(__name__)

DISABLE_AFTER = 50
"""Failures in a row after which a connection is paused, if `DISABLE_SECONDS` have passed too."""

DISABLE_SECONDS = 6 * 3600
"""Time without a success, so that a short outage pauses nobody, however busy."""

LEVELS = (50, 70, 90, 100)
"""Percent of both, at which an alert goes out."""

Reason = Literal["failures", "gone"]
Record = Callable[[Known, Event], Awaitable[object]]
"""Takes in an event that we send ourselves."""


class Alerts:
    def __init__(self, store: Store, directory: Directory, record: Record) -> None:
        self._store = store
        self._directory = directory
        self._record = record

    async def after_failure(self, connection: Connection) -> None:
        """Look at a connection that has just failed, and tell or act where it is time to."""
        if connection.status != "active" or connection.source_id == alerts_id(connection.user_id):
            return
        share = min(
            connection.failure_streak / DISABLE_AFTER,
            (self._store.clock() - (connection.failing_since or self._store.clock()))
            / DISABLE_SECONDS,
        )
        level = max((level for level in LEVELS if level <= share * 100), default=0)
        if level <= connection.alerted_at:
            return
        if level >= 100:
            await self.disable(connection, "failures")
        else:
            try:
                await self._store.update(
                    key_of(connection),
                    set_to("alerted_at", level),
                    when=(attr("alerted_at").absent() | (attr("alerted_at") < level))
                    & (attr("status") == "active"),
                )
            except ConditionFailed:
                return  # another process has sent this alert
            await self._tell("connection.failing", connection, {"percent": level})

    async def disable(self, connection: Connection, reason: Reason) -> None:
        """Pause a connection on our own. What it has not delivered waits in its lane."""
        now = iso(self._store.clock())
        try:
            await self._store.update(
                key_of(connection),
                set_to("status", "paused"),
                set_to("disabled_reason", reason),
                set_to("disabled_at", now),
                set_to("alerted_at", 100),
                set_to("updated_at", now),
                when=attr("status") == "active",
            )
        except ConditionFailed:
            return  # another process has done so, or somebody has paused or deleted it
        self._directory.forget(connection.source_id)
        log.warning("connection %s was disabled: %s", connection.connection_id, reason)
        await self._tell("connection.disabled", connection, {"reason": reason})

    async def _tell(self, kind: str, connection: Connection, more: dict[str, Any]) -> None:
        try:
            source = await self._directory.find_source(alerts_id(connection.user_id))
            if source is None or source.status != "active":
                return
            now = self._store.clock()
            data = {
                "connection_id": connection.connection_id,
                "source_id": connection.source_id,
                "name": connection.name,
                "destination_url": connection.destination_url,
                "failures": connection.failure_streak,
                "threshold": DISABLE_AFTER,
                **more,
            }
            event = own_event(source.source_id, source.user_id, kind, data, now)
            known = Known(source, [], None, Dedupe(mode="none"), None, now)
            await self._record(known, event)
        except WaystationError:
            log.exception("an alert about %s could not be written", connection.connection_id)
