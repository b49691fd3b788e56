"""The change feed of the embedded engine: a log table, written with the change itself."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any

from waystation.errors import StoreUnavailable
from waystation.store import values
from waystation.store.feed import CHECKPOINT_SECONDS, Change, ChangeFeed, Checkpoint, typed_changes

if TYPE_CHECKING:
    from waystation.store.actions import Check
    from waystation.store.base import Store
    from waystation.store.tables import Table

_SHARD = "0"


class SqliteFeed(ChangeFeed):
    def __init__(
        self, store: Store, connection: sqlite3.Connection, table: Table, consumer: str
    ) -> None:
        super().__init__(store, table, consumer)
        self._store = store
        self._connection = connection
        self._name = store.table_name(table)
        self._position: int | None = None
        self._committed: int | None = None

    async def read(self, limit: int = 100) -> list[Change]:
        if self._position is None:
            self._position = self._committed = await self._resume()
        elif self._trimmed() > self._position:
            self.lost = True
        rows = self._select(
            "SELECT seq, at, old, new, by_ttl FROM waystation_changes "
            "WHERE table_name=? AND seq>? ORDER BY seq LIMIT ?",
            (self._name, self._position, limit),
        )
        self.moved = bool(rows)
        found: list[Change] = []
        for seq, at, old, new, by_ttl in rows:
            before = None if old is None else values.unpack(old)
            after = None if new is None else values.unpack(new)
            found += typed_changes(self.table, str(seq), before, after, at, bool(by_ttl))
            self._position = seq
        return found

    async def _resume(self) -> int:
        key = Checkpoint.key(self.table.name, self.consumer, _SHARD)
        checkpoint = await self._store.get(key)
        if checkpoint is None or checkpoint.sequence is None:
            # What came before a consumer is not its loss.
            return self._last() if self.from_now else self._trimmed()
        position = int(checkpoint.sequence)
        self.lost = self._trimmed() > position
        return position

    def _last(self) -> int:
        """The last change of all."""
        rows = self._select("SELECT max(seq) FROM waystation_changes", ())
        return max(int(rows[0][0] or 0), self._trimmed())

    def _trimmed(self) -> int:
        """The last change that is no longer kept."""
        rows = self._select("SELECT seq FROM waystation_trimmed WHERE table_name=?", (self._name,))
        return int(rows[0][0]) if rows else 0

    def _select(self, sql: str, arguments: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        try:
            return self._connection.execute(sql, arguments).fetchall()
        except sqlite3.Error as error:
            raise StoreUnavailable(f"the read failed: {error}") from error

    async def commit(self, *guards: Check[Any]) -> None:
        reached = self._position
        if reached == self._committed:
            return
        position = Checkpoint(
            table=self.table.name,
            consumer=self.consumer,
            shard=_SHARD,
            sequence=str(reached),
            expires_at=self._store.now() + CHECKPOINT_SECONDS,
        )
        await self._save([position], guards)
        self._committed = reached
