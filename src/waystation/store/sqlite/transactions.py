"""Writes on rows. Each decides first and writes last, so a refused write leaves no trace."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from waystation.errors import (
    CancellationReason,
    ConditionFailed,
    TokenReused,
    TransactionCancelled,
)
from waystation.store import evaluate, values
from waystation.store.compile import Expressions
from waystation.store.expiry import IGNORED_AFTER, is_past

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Mapping, Sequence

    from waystation.store.actions import Write
    from waystation.store.base import Returning
    from waystation.store.sqlite.schema import Layout
    from waystation.store.values import RawItem

TOKEN_SECONDS = 600

Failure = tuple[str, str, "RawItem | None"]


class Row:
    """What is in an item's place: the packed row, and the item unless it has expired."""

    __slots__ = ("body", "item")

    def __init__(self, body: bytes | None, item: RawItem | None) -> None:
        self.body = body
        self.item = item


class RowWrites:
    """Carries out writes inside the transaction that the writer has opened."""

    def __init__(self, layouts: Mapping[str, Layout]) -> None:
        self._layouts = layouts

    def write(
        self,
        write: Write,
        packed: bytes | None,
        returning: Returning | None,
        now: int,
        failed: Callable[[Write, RawItem | None], ConditionFailed],
        connection: sqlite3.Connection,
    ) -> RawItem | None:
        """One write; returns the item before or after it if asked to."""
        layout = self._layouts[write.key.spec.table.name]
        if write.kind == "put" and write.condition is None and returning is None:
            self._put(connection, layout, write, packed, now)
            return None
        row = self._read(connection, layout, write, now)
        if write.condition is not None and not evaluate.holds(write.condition, row.item):
            raise failed(write, row.item)
        new = write.outcome(row.item)
        self._replace(connection, layout, write, row, new, packed, now)
        return row.item if returning == "old" else new if returning == "new" else None

    def write_all(
        self, pairs: list[tuple[Write, bytes | None]], now: int, connection: sqlite3.Connection
    ) -> None:
        """Unconditional puts and deletes."""
        for write, packed in pairs:
            layout = self._layouts[write.key.spec.table.name]
            if write.kind == "put":
                self._put(connection, layout, write, packed, now)
            else:
                row = self._read(connection, layout, write, now)
                self._replace(connection, layout, write, row, None, None, now)

    def transact(
        self,
        writes: list[Write],
        packed: list[bytes | None],
        token: str | None,
        now: int,
        cancelled: Callable[[Sequence[Write], Sequence[Failure | None]], TransactionCancelled],
        connection: sqlite3.Connection,
    ) -> None:
        """All of the writes or none."""
        fingerprint = b""
        if token is not None:
            fingerprint = _fingerprint(writes, packed)
            if _seen_before(connection, token, fingerprint, now):
                return
        failures: list[Failure | None] = []
        steps: list[tuple[Layout, Write, Row, RawItem | None, bytes | None]] = []
        for write, body in zip(writes, packed, strict=True):
            layout = self._layouts[write.key.spec.table.name]
            row = self._read(connection, layout, write, now)
            if write.condition is not None and not evaluate.holds(write.condition, row.item):
                code = CancellationReason.CONDITION
                failures.append((code, "the condition did not hold", row.item))
                continue
            failures.append(None)
            new = write.outcome(row.item)
            if new is not None and write.kind == "update":
                body = _packed(new)  # noqa: PLW2901
            steps.append((layout, write, row, new, body))
        if any(failures):
            raise cancelled(writes, failures)
        for layout, write, row, new, body in steps:
            if write.kind != "check":
                self._replace(connection, layout, write, row, new, body, now)
        if token is not None:
            connection.execute(
                "INSERT OR REPLACE INTO waystation_tokens VALUES (?, ?, ?)", (token, fingerprint, now)
            )

    def sweep(self, layout: Layout, now: int, limit: int, connection: sqlite3.Connection) -> int:
        """Remove up to `limit` expired rows, oldest first."""
        rows = connection.execute(layout.expired, (now - IGNORED_AFTER, now, limit)).fetchall()
        connection.executemany(layout.delete, [(pk, sk) for pk, sk, _ in rows])
        if layout.table.stream:
            for _, _, body in rows:
                _record(connection, layout, body, None, now, by_ttl=True)
        return len(rows)

    def _read(
        self, connection: sqlite3.Connection, layout: Layout, write: Write, now: int
    ) -> Row:
        found = connection.execute(layout.get, layout.key(write.key)).fetchone()
        if found is None:
            return Row(None, None)
        body, expires = found
        if expires is not None and is_past(expires, now):
            return Row(body, None)
        return Row(body, values.unpack(body))

    def _put(
        self,
        connection: sqlite3.Connection,
        layout: Layout,
        write: Write,
        packed: bytes | None,
        now: int,
    ) -> None:
        """A put that needs to know what was there only if somebody follows the changes."""
        row = Row(None, None)
        if layout.table.stream:
            row = self._read(connection, layout, write, now)
        self._replace(connection, layout, write, row, write.item, packed, now)

    def _replace(
        self,
        connection: sqlite3.Connection,
        layout: Layout,
        write: Write,
        row: Row,
        new: RawItem | None,
        packed: bytes | None,
        now: int,
    ) -> None:
        key = layout.key(write.key)
        if new is not None:
            body = _packed(new) if packed is None else packed
            connection.execute(layout.put, (*key, body, *layout.derived(new)))
        elif row.body is not None and write.kind == "delete":
            body = None
            connection.execute(layout.delete, key)
        else:
            return
        if layout.table.stream and body != row.body:
            _record(connection, layout, row.body, body, now, by_ttl=False)


def _packed(item: RawItem) -> bytes:
    body = values.pack(item)
    values.check_size(item, body)
    return body


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


def _fingerprint(writes: list[Write], packed: list[bytes | None]) -> bytes:
    digest = hashlib.sha256()
    for write, body in zip(writes, packed, strict=True):
        expressions = Expressions()
        condition = "" if write.condition is None else expressions.condition(write.condition)
        changes = expressions.update(write.changes)
        told: dict[str, Any] = {
            "kind": write.kind,
            "key": [write.key.spec.table.name, write.key.pk, write.key.sk],
            "item": body,
            "condition": condition,
            "changes": changes,
            "names": expressions.names,
            "values": expressions.values,
        }
        digest.update(values.pack(told))
    return digest.digest()
