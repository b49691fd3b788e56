"""Values in DynamoDB's wire format: `{"S": "text"}`, `{"N": "1"}` and so on."""

from __future__ import annotations

from base64 import b64decode, b64encode
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from waystation.store import numbers

if TYPE_CHECKING:
    from collections.abc import Callable

    from waystation.store.values import RawItem, Value


def item_to_wire(item: RawItem) -> dict[str, Any]:
    return {name: to_wire(value) for name, value in item.items()}


def to_wire(value: Value) -> dict[str, Any]:
    kind = type(value)
    if kind is str:
        return {"S": value}
    if kind is int:
        return {"N": str(value)}
    if kind is bool:
        return {"BOOL": value}
    if kind is dict:
        return {"M": item_to_wire(value)}
    if kind is list:
        return {"L": [to_wire(inner) for inner in value]}
    if kind is bytes:
        return {"B": b64encode(value).decode()}
    if kind is Decimal:
        return {"N": numbers.to_text(value)}
    if value is None:
        return {"NULL": True}
    return _set_to_wire(value)


def _set_to_wire(members: set[Value]) -> dict[str, Any]:
    wired = [to_wire(member) for member in members]
    tag = next(iter(wired[0]))
    return {tag + "S": sorted(member[tag] for member in wired)}


def item_from_wire(item: dict[str, Any]) -> RawItem:
    found: RawItem = {}
    for name, tagged in item.items():
        ((tag, value),) = tagged.items() or _NULL
        found[name] = value if tag == "S" or tag == "BOOL" else _READ[tag](value)
    return found


def _from_wire(tagged: dict[str, Any]) -> Value:
    ((tag, value),) = tagged.items() or _NULL
    return _READ[tag](value)


_NULL = (("NULL", True),)
"""What DynamoDB Local's streams leave out."""


_READ: dict[str, Callable[[Any], Value]] = {
    "S": lambda value: value,
    "N": numbers.from_text,
    "B": b64decode,
    "BOOL": lambda value: value,
    "NULL": lambda _: None,
    "M": item_from_wire,
    "L": lambda value: [_from_wire(inner) for inner in value],
    "SS": set,
    "NS": lambda value: {numbers.from_text(member) for member in value},
    "BS": lambda value: {b64decode(member) for member in value},
}
