"""Items as msgpack, straight from and to their structs where their types allow.

A packed item is a map of its attributes. At the top, nil means that there is no such attribute,
because that is what a struct's None means; a stored NULL is an extension.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import inspect

from waystation.errors import InvalidKey
from waystation.store import values

if TYPE_CHECKING:
    from waystation.store.items import Item
    from waystation.store.spec import Key, Spec
    from waystation.store.values import RawItem

_encode = msgspec.msgpack.Encoder().encode
_MAP = b"\xde"
"""Begins a msgpack map, followed by its length in two bytes."""

_SCALARS: dict[type, type] = {
    inspect.StrType: str,
    inspect.IntType: int,
    inspect.BoolType: bool,
    inspect.BytesType: bytes,
    inspect.NoneType: type(None),
    inspect.LiteralType: object,
}
_COMBINATIONS = 1000
_UNUSUAL = (OverflowError, UnicodeEncodeError, TypeError)
"""What packing raises where something in an item is unusual or wrong."""

_EXTENSIONS = (
    inspect.SetType,
    inspect.FrozenSetType,
    inspect.DecimalType,
    inspect.FloatType,
)


class Packing:
    """How one item type is packed."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        info = inspect.type_info(spec.item)
        assert isinstance(info, inspect.StructType)
        types = [field.type for field in info.fields]
        config = spec.item.__struct_config__
        uniform = not (config.omit_defaults or config.tag or config.array_like or spec.key_only)
        uniform = uniform and not spec.nulls
        numeric = any(key.type == "N" for key in spec.table.key_attributes())
        self._plain = uniform and not (numeric or spec.version) and all(map(_is_plain, types))
        self._count = len(types)
        self._head = _head(self._count)
        self._fields = _FieldTypes(types)
        self._stored = {key.name for key in spec.table.key_attributes()} & {*spec.names.values()}
        self._halves = _halves(spec)
        self._decoder: msgspec.msgpack.Decoder[Item] | None = None
        if not spec.key_only and not any(map(_has_extension, types)):
            self._decoder = msgspec.msgpack.Decoder(spec.item, ext_hook=values.read_extension)

    def pack(self, key: Key[Any], item: Item) -> tuple[bytes, bytes | None, RawItem] | None:
        """The packed item, what of it is apart, and its extra attributes; None when it needs to be
        packed as values."""
        if not self._plain or not self._fields.hold(item):
            return None
        try:
            body, extras = self._state(key, item)
            large = None if self._halves is None else _encode(self._halves[1].of(item))
        except _UNUSUAL:
            return None
        return body, large, extras

    def pack_revision(
        self, key: Key[Any], before: Item, after: Item
    ) -> tuple[bytes, bytes, RawItem] | None:
        """An item before and after a change, packed without what is apart, and its extra attributes
        after it; None when it needs to be packed as values, or what is apart has changed. The item
        after the change `fits`."""
        if self._halves is not None:
            values = self._halves[1].values
            if values(before) != values(after):
                return None
        try:
            was, _ = self._state(key, before)
            return was, *self._state(key, after)
        except (*_UNUSUAL, InvalidKey):  # an index may be younger than the item
            return None

    def _state(self, key: Key[Any], item: Item) -> tuple[bytes, RawItem]:
        added = extras = self._spec.extras(key, item)
        if self._stored:
            added = {name: value for name, value in extras.items() if name not in self._stored}
        if self._halves is None:
            return _with(_encode(item), self._count, self._head, added), extras
        half = self._halves[0]
        return _with(_encode(half.of(item)), half.count, half.head, added), extras

    def fits(self, item: Item) -> bool:
        """Whether an item's fields are certain to be what they are declared as."""
        return self._plain and self._fields.hold(item)

    def unpack(self, packed: bytes) -> Item:
        """A packed item as its type, in one pass where the type allows."""
        if self._decoder is not None:
            try:
                return self._decoder.decode(packed)
            except msgspec.ValidationError:
                pass  # a NULL, a number beyond 64 bits, or really unreadable: decode says which
        return self._spec.decode(values.unpack(packed))


def _head(count: int) -> int:
    """The bytes before the first of so many attributes."""
    return 1 if count < 16 else 3


def _with(packed: bytes, count: int, head: int, added: RawItem) -> bytes:
    """A packed struct with more attributes."""
    header = _MAP + (count + len(added)).to_bytes(2, "big")
    return header + packed[head:] + _encode(added)[1:]


class _Half:
    """Some fields of an item type, as a type of its own."""

    def __init__(self, spec: Spec, fields: list[str]) -> None:
        names = {field: spec.names[field] for field in fields}
        self._type: Any = msgspec.defstruct(
            f"{spec.item.__name__}Half", [(field, Any) for field in fields], rename=names, gc=False
        )
        self.values = attrgetter(*fields)
        self._single = len(fields) == 1
        self.count, self.head = len(fields), _head(len(fields))

    def of(self, item: Item) -> msgspec.Struct:
        values = self.values(item)
        half: msgspec.Struct = self._type(values) if self._single else self._type(*values)
        return half


def _halves(spec: Spec) -> tuple[_Half, _Half] | None:
    """What changes of an item type, and what is apart; None where all is together."""
    large = [field for field, name in spec.names.items() if name in spec.table.apart]
    rest = [field for field in spec.names if field not in large]
    if not 0 < len(large) < 16 or not rest:
        return None
    return _Half(spec, rest), _Half(spec, large)


class _FieldTypes:
    """Whether an item's fields have the types that they are declared with.

    A struct does not check what is assigned to it. Reading the packed item back would tell, but
    costs more than packing it; instead, each combination of types is judged once.
    """

    def __init__(self, types: list[inspect.Type]) -> None:
        self._allowed = [_python_types(info) for info in types]
        self._literals = [(n, values) for n, i in enumerate(types) if (values := _values(i))]
        self._good: set[tuple[type, ...]] = set()

    def hold(self, item: Item) -> bool:
        found = msgspec.structs.astuple(item)
        kinds = tuple(map(type, found))
        if kinds not in self._good:
            if len(kinds) != len(self._allowed):
                return False  # it is of a type that adds to this one
            if not all(map(frozenset.__contains__, self._allowed, kinds)):
                return False
            if len(self._good) < _COMBINATIONS:
                self._good.add(kinds)
        return all(found[n] in allowed for n, allowed in self._literals)


def _is_plain(info: inspect.Type) -> bool:
    """Whether msgspec packs values of a type exactly as `values.pack` would."""
    if isinstance(info, inspect.UnionType):
        return all(map(_is_plain, info.types))
    return isinstance(info, tuple(_SCALARS))


def _python_types(info: inspect.Type) -> frozenset[type]:
    """The Python types of a plain type's values."""
    if isinstance(info, inspect.UnionType):
        return frozenset().union(*map(_python_types, info.types))
    if isinstance(info, inspect.LiteralType):
        return frozenset(map(type, info.values))
    return frozenset(kind for scalar, kind in _SCALARS.items() if isinstance(info, scalar))


def _values(info: inspect.Type) -> frozenset[object]:
    """The only values that a type allows, if it says which."""
    if isinstance(info, inspect.LiteralType):
        return frozenset(info.values)
    if isinstance(info, inspect.UnionType):
        named = [_values(part) for part in info.types if not isinstance(part, inspect.NoneType)]
        if named and all(named):
            return frozenset({None}).union(*named)
    return frozenset()


def _has_extension(info: inspect.Type) -> bool:
    """Whether a type holds sets or fractions, which are msgpack extensions when packed."""
    seen: set[int] = set()
    pending: list[Any] = [info]
    while pending:
        part = pending.pop()
        if isinstance(part, _EXTENSIONS):
            return True
        if id(part) not in seen:
            seen.add(id(part))
            pending += _inside(part)
    return False


def _inside(info: inspect.Type) -> list[inspect.Type]:
    match info:
        case inspect.UnionType():
            return list(info.types)
        case inspect.CollectionType():
            return [info.item_type]
        case inspect.TupleType():
            return list(info.item_types)
        case inspect.DictType():
            return [info.key_type, info.value_type]
        case inspect.StructType():
            return [field.type for field in info.fields]
    return []
