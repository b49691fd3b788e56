"""Requests, checked strictly against what their route takes, and explained where they are not that.

Litestar would take a number for a text that looks like one, and names no values to choose from.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import inspect

from waystation.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterator

    from litestar import Request
    from litestar.typing import FieldDefinition

_AT = re.compile(r" - at `(?:key in )?\$(.*?)`$")
_NAMED = re.compile(r"(?:unknown|required) field `([^`]{1,100})`")
_STEP = re.compile(r"\.?([^.\[\]]+)|\[([^\]]*)\]")
_NOT_AMONG = "Invalid enum value"


async def check_request(request: Request[Any, Any, Any]) -> None:
    """Refuse what its route does not take; InvalidInput names the field."""
    parameters = request.route_handler.parsed_fn_signature.parameters
    for name in request.query_params:
        if name in parameters and (allowed := values_at(parameters[name].annotation, "")):
            _check_choice(name, request.query_params.getall(name), allowed)
    if "data" in parameters:
        await _check_body(request, parameters["data"])


def _check_choice(name: str, given: list[str], allowed: list[str]) -> None:
    """Litestar would take the text null for none."""
    if len(given) > 1:
        raise InvalidInput(name, "must be given once")
    if given[0] not in allowed:
        raise InvalidInput(name, f"must be one of {', '.join(allowed)}")


async def _check_body(request: Request[Any, Any, Any], data: FieldDefinition) -> None:
    body = await request.body()
    if not body:
        if data.has_default:
            return
        raise InvalidInput("body", "a JSON document is needed")
    try:
        msgspec.json.decode(body, type=data.annotation)
    except msgspec.ValidationError as error:
        raise explained(str(error), data.annotation) from None
    except msgspec.DecodeError as error:
        raise InvalidInput("body", f"this is not valid JSON: {error}") from None


def explained(complaint: str, kind: Any) -> InvalidInput:
    """What msgspec says, by the name of the field, and with the values that it may have."""
    place = _AT.search(complaint)
    path = (place[1] if place else "").removeprefix(".")
    text = complaint[: place.start()] if place else complaint
    if text.startswith(_NOT_AMONG) and (allowed := values_at(kind, path)):
        text = f"must be one of {', '.join(allowed)}"
    if named := _NAMED.search(text):
        path = f"{path}.{named[1]}" if path else named[1]
    return InvalidInput(path or "body", text)


def values_at(kind: Any, path: str) -> list[str]:
    """The values that a place in a document may have, if they are listed."""
    types = [inspect.type_info(kind)]
    for name, _ in _STEP.findall(path):
        types = [inner for each in types for inner in _inside(each, name)]
    found = [value for each in types for value in _values(each)]
    return list(dict.fromkeys(map(str, found)))


def _plain(info: inspect.Type) -> Iterator[inspect.Type]:
    """A type without what is only said about it, and each of several."""
    if isinstance(info, inspect.Metadata):
        yield from _plain(info.type)
    elif isinstance(info, inspect.UnionType):
        for option in info.types:
            yield from _plain(option)
    else:
        yield info


def _inside(info: inspect.Type, name: str) -> Iterator[inspect.Type]:
    """What is in a type under a name, or at a position where there is none."""
    for each in _plain(info):
        if isinstance(each, inspect.StructType):
            tag = [inspect.LiteralType((each.tag,))] if each.tag_field == name else []
            yield from tag
            yield from (field.type for field in each.fields if field.encode_name == name)
        elif isinstance(each, inspect.ListType | inspect.VarTupleType) and not name:
            yield each.item_type
        elif isinstance(each, inspect.DictType):
            yield each.value_type


def _values(info: inspect.Type) -> Iterator[object]:
    for each in _plain(info):
        if isinstance(each, inspect.LiteralType):
            yield from each.values
        elif isinstance(each, inspect.EnumType):
            yield from (member.value for member in each.cls)
