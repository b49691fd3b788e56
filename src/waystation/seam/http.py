"""Doors: whole requests and whole answers, for what is asked so often that ASGI is left aside."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

Headers = list[tuple[bytes, bytes]]


class Request(msgspec.Struct):
    """A request with its whole body. Header names are in lower case."""

    method: str
    path: str
    raw_path: bytes
    query: bytes
    headers: Headers
    scheme: str
    client: str
    body: bytes = b""
    id: str = ""


class Response(msgspec.Struct, frozen=True):
    """A whole answer. `sent` is called when it has gone, or cannot go any more."""

    status: int
    body: bytes = b""
    headers: Headers = []
    sent: Callable[[], None] | None = None


def json_response(status: int, value: object) -> Response:
    return Response(status, msgspec.json.encode(value), [(b"content-type", b"application/json")])


class Door(msgspec.Struct, frozen=True):
    """What answers all requests whose path is `prefix` or lies below it.

    One for `programs` is used so often that its requests are not logged, and its answers have no
    headers that only browsers heed. One for `pages` answers with other people's pages, which get no
    headers of ours.
    """

    prefix: str
    handle: Callable[[Request], Awaitable[Response]]
    max_body: int = 0
    programs: bool = False
    pages: bool = False
    at_once: Callable[[Request], Response | None] | None = None
    """Answers what can be answered without waiting for anything; None is for `handle` to answer."""

    @property
    def segment(self) -> str:
        """The first part of the prefix: no two doors share one."""
        return self.prefix.split("/")[1]

    def leads_to(self, path: str) -> bool:
        return path == self.prefix or path.startswith(f"{self.prefix}/")
