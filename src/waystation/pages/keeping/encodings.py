"""Bodies in fewer bytes: made once when a page is published, chosen for each request."""

from __future__ import annotations

import gzip
from functools import lru_cache
from typing import TYPE_CHECKING

from waystation.pages.http.fields import first, members

if TYPE_CHECKING:
    from collections.abc import Collection

    from waystation.pages.http.fields import Headers

SMALLEST = 1_000
LARGEST = 8 * 1024 * 1024
PREFERRED = ("zstd", "gzip")
_WORTH = 0.9
_AS_IT_IS = frozenset({b"content-encoding", b"content-digest", b"digest", b"content-md5"})
"""Headers that are about the very bytes that the origin sent."""

_KINDS = (
    *("text/", "application/json", "application/javascript", "application/xml", "image/svg+xml"),
    *("application/manifest+json", "application/ld+json", "application/wasm", "application/rss"),
    *("application/atom", "application/xhtml", "font/ttf", "font/otf", "application/x-javascript"),
)


def worth_encoding(headers: Headers, body: bytes) -> bool:
    """Whether a body is likely to become smaller."""
    if not SMALLEST <= len(body) <= LARGEST or any(name in _AS_IT_IS for name, _ in headers):
        return False
    kind = (first(headers, b"content-type") or "").lower()
    return kind.startswith(_KINDS) or "+json" in kind or "+xml" in kind


def encoded(body: bytes) -> dict[str, bytes]:
    """The encodings in which a body is smaller. It takes a while: not for the event loop."""
    import zstandard

    found = {
        "zstd": zstandard.ZstdCompressor(level=6).compress(body),
        "gzip": gzip.compress(body, compresslevel=6, mtime=0),
    }
    return {name: small for name, small in found.items() if len(small) < len(body) * _WORTH}


def chosen(accepts: str | None, available: Collection[str]) -> str:
    """The best encoding that a client takes; `""` is the plain body."""
    if not available or accepts is None:
        return ""
    weights = _weights(accepts)
    best, most = "", 0.0
    for name in PREFERRED:
        if name in available:
            weight = weights.get(name, weights.get("*", 0.0))
            if weight > most:
                best, most = name, weight
    return best if most >= weights.get("identity", 0.0) else ""


def takes(accepts: str | None, encoding: str) -> bool:
    """Whether a client takes a body in an encoding that is not ours to change."""
    if accepts is None:
        return True
    weights = _weights(accepts)
    return all(weights.get(name.lower(), weights.get("*", 0.0)) > 0 for name in members(encoding))


@lru_cache(maxsize=512)
def _weights(accepts: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for member in members(accepts[:1_000]):
        name, *parameters = (part.strip().lower() for part in member.split(";"))
        weight = 1.0
        for parameter in parameters:
            if parameter.startswith("q="):
                try:
                    weight = float(parameter[2:])
                except ValueError:
                    weight = 0.0
        found[name] = weight if 0 <= weight <= 1 else 0.0
    return found
