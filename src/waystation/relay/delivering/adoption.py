"""Events that another service wrote into our table: processed here if it does not do so itself.

Nothing of ours points to them. The change feed does, and a timer of their own leads to each of them
after a while, unless its status shows by then that the other service is at it.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from waystation.errors import ConditionFailed
from waystation.relay.delivering.onward import EventRef
from waystation.relay.states import outcomes_of, set_by_others, unchanged
from waystation.relay.tables import Event
from waystation.store import attr, key_of, set_to

if TYPE_CHECKING:
    from waystation.relay.delivering.tools import Tools
    from waystation.store import Change

log = logging.getLogger(__name__)

GRACE_MS = 10_000
"""How long another service has to begin with an event that it wrote."""

MARK = "{"
"""What the names of their timers begin with: they are JSON."""


class Adoption:
    def __init__(self, tools: Tools) -> None:
        self._tools = tools

    async def notice(self, change: Change) -> None:
        """See to it that somebody looks at an event which another service has written."""
        event = change.new
        if not isinstance(event, Event):
            return
        before = change.old.status if isinstance(change.old, Event) else None
        if event.status != before and set_by_others(event, outcomes_of(event)):
            await self._follow_status(event)
        if _untouched(event):
            ref = EventRef(event.source_id, event.received_at, event.event_id)
            name = msgspec.json.encode(ref).decode()
            await self._tools.timers.ensure(name, self._tools.timers.now() + GRACE_MS)

    async def _follow_status(self, event: Event) -> None:
        """Have an event listed by the status that another service has given it."""
        with suppress(ConditionFailed):  # it has changed again
            same = (attr("status") == event.status) & unchanged(event)
            await self._tools.store.update(key_of(event), set_to("status", event.status), when=same)

    async def due(self, name: str) -> Event | None:
        """The event that a timer is for, if it has been left to us."""
        ref = msgspec.json.decode(name, type=EventRef)
        event = await self._tools.store.get(Event.key(ref.source_id, ref.received_at, ref.event_id))
        if event is None or not _untouched(event):
            return None
        known = await self._tools.directory.source(event.source_id)
        if known is None or known.source.user_id != event.user_id:
            log.warning("event %s belongs to no source of its account", event.event_id)
            return None
        return event


def _untouched(event: Event) -> bool:
    """Whether nobody has processed an event yet. Our own say who will."""
    untouched = event.status == "received" and event.processed_at is None
    return untouched and event.todo is None and event.revision == 0
