"""Whether a response may be kept, and for how long it may be used: RFC 9111, 5861 and 9213, within
the windows that a site allows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from waystation.pages.http.directives import directives, targeted
from waystation.pages.http.fields import first, has, members, parse_date, values, whole_number

if TYPE_CHECKING:
    from waystation.pages.http.directives import Directives
    from waystation.pages.http.fields import Headers

DEFAULT_STALE = 86_400
"""How long a page may be used stale where neither its site nor its origin says."""

_BY_DEFAULT = frozenset({200, 203, 204, 300, 301, 308, 404, 405, 410, 414, 501})
"""What may be kept without being told for how long."""

_UNDERSTOOD = _BY_DEFAULT | {302, 303, 307, 400, 403, 500, 502, 503, 504}
_NEVER = frozenset({206, 304})
_HEURISTIC_SHARE = 10


class Windows(msgspec.Struct, frozen=True):
    """How long a site lets its pages be used, in seconds.

    None as a stale window means: as the origin says, and where it says nothing about how long a
    page lasts, a day.
    """

    fresh: int
    swr: int | None = None
    sie: int | None = None
    negative: int = 60
    unmarked: bool = True
    """Whether a page is kept of which the origin says nothing."""

    set_cookie: bool = False
    """Whether a page is kept that sets a cookie."""


class Policy(msgspec.Struct, frozen=True):
    """What may be done with a response. `refused` says why it is not kept."""

    refused: str | None = None
    fresh: int = 0
    swr: int = 0
    sie: int = 0
    age: int = 0
    """How old it was when it came."""

    unmarked: bool = False
    """Whether it lasts for as long as it does because of the site alone."""

    strict: bool = False
    """Whether it must never be used stale, whatever the request says."""

    no_transform: bool = False
    dropped: tuple[bytes, ...] = ()
    """Fields that are not kept with it."""


def policy_of(
    status: int,
    headers: Headers,
    asked: Headers,
    windows: Windows,
    now: float,
    delay: float = 0.0,
) -> Policy:
    """The policy for a response that came at `now`, `delay` seconds after it was asked for."""
    own = targeted(headers)
    says = own if own is not None else directives(headers)
    refused = _refusal(status, headers, asked, says, windows)
    if refused is not None:
        return Policy(refused)
    lifetime = _explicit(headers, says, now, own is not None)
    unmarked = lifetime is None
    if lifetime is None:
        lifetime = _implied(status, headers, says, windows, now)
        if lifetime is None:
            if status not in _BY_DEFAULT or not _has_validator(headers):
                return Policy("unmarked")
            lifetime, unmarked = 0, False
    always = says.whole("no-cache") or (unmarked and _pragma(headers))
    negative = status >= 400
    strict = always or "s-maxage" in says or "must-revalidate" in says or "proxy-revalidate" in says
    cap = min(windows.fresh, windows.negative) if negative else windows.fresh
    age = _age(headers, now, delay, apparent=not unmarked)
    fresh = 0 if always else min(lifetime, cap + age)
    swr = sie = 0
    if not strict and not negative:
        swr = _stale(says.seconds("stale-while-revalidate"), windows.swr, unmarked=unmarked)
        sie = _stale(says.seconds("stale-if-error"), windows.sie, unmarked=True)
    if fresh <= age and not (swr or sie or _has_validator(headers)):
        return Policy("expired")
    return Policy(
        fresh=fresh,
        swr=swr,
        sie=sie,
        age=age,
        unmarked=unmarked,
        strict=strict,
        no_transform="no-transform" in directives(headers),
        dropped=tuple(says.fields("no-cache") + says.fields("private")),
    )


def _refusal(
    status: int, headers: Headers, asked: Headers, says: Directives, windows: Windows
) -> str | None:
    """Why a response may not be kept at all, whatever it says about its lifetime."""
    if status < 200 or status in _NEVER:
        return "partial" if status == 206 else "status"
    if "no-store" in directives(asked):
        return "request-no-store"
    if "must-understand" in says:
        if status not in _UNDERSTOOD:
            return "status"
    elif "no-store" in says:
        return "no-store"
    if says.whole("private"):
        return "private"
    allowed = ("public", "must-revalidate", "s-maxage")
    if has(asked, b"authorization") and not any(name in says for name in allowed):
        return "authorization"
    kept = says.fields("no-cache") + says.fields("private")
    if has(headers, b"set-cookie") and not windows.set_cookie and b"set-cookie" not in kept:
        return "set-cookie"
    if "*" in members(",".join(values(headers, b"vary"))):
        return "vary"
    return None


def _explicit(headers: Headers, says: Directives, now: float, only_here: bool) -> int | None:
    """How long the origin says that a response lasts."""
    for name in ("s-maxage", "max-age"):
        seconds = says.seconds(name)
        if seconds is not None:
            return seconds
    if only_here:
        return None
    expires = values(headers, b"expires")
    if not expires:
        return None
    until = parse_date(expires[0]) if len(expires) == 1 else None
    date = parse_date(first(headers, b"date") or "")
    return 0 if until is None else max(0, int(until - (now if date is None else date)))


def _implied(
    status: int, headers: Headers, says: Directives, windows: Windows, now: float
) -> int | None:
    """How long a response lasts of which the origin does not say it."""
    if status not in _BY_DEFAULT and "public" not in says:
        return None
    if windows.unmarked and status not in (405, 414, 501):
        return windows.fresh
    modified = parse_date(first(headers, b"last-modified") or "")
    if modified is None:
        return None
    date = parse_date(first(headers, b"date") or "")
    return max(0, int((now if date is None else date) - modified)) // _HEURISTIC_SHARE


def _stale(said: int | None, window: int | None, *, unmarked: bool) -> int:
    if said is not None:
        return min(said, DEFAULT_STALE if window is None else window)
    if window is not None:
        return window
    return DEFAULT_STALE if unmarked else 0


def _age(headers: Headers, now: float, delay: float, *, apparent: bool) -> int:
    """How old a response is, by its own account and by its date."""
    lines = values(headers, b"age")
    said = whole_number(lines[0].split(",")[0].strip()) if lines else None
    age = (said or 0) + delay
    date = parse_date(first(headers, b"date") or "") if apparent else None
    return int(age if date is None else max(age, now - date))


def _has_validator(headers: Headers) -> bool:
    return has(headers, b"etag") or has(headers, b"last-modified")


def _pragma(headers: Headers) -> bool:
    return any("no-cache" in value.lower() for value in values(headers, b"pragma"))
