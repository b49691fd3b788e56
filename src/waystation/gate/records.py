"""The latest checks of each account: so many and no more, whatever anybody sends.

A record takes the place of an old one. Requests that nobody signed have a few places of their own:
a forger cannot push out what the owner should see.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Literal

from waystation.errors import TooManyRequests, WaystationError
from waystation.gate.tables import CHECK_SECONDS, CheckRecord
from waystation.ids import nanoid
from waystation.patterns import Limit, LocalLimiter, Newest

if TYPE_CHECKING:
    from waystation.gate.payloads import Asked
    from waystation.patterns import Cursors
    from waystation.store import Store

log = logging.getLogger(__name__)

SIGNED_SLOTS = 200
UNSIGNED_SLOTS = 50
_SIGNED_LIMIT = Limit(120, 60)
_UNSIGNED_LIMIT = Limit(10, 60)
_MOST_ACCOUNTS = 10_000
_MOST_WRITING = 200

Outcome = Literal["passed", "refused"]


class Records:
    def __init__(self, store: Store, cursors: Cursors) -> None:
        self._store = store
        self._cursors = cursors
        self._limiter = LocalLimiter(store.clock)
        self._next: Newest[str, int] = Newest(_MOST_ACCOUNTS)
        self._writing: set[asyncio.Task[None]] = set()

    def add(
        self,
        user_id: str,
        team_id: str,
        outcome: Outcome,
        reason: str,
        detail: str = "",
        asked: Asked | None = None,
    ) -> None:
        """Write down a check, in the background. Too many at a time are not written."""
        signed = asked is not None
        line = f"{user_id} {'signed' if signed else 'unsigned'}"
        try:
            self._limiter.take(line, _SIGNED_LIMIT if signed else _UNSIGNED_LIMIT)
        except TooManyRequests:
            return
        if len(self._writing) >= _MOST_WRITING:
            return
        now = int(self._store.clock() * 1000)
        turn = self._next.get(line, now)  # another process, or a new start, begins elsewhere
        self._next[line] = turn + 1
        slot = turn % SIGNED_SLOTS if signed else SIGNED_SLOTS + turn % UNSIGNED_SLOTS
        record = CheckRecord(
            user_id=user_id,
            slot=slot,
            check_id=nanoid(),
            at=now,
            outcome=outcome,
            reason=reason,
            detail=detail[:200],
            team_id=team_id,
            slack_user_id=asked.user if asked else None,
            channel_id=asked.channel if asked else None,
            event_type=asked.type[:100] if asked else "",
            event_id=asked.event_id if asked else None,
            ttl=now // 1000 + CHECK_SECONDS,
        )
        task = asyncio.create_task(self._write(record))
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    async def _write(self, record: CheckRecord) -> None:
        try:
            await self._store.put(record)
        except WaystationError as error:
            log.warning("a check could not be written down: %s", error)

    async def page(
        self, user_id: str, outcome: Outcome | None, limit: int, cursor: str | None
    ) -> tuple[list[CheckRecord], str | None]:
        """The latest first."""
        scope = f"gate checks {user_id} {outcome}"
        before = None if cursor is None else self._cursors.open(cursor, scope)
        found = [
            record
            async for record in self._store.iterate(CheckRecord.query(user_id))
            if outcome in (None, record.outcome)
        ]
        found.sort(key=_place, reverse=True)
        if before is not None:
            found = [record for record in found if _place(record) < before]
        shown = found[:limit]
        more = len(found) > limit
        return shown, self._cursors.seal(_place(shown[-1]), scope) if more else None

    async def finish(self) -> None:
        """Wait for what is being written."""
        await asyncio.gather(*self._writing)


def _place(record: CheckRecord) -> str:
    return f"{record.at:013d} {record.check_id}"
