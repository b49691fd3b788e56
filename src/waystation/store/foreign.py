"""Rows that other services write into shared tables, read as near to our types as they come.

One attribute of an unexpected kind must not make a whole row unreadable, and with it every list
that it stands in. What does not fit is converted where its meaning is plain, and else replaced.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import inspect

if TYPE_CHECKING:
    from waystation.store.items import Item
    from waystation.store.values import RawItem

_WHOLE = re.compile(r"-?\d{1,18}", re.ASCII)

Mend = Callable[["RawItem", frozenset[str]], dict[str, Any]]
"""Given a row and the names of its attributes that do not fit: what to read in their place. What it
does not name is taken as its default."""


def mended(item: type[Item], raw: RawItem, mend: Mend) -> RawItem:
    """A row that its type can be made of."""
    fitting = dict(raw)
    wrong: set[str] = set()
    fields = msgspec.structs.fields(item)
    for field in fields:
        name = field.encode_name
        if name not in raw:
            if field.required:
                wrong.add(name)
            continue
        found, value = _converted(raw[name], field.type)
        if found:
            fitting[name] = value
        else:
            wrong.add(name)
            del fitting[name]
    fitting |= mend(raw, frozenset(wrong))
    for field in fields:
        if field.required and field.encode_name not in fitting:
            fitting[field.encode_name] = _nothing(field.type)
    return fitting


def _converted(value: Any, kind: Any) -> tuple[bool, Any]:
    for candidate in _readings(value):
        try:
            msgspec.convert(candidate, kind)
        except msgspec.ValidationError:
            continue
        return True, candidate
    return False, None


def _readings(value: Any) -> list[Any]:
    """A value, and what it may stand for."""
    found = [value]
    if isinstance(value, str):
        if _WHOLE.fullmatch(value):
            found.append(int(value))
    elif isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        found += [int(value), str(value)]
    elif isinstance(value, dict | list):
        with suppress(TypeError, ValueError):
            found.append(msgspec.json.encode(value).decode())
    return found


def _nothing(kind: Any) -> Any:
    """The emptiest value of a type."""
    info = inspect.type_info(kind)
    empty: dict[type, Any] = {
        inspect.StrType: "",
        inspect.IntType: 0,
        inspect.BytesType: b"",
        inspect.BoolType: False,
        inspect.ListType: [],
        inspect.DictType: {},
    }
    return empty.get(type(info))
