"""Queries: one partition of a table or index, narrowed by the sort key; pages and cursors."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

import msgspec

from waystation.errors import InvalidCursor, InvalidRequest
from waystation.store import values
from waystation.store.templates import (
    LAST,
    MAX_PARTITION_BYTES,
    MAX_SORT_BYTES,
    KeyValue,
    Template,
    check_key,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from waystation.store.items import Item
    from waystation.store.spec import Spec
    from waystation.store.tables import Index, KeyAttribute, Table
    from waystation.store.values import RawItem

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class SortRange(msgspec.Struct, frozen=True):
    """A condition on the sort key. `high` is used by between only."""

    op: Literal["=", "<", "<=", ">", ">=", "between", "begins_with"]
    low: KeyValue
    high: KeyValue | None = None

    def holds(self, value: Any) -> bool:
        """Whether a sort key lies in it."""
        match self.op:
            case "=":
                return bool(value == self.low)
            case "<":
                return bool(value < self.low)
            case "<=":
                return bool(value <= self.low)
            case ">":
                return bool(value > self.low)
            case ">=":
                return bool(value >= self.low)
            case "between":
                return bool(self.low <= value <= self.high)
            case "begins_with":
                return bool(value.startswith(self.low))


class Page(Generic[T_co]):
    """Some of a query's items, and where to go on. No cursor means that was all.

    A page may be empty and still have a cursor: `limit` counts items before the filter.
    """

    __slots__ = ("cursor", "items")

    def __init__(self, items: Sequence[T_co], cursor: str | None) -> None:
        self.items = items
        self.cursor = cursor

    def __repr__(self) -> str:
        return f"Page({len(self.items)} items, cursor={self.cursor!r})"


class Query(Generic[T_co]):
    """Made by `SomeItem.query(...)`; narrow it with one of the methods below.

    They compare the first field of the sort key that the query's parts have not filled.
    """

    __slots__ = ("_parts", "_template", "index", "pk", "range", "specs")

    def __init__(
        self,
        specs: tuple[Spec, ...],
        index: Index | None,
        pk: KeyValue,
        template: Template | None,
        parts: tuple[object, ...],
        sort_range: SortRange | None,
    ) -> None:
        self.specs = specs
        self.index = index
        self.pk = pk
        self.range = sort_range
        self._template = template
        self._parts = parts

    @property
    def table(self) -> Table:
        return self.specs[0].table

    @property
    def pk_attribute(self) -> KeyAttribute:
        return self.table.pk if self.index is None else self.index.pk

    @property
    def sk_attribute(self) -> KeyAttribute | None:
        return self.table.sk if self.index is None else self.index.sk

    @property
    def certain(self) -> bool:
        """Whether every item found must be of the one type asked for."""
        if len(self.specs) > 1:
            return False
        if self._template is None and self.sk_attribute is not None and len(self.table.specs) > 1:
            return False  # a whole partition, whatever it holds
        return all(rival.match(self.pk) is None for rival in self.specs[0].rivals(self.index))

    def between(self, low: object, high: object) -> Query[T_co]:
        """From `low` to `high`, both included."""
        first, _ = self._bounds(low)
        _, last = self._bounds(high)
        return self._ranged(SortRange("between", first, last))

    def at_least(self, value: object) -> Query[T_co]:
        first, _ = self._bounds(value)
        return self._from(">=", first)

    def after(self, value: object) -> Query[T_co]:
        _, last = self._bounds(value)
        return self._from(">", last)

    def at_most(self, value: object) -> Query[T_co]:
        _, last = self._bounds(value)
        return self._up_to("<=", last)

    def before(self, value: object) -> Query[T_co]:
        first, _ = self._bounds(value)
        return self._up_to("<", first)

    def begins_with(self, prefix: str | bytes) -> Query[T_co]:
        """Those whose next field begins with a string, or with bytes where the key is binary."""
        if isinstance(prefix, bytes):
            return self._ranged(SortRange("begins_with", prefix))
        return self._ranged(SortRange("begins_with", self._prefix() + prefix))

    def _from(self, op: Literal[">", ">="], low: KeyValue) -> Query[T_co]:
        if (prefix := self._prefix()) == "":
            return self._ranged(SortRange(op, low))
        assert isinstance(low, str)
        return self._ranged(SortRange("between", low + "\0" if op == ">" else low, prefix + LAST))

    def _up_to(self, op: Literal["<", "<="], high: KeyValue) -> Query[T_co]:
        if (prefix := self._prefix()) == "":
            return self._ranged(SortRange(op, high))
        assert isinstance(high, str)
        return self._ranged(SortRange("between", prefix, _just_before(high) if op == "<" else high))

    def _prefix(self) -> str:
        template = self._template
        return "" if template is None or template.plain else template.prefix(self._parts)

    def _bounds(self, value: object) -> tuple[KeyValue, KeyValue]:
        if self._template is None:
            raise InvalidRequest("this query has no sort key to compare")
        if self._template.plain:
            key = self._template.render([value])
            return key, key
        return self._template.bounds(self._parts, value)

    def _ranged(self, sort_range: SortRange) -> Query[T_co]:
        attribute = self.sk_attribute
        if attribute is None:
            raise InvalidRequest("this query has no sort key to compare")
        for bound in (sort_range.low, sort_range.high):
            if bound is not None:
                check_key(attribute, bound, MAX_SORT_BYTES)
        if sort_range.op == "between" and sort_range.low > sort_range.high:  # type: ignore[operator]
            raise InvalidRequest("the bounds of between are reversed")
        if sort_range.op == "begins_with" and attribute.type == "N":
            raise InvalidRequest("begins_with does not work on numbers")
        return Query(self.specs, self.index, self.pk, self._template, self._parts, sort_range)

    def start(self, cursor: str, *, reverse: bool) -> RawItem | None:
        """The key that a cursor stands for, from which to go on; None when nothing can come after
        it. InvalidCursor unless it belongs to this query."""
        found = decode_cursor(self.table, self.index, cursor, self.pk)
        if self.range is None or self.sk_attribute is None:
            return found
        at = found[self.sk_attribute.name]
        if not self.range.holds(at):
            raise InvalidCursor("the cursor belongs to another query", field="cursor")
        last = self.range.low if reverse else self.range.high or self.range.low
        ends = self.range.op in ((">=", "between") if reverse else ("<=", "between"))
        if self.index is None and (self.range.op == "=" or (ends and at == last)):
            return None  # which DynamoDB would refuse to look for
        return found


def _just_before(text: str) -> str:
    """The last possible key before a string."""
    head, code = text[:-1], ord(text[-1])
    if code == 0:
        return head
    return head + chr(0xD7FF if code == 0xE000 else code - 1) + LAST


def item_query(spec: Spec, parts: tuple[object, ...], index_name: str | None) -> Query[Any]:
    """The query behind `SomeItem.query`."""
    index, pk_template, sk_template = None, spec.pk, spec.sk
    if index_name is not None:
        for templates in spec.indexes:
            if templates.index.name == index_name:
                index, pk_template, sk_template = templates.index, templates.pk, templates.sk
        if index is None:
            raise InvalidRequest(f"{spec.item.__name__} is not in an index {index_name}")
    taken = len(pk_template.fields)
    rest = parts[taken:]
    if len(parts) < taken or len(rest) > len(sk_template.fields if sk_template else ()):
        raise InvalidRequest(f"{spec.item.__name__}.query takes {', '.join(pk_template.fields)}")
    pk = pk_template.render(parts[:taken])
    query: Query[Any] = Query((spec,), index, pk, sk_template, rest, None)
    check_key(query.pk_attribute, pk, MAX_PARTITION_BYTES)
    if sk_template is None:
        return query
    if len(rest) == len(sk_template.fields):
        return query._ranged(SortRange("=", sk_template.render(rest)))
    if query._prefix():
        return query.begins_with("")
    return query


def partition(item_types: Sequence[type[Item]], *parts: object) -> Query[Item]:
    """All items of several types that share a partition, in the order of their sort keys."""
    specs = tuple(item.spec for item in item_types)
    pks = {spec.pk.render(parts) for spec in specs if len(spec.pk.fields) == len(parts)}
    if len(pks) != 1 or len({spec.table.name for spec in specs}) != 1:
        raise InvalidRequest("these item types do not share the partition")
    return Query(specs, None, pks.pop(), None, (), None)


def encode_cursor(table: Table, index: Index | None, last: RawItem) -> str:
    """An opaque string that stands for the last item seen."""
    names = [key.name for key in (table.pk, table.sk) if key]
    if index is not None:
        names += [key.name for key in (index.pk, index.sk) if key]
    if missing := [name for name in names if name not in last]:
        raise InvalidRequest(f"the item is not in this query: it has no {missing[0]}")
    packed = values.pack({name: last[name] for name in names})
    return base64.urlsafe_b64encode(packed).decode().rstrip("=")


def decode_cursor(table: Table, index: Index | None, cursor: str, pk: KeyValue | None) -> RawItem:
    """The key attributes in a cursor; InvalidCursor unless it fits this table, index and query."""
    wanted = {key.name: key for key in (table.pk, table.sk) if key}
    if index is not None:
        wanted |= {key.name: key for key in (index.pk, index.sk) if key}
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        found = values.unpack(base64.b64decode(padded, altchars=b"-_", validate=True))
        if found.keys() != wanted.keys():
            raise InvalidCursor("the cursor belongs to another table or index")
        for name, attribute in wanted.items():
            check_key(attribute, found[name], MAX_PARTITION_BYTES)
    except (ValueError, ArithmeticError, msgspec.MsgspecError, InvalidRequest) as error:
        raise InvalidCursor(f"the cursor is not one of ours: {error}", field="cursor") from None
    own = table.pk.name if index is None else index.pk.name
    if pk is not None and found[own] != pk:
        raise InvalidCursor("the cursor belongs to another query", field="cursor")
    return found
