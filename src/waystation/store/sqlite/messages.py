"""Transactions on their way to the process that writes.

Most writes are puts and revisions of plain items: those travel as their items, and whoever writes
works out the rows. Others travel with their rows, or as what has to be decided.
"""

from __future__ import annotations

import io
import pickle
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from waystation.store.actions import Write, like
from waystation.store.spec import Key, Spec
from waystation.store.sqlite.schema import Planned
from waystation.store.sqlite.transactions import LeftToSender, is_all_in_its_row

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from waystation.store.sqlite.schema import Layout
    from waystation.store.tables import Table

UNUSUAL = (TypeError, OverflowError, UnicodeEncodeError, RecursionError, pickle.PicklingError)
"""What packing raises where something cannot be sent as it is."""

_MOST_KEPT = 512
_MOST_REMEMBERED = 4_096
"""Bytes of a write that may come again."""

_Packed = bytes | tuple[bytes, list[int], bytes | None]
"""A write; or what it is like, the numbers that it adds, and its condition."""


class _Sent(msgspec.Struct, array_like=True, gc=False):
    """A write as its item after it, and before it if it is a revision."""

    spec: tuple[str, int]
    pk: Any
    sk: Any
    items: list[Any]


class _Received(msgspec.Struct, array_like=True, gc=False):
    spec: tuple[str, int]
    pk: Any
    sk: Any
    items: list[msgspec.Raw]


class _Transaction(msgspec.Struct, array_like=True, gc=False):
    """Writes of different items, so that their order does not matter."""

    number: int
    now: int
    sent: list[_Received]
    planned: list[Planned]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Transaction).decode


class _Pickler(pickle.Pickler):
    """Writes refer to what their tables declare, which all processes have."""

    def persistent_id(self, found: Any) -> tuple[str, int] | None:
        return _name(found) if type(found) is Spec else None


class _Unpickler(pickle.Unpickler):
    def __init__(self, packed: bytes, tables: Mapping[str, Table]) -> None:
        super().__init__(io.BytesIO(packed))
        self._tables = tables

    def persistent_load(self, found: tuple[str, int]) -> Spec:
        return self._tables[found[0]].specs[found[1]]


@lru_cache(maxsize=_MOST_KEPT)
def _name(spec: Spec) -> tuple[str, int]:
    """What all processes know an item type by."""
    return spec.table.name, spec.table.specs.index(spec)


def packed_transaction(
    number: int, now: int, writes: Sequence[Write], layout_of: Callable[[Table], Layout]
) -> bytes:
    """A transaction for another process; what cannot be sent raises one of `UNUSUAL`."""
    sent, planned = [], []
    for write in writes:
        layout = layout_of(write.key.spec.table)
        brief = _brief(layout, write, now)
        if brief is not None:
            sent.append(brief)
        else:
            each = layout.planned(write, now)
            needed = each.was is None and not is_all_in_its_row(each, write)
            each.write = _packed(write) if needed else None
            planned.append(each)
    return _encode((number, now, sent, planned))


def _brief(layout: Layout, write: Write, now: int) -> _Sent | None:
    """A write as its items; None if it cannot travel so."""
    key, item = write.key, write.source
    spec = key.spec
    if write.revision is not None and layout.is_quick(write, now):
        before, after = write.revision
        items = spec.packing.without_apart(after, before)
        return None if items is None else _Sent(_name(spec), key.pk, key.sk, items)
    if item is None or write.condition is not None or spec.table.stream is True:
        return None
    if not spec.packing.travels(item):
        return None
    return _Sent(_name(spec), key.pk, key.sk, [item])


def _packed(write: Write) -> _Packed:
    """A write for another process, kept with it: counters have the same ones again and again, and
    many that differ in their numbers only."""
    if write.packed is None and write.like and all(type(n) is int for n in write.like[1]):
        template, sums = write.like
        condition = None if write.condition is None else _pickled(write.condition)
        write.packed = _packed(template), sums, condition
    elif write.packed is None:
        parts = (write.kind, write.key, write.condition, write.changes, write.creates)
        write.packed = _pickled.__wrapped__(parts)
    packed: _Packed = write.packed
    return packed


@lru_cache(maxsize=_MOST_KEPT)
def _pickled(parts: Any) -> bytes:
    into = io.BytesIO()
    _Pickler(into, protocol=5).dump(parts)
    return into.getvalue()


class Reader:
    """Makes of what was sent what it was."""

    def __init__(self, layouts: Mapping[str, Layout], tables: Sequence[Table]) -> None:
        self._layouts = layouts
        self._tables = {table.name: table for table in tables}
        self._known: dict[bytes, Any] = {}

    def read(self, packed: bytes) -> _Transaction:
        return _decode(packed)

    def planned(self, asked: _Transaction) -> list[Planned]:
        """The writes of a transaction; LeftToSender where only its sender can do them."""
        planned = [self._worked_out(each, asked.now) for each in asked.sent]
        for each in asked.planned:
            if each.write is not None:
                each.write = self._unpacked(each.write)
        return planned + asked.planned

    def _worked_out(self, received: _Received, now: int) -> Planned:
        spec = self._tables[received.spec[0]].specs[received.spec[1]]
        try:
            items = [spec.packing.arrived(item) for item in received.items]
        except msgspec.ValidationError as error:
            raise LeftToSender("it is not what its type says") from error
        layout = self._layouts[spec.table.name]
        key: Key[Any] = Key(spec, received.pk, received.sk)
        if len(items) == 1:
            write = Write("put", key, None, source=items[0], creates=True)
            return Planned(spec.table.name, layout.key(key), None, layout.put_row(write))
        revised = layout.revised(key, items[1], items[0], None)
        if revised is None:
            raise LeftToSender("it is too unusual to be packed at once")
        return revised

    def _unpacked(self, packed: _Packed) -> Write:
        if isinstance(packed, bytes):
            kind, key, condition, changes, creates = self._unpickled(packed)
            return Write(kind, key, condition, given=changes, creates=creates)
        template, sums, condition = packed
        when = None if condition is None else self._unpickled(condition)
        return like(self._unpacked(template), sums, when)

    def _unpickled(self, packed: bytes) -> Any:
        known = self._known.get(packed)
        if known is None:
            known = _Unpickler(packed, self._tables).load()
            if len(packed) <= _MOST_REMEMBERED:
                if len(self._known) >= _MOST_KEPT:
                    self._known.clear()
                self._known[packed] = known
        return known
