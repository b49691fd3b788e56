"""What can be done with a page that is kept, for one request: RFC 9111, section 4."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from waystation.pages.http.fields import first, has, joined, values
from waystation.pages.http.policies import DEFAULT_STALE
from waystation.pages.keeping.encodings import takes

if TYPE_CHECKING:
    from waystation.pages.http.directives import Directives
    from waystation.pages.keeping.entries import Entry, Held
    from waystation.pages.serving.terms import Ask, Terms

_AHEAD = 20
"""A page that is fresh for at least so many seconds is regenerated in the last twentieth of them,
so that those which were generated together are not regenerated together."""

Step = Literal["fresh", "stale", "refresh", "validate", "miss", "pass"]


class Use(msgspec.Struct, frozen=True):
    """What can be done, or why nothing can. `fwd` and `detail` are the words for it in
    `Cache-Status`."""

    step: Step
    fwd: str = ""
    detail: str | None = None


_FRESH = Use("fresh")
_AHEAD_OF_TIME = Use("refresh")


def not_for(ask: Ask, terms: Terms, entry: Entry) -> bool:
    """Whether a page is not for who asks: the origin does not say that it is for everyone, and they
    may have one of their own."""
    return entry.unmarked and terms.keeps_apart(ask.headers)


def is_of(entry: Entry, terms: Terms) -> bool:
    """Whether a page is the site's that is asked for, not that of another of its name."""
    return entry.owner == terms.owner or (entry.owner is None and terms.foreign)


def use_of(
    ask: Ask, says: Directives, terms: Terms, held: Held | None, names: frozenset[str], now: float
) -> Use:
    """What can be done with a page for this request; `names` are the headers it depends on."""
    if held is None:
        return Use("miss", "vary-miss" if names else "uri-miss")
    entry = held.entry
    if not is_of(entry, terms):
        return Use("miss", "uri-miss", "other-site")
    if "cookie" not in names and not_for(ask, terms, entry):
        return Use("pass", "bypass", "cookie" if has(ask.headers, b"cookie") else "authorization")
    if held.verdict.hard:
        return Use("miss", "stale", "purged")
    if held.gone:
        return Use("miss", "miss", "body-gone")
    if not _understands(ask, entry):
        return Use("pass", "bypass", "encoding")
    if entry.pinned and held.verdict.clear:
        return _FRESH
    if "no-cache" in says or (not says and _pragma(ask)):
        return Use("validate", "request", "no-cache")
    return _use_by_age(says, terms, held, now)


def _use_by_age(says: Directives, terms: Terms, held: Held, now: float) -> Use:
    entry = held.entry
    remaining = entry.generated_at + entry.revalidate_seconds - now
    if held.verdict.soft_at is not None:
        remaining = min(remaining, held.verdict.soft_at - now, 0.0)
    most = says.seconds("max-age")
    if most is not None and now - entry.generated_at > most:
        return Use("validate", "request", "max-age")
    if remaining > (says.seconds("min-fresh") or 0):
        early = entry.revalidate_seconds >= _AHEAD and remaining < _lead(entry)
        return _AHEAD_OF_TIME if early else _FRESH
    if remaining > 0:
        return Use("validate", "request", "min-fresh")
    return _use_stale(says, terms, held, -remaining)


def _use_stale(says: Directives, terms: Terms, held: Held, late: float) -> Use:
    """What can be done with a page that has been stale for so many seconds."""
    entry = held.entry
    reason = "expired" if held.verdict.clear else "purged"
    if entry.strict:
        return Use("validate", "stale", reason)
    window = entry.swr
    if entry.foreign:
        window = DEFAULT_STALE if terms.windows.swr is None else terms.windows.swr
    if late < window:
        return Use("refresh", "stale", reason)
    most = says.seconds("max-stale")
    if most is not None and (says.whole("max-stale") or late <= most):
        return Use("stale", "", reason)
    return Use("validate", "stale", reason)


def spare(held: Held | None, terms: Terms, now: float) -> Held | None:
    """An old page that may be used when there is no new one to be had."""
    if held is None or held.verdict.hard or held.gone or held.entry.strict:
        return None
    entry = held.entry
    if not is_of(entry, terms):
        return None
    sie = entry.sie
    if entry.foreign:
        sie = DEFAULT_STALE if terms.windows.sie is None else terms.windows.sie
    late = now - (entry.generated_at + entry.revalidate_seconds)
    return held if late <= sie else None


def must_pass(ask: Ask, says: Directives, use: Use) -> Use:
    """Whether a request goes to the origin as it is, because its answer would not be kept."""
    if "no-store" in says:
        return Use("pass", "request", "no-store")
    if ask.method == "HEAD":
        return Use("pass", use.fwd or "miss", use.detail or "head")
    for name in (b"range", b"if-match", b"if-unmodified-since"):
        if has(ask.headers, name):
            return Use("pass", use.fwd or "miss", name.decode())
    return use


def _understands(ask: Ask, entry: Entry) -> bool:
    """Whether a client takes a page in the encoding that the origin chose for another."""
    encoding = first(entry.headers, b"content-encoding")
    if encoding is None or "accept-encoding" not in (joined(entry.headers, b"vary") or "").lower():
        return True
    return takes(first(ask.headers, b"accept-encoding"), encoding)


def _pragma(ask: Ask) -> bool:
    return any("no-cache" in value.lower() for value in values(ask.headers, b"pragma"))


def _lead(entry: Entry) -> float:
    """How long before a page goes stale it is regenerated: differs from page to page."""
    share = (hash((entry.s3_key, entry.generated_at)) & 1023) / 1024
    return share * entry.revalidate_seconds / _AHEAD
