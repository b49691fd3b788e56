"""Items: msgspec structs with key templates."""

from __future__ import annotations

from functools import cached_property
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    Literal,
    Self,
    TypeVar,
    dataclass_transform,
    get_args,
    get_origin,
)

import msgspec

from waystation.errors import DeclarationError, InvalidKey, InvalidRequest, UnreadableItem
from waystation.store import values
from waystation.store.queries import item_query
from waystation.store.templates import (
    MAX_PARTITION_BYTES,
    MAX_SORT_BYTES,
    KeyValue,
    Template,
    check_key,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from waystation.store.queries import Query
    from waystation.store.tables import Index, Table
    from waystation.store.values import RawItem

I = TypeVar("I", bound="Item")  # noqa: E741 - I for Item
I_co = TypeVar("I_co", bound="Item", covariant=True)


class Key(Generic[I_co]):
    """Where an item lives. Made by `SomeItem.key(...)` or `key_of(item)`."""

    __slots__ = ("pk", "sk", "spec")

    def __init__(self, spec: Spec, pk: KeyValue, sk: KeyValue | None) -> None:
        self.spec = spec
        self.pk = pk
        self.sk = sk

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

    __slots__ = ("fields", "index", "pk", "sk")

    def __init__(self, index: Index, pk: Template, sk: Template | None) -> None:
        self.index = index
        self.pk = pk
        self.sk = sk
        self.fields = frozenset(pk.fields) | frozenset(sk.fields if sk else ())

    def render(self, fields: Mapping[str, object]) -> RawItem:
        """The index attributes, or nothing when a field they need is None."""
        pk_values = [fields[field] for field in self.pk.fields]
        if None in pk_values:
            return {}
        pk = self.pk.render(pk_values)
        check_key(self.index.pk, pk, MAX_PARTITION_BYTES)
        if self.sk is None or self.index.sk is None:
            return {self.index.pk.name: pk}
        sk_values = [fields[field] for field in self.sk.fields]
        if None in sk_values:
            return {}
        sk = self.sk.render(sk_values)
        check_key(self.index.sk, sk, MAX_SORT_BYTES)
        return {self.index.pk.name: pk, self.index.sk.name: sk}


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
    ) -> None:
        self.item = item
        self.table = table
        self.pk = Template(pk)
        self.sk = None if sk is None else Template(sk)
        self.key_fields = tuple(dict.fromkeys(self.pk.fields + (self.sk.fields if self.sk else ())))
        self.indexes = [self._index(name, key) for name, key in indexes.items()]
        self.key_only = frozenset(key_only)
        self.version = version
        self._encoded = dict(zip(item.__struct_fields__, item.__struct_encode_fields__, strict=True))
        self.names = {f: name for f, name in self._encoded.items() if f not in self.key_only}
        """Field to attribute name, for the fields that are stored."""
        self._attributes = [self.names.get(field) for field in item.__struct_fields__]
        self._check()
        self._key_names = {self._encoded[field] for field in self.key_fields}

    def _index(self, name: str, key: tuple[str, str] | str) -> IndexTemplates:
        index = self.table.indexes.get(name)
        if index is None:
            raise DeclarationError(f"{self.item.__name__}: table {self.table.name} has no {name}")
        pk, sk = (key, None) if isinstance(key, str) else key
        if (sk is None) != (index.sk is None):
            raise DeclarationError(f"{self.item.__name__}: index {name} and its key differ in shape")
        return IndexTemplates(index, Template(pk), None if sk is None else Template(sk))

    def _check(self) -> None:
        who = self.item.__name__
        known = set(self.item.__struct_fields__)
        used = set(self.key_fields).union(*(templates.fields for templates in self.indexes))
        if missing := (used | self.key_only | ({self.version} - {None})) - known:
            raise DeclarationError(f"{who} has no field {sorted(map(str, missing))[0]}")
        if (self.sk is None) != (self.table.sk is None):
            raise DeclarationError(f"{who}: the table and the item differ about a sort key")
        if stray := self.key_only - set(self.key_fields):
            raise DeclarationError(f"{who}: {sorted(stray)[0]} is key-only but not in the key")
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
        for made in self.indexes:
            pairs.append((made.index.pk.name, made.pk))
            pairs.append((made.index.sk.name if made.index.sk else None, made.sk))
        return [template.text for name, template in pairs if template and name == attribute]

    def key(self, fields: Mapping[str, object]) -> Key[Any]:
        """The key of the item with these fields."""
        table = self.table
        pk = self.pk.render([fields[f] for f in self.pk.fields])
        check_key(table.pk, pk, MAX_PARTITION_BYTES)
        if self.sk is None or table.sk is None:
            return Key(self, pk, None)
        sk = self.sk.render([fields[f] for f in self.sk.fields])
        check_key(table.sk, sk, MAX_SORT_BYTES)
        return Key(self, pk, sk)

    def matches(self, item: RawItem) -> bool:
        """Whether a stored item was made by this type's templates."""
        if self.pk.match(item[self.table.pk.name]) is None:
            return False
        return self.sk is None or self.sk.match(item[self.table.sk.name]) is not None  # type: ignore[union-attr]

    def encode(self, item: Item) -> tuple[Key[Any], RawItem]:
        """An item's key and everything that is stored for it."""
        found = msgspec.structs.astuple(item)
        fields = dict(zip(item.__struct_fields__, found, strict=True))
        key = self.key(fields)
        raw = key.attributes()
        for name, value in zip(self._attributes, found, strict=True):
            if value is None or name is None:
                continue
            kind = type(value)
            if (kind is str and value.isascii()) or kind is bool:
                raw[name] = value
            else:
                raw[name] = self._normalised(name, value)
        for templates in self.indexes:
            raw.update(templates.render(fields))
        return key, raw

    def _normalised(self, name: str, value: object) -> Any:
        try:
            return values.normalise(value)
        except InvalidRequest as error:
            error.field = error.field or next(f for f, n in self.names.items() if n == name)
            raise

    def decode(self, raw: RawItem) -> Item:
        """A stored item as its type."""
        if self.key_only or not self._key_names <= raw.keys():
            raw = {**self._key_parts(raw), **raw}
        try:
            return msgspec.convert(raw, self.item)
        except msgspec.ValidationError as error:
            raise self.unreadable(raw, error) from None

    def unreadable(self, raw: RawItem, error: Exception) -> UnreadableItem:
        where = [raw.get(key.name) for key in (self.table.pk, self.table.sk) if key]
        return UnreadableItem(f"{self.item.__name__} at {where} in {self.table.name}: {error}")

    def _key_parts(self, raw: RawItem) -> dict[str, object]:
        parts = self.pk.match(raw[self.table.pk.name]) or {}
        if self.sk is not None and self.table.sk is not None:
            parts |= self.sk.match(raw[self.table.sk.name]) or {}
        return {self._encoded[field]: parts[field] for field in self.key_fields}

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

    @cached_property
    def _direct(self) -> msgspec.msgpack.Decoder[Item] | None:
        """A decoder from packed bytes to the struct, for types that need no detour."""
        if self.key_only or _needs_detour(msgspec.inspect.type_info(self.item)):
            return None
        return msgspec.msgpack.Decoder(self.item, ext_hook=values.unpack_extension)

    def unpack(self, packed: bytes) -> Item:
        """A packed item as its type, in one pass where the type allows."""
        if self._direct is not None:
            try:
                return self._direct.decode(packed)
            except msgspec.ValidationError:
                pass  # a number beyond 64 bits, or really unreadable: decode says which
        return self.decode(values.unpack(packed))


def _needs_detour(info: msgspec.inspect.Type) -> bool:
    """Whether a type holds sets or fractions, which are msgpack extensions when packed."""
    detour = (
        msgspec.inspect.SetType,
        msgspec.inspect.FrozenSetType,
        msgspec.inspect.DecimalType,
        msgspec.inspect.FloatType,
    )
    seen: set[int] = set()
    pending: list[Any] = [info]
    while pending:
        part = pending.pop()
        if isinstance(part, detour):
            return True
        if id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, msgspec.inspect.StructType):
            pending += [field.type for field in part.fields]
            continue
        for name in ("type", "types", "item_type", "item_types", "key_type", "value_type"):
            inner = getattr(part, name, None)
            pending += inner if isinstance(inner, tuple) else [inner] if inner else []
    return False


def check_index_keys(table: Table, raw: RawItem) -> None:
    """Refuse an index attribute of the wrong type, empty or too long."""
    for index in table.indexes.values():
        if index.pk.name in raw:
            check_key(index.pk, raw[index.pk.name], MAX_PARTITION_BYTES)
        if index.sk is not None and index.sk.name in raw:
            check_key(index.sk, raw[index.sk.name], MAX_SORT_BYTES)


@dataclass_transform(field_specifiers=(msgspec.field,))
class _ItemMeta(msgspec.StructMeta):
    """Takes the table and key templates from the class statement."""

    def __new__(
        mcls,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        *,
        table: Table | None = None,
        pk: str | None = None,
        sk: str | None = None,
        indexes: Mapping[str, tuple[str, str] | str] | None = None,
        key_only: tuple[str, ...] = (),
        version: str | None = None,
        **struct_options: Any,
    ) -> _ItemMeta:
        cls = super().__new__(mcls, name, bases, namespace, **struct_options)
        if table is not None and pk is not None:
            spec = Spec(cls, table, pk, sk, indexes or {}, key_only, version)  # type: ignore[arg-type]
            cls.spec = spec  # type: ignore[attr-defined]
            table.specs.append(spec)
        elif table is not None or pk is not None:
            raise DeclarationError(f"{name}: a table and a pk template go together")
        return cls


class Item(msgspec.Struct, metaclass=_ItemMeta):
    """A typed item.

        class Source(Item, table=main, pk="USER#{user_id}", sk="SRC#{source_id}",
                     indexes={"GSI3": ("SRCID#{source_id}", "SOURCE")}, rename="camel"):
            user_id: str
            source_id: str
            name: str

    Fields that are None are not stored. `key_only` fields are stored nowhere but in the key.
    `version` names an int field that makes every put conditional on nobody else having written
    the item since it was read.
    """

    spec: ClassVar[Spec]

    @classmethod
    def key(cls, *parts: object) -> Key[Self]:
        """The key of the item with these key fields: the partition key's, then the sort key's."""
        fields = cls.spec.key_fields
        if len(parts) != len(fields):
            raise InvalidKey(f"{cls.__name__}.key takes {', '.join(fields) or 'no fields'}")
        return cls.spec.key(dict(zip(fields, parts, strict=True)))

    @classmethod
    def query(cls, *parts: object, index: str | None = None) -> Query[Self]:
        """The items of one partition, of the table or of an index.

        The first parts fill the partition key; further ones narrow the sort key from the left.
        """
        return item_query(cls.spec, parts, index)


def key_of(item: I) -> Key[I]:
    """Where an item lives."""
    return item.spec.key({field: getattr(item, field) for field in item.spec.key_fields})
