"""Work on the file that does not belong on the event loop, and trimming."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

from waystation.errors import StoreUnavailable
from waystation.store.feed import RETENTION_SECONDS
from waystation.store.sqlite.files import connect
from waystation.store.sqlite.transactions import TOKEN_SECONDS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def copy_file(source: Path, target: Path) -> None:
    """Write a consistent copy; `target` appears only when it is complete and durable."""
    partial = target.with_name(target.name + ".partial")
    partial.unlink(missing_ok=True)
    try:
        with closing(connect(source)) as connection:
            connection.execute("VACUUM INTO ?", (str(partial),))
        with partial.open("rb+") as copied:
            os.fsync(copied.fileno())
        partial.replace(target)
        _sync_directory(target.parent)
    except (sqlite3.Error, OSError) as error:
        partial.unlink(missing_ok=True)
        raise StoreUnavailable(f"the backup failed: {error}") from error


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_rows(path: Path, sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
    """The rows of a long read."""
    try:
        with closing(connect(path)) as connection:
            return connection.execute(sql, values).fetchall()
    except sqlite3.Error as error:
        raise StoreUnavailable(f"the read failed: {error}") from error


def trim(connection: sqlite3.Connection, *, now: int, limit: int) -> int:
    """Forget changes and transaction tokens that are no longer promised; how many changes."""
    rows = connection.execute(
        "SELECT seq, table_name FROM waystation_changes WHERE at<? ORDER BY at, seq LIMIT ?",
        (now - RETENTION_SECONDS, limit),
    ).fetchall()
    connection.executemany(
        "DELETE FROM waystation_changes WHERE seq=?", [(seq,) for seq, _ in rows]
    )
    connection.executemany(
        "INSERT INTO waystation_trimmed VALUES (?2, ?1) "
        "ON CONFLICT (table_name) DO UPDATE SET seq=max(seq, excluded.seq)",
        rows,
    )
    connection.execute(
        "DELETE FROM waystation_tokens WHERE token IN "
        "(SELECT token FROM waystation_tokens WHERE at<=? LIMIT ?)",
        (now - TOKEN_SECONDS, 10 * limit),
    )
    return len(rows)
