"""Queues in the store's own SQLite file.

A message is a row. Only rows with `head` set can be received: messages without a group, and the
first of each group. Acknowledging a head promotes the next of its group, so finding work is one
step in an index however many messages and groups wait.
"""

from __future__ import annotations

import asyncio
import sqlite3
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from waystation.errors import MessageLost, QueueUnavailable, StoreUnavailable
from waystation.ids import nanoid
from waystation.queues.base import (
    DEDUPE_SECONDS,
    RETENTION_SECONDS,
    DeadLetter,
    Depth,
    Message,
    Queue,
    Queues,
    QueueSpec,
    check_names,
    check_release,
    check_visibility,
    message_id,
    undo_if_cancelled,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from waystation.store.sqlite import SqliteStore

R = TypeVar("R")

_POLL_SECONDS = 0.5
_TRIM_LIMIT = 1000
_BURIALS = 20
"""Rounds of putting spent messages aside before a receive gives up, not to hold up writers."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS waystation_messages (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, queue TEXT NOT NULL, id TEXT NOT NULL, grp TEXT,
    body BLOB NOT NULL, sent_at REAL NOT NULL, due REAL NOT NULL, visible_at REAL NOT NULL,
    receives INTEGER NOT NULL DEFAULT 0, receipt TEXT, head INTEGER NOT NULL, dead_at REAL);
CREATE INDEX IF NOT EXISTS waystation_messages_heads
    ON waystation_messages (queue, visible_at, seq) WHERE head=1;
CREATE INDEX IF NOT EXISTS waystation_messages_groups
    ON waystation_messages (queue, grp, head DESC, due, seq)
    WHERE grp IS NOT NULL AND dead_at IS NULL;
CREATE INDEX IF NOT EXISTS waystation_messages_dead
    ON waystation_messages (queue, dead_at, seq) WHERE dead_at IS NOT NULL;
CREATE TABLE IF NOT EXISTS waystation_dedupe (
    queue TEXT NOT NULL, dedupe TEXT NOT NULL, id TEXT NOT NULL, at REAL NOT NULL,
    PRIMARY KEY (queue, dedupe)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS waystation_dedupe_by_time ON waystation_dedupe (at);
"""

_COLUMNS = "queue, id, grp, body, sent_at, due, visible_at, head"
_INSERT = f"INSERT INTO waystation_messages ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608
_DELETE = "DELETE FROM waystation_messages WHERE seq=? AND receipt=?"
_FIND = (
    "SELECT seq, id, grp, body, sent_at, receives FROM waystation_messages "
    "WHERE queue=? AND head=1 AND visible_at<=? ORDER BY visible_at, seq LIMIT ?"
)
_TAKE = "UPDATE waystation_messages SET visible_at=?, receipt=?, receives=receives+1 WHERE seq=?"
_UNTAKE = (
    "UPDATE waystation_messages SET visible_at=sent_at, receives=receives-1, receipt=NULL "
    "WHERE seq=? AND receipt=?"
)
_FIRST = (
    "SELECT seq, head, due, receives FROM waystation_messages "
    "WHERE queue=? AND grp=? AND dead_at IS NULL ORDER BY head DESC, due, seq LIMIT 1"
)
_NEXT_VISIBLE = "SELECT min(visible_at) FROM waystation_messages WHERE queue=? AND head=1"
_COUNT = (
    "SELECT count(*) FILTER (WHERE visible_at<=?2), "
    "count(*) FILTER (WHERE visible_at>?2 AND receipt IS NULL), "
    "count(*) FILTER (WHERE visible_at>?2 AND receipt IS NOT NULL), min(sent_at) "
    "FROM waystation_messages WHERE queue=?1 AND dead_at IS NULL"
)
_COUNT_DEAD = "SELECT count(*) FROM waystation_messages WHERE queue=? AND dead_at IS NOT NULL"


class EmbeddedQueue(Queue):
    """A queue in the store's file: a message is durable when `send` returns."""

    def __init__(self, spec: QueueSpec, store: SqliteStore) -> None:
        super().__init__(spec)
        self._store = store
        self._writer = store.writer
        self._name = spec.scoped(store.env)
        self._arrived = asyncio.Event()
        self._latest = 0.0

    async def _send(self, body: bytes, group: str | None, dedupe: str | None, delay: float) -> str:
        now = self._store.clock()
        # A clock that is set back must not put a message before those that were sent earlier.
        self._latest = max(self._latest, now)
        id_ = message_id(now, group, dedupe)
        row = (self._name, id_, group, body, now, self._latest + delay, now + delay)
        if group is None and dedupe is None:
            await _durably(self._writer.execute(_INSERT, (*row, 1)))
        else:
            await _durably(self._writer.run(partial(_insert, row=row, dedupe=dedupe)))
        self._arrived.set()
        return id_

    async def _receive(self, limit: int, wait: float, visibility: float) -> list[Message]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait
        while True:
            self._arrived.clear()
            now = self._store.clock()
            visible = self._next_visible()
            if visible is not None and visible <= now:
                job = partial(self._take, limit=limit, visibility=visibility)
                taking = undo_if_cancelled(self._writer.run(job), self._put_back)
                if taken := await _durably(taking):
                    return taken
            left = deadline - loop.time()
            if left <= 0:
                return []
            # Other processes send without our hearing of it, hence the poll.
            pause = min(left, _POLL_SECONDS, max(0.001, (visible or now + 1) - now))
            try:
                async with asyncio.timeout(pause):
                    await self._arrived.wait()
            except TimeoutError:
                pass

    async def _put_back(self, messages: list[Message]) -> None:
        """Undo a receive whose messages nobody has seen."""
        held = [_held(message) for message in messages]
        await _durably(self._writer.run(lambda c: c.executemany(_UNTAKE, held) and None))
        self._arrived.set()

    def _next_visible(self) -> float | None:
        """When the next message can be received. A look costs nothing; a write would."""
        try:
            found = self._store.reader.execute(_NEXT_VISIBLE, (self._name,)).fetchone()[0]
        except sqlite3.Error as error:
            raise QueueUnavailable(f"the queue cannot be read: {error}") from error
        return None if found is None else float(found)

    def _take(
        self, connection: sqlite3.Connection, *, limit: int, visibility: float
    ) -> list[Message]:
        now = self._store.clock()
        rows: list[Any] = []
        for _ in range(_BURIALS):
            rows = connection.execute(_FIND, (self._name, now, limit)).fetchall()
            spent = [row for row in rows if row[5] >= self.spec.max_receives]
            for seq, _, group, *_ in spent:
                _bury(connection, self._name, seq, group, now)
            rows = [row for row in rows if row not in spent]
            if rows or not spent:
                break
        receipt = nanoid()
        connection.executemany(_TAKE, [(now + visibility, receipt, row[0]) for row in rows])
        return [
            Message(
                id=id_,
                group=group,
                body=body,
                sent_at=sent_at,
                receives=receives + 1,
                receipt=f"{seq}:{receipt}",
            )
            for seq, id_, group, body, sent_at, receives in rows
        ]

    async def ack(self, message: Message) -> None:
        seq, receipt = _held(message)
        if message.group is None:
            await _durably(self._writer.execute(_DELETE, (seq, receipt)))
            return

        def job(connection: sqlite3.Connection) -> None:
            connection.execute(_DELETE, (seq, receipt))
            _promote(connection, self._name, message.group)

        await _durably(self._writer.run(job))
        self._arrived.set()

    async def extend(self, message: Message, seconds: float) -> None:
        check_visibility(seconds)
        now = self._store.clock()
        changed = await self._set_visible(message, now + seconds, "AND visible_at>?", now)
        if not changed:
            raise MessageLost(f"message {message.id} is no longer ours")

    async def release(self, message: Message, delay: float = 0.0) -> None:
        check_release(delay)
        await self._set_visible(message, self._store.clock() + delay)
        self._arrived.set()

    async def _set_visible(
        self, message: Message, until: float, condition: str = "", *more: float
    ) -> int:
        sql = (
            f"UPDATE waystation_messages SET visible_at=? "  # noqa: S608 - our own condition
            f"WHERE seq=? AND receipt=? AND dead_at IS NULL {condition}"
        )
        values = (until, *_held(message), *more)
        return await _durably(self._writer.run(lambda c: c.execute(sql, values).rowcount))

    async def depth(self) -> Depth:
        """Counts every message, off the event loop."""
        now = self._store.clock()
        counted = await self._store.long_read(_COUNT, (self._name, now))
        dead = await self._store.long_read(_COUNT_DEAD, (self._name,))
        ready, delayed, in_flight, oldest = counted[0]
        return Depth(
            ready=ready,
            delayed=delayed,
            in_flight=in_flight,
            dead=dead[0][0],
            oldest_age=None if oldest is None else max(0.0, now - oldest),
        )

    async def dead_letters(self, limit: int = 100) -> list[DeadLetter]:
        rows = await self._store.long_read(
            "SELECT id, grp, body, sent_at, receives FROM waystation_messages "
            "WHERE queue=? AND dead_at IS NOT NULL ORDER BY dead_at, seq LIMIT ?",
            (self._name, limit),
        )
        return [
            DeadLetter(id=id_, group=group, body=body, sent_at=sent_at, receives=receives)
            for id_, group, body, sent_at, receives in rows
        ]

    async def redrive(self, limit: int = 1000) -> int:
        now = self._store.clock()
        revived = await _durably(
            self._writer.run(partial(_revive, name=self._name, now=now, limit=limit))
        )
        self._arrived.set()
        return revived


class EmbeddedQueues(Queues):
    """The queues of one file."""

    def __init__(self, store: SqliteStore, specs: Sequence[QueueSpec]) -> None:
        check_names(specs)
        super().__init__({spec.name: EmbeddedQueue(spec, store) for spec in specs})
        self._store = store

    async def ensure(self) -> None:
        def create(connection: sqlite3.Connection) -> None:
            for statement in filter(str.strip, _SCHEMA.split(";")):
                connection.execute(statement)

        await _durably(self._store.writer.run(create))

    async def tend(self) -> int:
        """Forget dedupe ids and dead letters that are no longer promised."""
        forgotten = 0
        while True:  # in rounds, so that others can write in between
            trim = partial(_trim, now=self._store.clock())
            round_ = await _durably(self._store.writer.run(trim))
            forgotten += round_
            if round_ < _TRIM_LIMIT:
                return forgotten

    async def close(self) -> None:
        """The file belongs to the store."""


def _insert(connection: sqlite3.Connection, *, row: tuple[Any, ...], dedupe: str | None) -> None:
    name, id_, group, _, now, due, _ = row
    if dedupe is not None:
        scope = f"{group or ''} {dedupe}"
        seen = connection.execute(
            "SELECT at FROM waystation_dedupe WHERE queue=? AND dedupe=?", (name, scope)
        ).fetchone()
        if seen is not None and seen[0] > now - DEDUPE_SECONDS:
            return
        connection.execute(
            "INSERT OR REPLACE INTO waystation_dedupe VALUES (?, ?, ?, ?)", (name, scope, id_, now)
        )
    connection.execute(_INSERT, (*row, _take_the_lead(connection, name, group, due)))


def _take_the_lead(connection: sqlite3.Connection, name: str, group: str | None, due: float) -> int:
    """1 if a message becomes the head of its group; a delayed one that was the head steps back."""
    first = group and connection.execute(_FIRST, (name, group)).fetchone()
    if not first:
        return 1
    _, leads, first_due, receives = first
    if not leads or due >= first_due or receives:
        return 0
    connection.execute("UPDATE waystation_messages SET head=0 WHERE seq=?", (first[0],))
    return 1


def _promote(connection: sqlite3.Connection, name: str, group: str | None) -> None:
    """Make the next message of a group its head."""
    if group is None:
        return
    first = connection.execute(_FIRST, (name, group)).fetchone()
    if first is not None and not first[1]:
        connection.execute("UPDATE waystation_messages SET head=1 WHERE seq=?", (first[0],))


def _bury(
    connection: sqlite3.Connection, name: str, seq: int, group: str | None, now: float
) -> None:
    connection.execute(
        "UPDATE waystation_messages SET dead_at=?, head=0, receipt=NULL WHERE seq=?", (now, seq)
    )
    _promote(connection, name, group)


def _revive(connection: sqlite3.Connection, *, name: str, now: float, limit: int) -> int:
    rows = connection.execute(
        "SELECT seq, grp FROM waystation_messages WHERE queue=? AND dead_at IS NOT NULL "
        "ORDER BY dead_at, seq LIMIT ?",
        (name, limit),
    ).fetchall()
    for seq, group in rows:
        connection.execute(
            "UPDATE waystation_messages SET dead_at=NULL, receives=0, due=?, visible_at=?, head=? "
            "WHERE seq=?",
            (now, now, _take_the_lead(connection, name, group, now), seq),
        )
    return len(rows)


def _trim(connection: sqlite3.Connection, *, now: float) -> int:
    forgotten = connection.execute(
        "DELETE FROM waystation_dedupe WHERE (queue, dedupe) IN "
        "(SELECT queue, dedupe FROM waystation_dedupe WHERE at<=? LIMIT ?)",
        (now - DEDUPE_SECONDS, _TRIM_LIMIT),
    ).rowcount
    forgotten += connection.execute(
        "DELETE FROM waystation_messages WHERE seq IN "
        "(SELECT seq FROM waystation_messages WHERE dead_at<=? LIMIT ?)",
        (now - RETENTION_SECONDS, _TRIM_LIMIT),
    ).rowcount
    return forgotten


def _held(message: Message) -> tuple[int, str]:
    seq, _, receipt = message.receipt.partition(":")
    return int(seq), receipt


async def _durably(writing: Awaitable[R]) -> R:
    try:
        return await writing
    except StoreUnavailable as error:
        raise QueueUnavailable(f"the queue could not be written: {error}") from error
