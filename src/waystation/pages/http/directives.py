"""`Cache-Control` and its kin, read strictly: what cannot be understood counts against caching."""

from __future__ import annotations

import re
from functools import lru_cache

from waystation.pages.http.fields import Headers, joined, members, whole_number

_WORD = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_MEMBER = re.compile(rf'[ \t]*({_WORD})(?:=(?:"((?:[^"\\]|\\.)*)"|({_WORD})))?[ \t]*(?:,|$)')
_NAME = re.compile(rf"[ \t]*({_WORD})")
_REST = re.compile(r'(?:"(?:[^"\\]|\\.)*"|[^,"])*"?[^,]*(?:,|$)')
_ITEM = r"-?\d{1,15}|\?[01]|\"[ -~]*\"|[A-Za-z*][\w:/.*-]*"
_STRUCTURED = re.compile(rf"[ \t]*([a-z*][a-z0-9_.*-]*)(?:=({_ITEM}))?[ \t]*(?:,|$)")
_MOST_CHARACTERS = 4_000
_WRONG = "\0"
"""The value of a directive that is not one."""


class Directives:
    """What a `Cache-Control` field says, with names in lower case."""

    __slots__ = ("_found",)

    def __init__(self, found: dict[str, list[str | None]]) -> None:
        self._found = found

    def __contains__(self, name: str) -> bool:
        return name in self._found

    def __bool__(self) -> bool:
        return bool(self._found)

    def seconds(self, name: str) -> int | None:
        """How many seconds a directive says; None if it is not there. One that is malformed, or
        that says several things, says 0."""
        given = self._found.get(name)
        if given is None:
            return None
        numbers = {whole_number(value or "") for value in given}
        number = numbers.pop()
        return 0 if numbers or number is None else number

    def whole(self, name: str) -> bool:
        """Whether a directive is about all of the response rather than some of its fields."""
        return any(value is None or value == _WRONG for value in self._found.get(name, ()))

    def fields(self, name: str) -> list[bytes]:
        """The fields that a directive is about."""
        given = self._found.get(name, ())
        return [
            field.lower().encode("latin-1")
            for value in given
            if value and value != _WRONG
            for field in members(value)
        ]


NOTHING = Directives({})
TOO_LONG = Directives({"no-store": [None]})


def directives(headers: Headers) -> Directives:
    text = joined(headers, b"cache-control")
    if text is None:
        return NOTHING
    return _parsed(text) if len(text) <= _MOST_CHARACTERS else TOO_LONG


@lru_cache(maxsize=1024)
def _parsed(text: str) -> Directives:
    found: dict[str, list[str | None]] = {}
    at = 0
    while at < len(text):
        member = _MEMBER.match(text, at)
        if member is not None:
            quoted, plain = member.group(2), member.group(3)
            value = plain if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
            found.setdefault(member.group(1).lower(), []).append(value)
        else:
            member = _REST.match(text, at)
            name = _NAME.match(text, at)
            if name is not None:
                found.setdefault(name.group(1).lower(), []).append(_WRONG)
        assert member is not None
        at = max(member.end(), at + 1)
    return Directives(found)


def targeted(headers: Headers) -> Directives | None:
    """What `CDN-Cache-Control` says (RFC 9213): it is for caches like this one, and stands in for
    `Cache-Control`. One that is not a structured field counts for nothing."""
    text = joined(headers, b"cdn-cache-control")
    if text is None or len(text) > _MOST_CHARACTERS:
        return None
    return _structured(text)


@lru_cache(maxsize=256)
def _structured(text: str) -> Directives | None:
    found: dict[str, list[str | None]] = {}
    at = 0
    while at < len(text):
        member = _STRUCTURED.match(text, at)
        if member is None:
            return None
        name, value = member.groups()
        if name in ("max-age", "s-maxage", "stale-while-revalidate", "stale-if-error"):
            if value is None or not value.isdigit():
                return None
        elif value == "?0":
            value = _WRONG  # said not to be so: it is left out below
        elif value == "?1":
            value = None
        if value != _WRONG:
            found[name] = [value]
        at = max(member.end(), at + 1)
    return Directives(found) if found else None
