"""Dead letters: events that were tried too often. They are shown without what they say, and sent
again at a rate that whoever has to deal with them can stand."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from waystation.desk.receiving.sealing import Parcel, unseal
from waystation.desk.tables import EventRecord, Redrive
from waystation.errors import ConditionFailed, Conflict, NotFound, QueueError, SettingsError
from waystation.ids import new_id
from waystation.patterns import excerpt
from waystation.times import iso, seconds_of

if TYPE_CHECKING:
    from waystation.patterns import Cursors, Vault
    from waystation.queues import DeadLetter, Queue
    from waystation.store import Store

_DIGITS = re.compile(r"(?<![*\d-])\d{4,}|(?<=-)\d{5,}")
"""Numbers that nothing is said about: the answer to our question is one."""

_MOST_LOOKED_AT = 1_000
_MOST_AT_ONCE = 500
_IDLE_SECONDS = 60.0
"""Queues elsewhere hide messages for a while: after so long without one, there are none left."""


class Letter(msgspec.Struct, kw_only=True):
    """A dead letter as it may be shown. `excerpt` is only there where that is switched on."""

    id: str
    event_id: str | None = None
    conversation_id: str | None = None
    event_type: str | None = None
    channel: str | None = None
    author: str | None = None
    characters: int | None = None
    attachments: int | None = None
    received_at: str | None = None
    queued_at: str
    receives: int
    failures: int = 0
    last_error: str | None = None
    excerpt: str | None = None
    problem: str | None = None


class Letters:
    def __init__(
        self, store: Store, vault: Vault, cursors: Cursors, queue: Queue, *, excerpts: bool
    ) -> None:
        self._store = store
        self._cursors = cursors
        self._vault = vault
        self._queue = queue
        self._excerpts = excerpts

    async def page(self, limit: int, cursor: str | None) -> tuple[list[Letter], str | None]:
        """The oldest first, of those that can be looked at in one go."""
        found, more = self._cursors.cut(
            await self._queue.dead_letters(_MOST_LOOKED_AT),
            limit,
            cursor,
            "desk dead letters",
            lambda dead: f"{dead.sent_at:020.6f} {dead.id}",
        )
        return [await self._letter(each) for each in found], more

    async def one(self, id_: str) -> Letter:
        for each in await self._queue.dead_letters(_MOST_LOOKED_AT):
            if each.id == id_:
                return await self._letter(each)
        raise NotFound("there is no such dead letter")

    async def _letter(self, dead: DeadLetter) -> Letter:
        letter = Letter(
            id=dead.id,
            conversation_id=dead.group,
            queued_at=iso(dead.sent_at),
            receives=dead.receives,
        )
        try:
            parcel = msgspec.json.decode(dead.body, type=Parcel)
            envelope = unseal(self._vault, parcel)
        except (msgspec.MsgspecError, SettingsError, ValueError):
            letter.problem = "it cannot be opened with the secret key of this server"
            return letter
        letter.event_id = envelope.event_id
        letter.conversation_id = envelope.conversation_id
        letter.event_type = envelope.event_type
        letter.channel = envelope.channel
        letter.author = envelope.author
        letter.characters = len(envelope.text)
        letter.attachments = envelope.attachments
        letter.received_at = envelope.received_at
        if self._excerpts and envelope.text:
            letter.excerpt = _DIGITS.sub("***", excerpt(envelope.text))
        record = await self._store.get(EventRecord.key(envelope.event_id))
        if record is not None:
            letter.failures, letter.last_error = record.failures, record.last_error
        return letter

    # Sending them again

    async def redrive(self, by: str, per_minute: int, most: int) -> Redrive:
        """Begin to send dead letters again: those that are there now, and no more than `most`."""
        dead = (await self._queue.depth()).dead
        now = self._store.clock()
        before = await self._store.get(Redrive.key())
        if before is not None and before.status == "running":
            raise Conflict("dead letters are being sent again already")
        total = min(dead, most)
        begun = Redrive(
            redrive_id=new_id("rdr"),
            status="running" if total else "done",
            per_minute=per_minute,
            total=total,
            by=by,
            created_at=iso(now),
            updated_at=iso(now),
            begun_at=now,
            version=0 if before is None else before.version,
        )
        try:
            await self._store.put(begun)
        except ConditionFailed:
            raise Conflict("dead letters are being sent again already") from None
        return begun

    async def progress(self) -> Redrive:
        found = await self._store.get(Redrive.key())
        if found is None:
            raise NotFound("no dead letters were ever sent again")
        return found

    async def tick(self) -> None:
        """Send as many dead letters again as are due by now."""
        row = await self._store.get(Redrive.key())
        if row is None or row.status != "running":
            return
        now = self._store.clock()
        due = min(row.total, 1 + int((now - row.begun_at) * row.per_minute / 60))
        wanted = min(due - row.sent, _MOST_AT_ONCE)
        if row.sent < row.total and wanted <= 0:
            return
        try:
            if row.sent < row.total:
                row.sent += wanted
                await self._store.put(row)  # of several processes, one goes on
                moved = await self._moved(row, wanted)
                row.sent -= wanted - moved
                if moved:
                    row.updated_at = iso(now)
            idle = now - seconds_of(row.updated_at) > _IDLE_SECONDS
            row.status = "done" if idle or row.sent >= row.total else "running"
            await self._store.put(row)
        except ConditionFailed:
            return

    async def _moved(self, row: Redrive, wanted: int) -> int:
        try:
            return await self._queue.redrive(wanted)
        except QueueError:
            row.sent -= wanted
            await self._store.put(row)
            raise
