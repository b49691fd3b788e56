"""Which request headers a page depends on, and which of its variants a request is for."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from waystation.pages.http.fields import joined, members, values

if TYPE_CHECKING:
    from collections.abc import Iterable

    from waystation.pages.http.fields import Headers

MOST_NAMES = 10
MOST_VARIANT = 1_000
"""What a page depends on has at most so many characters, or it is not kept."""

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]{1,60}")
_OURS = frozenset({"accept-encoding"})
"""The origin is asked for plain bodies, and we encode them ourselves."""


def is_header(name: str) -> bool:
    """Whether this is the name of a header, in lower case."""
    return _NAME.fullmatch(name) is not None


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
    if name == "cookie":
        return "; ".join(values(asked, b"cookie"))
    parts = members(text)
    if name == "accept-language":
        return ",".join(sorted("".join(part.lower().split()) for part in parts))
    return ",".join(parts)
