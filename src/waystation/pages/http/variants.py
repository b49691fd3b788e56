"""Which request headers a page depends on, and which of its variants a request is for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from waystation.pages.http.fields import joined, members, values

if TYPE_CHECKING:
    from collections.abc import Iterable

    from waystation.pages.http.fields import Headers

MOST_NAMES = 10
_OURS = frozenset({"accept-encoding"})
"""The origin is asked for plain bodies, and we encode them ourselves."""


def varies_by(headers: Headers) -> frozenset[str]:
    """The request headers that a response says it depends on, in lower case."""
    named = members(",".join(values(headers, b"vary")))
    return frozenset(name.lower() for name in named) - _OURS


def variant(names: Iterable[str], asked: Headers) -> str:
    """What a request's headers of these names say, spelled in one way."""
    return "\n".join(f"{name}:{_plain(name, asked)}" for name in sorted(names))


def _plain(name: str, asked: Headers) -> str:
    text = joined(asked, name.encode("latin-1"))
    if text is None:
        return "\0"
    parts = members(text)
    if name == "accept-language":
        return ",".join(sorted("".join(part.lower().split()) for part in parts))
    return ",".join(parts)
