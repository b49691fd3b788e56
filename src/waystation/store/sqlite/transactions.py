"""Writes on rows. Each decides first and writes last, so a refused write leaves no trace."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from waystation.errors import (
    CancellationReason,
    ConditionFailed,
    InvalidRequest,
    StoreError,
    TokenReused,
    TransactionCancelled,
)
from waystation.store import evaluate, values
from waystation.store.compile import Expressions
from waystation.store.expiry import IGNORED_AFTER, has_expired
from waystation.store.sqlite.finding import Sought, find_all

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Mapping, Sequence

    from waystation.store.actions import Write
    from waystation.store.base import Returning
    from waystation.store.sqlite.schema import Layout, Part, Planned, Row
    from waystation.store.values import RawItem

TOKEN_SECONDS = 600
TRANSACTION_BYTES = 4 * 1024 * 1024

Failure = tuple[str, str, "RawItem | None"]


class Found:
    """What is in an item's place: the packed item, and the item itself unless it has expired."""

    __slots__ = ("body", "item")

    def __init__(self, body: bytes | None, item: RawItem | None) -> None:
        self.body = body
        self.item = item


_UNREAD = Found(None, None)

Step = tuple["Layout", "Write | None", Found, "Row | None", "Part"]
"""A write that was decided on, with what it replaces, and the row that it makes, or the part of it
that differs."""


class LeftToSender(StoreError):
    """Another process has sent too little to do this here: it does it itself."""


def check_bytes(planned: Sequence[Planned]) -> None:
    """Refuse a transaction that DynamoDB would not take."""
    puts = (each.row for each in planned if each.row and each.was is None)
    if sum(map(_size, puts)) > TRANSACTION_BYTES:
        raise InvalidRequest("a transaction has more than 4 MB")


def _size(row: Row) -> int:
    large = row[-1]  # where there is none, it is the key of an index
    return len(row[2]) + (len(large) if isinstance(large, bytes) else 0)


class RowWrites:
    """Carries out writes inside the transaction that the writer has opened.

    What can be built beforehand comes with its row; the others are built here.
    """

    def __init__(self, layouts: Mapping[str, Layout]) -> None:
        self.layouts = layouts

    def write(
        self,
        write: Write,
        row: Row | None,
        returning: Returning | None,
        now: int,
        failed: Callable[[Write, RawItem | None], ConditionFailed],
        connection: sqlite3.Connection,
    ) -> RawItem | None:
        """One write; returns the item before or after it if asked to."""
        layout = self.layouts[write.key.spec.table.name]
        found = self._find(connection, layout, write, now)
        if write.condition is not None and not evaluate.holds(write.condition, found.item):
            raise failed(write, found.item)
        new: RawItem | None = None
        if write.kind == "update":
            new = write.outcome(found.item)
            row = None if new is None else layout.row(write.key, new)
        self._replace(connection, layout, write, found, row, now)
        return found.item if returning == "old" else new if returning == "new" else None

    def write_all(
        self,
        pairs: list[tuple[Write, Row | None]],
        now: int,
        connection: sqlite3.Connection,
    ) -> None:
        """Unconditional puts and deletes."""
        for write, row in pairs:
            layout = self.layouts[write.key.spec.table.name]
            if row is not None:
                self._put(connection, layout, write, row, now)
            else:
                found = self._find(connection, layout, write, now)
                self._replace(connection, layout, write, found, None, now)

    def transact(
        self,
        planned: list[Planned],
        token: str | None,
        now: int,
        cancelled: Callable[[Sequence[Write], Sequence[Failure | None]], TransactionCancelled],
        connection: sqlite3.Connection,
    ) -> None:
        """All of the writes or none."""
        fingerprint = b""
        if token is not None:
            fingerprint = _fingerprint(planned)
            if _seen_before(connection, token, fingerprint, now):
                return
        failures: list[Failure | None] = []
        steps: list[Step] = []
        there = self._bodies(connection, planned)
        for each in planned:
            write, body = each.write, there.get(id(each))
            layout = self.layouts[each.table]
            if write is None or (each.was is not None and body == each.was):
                if body != each.was:
                    raise LeftToSender("somebody else has changed it")
                failures.append(None)
                part: Part = "all" if each.was is None else "state"
                steps.append((layout, write, _UNREAD, each.row, part))
                continue
            if each.was is None or _is_state_only(layout, write, None):
                found = _found(layout, body, now)
            else:
                found = self._find(connection, layout, write, now)
            if write.condition is not None and not evaluate.holds(write.condition, found.item):
                code = CancellationReason.CONDITION
                whole = self._find(connection, layout, write, now)
                failures.append((code, "the condition did not hold", whole.item))
            else:
                failures.append(None)
                steps.append(_step(layout, write, each.row, found))
        if any(failures):
            raise cancelled([each.write for each in planned if each.write], failures)
        self._carry_out(connection, steps, now)
        if token is not None:
            connection.execute(
                "INSERT OR REPLACE INTO waystation_tokens VALUES (?, ?, ?)",
                (token, fingerprint, now),
            )

    def _carry_out(self, connection: sqlite3.Connection, steps: list[Step], now: int) -> None:
        parts: dict[tuple[str, Part], list[Row]] = {}
        for layout, write, found, row, part in steps:
            if write is not None and (row is None or layout.table.stream is True):
                self._replace(connection, layout, write, found, row, now)
            elif row is not None:
                parts.setdefault((layout.table.name, part), []).append(row)
        for (name, part), rows in parts.items():
            self.layouts[name].put_parts(connection, part, rows)

    def sweep(self, layout: Layout, now: int, limit: int, connection: sqlite3.Connection) -> int:
        """Remove up to `limit` expired rows, oldest first."""
        rows = connection.execute(layout.expired, (now - IGNORED_AFTER, now, limit)).fetchall()
        connection.executemany(layout.delete, [(pk, sk) for pk, sk, _ in rows])
        if layout.table.stream is True:
            for _, _, body in rows:
                _record(connection, layout, body, None, now, by_ttl=True)
        return len(rows)

    def _bodies(
        self, connection: sqlite3.Connection, planned: list[Planned]
    ) -> dict[int, bytes | None]:
        """What the writes of a transaction find, unless they replace whatever is there."""
        wanted: dict[tuple[str, bool], tuple[Sought, list[Planned]]] = {}
        for each in planned:
            layout, write = self.layouts[each.table], each.write
            if each.was is None and (write is None or is_all_in_its_row(each, write)):
                continue
            whole = each.was is None and not _is_state_only(layout, write, None)
            place = (each.table, whole)
            if place not in wanted:
                wanted[place] = Sought(layout, whole=whole), []
            wanted[place][0].keys.append(each.key)
            wanted[place][1].append(each)
        groups = [wanted[place] for place in sorted(wanted)]
        answers = find_all(connection, [sought for sought, _ in groups]) if groups else []
        found: dict[int, bytes | None] = {}
        for (_, some), bodies in zip(groups, answers, strict=True):
            found.update(zip(map(id, some), bodies, strict=True))
        return found

    def _find(
        self, connection: sqlite3.Connection, layout: Layout, write: Write, now: int
    ) -> Found:
        return _found(layout, layout.find(connection, write.key), now)

    def _put(
        self,
        connection: sqlite3.Connection,
        layout: Layout,
        write: Write,
        row: Row,
        now: int,
    ) -> None:
        """A put that needs to know what was there only if somebody follows the changes."""
        found = _UNREAD
        if layout.table.stream is True:
            found = self._find(connection, layout, write, now)
        self._replace(connection, layout, write, found, row, now)

    def _replace(
        self,
        connection: sqlite3.Connection,
        layout: Layout,
        write: Write,
        found: Found,
        row: Row | None,
        now: int,
    ) -> None:
        body: bytes | None = None
        if row is not None:
            layout.put_all(connection, [row])
            body = row[2]
        elif found.body is not None and write.kind == "delete":
            connection.execute(layout.delete, layout.key(write.key))
        else:
            return
        if layout.table.stream is True and body != found.body:
            _record(connection, layout, found.body, body, now, by_ttl=False)


def is_all_in_its_row(planned: Planned, write: Write) -> bool:
    """Whether a write replaces whatever is there, and nobody needs to know what that was."""
    if planned.row is None or write.condition is not None:
        return False
    return write.key.spec.table.stream is not True


def _is_state_only(layout: Layout, write: Write | None, found: Found | None) -> bool:
    """Whether an update has nothing to do with what is apart. That of an expired item begins
    anew."""
    if (
        not layout.apart
        or write is None
        or write.kind != "update"
        or not write.avoids(layout.apart)
    ):
        return False
    return found is None or found.item is not None


def _step(layout: Layout, write: Write, row: Row | None, found: Found) -> Step:
    if write.kind != "update":
        return layout, write, found, row, "all"
    new = write.outcome(found.item)
    if new is None:
        return layout, write, found, None, "all"
    state_only = _is_state_only(layout, write, found)
    row = layout.state_row(write.key, new) if state_only else layout.row(write.key, new)
    if (state_only or not layout.apart) and found.item is not None:
        same = layout.derived(found.item) == list(row[3:])
        return layout, write, found, row, "body" if same else "state"
    return layout, write, found, row, "all"


def _found(layout: Layout, body: bytes | None, now: int) -> Found:
    if body is None:
        return _UNREAD
    item = values.unpack(body)
    return Found(body, None if has_expired(layout.table, item, now) else item)


def _record(
    connection: sqlite3.Connection,
    layout: Layout,
    old: bytes | None,
    new: bytes | None,
    now: int,
    *,
    by_ttl: bool,
) -> None:
    connection.execute(
        "INSERT INTO waystation_changes (table_name, at, old, new, by_ttl) VALUES (?, ?, ?, ?, ?)",
        (layout.name, now, old, new, by_ttl),
    )


def _seen_before(connection: sqlite3.Connection, token: str, fingerprint: bytes, now: int) -> bool:
    row = connection.execute(
        "SELECT fingerprint FROM waystation_tokens WHERE token=? AND at>?",
        (token, now - TOKEN_SECONDS),
    ).fetchone()
    if row is not None and row[0] != fingerprint:
        raise TokenReused("this token was used for another transaction", field="token")
    return row is not None


def _fingerprint(planned: list[Planned]) -> bytes:
    digest = hashlib.sha256()
    for each in planned:
        write, row = each.write, each.row if each.was is None else None
        assert write is not None
        expressions = Expressions()
        condition = "" if write.condition is None else expressions.condition(write.condition)
        changes = expressions.update(write.changes)
        content: dict[str, Any] = {
            "kind": write.kind,
            "key": [write.key.spec.table.name, write.key.pk, write.key.sk],
            "item": None if row is None else list(row[2:]),
            "condition": condition,
            "changes": changes,
            "names": expressions.names,
            "values": expressions.values,
        }
        digest.update(values.pack(content))
    return digest.digest()
