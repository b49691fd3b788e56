"""What an item type declares: how its keys are made, and how it is stored and read."""

from __future__ import annotations

import re
from functools import cached_property
from operator import attrgetter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, get_args, get_origin

import msgspec

from waystation.errors import DeclarationError, InvalidRequest, UnreadableItem
from waystation.store import values
from waystation.store.expiry import is_past
from waystation.store.foreign import mended
from waystation.store.packing import Packing
from waystation.store.templates import (
    MAX_PARTITION_BYTES,
    MAX_SORT_BYTES,
    KeySource,
    KeyValue,
    Template,
    check_key,
    compiled,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from waystation.store.foreign import Mend
    from waystation.store.items import Item
    from waystation.store.tables import Index, Table
    from waystation.store.values import RawItem

T_co = TypeVar("T_co", covariant=True)

_ATTRIBUTE = re.compile(r"(?:`\$\.|field `)([^.\[`]+)")


class Key(msgspec.Struct, Generic[T_co], eq=False, gc=False):
    """Where an item lives. Made by `SomeItem.key(...)` or `key_of(item)`."""

    spec: Spec
    pk: KeyValue
    sk: KeyValue | None

    def attributes(self) -> RawItem:
        """The key as the table's attributes."""
        table = self.spec.table
        found: RawItem = {table.pk.name: self.pk}
        if table.sk is not None:
            found[table.sk.name] = self.sk
        return found

    @property
    def place(self) -> tuple[str, KeyValue, KeyValue | None]:
        return (self.spec.table.name, self.pk, self.sk)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and self.place == other.place

    def __hash__(self) -> int:
        return hash(self.place)

    def __repr__(self) -> str:
        return f"Key({self.spec.table.name}, {self.pk!r}, {self.sk!r})"


class IndexTemplates:
    """An index and the templates that make an item's keys in it."""

    __slots__ = ("add_to", "computed", "fields", "index", "pk", "sk")

    def __init__(
        self, index: Index, pk: Template, sk: Template | None, stored: Collection[str]
    ) -> None:
        self.computed = [
            key.name for key in (index.pk, index.sk) if key is not None and key.name not in stored
        ]
        """The index keys that are no fields themselves."""

        self.index = index
        self.pk = pk
        self.sk = sk
        self.fields = frozenset(pk.fields) | frozenset(sk.fields if sk else ())
        self.add_to: Callable[[RawItem, Item], None] = self._adding()
        """Adds an item's index attributes, unless a field that they need is None."""

    def source(self, prefix: str = "", tests: dict[str, str] | None = None) -> KeySource:
        """How to make the keys, by names that begin with `prefix`."""
        keys = [(f"{prefix}pk", self.index.pk, self.pk, MAX_PARTITION_BYTES)]
        if self.index.sk is not None and self.sk is not None:
            keys.append((f"{prefix}sk", self.index.sk, self.sk, MAX_SORT_BYTES))
        return KeySource(keys, tests)

    def _adding(self) -> Callable[[RawItem, Item], None]:
        source, index = self.source(), self.index
        lines = [*source.reads, f" if {source.absent}: return", *source.lines]
        lines.append(f" raw[{index.pk.name!r}] = pk")
        if index.sk is not None:
            lines.append(f" raw[{index.sk.name!r}] = sk")
        return compiled(["def made(raw, item):", *lines], source.names)  # type: ignore[no-any-return]

    def render(self, fields: Mapping[str, object]) -> RawItem:
        """The index attributes of these fields, none of which is None."""
        raw: RawItem = {}
        self.add_to(raw, SimpleNamespace(**fields))  # type: ignore[arg-type]
        return raw


class Spec:
    """What an item type declares, ready for use by the engines."""

    def __init__(
        self,
        item: type[Item],
        table: Table,
        pk: str,
        sk: str | None,
        indexes: Mapping[str, tuple[str, str] | str],
        key_only: tuple[str, ...],
        version: str | None,
        mend: Mend | None = None,
        nulls: tuple[str, ...] = (),
    ) -> None:
        self.item = item
        self.nulls = frozenset(nulls)
        self._mend = mend
        self.table = table
        self.pk = Template(pk)
        self.sk = None if sk is None else Template(sk)
        self.key_fields = self.pk.fields + (self.sk.fields if self.sk else ())
        self.key_only = frozenset(key_only)
        self.version = version
        self._encoded = dict(
            zip(item.__struct_fields__, item.__struct_encode_fields__, strict=True)
        )
        self.names = {f: name for f, name in self._encoded.items() if f not in self.key_only}
        """Field to attribute name, for the fields that are stored."""
        self.indexes = [self._index(name, key) for name, key in indexes.items()]
        self.ttl_field = next((f for f, n in self.names.items() if n == table.ttl), None)
        self._attributes = [
            (self.names.get(field), field in self.nulls) for field in item.__struct_fields__
        ]
        self._pk_name, self._sk_name = table.pk.name, table.sk.name if table.sk else None
        self._index_fields = [
            (attribute, field, limit)
            for index in table.indexes.values()
            for attribute, limit in ((index.pk, MAX_PARTITION_BYTES), (index.sk, MAX_SORT_BYTES))
            for field, name in self.names.items()
            if attribute is not None and attribute.name == name
        ]
        """The fields that are index keys themselves."""

        self._rivals: dict[tuple[str | None, int], list[Template]] = {}
        self.parts_of = _getter(self.key_fields)
        self._check()
        self._make_pk = self.pk.maker(table.pk, MAX_PARTITION_BYTES)
        self._make_sk = self.sk.maker(table.sk, MAX_SORT_BYTES) if self.sk and table.sk else None
        self.key_of: Callable[[Item], Key[Any]] = self._placing()
        """Where an item lives."""

        self._key_names = {self._encoded[field] for field in self.key_fields}

    def _index(self, name: str, key: tuple[str, str] | str) -> IndexTemplates:
        index = self.table.indexes.get(name)
        if index is None:
            raise DeclarationError(f"{self.item.__name__}: table {self.table.name} has no {name}")
        pk, sk = (key, None) if isinstance(key, str) else key
        if (sk is None) != (index.sk is None):
            raise DeclarationError(
                f"{self.item.__name__}: index {name} and its key differ in shape"
            )
        stored = self.names.values()
        return IndexTemplates(index, Template(pk), None if sk is None else Template(sk), stored)

    def _check(self) -> None:
        who = self.item.__name__
        known = set(self.item.__struct_fields__)
        used = set(self.key_fields).union(*(templates.fields for templates in self.indexes))
        if missing := (used | self.key_only | self.nulls | ({self.version} - {None})) - known:
            raise DeclarationError(f"{who} has no field {min(map(str, missing))}")
        if keyed := self.nulls & used:
            raise DeclarationError(f"{who}: {min(keyed)} is part of a key and cannot be NULL")
        if len(set(self.key_fields)) != len(self.key_fields):
            raise DeclarationError(f"{who}: a field is in the key twice")
        if (self.sk is None) != (self.table.sk is None):
            raise DeclarationError(f"{who}: the table and the item differ about a sort key")
        if stray := self.key_only - set(self.key_fields):
            raise DeclarationError(f"{who}: {min(stray)} is key-only but not in the key")
        reserved = {key.name for key in self.table.key_attributes()}
        for field, name in self.names.items():
            if name in reserved and f"{{{field}}}" not in self._template_texts(name):
                raise DeclarationError(f"{who}: {field} is stored as the key attribute {name}")

    def _template_texts(self, attribute: str) -> list[str]:
        """The templates that make this key attribute."""
        table = self.table
        pairs: list[tuple[str | None, Template | None]] = [
            (table.pk.name, self.pk),
            (table.sk.name if table.sk else None, self.sk),
        ]
        for templates in self.indexes:
            pairs.append((templates.index.pk.name, templates.pk))
            pairs.append((templates.index.sk.name if templates.index.sk else None, templates.sk))
        return [template.text for name, template in pairs if template and name == attribute]

    def key(self, parts: Sequence[object]) -> Key[Any]:
        """The key of the item with these key fields, in the order of `key_fields`."""
        split = len(self.pk.fields)
        pk = self._make_pk(*parts[:split])
        return Key(self, pk, None if self._make_sk is None else self._make_sk(*parts[split:]))

    def _placing(self) -> Callable[[Item], Key[Any]]:
        keys = [("pk", self.table.pk, self.pk, MAX_PARTITION_BYTES)]
        if self.table.sk is not None and self.sk is not None:
            keys.append(("sk", self.table.sk, self.sk, MAX_SORT_BYTES))
        source = KeySource(keys)
        lines = [*source.reads, " sk = None", *source.lines, " return Key(spec, pk, sk)"]
        names = {**source.names, "Key": Key, "spec": self}
        return compiled(["def made(item):", *lines], names)  # type: ignore[no-any-return]

    def check_index_fields(self, item: Item) -> None:
        """Refuse an item with a field that cannot be the index key which it is."""
        for attribute, field, limit in self._index_fields:
            if (value := getattr(item, field)) is not None:
                check_key(attribute, value, limit)

    def extras(self, key: Key[Any], item: Item) -> RawItem:
        """The attributes computed from the fields: those of the key and of the indexes."""
        raw: RawItem = {self._pk_name: key.pk}
        if self._sk_name is not None:
            raw[self._sk_name] = key.sk
        for templates in self.indexes:
            templates.add_to(raw, item)
        return raw

    def rivals(self, index: Index | None) -> list[Template]:
        """The partition keys of other types whose sort keys may lie among this type's."""
        known = (index.name if index else None, len(self.table.specs))
        if known not in self._rivals:
            mine = self._templates(index)
            found = []
            for other in self.table.specs:
                theirs = None if other is self else other._templates(index)
                if mine and theirs and _may_mix(mine[1], theirs[1]):
                    found.append(theirs[0])
            self._rivals[known] = found
        return self._rivals[known]

    def _templates(self, index: Index | None) -> tuple[Template, Template | None] | None:
        """The templates that this type's keys are made by, if it is in the index."""
        if index is None:
            return self.pk, self.sk
        for templates in self.indexes:
            if templates.index is index:
                return templates.pk, templates.sk
        return None

    def matches(self, item: RawItem) -> bool:
        """Whether a stored item's key fits this type's templates."""
        if self.pk.match(item[self.table.pk.name]) is None:
            return False
        return self.sk is None or self.sk.match(item[self.table.sk.name]) is not None  # type: ignore[union-attr]

    def encode(self, key: Key[Any], item: Item) -> RawItem:
        """Everything that is stored for an item; refused unless it could be read back."""
        raw = self.extras(key, item)
        for (name, stays), value in zip(
            self._attributes, msgspec.structs.astuple(item), strict=True
        ):
            if name is not None and (value is not None or stays):
                raw[name] = self._normalised(name, value)
        try:
            self.decode(raw, strict=True)
        except UnreadableItem as error:
            raise InvalidRequest(str(error), field=self._blamed(str(error))) from None
        return raw

    def _blamed(self, complaint: str) -> str | None:
        """The field that msgspec complains about."""
        at = _ATTRIBUTE.search(complaint)
        return next((f for f, n in self._encoded.items() if at and n == at[1]), None)

    def _normalised(self, name: str, value: object) -> Any:
        try:
            return values.normalise(value)
        except InvalidRequest as error:
            error.field = error.field or next(f for f, n in self.names.items() if n == name)
            raise

    def decode(self, raw: RawItem, *, strict: bool = False) -> Item:
        """A stored item as its type. Where it is not `strict`, other services' rows are mended."""
        try:
            if self.key_only or self._mend is not None or not self._key_names <= raw.keys():
                sk = None if self.table.sk is None else raw[self.table.sk.name]
                parts = self.key_parts(raw[self.table.pk.name], sk)
                # The key says where an item lives, whatever another service wrote beside it.
                raw = {**raw, **{self._encoded[field]: value for field, value in parts.items()}}
            return msgspec.convert(raw, self.item) if strict else self._converted(raw)
        except msgspec.ValidationError as error:
            where = [raw.get(key.name) for key in (self.table.pk, self.table.sk) if key]
            name = self.item.__name__
            raise UnreadableItem(f"{name} at {where} in {self.table.name}: {error}") from None

    def _converted(self, raw: RawItem) -> Item:
        try:
            return msgspec.convert(raw, self.item)
        except msgspec.ValidationError:
            if self._mend is None:
                raise
            return msgspec.convert(mended(self.item, raw, self._mend), self.item)

    def key_parts(self, pk: KeyValue, sk: KeyValue | None) -> dict[str, object]:
        """The fields that a key is made of; UnreadableItem when it is not one of this type's."""
        parts = self.pk.match(pk)
        if parts is not None and self.sk is not None and sk is not None:
            sk_parts = self.sk.match(sk)
            parts = None if sk_parts is None else parts | sk_parts
        if parts is None:
            raise UnreadableItem(f"({pk!r}, {sk!r}) is not a key of {self.item.__name__}")
        for field, kind in self._parsed.items():
            parts[field] = msgspec.convert(parts[field], kind, strict=False)
        return parts

    @cached_property
    def _parsed(self) -> dict[str, Any]:
        """The key fields that are not strings, and so must be parsed out of a string key."""
        plain = {f for t in (self.pk, self.sk) if t and t.plain for f in t.fields}
        wanted = set(self.key_fields) - plain
        return {f: kind for f, kind in self.field_types.items() if f in wanted and kind is not str}

    @cached_property
    def packing(self) -> Packing:
        return Packing(self)

    def is_past(self, item: Item, now: int) -> bool:
        """Whether an item has expired."""
        expires = None if self.ttl_field is None else getattr(item, self.ttl_field)
        return type(expires) is int and is_past(expires, now)

    @cached_property
    def field_types(self) -> dict[str, Any]:
        return {field.name: field.type for field in msgspec.structs.fields(self.item)}

    @cached_property
    def required(self) -> frozenset[str]:
        """The fields that an item cannot be read without."""
        fields = msgspec.structs.fields(self.item)
        return frozenset(field.name for field in fields if field.required)

    @cached_property
    def constants(self) -> dict[str, object]:
        """The fields that can have one value only, such as a `kind`."""
        found = {}
        for field in msgspec.structs.fields(self.item):
            if get_origin(field.type) is Literal and get_args(field.type) == (field.default,):
                found[field.name] = field.default
        return found


def _may_mix(one: Template | None, other: Template | None) -> bool:
    """Whether some key of one template may begin as all keys of the other do."""
    if one is None or other is None:
        return True
    mine, theirs = one.prefix(()), other.prefix(())
    return mine.startswith(theirs) or theirs.startswith(mine)


def _getter(fields: tuple[str, ...]) -> Callable[[Item], Sequence[object]]:
    """Reads several fields at once."""
    if len(fields) > 1:
        return attrgetter(*fields)
    return lambda item: [getattr(item, field) for field in fields]


def check_index_keys(table: Table, raw: RawItem) -> None:
    """Refuse an index attribute of the wrong type, empty or too long."""
    for index in table.indexes.values():
        if index.pk.name in raw:
            check_key(index.pk, raw[index.pk.name], MAX_PARTITION_BYTES)
        if index.sk is not None and index.sk.name in raw:
            check_key(index.sk, raw[index.sk.name], MAX_SORT_BYTES)
