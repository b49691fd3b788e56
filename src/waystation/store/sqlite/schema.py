"""How tables lie in a SQLite file.

An item is one row: its key in columns that sort as DynamoDB sorts, its TTL, a pair of columns per
index, and the whole item as msgpack. Indexes are partial, so an item without the index's
attributes is not in it. What a table keeps apart lies in a second table, and the row has its number
there.
"""

from __future__ import annotations

import sqlite3
from decimal import Decimal
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from waystation.errors import (
    InvalidRequest,
    StoreUnavailable,
    TableMismatch,
)
from waystation.store import numbers, values
from waystation.store.actions import holds_unless_changed
from waystation.store.expiry import expiry
from waystation.store.sqlite.files import FORMAT
from waystation.store.sqlite.finding import MOST_ROWS, Sought, find_all

if TYPE_CHECKING:
    from waystation.store.actions import Write
    from waystation.store.items import Item
    from waystation.store.packing import Columns
    from waystation.store.spec import Key
    from waystation.store.tables import Table
    from waystation.store.values import RawItem

Row = tuple[Any, ...]
"""pk, sk, body, expires, a pair per index, and what is apart, where the table has such."""

Part = Literal["all", "state", "body"]
"""What of a row is written: all of it; what is not apart; or the packed item alone, where its TTL
and its index keys are what they were. A counter's are, and its indexes need not be touched."""


class Planned(msgspec.Struct, array_like=True, gc=False):
    """A write on its way to the writer. A put comes with its `row`; a revision with the row that it
    makes of what `was` there, should that lie there still, without what is apart. Other rows are
    built from what is found. The `write` itself is not needed where its row is all there is to it,
    whether that goes without saying or depends on what `was`. Between processes it is packed."""

    table: str
    key: tuple[Any, Any]
    write: Any
    row: tuple[Any, ...] | None = None
    was: bytes | None = None


_APPLICATION_ID = 0x57415953
_IN_NONE = (None, None)
_INT64 = 2**63

_SYSTEM = """
CREATE TABLE IF NOT EXISTS waystation_tables (name TEXT PRIMARY KEY, spec BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS waystation_tokens (
    token TEXT PRIMARY KEY, fingerprint BLOB NOT NULL, at INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS waystation_changes (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, table_name TEXT NOT NULL, at REAL NOT NULL,
    old BLOB, new BLOB, by_ttl INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS waystation_trimmed (table_name TEXT PRIMARY KEY, seq INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS waystation_changes_by_table ON waystation_changes (table_name, seq);
CREATE INDEX IF NOT EXISTS waystation_changes_by_time ON waystation_changes (at);
"""


class Layout:
    """A table's columns and the statements that use them."""

    def __init__(self, table: Table, name: str) -> None:
        self.table = table
        self.name = name
        self.quoted = quote(name)
        self.indexes = [
            (index, quote(index.name + "_pk"), quote(index.name + "_sk"))
            for index in table.indexes.values()
        ]
        self._index_pks = {index.pk.name for index in table.indexes.values()}
        self._in_no_index = [None, None] * len(table.indexes)
        self._numeric = any(key.type == "N" for key in table.key_attributes())
        self._index_names = [
            (index.pk.name, index.sk.name if index.sk else None) for index in table.indexes.values()
        ]
        self.apart = table.apart
        self.last_apart = 0
        """The highest number in the second table, or a higher one."""

        self._large = quote(f"{name}.apart")
        self.max_apart = f"(SELECT coalesce(max(id), 0) FROM {self._large})"  # noqa: S608
        derived = ["expires"] + [column for _, pk, sk in self.indexes for column in (pk, sk)]
        columns = ["pk", "sk", "body", *derived]
        whole = f"(SELECT body FROM {self._large} WHERE id={self.quoted}.large)"  # noqa: S608
        self.selected = f"body, expires, {whole}" if self.apart else "body, expires"
        """What a read asks for: its rows are for `read`."""

        where = f"FROM {self.quoted} WHERE pk=? AND sk=?"
        self.get = f"SELECT {self.selected} {where}"
        self.sought = f"(SELECT body {where})"
        self.sought_apart = f"(SELECT {whole} {where})"
        self._put_state = _put(self.quoted, columns, ["body", *derived])
        self._put_body = _put(self.quoted, ["pk", "sk", "body"], ["body"])
        self._put = self._put_state
        if self.apart:
            self._put = _put(self.quoted, [*columns, "large"], ["body", *derived, "large"])
        self.put = "".join(self._put)
        self.delete = f"DELETE FROM {self.quoted} WHERE pk=? AND sk=?"  # noqa: S608
        self.rederive = (
            f"UPDATE {self.quoted} SET {', '.join(f'{c}=?' for c in derived)} "  # noqa: S608
            "WHERE pk=? AND sk=?"
        )
        self.expired = (
            f"SELECT pk, sk, body FROM {self.quoted} "  # noqa: S608
            "WHERE expires BETWEEN ? AND ? ORDER BY expires LIMIT ?"
        )

    # Many rows are read or written in one step, because each step hands the interpreter's lock
    # back and forth with the event loop.

    def find(self, connection: sqlite3.Connection, key: Key[Any]) -> bytes | None:
        """The packed item in a place."""
        sought = Sought(self, whole=True)
        sought.keys.append(self.key(key))
        [found] = find_all(connection, [sought])
        return found[0]

    def read(self, row: tuple[Any, ...]) -> bytes:
        """The packed item of a row that was asked for as `selected`."""
        body: bytes = row[0]
        return body if len(row) == 2 or row[2] is None else values.joined(body, row[2])

    def put_all(self, connection: sqlite3.Connection, rows: list[Row]) -> None:
        """Write rows of different keys."""
        if self.apart:
            rows = self._put_apart(connection, rows)
        _insert(connection, self._put, rows)

    def put_parts(self, connection: sqlite3.Connection, part: Part, rows: list[Row]) -> None:
        """Write rows of different keys, or change a part of those that are there."""
        if part == "all":
            self.put_all(connection, rows)
        elif part == "state":
            _insert(connection, self._put_state, rows)
        else:
            _insert(connection, self._put_body, [row[:3] for row in rows])

    def _put_apart(self, connection: sqlite3.Connection, rows: list[Row]) -> list[Row]:
        """Write what of these rows is apart; the rows with its numbers."""
        last = self.last_apart
        numbered: list[Row] = []
        large: list[Row] = []
        for row in rows:
            number = None
            if row[-1] is not None:
                number = last = last + 1
                large.append((number, row[-1]))
            numbered.append((*row[:-1], number))
        self.last_apart = last
        head = f"INSERT INTO {self._large} VALUES "  # noqa: S608
        _insert(connection, (head, "(?, ?)", ""), large)
        return numbered

    def key(self, key: Key[Any]) -> tuple[Any, Any]:
        if self._numeric:
            return column(key.pk), "" if key.sk is None else column(key.sk)
        return key.pk, "" if key.sk is None else key.sk

    def index_columns(self, name: str) -> tuple[str, str]:
        for index, pk, sk in self.indexes:
            if index.name == name:
                return pk, sk
        raise InvalidRequest(f"table {self.table.name} was opened without an index {name}")

    def row(self, key: Key[Any], item: RawItem) -> Row:
        """The row of an item."""
        if not self.apart:
            body = values.pack(item)
            values.check_size(item, body)
            return (*self.key(key), body, *self.derived(item))
        large = {name: item[name] for name in self.apart if name in item}
        values.check_size(item, values.pack(item))
        rest = {name: value for name, value in item.items() if name not in self.apart}
        return (*self.state_row(key, rest), values.pack(large) if large else None)

    def state_row(self, key: Key[Any], item: RawItem) -> Row:
        """The row of an item that was found without what is apart. (All of an item may lie in its
        row: it was written before anything was put apart.)"""
        return (*self.key(key), values.pack(item), *self.derived(item))

    def put_row(self, write: Write) -> Row | None:
        """The row of a put, packed straight from its struct where the type allows."""
        source = write.source
        if source is None:
            return None
        spec = write.key.spec
        packed = spec.packing.pack(write.key, source)
        if packed is None or len(packed[0]) + len(packed[1] or b"") > values.SURELY_SMALL:
            assert write.item is not None
            row = self.row(write.key, write.item)  # which says so if it is too large
            if packed is None:
                return row
        body, large, columns = packed
        write.state = body
        row = (*self.key(write.key), body, *_storable(columns))
        return (*row, large) if self.apart else row

    def planned(self, write: Write, now: int) -> Planned:
        """A write, with its row as far as that can be told before the transaction."""
        table, key = self.table.name, self.key(write.key)
        if write.revision is None:
            row = None if write.source is None else self.put_row(write)
            return Planned(table, key, write, row)
        if not self.is_quick(write, now):
            return Planned(table, key, write)
        revised = self.revised(write.key, *write.revision, write.was)
        if revised is None:
            return Planned(table, key, write)
        assert revised.row is not None
        revised.write, write.state = write, revised.row[2]
        return revised

    def is_quick(self, write: Write, now: int) -> bool:
        """Whether a revision is sure to be done if the item lies as it was read."""
        assert write.revision is not None
        if self.table.stream is True or write.key.spec.is_past(write.revision[0], now):
            return False
        return holds_unless_changed(write)

    def revised(
        self, key: Key[Any], before: Item, after: Item, was: bytes | None
    ) -> Planned | None:
        """A revision of what lies as it was before it; None where it cannot be packed at once."""
        packed = key.spec.packing.pack_revision(key, before, after, was)
        if packed is None or len(packed[1]) > values.SURELY_SMALL:
            return None
        was, body, columns = packed
        place = self.key(key)
        return Planned(self.table.name, place, None, (*place, body, *_storable(columns)), was)

    def derived(self, raw: RawItem) -> list[Any]:
        """The columns that are computed from the item: its TTL and its index keys."""
        found: list[Any] = [_expires(expiry(self.table, raw))]
        if self._index_pks.isdisjoint(raw):
            return found + self._in_no_index
        for pk_name, sk_name in self._index_names:
            pk = raw.get(pk_name)
            sk = "" if sk_name is None or pk is None else raw.get(sk_name)
            if pk is None or sk is None:
                found += _IN_NONE
            elif self._numeric:
                found += (column(pk), column(sk))
            else:
                found += (pk, sk)
        return found

    def create(self, connection: sqlite3.Connection) -> None:
        """Create the table, or bring its indexes up to what is declared. Runs in a transaction."""
        found = self._found(connection)
        if found is None:
            connection.execute(
                f"CREATE TABLE {self.quoted} (pk NOT NULL, sk NOT NULL, body BLOB NOT NULL, "
                "expires, PRIMARY KEY (pk, sk))"
            )
        elif found["key"] != self._description()["key"]:
            raise TableMismatch(f"table {self.name} exists with another key")
        elif found == self._description():
            return
        if self.apart:
            self._create_apart(connection)
        self._create_indexes(connection)
        if found is not None:
            self._rederive(connection)
        connection.execute(
            "INSERT OR REPLACE INTO waystation_tables VALUES (?, ?)",
            (self.name, msgspec.msgpack.encode(self._description())),
        )

    def verify(self, connection: sqlite3.Connection) -> None:
        """Refuse to go on once the table is no longer as it was declared here."""
        if self._found(connection) != self._description():
            raise TableMismatch(
                f"table {self.name} was changed by another process: open the file again"
            )

    def _found(self, connection: sqlite3.Connection) -> dict[str, Any] | None:
        """How the file describes the table, if it has it."""
        row = connection.execute(
            "SELECT spec FROM waystation_tables WHERE name=?", (self.name,)
        ).fetchone()
        return None if row is None else msgspec.msgpack.decode(row[0], type=dict[str, Any])

    def _description(self) -> dict[str, Any]:
        def describe(key: Any) -> list[str] | None:
            return None if key is None else [key.name, key.type]

        table = self.table
        return {
            "key": [describe(table.pk), describe(table.sk)],
            "ttl": table.ttl,
            "indexes": [[i.name, describe(i.pk), describe(i.sk)] for i, _, _ in self.indexes],
            **({"apart": sorted(self.apart)} if self.apart else {}),
        }

    def _create_apart(self, connection: sqlite3.Connection) -> None:
        """The second table. What is replaced or removed there goes with its row."""
        present = {row[1] for row in connection.execute(f"PRAGMA table_info({self.quoted})")}
        if "large" not in present:
            connection.execute(f"ALTER TABLE {self.quoted} ADD COLUMN large INTEGER")
        connection.execute(
            f"CREATE TABLE IF NOT EXISTS {self._large} (id INTEGER PRIMARY KEY, body BLOB NOT NULL)"
        )
        gone = f"BEGIN DELETE FROM {self._large} WHERE id=old.large; END"  # noqa: S608
        for event, when in (
            ("DELETE", "old.large IS NOT NULL"),
            ("UPDATE OF large", "old.large IS NOT NULL AND old.large IS NOT new.large"),
        ):
            name = quote(f"{self.name}.apart {event.split()[0].lower()}")
            connection.execute(
                f"CREATE TRIGGER IF NOT EXISTS {name} AFTER {event} ON {self.quoted} "
                f"WHEN {when} {gone}"
            )

    def _create_indexes(self, connection: sqlite3.Connection) -> None:
        present = {row[1] for row in connection.execute(f"PRAGMA table_info({self.quoted})")}
        for index, pk, sk in self.indexes:
            for suffix, name in (("_pk", pk), ("_sk", sk)):
                if index.name + suffix not in present:
                    connection.execute(f"ALTER TABLE {self.quoted} ADD COLUMN {name}")
            connection.execute(
                f"CREATE INDEX IF NOT EXISTS {quote(f'{self.name}.{index.name}')} "
                f"ON {self.quoted} ({pk}, {sk}, pk, sk) WHERE {pk} IS NOT NULL"
            )
        if self.table.ttl is not None:
            connection.execute(
                f"CREATE INDEX IF NOT EXISTS {quote(self.name + '.expires')} "
                f"ON {self.quoted} (expires) WHERE expires IS NOT NULL"
            )

    def _rederive(self, connection: sqlite3.Connection) -> None:
        """Compute the derived columns of every row again, after a change of declaration."""
        rows = connection.execute(f"SELECT pk, sk, body FROM {self.quoted}")  # noqa: S608
        while batch := rows.fetchmany(500):
            connection.executemany(
                self.rederive, [(*self.derived(values.unpack(b)), pk, sk) for pk, sk, b in batch]
            )


def create_all(connection: sqlite3.Connection, layouts: list[Layout]) -> None:
    """Create or check every table, in one transaction, alone among processes."""
    try:
        connection.execute("BEGIN IMMEDIATE")
        try:
            for statement in filter(str.strip, _SYSTEM.split(";")):
                connection.execute(statement)
            for layout in layouts:
                layout.create(connection)
            connection.execute(f"PRAGMA application_id={_APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version={FORMAT}")
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise
    except sqlite3.Error as error:
        raise StoreUnavailable(f"the tables could not be created: {error}") from error


def _put(table: str, columns: list[str], changed: list[str]) -> tuple[str, str, str]:
    """The parts of a statement that writes any number of rows."""
    sets = ", ".join(f"{c}=excluded.{c}" for c in changed)
    return (
        f"INSERT INTO {table} ({', '.join(columns)}) VALUES ",  # noqa: S608
        f"({', '.join('?' * len(columns))})",
        f" ON CONFLICT (pk, sk) DO UPDATE SET {sets}",
    )


def _insert(
    connection: sqlite3.Connection, statement: tuple[str, str, str], rows: list[Row]
) -> None:
    head, row_values, tail = statement
    for start in range(0, len(rows), MOST_ROWS):
        part = rows[start : start + MOST_ROWS]
        sql = head + ", ".join([row_values] * len(part)) + tail
        connection.execute(sql, list(chain.from_iterable(part)))


def quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def column(value: Any) -> Any:
    """A key value as a column that sorts as DynamoDB sorts."""
    kind = type(value)
    return numbers.order_key(value) if kind is int or kind is Decimal else value


def _storable(columns: Columns) -> Columns:
    """What a row has beside its item, as SQLite can hold it."""
    expires = columns[0]
    if expires is None or (type(expires) is int and -_INT64 < expires < _INT64):
        return columns
    return (_expires(expires), *columns[1:])


def _expires(found: object) -> int | float | None:
    """A TTL as SQLite can hold it. Those that matter are small enough to be exact."""
    if type(found) is int and -_INT64 < found < _INT64:
        return found
    return float(found) if type(found) is int or type(found) is Decimal else None
