"""What is asked for, what may be done with the answer, and how the answer looks."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec

from waystation.pages.http.fields import Headers
from waystation.pages.http.policies import Windows

NAME = b"waystation"
"""What we are called in `Cache-Status` and `Via`."""

_CREDENTIAL = re.compile(
    rb"(?:^|[-_])(?:cookie|authorization|auth|token|api-?key|secret|session|password)(?:[-_]|$)"
)


class Terms(msgspec.Struct, frozen=True):
    """How the pages of a site are cached."""

    tenant: str | None
    windows: Windows
    vary: tuple[str, ...] | None = None
    """The request headers that pages may depend on; None lets the origin say."""

    unkeyed: frozenset[str] = frozenset()
    """Request headers that the origin gets from us: a page that depends on one cannot be kept."""

    owner: str | None = None
    """Tells this site from others that have had its name, and from what it was before."""

    foreign: bool = True
    """Whether pages of other services count as this site's."""

    account: str = ""
    """Whose allowance new pages count against."""

    tags: tuple[str, ...] = ()
    ignore_cookies: bool = False
    versions: int = 3

    def keeps_apart(self, headers: Headers) -> bool:
        """Whether a request says who asks, so that its answer may be for them alone."""
        for name, _ in headers:
            if name == b"cookie":
                if not self.ignore_cookies:
                    return True
            elif _CREDENTIAL.search(name):
                return True
        return False


class Ask(msgspec.Struct):
    """A request for a page. `url` is its path and query below the site; where one cache is for
    several, `host` is which."""

    method: str
    url: str
    headers: Headers
    body: bytes = b""
    host: str = ""


class Fetched(msgspec.Struct, frozen=True):
    """What the origin answered; `error` says why it did not. `seconds` is how long it took."""

    status: int
    headers: Headers
    body: bytes = b""
    seconds: float = 0.0
    error: str | None = None
    related: tuple[str, ...] = ()
    """URLs of the site that the answer names as what was created or changed."""

    rest: AsyncIterator[bytes] | None = None
    """What follows the body, where it was not read to its end: such an answer is not kept."""

    cause: Exception | None = None
    """What went wrong in an app of our own process."""


Fetch = Callable[[str, Headers, bytes], Awaitable[Fetched]]
"""Asks the origin, with a method, headers and a body. It never raises for what the origin does."""


class Reply(msgspec.Struct, frozen=True):
    """An answer to a client. `rest` follows the body, if there is any."""

    status: int
    headers: Headers
    body: bytes = b""
    rest: AsyncIterator[bytes] | None = None
