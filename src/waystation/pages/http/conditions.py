"""Conditional and range requests, answered from what is kept: RFC 9110, sections 13 and 14."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from waystation.pages.http.fields import first, joined, parse_date

if TYPE_CHECKING:
    from waystation.pages.http.fields import Headers

_TAG = re.compile(r'[ \t]*(W/)?("[\x21\x23-\x7e\x80-\xff]*")[ \t]*(?:,|$)')
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.IGNORECASE)


def unchanged(asked: Headers, etag: str | None, modified: float | None) -> bool:
    """Whether a client has what it asks for already."""
    wanted = joined(asked, b"if-none-match")
    if wanted is not None:
        return matches(wanted, etag)
    since = parse_date(first(asked, b"if-modified-since") or "")
    return since is not None and modified is not None and modified <= since


def matches(wanted: str, etag: str | None) -> bool:
    """Whether a list of entity tags has one that is the same, weak or strong. A list that is not
    one has none."""
    if wanted.strip() == "*":
        return etag is not None
    if etag is None:
        return False
    opaque = etag.removeprefix("W/")
    at, found = 0, False
    while at < len(wanted):
        if wanted[at] in ", \t":
            at += 1
            continue
        tag = _TAG.match(wanted, at)
        if tag is None:
            return False
        found = found or tag.group(2) == opaque
        at = tag.end()
    return found


def same_for_range(asked: Headers, etag: str | None, modified: float | None) -> bool:
    """Whether a part may be given, if the request names what it has a part of already."""
    given = first(asked, b"if-range")
    if given is None:
        return True
    if given.startswith(('"', "W/")):
        return given == etag and not given.startswith("W/")
    moment = parse_date(given)
    return moment is not None and moment == modified


def part(asked: Headers, size: int) -> tuple[int, int] | bool | None:
    """The first byte and the one after the last that a request wants; None if it wants all, False
    if there is nothing there. Several ranges at once count as wanting all."""
    given = first(asked, b"range")
    found = None if given is None else _RANGE.fullmatch(given.strip())
    if found is None:
        return None
    begin, end = found.groups()
    if not begin:
        if not end:
            return None
        length = min(int(end), size)
        return (size - length, size) if length else False
    start = int(begin)
    if end and int(end) < start:
        return None
    if start >= size:
        return False
    return start, min(int(end) + 1, size) if end else size
