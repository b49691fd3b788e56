"""Header fields: reading them the way RFC 9110 means them."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from email.utils import formatdate
from functools import lru_cache

Headers = list[tuple[bytes, bytes]]
"""Names are in lower case."""

_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_TIME = r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)"
_DATES = [
    re.compile(rf"[a-z]{{3}}, (?P<day>\d\d) (?P<month>[a-z]{{3}}) (?P<year>\d{{4}}) {_TIME} gmt"),
    re.compile(rf"[a-z]{{6,9}}, (?P<day>\d\d)-(?P<month>[a-z]{{3}})-(?P<year>\d\d) {_TIME} gmt"),
    re.compile(rf"[a-z]{{3}} (?P<month>[a-z]{{3}}) (?P<day>[ \d]\d) {_TIME} (?P<year>\d{{4}})"),
]
_CONNECTION = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authentication-info",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""Of one connection, not of what is sent over it."""


def values(headers: Headers, name: bytes) -> list[str]:
    """Every line of a field."""
    return [value.decode("latin-1").strip() for key, value in headers if key == name]


def joined(headers: Headers, name: bytes) -> str | None:
    """A field's lines as one list; None without any."""
    if not has(headers, name):
        return None
    return ", ".join(values(headers, name))


def first(headers: Headers, name: bytes) -> str | None:
    for key, value in headers:
        if key == name:
            return value.decode("latin-1").strip()
    return None


def has(headers: Headers, name: bytes) -> bool:
    for key, _ in headers:  # noqa: SIM110 - any() takes three times as long, on every request
        if key == name:
            return True
    return False


def members(text: str) -> list[str]:
    """The members of a comma-separated list, none of them empty."""
    return [part for part in (part.strip() for part in text.split(",")) if part]


def end_to_end(headers: Headers) -> Headers:
    """The fields that are meant for whoever is at the end, not for the next hop."""
    named = {
        option.lower().encode("latin-1") for option in members(joined(headers, b"connection") or "")
    }
    dropped = _CONNECTION | named if named else _CONNECTION
    return [header for header in headers if header[0] not in dropped]


def whole_number(text: str) -> int | None:
    """A number of seconds, or None. What is too large for others is large enough."""
    if not text.isascii() or not text.isdigit():
        return None
    return min(int(text.lstrip("0")[:11] or "0"), 2**31)


@lru_cache(maxsize=512)
def parse_date(text: str) -> float | None:
    """A moment in any of HTTP's three formats."""
    lowered = text.strip().lower()
    for pattern in _DATES:
        found = pattern.fullmatch(lowered)
        if found is None:
            continue
        parts = found.groupdict()
        year = int(parts["year"])
        if len(parts["year"]) == 2:
            year += 2000
            if year > datetime.now(UTC).year + 50:
                year -= 100
        try:
            month = _MONTHS.index(parts["month"]) + 1
            day, hour, minute, second = (
                int(parts[name]) for name in ("day", "hour", "minute", "second")
            )
            return datetime(year, month, day, hour, minute, second, tzinfo=UTC).timestamp()
        except ValueError:
            return None
    return None


def format_date(moment: float) -> bytes:
    return formatdate(int(moment), usegmt=True).encode()
