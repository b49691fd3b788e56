"""Attribute values: which Python values can be stored, how they compare and how large they are.

`str` is S, `int` and `Decimal` N, `bytes` B, `bool` BOOL, `None` NULL, `list` L, `dict` M and
`set` SS, NS or BS, whichever its members are.
"""

from __future__ import annotations

from decimal import Decimal
from enum import Enum
from typing import Any

import msgspec

from waystation.errors import InvalidRequest, ItemTooLarge
from waystation.store import numbers

Value = Any
"""str | int | Decimal | bytes | bool | None | list[Value] | dict[str, Value] | set[...]"""

RawItem = dict[str, Value]

MAX_ITEM_BYTES = 400 * 1024
MAX_DEPTH = 32
"""Levels of maps and lists, the item itself being the first."""

MAX_NAME_BYTES = 65_535
SURELY_SMALL = MAX_ITEM_BYTES // 4
_INT64 = 2**63

_TYPES: dict[type, str] = {
    str: "S",
    int: "N",
    Decimal: "N",
    bytes: "B",
    bool: "BOOL",
    type(None): "NULL",
    list: "L",
    dict: "M",
}


TYPE_NAMES = frozenset([*_TYPES.values(), "SS", "NS", "BS"])


def type_of(value: Value) -> str:
    """DynamoDB's name for the type of a normalised value."""
    known = _TYPES.get(type(value))
    return known if known is not None else _set_type(value) + "S"


def _set_type(members: set[Value]) -> str:
    return _TYPES[type(next(iter(members)))]


def normalise(value: object, depth: int = 0) -> Value:
    """The storable form of a Python value, or InvalidRequest."""
    kind = type(value)
    if kind is str:
        return _text(value)  # type: ignore[arg-type]
    if kind is bool or value is None or kind is bytes:
        return value
    if kind is int or kind is Decimal or kind is float:
        return numbers.canonical(value)  # type: ignore[arg-type]
    if depth >= MAX_DEPTH - 1:
        raise ItemTooLarge(f"the item is nested deeper than {MAX_DEPTH} levels")
    return _normalise_other(value, depth)


def _normalise_other(value: object, depth: int) -> Value:
    if isinstance(value, dict):
        return {_name(key): normalise(inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [normalise(inner, depth + 1) for inner in value]
    if isinstance(value, set | frozenset):
        return _normalise_set(value)
    if isinstance(value, msgspec.Struct):
        named = zip(value.__struct_encode_fields__, msgspec.structs.astuple(value), strict=True)
        return {name: normalise(inner, depth + 1) for name, inner in named if inner is not None}
    if isinstance(value, Enum):
        return normalise(value.value, depth)
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if isinstance(value, str):
        return _text(str(value))
    raise InvalidRequest(f"a value of type {type(value).__name__} cannot be stored")


def _text(value: str) -> str:
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise InvalidRequest("a string contains half a surrogate pair") from None
    return value


def _name(key: object) -> str:
    if not isinstance(key, str):
        raise InvalidRequest(f"a map key must be a string, not {type(key).__name__}")
    name = _text(key)
    if not name or (len(name) > MAX_NAME_BYTES // 4 and len(name.encode()) > MAX_NAME_BYTES):
        raise InvalidRequest(f"a map key must have 1 to {MAX_NAME_BYTES} bytes")
    return name


def _normalise_set(value: set[Any] | frozenset[Any]) -> set[Value]:
    if not value:
        raise InvalidRequest("a set cannot be empty")
    members = {normalise(member) for member in value}
    kinds = {_TYPES[type(member)] for member in members}
    if len(kinds) > 1 or not kinds <= {"S", "N", "B"}:
        raise InvalidRequest("a set holds only strings, only numbers or only binary values")
    return members


def same(left: Value, right: Value) -> bool:
    """Equality by type and content: True is not 1."""
    if type_of(left) != type_of(right):
        return False
    if type(left) is list:
        return len(left) == len(right) and all(map(same, left, right))
    if type(left) is dict:
        return left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)
    return bool(left == right)


def size_of(value: Value) -> int:
    """The bytes DynamoDB counts for one value."""
    kind = type(value)
    if kind is str:
        return len(value) if value.isascii() else len(value.encode())
    if kind is bytes:
        return len(value)
    if kind is bool or value is None:
        return 1
    if kind is int or kind is Decimal:
        digits, _ = numbers.significant(value)
        return (len(digits) + 1) // 2 + 1 + int(value < 0)
    if kind is list:
        return 3 + sum(1 + size_of(inner) for inner in value)
    if kind is dict:
        return 3 + sum(1 + size_of(name) + size_of(inner) for name, inner in value.items())
    return sum(map(size_of, value))


def check_size(item: RawItem, packed: bytes) -> None:
    """Refuse an item of more than 400 KB.

    No value counts for more than four times its packed length, so small items need no walk.
    """
    if len(packed) <= SURELY_SMALL:
        return
    total = sum(size_of(name) + size_of(value) for name, value in item.items())
    if total > MAX_ITEM_BYTES:
        raise ItemTooLarge(f"the item has {total} bytes; {MAX_ITEM_BYTES} are allowed")


def check_depth(value: Value, depth: int = 0) -> None:
    """Refuse an item that is nested too deeply after an update."""
    if not depth and _PLAIN.issuperset(map(type, value.values())):
        return
    kind = type(value)
    if kind is not dict and kind is not list:
        return
    if depth >= MAX_DEPTH:
        raise ItemTooLarge(f"the item is nested deeper than {MAX_DEPTH} levels")
    for inner in value.values() if kind is dict else value:
        check_depth(inner, depth + 1)


_NUMBER, _STRINGS, _NUMBERS, _BINARIES, _NULL = 1, 2, 3, 4, 5
_SET_CODES = {"S": _STRINGS, "N": _NUMBERS, "B": _BINARIES}
_NULL_EXTENSION = msgspec.msgpack.Ext(_NULL, b"")
_PLAIN = frozenset({str, int, bool, bytes})
_encode = msgspec.msgpack.Encoder().encode


def pack(item: RawItem) -> bytes:
    """An item as msgpack; what msgpack lacks becomes an extension."""
    if _PLAIN.issuperset(map(type, item.values())):
        try:
            return _encode(item)
        except OverflowError:
            pass  # an integer of more than 64 bits
    packable = {n: _NULL_EXTENSION if v is None else _packable(v) for n, v in item.items()}
    return _encode(packable)


def joined(packed: bytes, more: bytes) -> bytes:
    """One packed item of two halves."""
    count, start = _beginning(packed)
    other, middle = _beginning(more)
    return b"\xde%b%b%b" % ((count + other).to_bytes(2, "big"), packed[start:], more[middle:])


def _beginning(packed: bytes) -> tuple[int, int]:
    """How many attributes a packed item has, and where they begin."""
    if packed[0] == 0xDE:
        return int.from_bytes(packed[1:3], "big"), 3
    return packed[0] & 0x0F, 1


def _packable(value: Value) -> Any:
    kind = type(value)
    if kind is str or kind is bytes or kind is bool or value is None:
        return value
    if kind is int:
        if -_INT64 <= value < _INT64:
            return value
        return msgspec.msgpack.Ext(_NUMBER, str(value).encode())
    if kind is Decimal:
        return msgspec.msgpack.Ext(_NUMBER, str(value).encode())
    if kind is dict:
        return {name: _packable(inner) for name, inner in value.items()}
    if kind is list:
        return [_packable(inner) for inner in value]
    members = [_packable(member) for member in value]
    return msgspec.msgpack.Ext(_SET_CODES[_set_type(value)], _encode(sorted(members, key=str)))


class _Null:
    """Stands for a stored NULL while an item is unpacked: nil is an absent attribute."""


_null = _Null()


def read_extension(code: int, data: memoryview) -> Value:
    """Read one of our msgpack extensions, where a NULL is not expected."""
    if code == _NULL:
        raise msgspec.ValidationError("a NULL")
    if code == _NUMBER:
        return numbers.from_text(bytes(data).decode())
    return set(_decode(data))


def _read_any_extension(code: int, data: memoryview) -> Value:
    return _null if code == _NULL else read_extension(code, data)


_decode = msgspec.msgpack.Decoder(ext_hook=_read_any_extension).decode


def unpack(packed: bytes) -> RawItem:
    """The reverse of `pack`."""
    item = _decode(packed)
    if type(item) is not dict:
        raise msgspec.ValidationError("a packed item is a map")
    return {n: None if v is _null else v for n, v in item.items() if v is not None}
