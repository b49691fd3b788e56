"""Fingerprints: SHA-256 of a value in a canonical form that keeps types apart."""

from __future__ import annotations

import dataclasses
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from hashlib import sha256
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec

from waystation.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Iterable

_DEEPEST = 64
_SCALARS = frozenset({type(None), bool, int, float, Decimal, UUID, datetime, date, time})


def fingerprint(value: object) -> bytes:
    """32 bytes that are the same for equal values of equal types, whatever the order of keys."""
    return _digest(value, 0)


def _digest(value: Any, depth: int) -> bytes:
    if depth > _DEEPEST:
        raise InvalidRequest(f"a payload has at most {_DEEPEST} levels", field="payload")
    kind = type(value)
    if kind is str:
        return _hash("str", [value.encode(errors="surrogatepass")])
    if kind is bytes:
        return _hash("bytes", [value])
    if kind in _SCALARS:
        return _hash(kind.__name__, [repr(value).encode()])
    if kind is dict:
        pairs = (_digest(k, depth + 1) + _digest(v, depth + 1) for k, v in value.items())
        return _hash("dict", sorted(pairs))
    if kind is list or kind is tuple:
        return _hash(kind.__name__, (_digest(part, depth + 1) for part in value))
    if kind is set or kind is frozenset:
        return _hash("set", sorted(_digest(part, depth + 1) for part in value))
    return _hash(f"{kind.__module__}.{kind.__qualname__}", [_digest(_content(value), depth + 1)])


def _content(value: Any) -> Any:
    """What a value of a named type holds."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.asdict(value)
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    raise InvalidRequest(f"a {type(value).__name__} has no fingerprint", field="payload")


def _hash(kind: str, parts: Iterable[bytes]) -> bytes:
    digest = sha256(kind.encode() + b"\0")
    for part in parts:
        digest.update(part)
    return digest.digest()
