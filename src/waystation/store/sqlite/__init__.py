"""The embedded engine."""

from waystation.store.sqlite.engine import SqliteStore

__all__ = ["SqliteStore"]
