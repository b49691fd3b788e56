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
from waystation.store.templates import compiled

if TYPE_CHECKING:
    from collections.abc import Callable

    from waystation.store.items import Item
    from waystation.store.spec import Key, Spec
    from waystation.store.templates import KeyValue

Columns = tuple[Any, ...]
"""An item's TTL, and its keys in each index of its table: None where it is in none."""

_SCALARS: dict[type, type] = {
    inspect.StrType: str,
    inspect.IntType: int,
    inspect.BoolType: bool,
    inspect.BytesType: bytes,
    inspect.NoneType: type(None),
    inspect.LiteralType: object,
}
_EMPTY: list[tuple[inspect.Type, object]] = [
    (inspect.NoneType(), None),
    (inspect.StrType(), ""),
    (inspect.BytesType(), b""),
    (inspect.IntType(), 0),
]
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
        self._plain = _is_uniform(spec) and all(map(_is_plain, types))
        self._fields = _FieldTypes(types)
        large = [field for field, name in spec.names.items() if name in spec.table.apart]
        empty = {field.name: _empty(field.type) for field in info.fields if field.name in large}
        self._nothing = {field: values[0] for field, values in empty.items() if values}
        self._can_lack_apart = len(self._nothing) == len(large)
        self._large = _packer(spec, large) if large else None
        self._values_apart = attrgetter(*large) if large else None
        self._state = _state_packer(spec, [f for f in spec.names if f not in large])
        self._decoder: msgspec.msgpack.Decoder[Item] | None = None
        if not spec.key_only and not any(map(_has_extension, types)):
            self._decoder = msgspec.msgpack.Decoder(spec.item, ext_hook=values.read_extension)

    def pack(self, key: Key[Any], item: Item) -> tuple[bytes, bytes | None, Columns] | None:
        """The packed item, what of it is apart, and what a row has beside it; None when it needs to
        be packed as values."""
        if not self._plain or not self._fields.hold(item):
            return None
        try:
            body, columns = self._state(key.pk, key.sk, item)
            large = None if self._large is None else self._large(item)
        except _UNUSUAL:
            return None
        return body, large, columns

    def pack_revision(
        self, key: Key[Any], before: Item, after: Item, was: bytes | None
    ) -> tuple[bytes, bytes, Columns] | None:
        """An item before and after a change, packed without what is apart, and what its row has
        beside it after it; None when it needs to be packed as values, or what is apart has changed.
        `was` is the item before it, where that is known. The item after the change `fits`."""
        apart = self._values_apart
        if apart is not None and apart(before) != apart(after):
            return None
        try:
            if was is None:
                was, _ = self._state(key.pk, key.sk, before)
            return was, *self._state(key.pk, key.sk, after)
        except (*_UNUSUAL, InvalidKey):  # an index may be younger than the item
            return None

    def travels(self, item: Item) -> bool:
        """Whether another process gets an item as it is."""
        return type(item) is self._spec.item and self.fits(item)

    def without_apart(self, after: Item, before: Item) -> list[Item] | None:
        """What another process needs of an item after and before a change; None where what is
        apart has changed, or they do not travel. The item after the change `fits`."""
        if not type(after) is type(before) is self._spec.item:
            return None
        apart = self._values_apart
        if apart is None:
            return [after, before]
        if not self._can_lack_apart or apart(before) != apart(after):
            return None
        replace, nothing = msgspec.structs.replace, self._nothing
        return [replace(after, **nothing), replace(before, **nothing)]

    def arrived(self, item: msgspec.Raw) -> Item:
        """An item that another process has sent; msgspec.ValidationError where it is not what its
        type says."""
        assert self._decoder is not None
        return self._decoder.decode(item)

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


def _is_uniform(spec: Spec) -> bool:
    """Whether items of a type are stored as what their structs have, with their keys beside it."""
    config = spec.item.__struct_config__
    if config.omit_defaults or config.tag or config.array_like or spec.key_only:
        return False
    attributes = [key.name for key in spec.table.key_attributes()]
    shared = len(set(attributes)) < len(attributes)
    numeric = any(key.type == "N" for key in spec.table.key_attributes())
    return not (spec.nulls or spec.version or shared or numeric)


def _packer(spec: Spec, fields: list[str]) -> Callable[[Item], bytes]:
    """A function that packs some fields of an item."""
    lines = ["def made(item):", f" return encode(Half({', '.join(f'item.{f}' for f in fields)}))"]
    return compiled(lines, _packing_names([spec.names[f] for f in fields]))  # type: ignore[no-any-return]


def _state_packer(
    spec: Spec, fields: list[str]
) -> Callable[[KeyValue, KeyValue | None, Item], tuple[bytes, Columns]]:
    """A function that packs some fields of an item with its keys, and makes the columns of them."""
    table = spec.table
    stored = set(spec.names.values())
    tests: dict[str, str] = {}
    reads: dict[str, None] = {}
    blocks: list[str] = []
    names: dict[str, Any] = {}
    packed = {spec.names[field]: f"item.{field}" for field in fields}
    packed |= {key.name: at for at, key in (("pk", table.pk), ("sk", table.sk)) if key}
    columns = ["None" if spec.ttl_field is None else f"item.{spec.ttl_field}"]
    for n, index in enumerate(table.indexes.values()):
        templates = next((each for each in spec.indexes if each.index is index), None)
        if templates is None:
            columns += ["None", "None"]
            continue
        source = templates.source(f"index{n}_", tests)
        reads |= dict.fromkeys(source.reads)
        names |= source.names
        pk, sk = f"index{n}_pk", f"index{n}_sk"
        blocks += [f" {pk} = {sk} = None", f" if not ({source.absent}):"]
        blocks += [f" {line}" for line in (*source.lines, *([] if index.sk else [f" {sk} = ''"]))]
        columns += [pk, sk]
        made = {index.pk.name: pk} | ({index.sk.name: sk} if index.sk else {})
        packed |= {name: at for name, at in made.items() if name not in stored}
    lines = ["def made(pk, sk, item):", *reads]
    lines += [f" {name} = {test}" for test, name in tests.items()]
    half = f"encode(Half({', '.join(packed.values())}))"
    lines += [*blocks, f" return {half}, ({', '.join(columns)},)"]
    return compiled(lines, names | _packing_names(list(packed)))  # type: ignore[no-any-return]


def _packing_names(attributes: list[str]) -> dict[str, Any]:
    """What a function needs to pack so many attributes."""
    fields = [f"field{n}" for n in range(len(attributes))]
    half: Any = msgspec.defstruct(
        "Half",
        [(field, Any) for field in fields],
        rename=dict(zip(fields, attributes, strict=True)),
        gc=False,
    )
    return {"encode": msgspec.msgpack.Encoder().encode, "Half": half}


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
        for n, allowed in self._literals:  # noqa: SIM110 - a generator costs more than all of this
            if found[n] not in allowed:
                return False
        return True


def _is_plain(info: inspect.Type) -> bool:
    """Whether msgspec packs values of a type exactly as `values.pack` would."""
    if isinstance(info, inspect.UnionType):
        return all(map(_is_plain, info.types))
    return isinstance(info, tuple(_SCALARS))


def _empty(info: inspect.Type) -> list[object]:
    """Small values of a type, if there are some that it is sure to allow."""
    types = info.types if isinstance(info, inspect.UnionType) else [info]
    return [value for kind, value in _EMPTY if kind in types]


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
