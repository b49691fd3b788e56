"""Opening a SQLite file: durable, with write-ahead logging, its owner's alone."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from waystation.errors import NewerFormat, StoreError, StoreUnavailable

if TYPE_CHECKING:
    from pathlib import Path

FORMAT = 3
"""Those who know of an older one only do not say when they had their turn."""

_BUSY_SECONDS = 15.0
_MMAP_BYTES = 2**31 - 65536
_PAGE_BYTES = 8192
"""Three webhooks of 2 KB fit into one of these, and one into SQLite's own 4,096: a fifth less work
for each (benchmarks/ingest.md)."""


def connect(path: Path | None) -> sqlite3.Connection:
    """A connection to a file, or to memory, durable before anything is acknowledged."""
    try:
        if path is not None:
            _create(path)
        connection = sqlite3.connect(
            ":memory:" if path is None else path,
            isolation_level=None,
            check_same_thread=False,
            timeout=_BUSY_SECONDS,
            cached_statements=512,
        )
    except (sqlite3.Error, OSError) as error:
        raise StoreUnavailable(f"{path} cannot be opened: {error}") from error
    try:
        _configure(connection)
    except sqlite3.DatabaseError as error:
        connection.close()
        raise StoreError(f"{path} cannot be opened: {error}") from error
    except StoreError:
        connection.close()
        raise
    return connection


def _create(path: Path) -> None:
    """Make a new file its owner's alone; SQLite's own files beside it follow suit.

    A file that is there already must not be touched: closing it would drop the locks that other
    connections of this process hold on it.
    """
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


def _configure(connection: sqlite3.Connection) -> None:
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > FORMAT:
        raise NewerFormat(f"the file has format {version}; this version reads up to {FORMAT}")
    connection.execute(f"PRAGMA page_size={_PAGE_BYTES}")  # of a file that is new
    _use_wal(connection)
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute(f"PRAGMA mmap_size={_MMAP_BYTES}")
    connection.execute("PRAGMA cache_size=-65536")
    connection.execute("PRAGMA wal_autocheckpoint=500")
    connection.execute("PRAGMA temp_store=MEMORY")


def _use_wal(connection: sqlite3.Connection) -> None:
    """Switch to write-ahead logging, which SQLite refuses at once while another process does."""
    deadline = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return
