"""Requests as they are written: nothing in a URL or a header can end one and begin another."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from yarl import URL

from waystation.outbound.pool import Place

if TYPE_CHECKING:
    from collections.abc import Mapping

_OURS = frozenset({"host", "content-length", "transfer-encoding", "connection", "upgrade"})
"""Headers that say where a request ends and who gets it: no caller has a say in them."""

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_NO_BODY = frozenset({"GET", "HEAD"})
_PORTS = {"http": 80, "https": 443}
_DEFAULTS = {
    "user-agent": "user-agent: Waystation",
    "accept": "accept: */*",
    "accept-encoding": "accept-encoding: identity",
}
_WITH_BODY = _DEFAULTS | {"content-type": "content-type: application/octet-stream"}
"""What a request has that its caller does not mention."""

_KINDS = 1024
_REMEMBERED = 1_000
"""Characters of names that are remembered together; others may be anybody's."""


class Unusable(ValueError):
    """A request that cannot be sent. Its text is safe to keep."""


def written(
    method: str, url: str, headers: Mapping[str, str] | None, body: bytes | None
) -> tuple[Place, bytes]:
    """Where a request goes, and its bytes."""
    place, host, target = _parsed(url)
    if not _NAME.fullmatch(method):
        raise Unusable("the method cannot be used")
    given = headers or {}
    names = tuple(given)
    about = _about if sum(map(len, names)) <= _REMEMBERED else _about.__wrapped__
    ours, missing = about(names, body is not None)
    theirs = given.items()
    if ours:
        theirs = {name: value for name, value in theirs if name not in ours}.items()
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}", *map(": ".join, theirs), *missing]
    if body is not None or method not in _NO_BODY:
        lines.append(f"content-length: {len(body or b'')}")
    head = "\r\n".join(lines)
    if not len(lines) - 1 == head.count("\n") == head.count("\r") or "\0" in head:
        raise Unusable("a header has a character that cannot be sent")
    try:
        encoded = head.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise Unusable("a header has a character that cannot be sent") from None
    return place, b"%b\r\n\r\n%b" % (encoded, body or b"")


@lru_cache(maxsize=_KINDS)
def _about(names: tuple[str, ...], with_body: bool) -> tuple[frozenset[str], list[str]]:
    """Those of a request's headers that are not its caller's to set, and what it lacks. The same
    names come together again and again."""
    if not all(map(_NAME.fullmatch, names)):
        raise Unusable("a header's name cannot be used")
    lowered = {name.lower() for name in names}
    defaults = _WITH_BODY if with_body else _DEFAULTS
    missing = [line for name, line in defaults.items() if name not in lowered]
    return frozenset(name for name in names if name.lower() in _OURS), missing


@lru_cache(maxsize=_KINDS)
def _parsed(url: str) -> tuple[Place, str, str]:
    """A URL's place, its `Host` header and the target to ask for, as it is written."""
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname
        if host is not None and not host.isascii():
            host = URL.build(scheme="http", host=host).raw_host
        asked = "?" if "?" in url.partition("#")[0] else ""
        target = f"{parts.path or '/'}{asked}{parts.query}"
        if not target.isascii():
            target = quote(target, safe="".join(map(chr, range(33, 127))))
    except ValueError:
        raise Unusable("the URL cannot be used") from None
    if parts.scheme not in _PORTS or not host or parts.username is not None or port == 0:
        raise Unusable("the URL cannot be used")
    if not all("!" <= character <= "~" for character in target + host):
        raise Unusable("the URL cannot be used")
    shown = f"[{host}]" if ":" in host else host
    place = Place(host, port or _PORTS[parts.scheme], parts.scheme == "https")
    return place, shown if port in (None, _PORTS[parts.scheme]) else f"{shown}:{port}", target
