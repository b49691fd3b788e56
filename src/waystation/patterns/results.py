"""Results of work as they are kept: packed, and rebuilt as the type that was declared."""

from __future__ import annotations

from typing import Any, TypeVar, cast

import msgspec

from waystation.errors import InvalidRequest

T = TypeVar("T")


class Misfit(InvalidRequest):
    """A result that is not what it was declared as."""


def pack(value: object, kind: object = None) -> bytes:
    """A value that `unpack` rebuilds as its declared type. What the value's own code raises is not
    caught here."""
    packed = _encode(value)
    if kind is not None and kind is not Any:
        unpack(packed, kind)
    return packed


def unpack(packed: bytes, kind: type[T] | Any = None) -> T:
    try:
        value = msgspec.msgpack.decode(
            packed, type=Any if kind is None else kind, dec_hook=_from_plain
        )
    except (msgspec.ValidationError, ValueError, TypeError) as error:
        name = getattr(kind, "__name__", str(kind))
        raise Misfit(f"the result is not the {name} that was declared: {error}") from error
    return cast("T", value)


def _to_plain(value: object) -> object:
    """What msgspec does not know: models of pydantic, by what they say about themselves."""
    dump = getattr(value, "model_dump", None)
    if dump is None:
        raise TypeError(f"a {type(value).__name__} cannot be kept")
    return dump(mode="json", by_alias=True)


def _from_plain(kind: Any, plain: object) -> object:
    validate = getattr(kind, "model_validate_json", None)
    if validate is None:
        raise TypeError(f"a {kind.__name__} cannot be rebuilt")
    return validate(msgspec.json.encode(plain))


_encode = msgspec.msgpack.Encoder(enc_hook=_to_plain).encode
