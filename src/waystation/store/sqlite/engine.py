"""The store on SQLite."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from waystation.errors import InvalidRequest, StoreUnavailable
from waystation.store import evaluate, values
from waystation.store.base import Returning, Store, check_page, pick_spec, resolve_filter
from waystation.store.expiry import IGNORED_AFTER, is_past
from waystation.store.feed import checkpoints
from waystation.store.items import Item
from waystation.store.queries import Page, Query, decode_cursor, encode_cursor
from waystation.store.sqlite import upkeep
from waystation.store.sqlite.feed import SqliteFeed
from waystation.store.sqlite.files import connect
from waystation.store.sqlite.schema import Layout, create_all
from waystation.store.sqlite.select import query_statement, scan_statement
from waystation.store.sqlite.sharing import Clerk, Link
from waystation.store.sqlite.transactions import RowWrites, check_bytes
from waystation.store.sqlite.turns import Turns
from waystation.store.sqlite.writer import Writer

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from pathlib import Path

    from waystation.clock import Clock
    from waystation.store.actions import Write
    from waystation.store.expressions import Condition
    from waystation.store.feed import ChangeFeed
    from waystation.store.spec import Key, Spec
    from waystation.store.tables import Index, Table
    from waystation.store.values import RawItem

I = TypeVar("I", bound=Item)  # noqa: E741 - I for Item

PAGE_BYTES = 1024 * 1024
_YIELD_EVERY = 100
_ROWS_AT_ONCE = 64
_WRITES_PER_JOB = 100


class SqliteStore(Store):
    """One file, or memory when there is no path.

    Reads run where they are called: a hop to another thread costs ten times the read. Writes go
    through one thread that commits many at once. Embedded queues share the file, the `writer` and
    the `reader`.
    """

    near = True
    most_together = 2_000

    def __init__(
        self,
        path: Path | None,
        tables: Sequence[Table],
        *,
        env: str,
        clock: Clock,
        names: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__([*tables, checkpoints], env=env, clock=clock, names=names)
        self.path = path
        self._layouts = {t.name: Layout(t, self.table_name(t)) for t in self.tables}
        connection = connect(path)
        turns = None if path is None else Turns(path)
        try:
            with turns or nullcontext():
                create_all(connection, list(self._layouts.values()))
        except BaseException:
            connection.close()
            if turns is not None:
                turns.close()
            raise
        self._rows = RowWrites(self._layouts)
        self.reader = connection if path is None else connect(path)
        self._schema: int | None = None
        self.writer = Writer(connection, self._look_again, turns)
        self._link: Link | None = None

    def _look_again(self, connection: sqlite3.Connection) -> None:
        """After another process may have written: learn what has changed, and refuse to write rows
        of an old shape if it was the tables."""
        apart = [layout for layout in self._layouts.values() if layout.apart]
        asked = ", ".join(["schema_version", *(layout.max_apart for layout in apart)])
        sql = f"SELECT {asked} FROM pragma_schema_version"  # noqa: S608
        schema, *numbers = connection.execute(sql).fetchone()
        for layout, number in zip(apart, numbers, strict=True):
            layout.last_apart = number
        if schema != self._schema:
            for layout in self._layouts.values():
                layout.verify(connection)
            self._schema = schema

    async def ensure_tables(self) -> None:
        """Opening the file has created and checked them."""

    def share(self, meeting: socket.socket) -> None:
        """Have another process write, as far as one comes to the meeting place to do so. What is
        written at the same time is then in no order."""
        self._link = Link(meeting)

    @property
    def writes_here(self) -> bool:
        return not self.is_shared

    @property
    def pipelined(self) -> bool:
        return self.is_shared

    @property
    def is_shared(self) -> bool:
        """Whether another process writes for this one now."""
        return self._link is not None and self._link.open

    async def write_for_others(self, meeting: socket.socket, stopping: asyncio.Event) -> None:
        """Be that process, until told to stop and all others have gone."""
        await Clerk(self.writer, self._rows, self.tables).work(meeting, stopping)

    async def close(self) -> None:
        if self._link is not None:
            await self._link.close()
        await self.writer.close()
        self.reader.close()

    async def backup(self, target: Path) -> None:
        """Write a consistent copy of the whole file while reads and writes go on."""
        if self.path is None:
            raise InvalidRequest("a store in memory has no file to copy")
        await asyncio.to_thread(upkeep.copy_file, self.path, target)

    async def long_read(self, sql: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """The rows of a read that takes too long for the event loop."""
        if self.path is None:
            return self.reader.execute(sql, values).fetchall()
        return await asyncio.to_thread(upkeep.read_rows, self.path, sql, values)

    # Reading

    async def get(self, key: Key[I], *, consistent: bool = True, expired: bool = False) -> I | None:
        return self._get(key, expired)

    def _get(self, key: Key[I], expired: bool) -> I | None:
        layout = self._layout(key.spec.table)
        try:
            row = self.reader.execute(layout.get, layout.key(key)).fetchone()
        except sqlite3.Error as error:
            raise StoreUnavailable(f"the read failed: {error}") from error
        if row is None or (row[1] is not None and not expired and is_past(row[1], self.now())):
            return None
        item: I = key.spec.packing.unpack(layout.read(row))  # type: ignore[assignment]
        return item

    async def batch_get(self, keys: Sequence[Key[I]], *, consistent: bool = True) -> list[I | None]:
        found: list[I | None] = []
        for n, key in enumerate(keys, start=1):
            found.append(self._get(key, expired=False))
            if n % _YIELD_EVERY == 0:
                await asyncio.sleep(0)
        return found

    async def query(
        self,
        query: Query[I],
        *,
        limit: int | None = None,
        after: str | None = None,
        reverse: bool = False,
        where: Condition | None = None,
        consistent: bool | None = None,
        expired: bool = False,
    ) -> Page[I]:
        check_page(query, limit, consistent)
        table, index = query.table, query.index
        start = None if after is None else query.start(after, reverse=reverse)
        if after is not None and start is None:
            return Page([], None)
        sql, arguments = query_statement(self._layout(table), query, start, reverse)
        wanted = _reader_of(query.specs, query.certain, resolve_filter(query, where))
        return self._page(self._layout(table), sql, arguments, limit, index, wanted, expired)

    async def scan(
        self,
        item: type[I],
        *,
        limit: int | None = None,
        after: str | None = None,
        where: Condition | None = None,
        expired: bool = False,
    ) -> Page[I]:
        check_page(None, limit, None)
        spec = item.spec
        start = None if after is None else decode_cursor(spec.table, None, after, None)
        sql, arguments = scan_statement(self._layout(spec.table), start)
        condition = None if where is None else where.resolve(spec)
        wanted = _reader_of((spec,), len(spec.table.specs) == 1, condition)
        layout = self._layout(spec.table)
        return self._page(layout, sql, arguments, limit, None, wanted, expired)

    def _page(
        self,
        layout: Layout,
        sql: str,
        arguments: list[Any],
        limit: int | None,
        index: Index | None,
        wanted: Callable[[bytes], Item | None],
        expired: bool,
    ) -> Page[Any]:
        now = self.now()
        found: list[Item] = []
        size, count, body = 0, 0, b""
        try:
            rows = self.reader.cursor()
        except sqlite3.Error as error:
            raise StoreUnavailable(f"the read failed: {error}") from error
        try:
            rows.execute(sql, [*arguments, -1 if limit is None else limit])
            while size < PAGE_BYTES and (chunk := rows.fetchmany(_ROWS_AT_ONCE)):
                for row in chunk:
                    body, expires = layout.read(row), row[1]
                    count += 1
                    size += len(body)
                    if expires is None or expired or not is_past(expires, now):
                        item = wanted(body)
                        if item is not None:
                            found.append(item)
                    if size >= PAGE_BYTES:
                        break
        except sqlite3.Error as error:
            raise StoreUnavailable(f"the read failed: {error}") from error
        finally:
            rows.close()  # an open statement would hold later reads to this moment's state
        if size < PAGE_BYTES and count != limit:
            return Page(found, None)
        return Page(found, encode_cursor(layout.table, index, values.unpack(body)))

    async def count(self, query: Query[Any], *, where: Condition | None = None) -> int:
        if where is not None or not query.certain or self.path is None:
            return await super().count(query, where=where)
        sql, arguments = query_statement(self._layout(query.table), query, None, reverse=False)
        now = self.now()
        counting = (
            f"SELECT count(*) FROM ({sql}) "  # noqa: S608
            "WHERE expires IS NULL OR expires NOT BETWEEN ? AND ?"
        )
        rows = await self.long_read(counting, (*arguments, -1, now - IGNORED_AFTER, now))
        return int(rows[0][0])

    # Writing

    def _write(self, write: Write, returning: Returning | None) -> Awaitable[RawItem | None]:
        table = write.key.spec.table
        layout = self._layout(table)
        row = layout.put_row(write)
        plain = table.stream is not True and not table.apart
        if row and write.condition is None and returning is None and plain:
            return self.writer.execute(layout.put, row)
        job = partial(self._rows.write, write, row, returning, self.now(), self._failed)
        return self.writer.run(job)

    async def _transact(self, writes: list[Write], token: str | None) -> None:
        now = self.now()
        link = self._link if token is None else None
        if link is not None and link.ready and await link.write(writes, now, self._layout):
            return
        planned = [self._layout(write.key.spec.table).planned(write, now) for write in writes]
        check_bytes(planned)
        job = partial(self._rows.transact, planned, token, now, self._cancelled)
        await self.writer.run(job)

    async def _batch_write(self, writes: list[Write]) -> None:
        pairs = [(write, self._layout(write.key.spec.table).put_row(write)) for write in writes]
        jobs = []
        for start in range(0, len(pairs), _WRITES_PER_JOB):
            part = pairs[start : start + _WRITES_PER_JOB]
            jobs.append(self.writer.run(partial(self._rows.write_all, part, self.now())))
        await asyncio.gather(*jobs)

    # Upkeep

    def follows(self, table: Table) -> bool:
        return table.stream is True

    def _feed(self, table: Table, consumer: str) -> ChangeFeed:
        return SqliteFeed(self, self.reader, table, consumer)

    async def sweep(self, limit: int = 500) -> int:
        """Remove up to `limit` expired items per table, and what feeds no longer keep."""
        removed = 0
        now = self.now()
        for layout in self._layouts.values():
            if layout.table.ttl is not None:
                removed += await self.writer.run(partial(self._rows.sweep, layout, now, limit))
        while await self.writer.run(partial(upkeep.trim, now=now, limit=limit)) == limit:
            pass
        return removed

    def _layout(self, table: Table) -> Layout:
        try:
            return self._layouts[table.name]
        except KeyError:
            raise InvalidRequest(f"this store has no table {table.name}") from None


def _reader_of(
    specs: Sequence[Spec], certain: bool, condition: Condition | None
) -> Callable[[bytes], Item | None]:
    """Reads a packed item, unless it is of another type or the filter refuses it."""
    if certain and condition is None:
        return specs[0].packing.unpack

    def wanted(body: bytes) -> Item | None:
        raw = values.unpack(body)
        spec = specs[0] if certain else pick_spec(specs, raw)
        if spec is None or (condition is not None and not evaluate.holds(condition, raw)):
            return None
        return spec.decode(raw)

    return wanted
