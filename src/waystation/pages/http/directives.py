"""`Cache-Control` and its kin, read strictly: what cannot be understood counts against caching."""

from __future__ import annotations

import re
from functools import lru_cache

from waystation.pages.http.fields import Headers, joined, members, whole_number

_WORD = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_MEMBER = re.compile(rf'({_WORD})(?:=(?:"((?:[^"\\]|\\.)*)"|({_WORD})))?')
_NAME = re.compile(_WORD)
_ITEM = r"-?\d{1,15}|\?[01]|\"[ -~]*\"|[A-Za-z*][\w:/.*-]*"
_STRUCTURED = re.compile(rf"[ \t]*([a-z*][a-z0-9_.*-]*)(?:=({_ITEM}))?[ \t]*(?:,|$)")
_MOST_CHARACTERS = 4_000
_SHORT = 200
_LISTING = ("private", "no-cache")
"""Directives that may be about some fields only, which are named in quotes."""

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
    if len(text) <= _SHORT:
        return _remembered(text)
    return _parsed(text) if len(text) <= _MOST_CHARACTERS else TOO_LONG


def _parsed(text: str) -> Directives:
    found: dict[str, list[str | None]] = {}
    for part in _members(text):
        member = _MEMBER.fullmatch(part)
        if member is not None:
            name, quoted, plain = member.groups()
            value = plain if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
            if name.lower() in _LISTING and value is not None and not members(quoted or ""):
                value = _WRONG
        else:
            start = _NAME.match(part)
            if start is None:
                continue
            name, value = start.group(), _WRONG
        found.setdefault(name.lower(), []).append(value)
    return Directives(found)


_remembered = lru_cache(maxsize=1024)(_parsed)


def _members(text: str) -> list[str]:
    """The members of a list, none of them empty. A comma in quotes separates nothing."""
    found: list[str] = []
    start = at = 0
    quoted = False
    while at < len(text):
        letter = text[at]
        if quoted:
            at += letter == "\\"
            quoted = letter != '"'
        elif letter == ",":
            found.append(text[start:at].strip(" \t"))
            start = at + 1
        else:
            quoted = letter == '"'
        at += 1
    found.append(text[start:].strip(" \t"))
    return [part for part in found if part]


def targeted(headers: Headers) -> Directives | None:
    """What `CDN-Cache-Control` says (RFC 9213): it is for caches like this one, and stands in for
    `Cache-Control`. One that is not a structured field counts for nothing."""
    text = joined(headers, b"cdn-cache-control")
    if text is None or len(text) > _MOST_CHARACTERS:
        return None
    return _structured(text)


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
        elif name in _LISTING and value is not None:
            value = value.strip('"') if value.startswith('"') else None
            value = value if value and members(value) else None
        if value != _WRONG:
            found[name] = [value]
        at = max(member.end(), at + 1)
    return Directives(found) if found else None
