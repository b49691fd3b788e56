"""The little of ASGI that the front, the doors and the Lambda handler share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from waystation.seam import Headers, Request, Response
from waystation.server import problems

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

BODY_SECONDS = 60.0
_NO_BODY = frozenset({204, 304})


class BodyTooLarge(Exception):
    """The request is larger than its door lets in."""


class BodyTooSlow(Exception):
    """The request did not arrive in time."""


class CallerGone(Exception):
    """There is nobody to answer any more."""


def request_of(scope: Scope) -> Request:
    """A request whose body is yet to be read."""
    client = scope.get("client")
    return Request(
        method=scope["method"],
        path=scope["path"],
        raw_path=scope["raw_path"],
        query=scope["query_string"],
        headers=scope["headers"],
        scheme=scope["scheme"],
        client=client[0] if client else "",
    )


def with_length(method: str, response: Response) -> Headers:
    """An answer's headers with the length of its body, unless it cannot have one, or says itself
    what the length would be if it had been asked for with GET."""
    if response.status in _NO_BODY or (
        method == "HEAD" and any(name == b"content-length" for name, _ in response.headers)
    ):
        return response.headers
    return [*response.headers, (b"content-length", b"%d" % len(response.body))]


def body_for(method: str, response: Response) -> bytes:
    """What is sent of an answer's body."""
    return b"" if method == "HEAD" or response.status in _NO_BODY else response.body


async def send_response(response: Response, send: Send, method: str = "GET") -> None:
    await send(
        {
            "type": "http.response.start",
            "status": response.status,
            "headers": with_length(method, response),
        }
    )
    await send({"type": "http.response.body", "body": body_for(method, response)})


def problem_response(
    document: problems.Problem, request_id: str, headers: dict[str, str]
) -> Response:
    more = [(name.encode(), value.encode()) for name, value in headers.items()]
    body = problems.encode(document, request_id)
    return Response(document.status, body, [(b"content-type", problems.JSON), *more])


def header(scope: Scope, name: bytes) -> str | None:
    """The first header of a name, which is in lower case."""
    for key, value in scope["headers"]:
        if key == name:
            return str(value.decode("latin-1"))
    return None


async def read_body(receive: Receive) -> bytes:
    """The whole body."""
    parts = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise CallerGone
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


def bounded(receive: Receive, limit: int) -> Receive:
    """A body of at most `limit` bytes that arrives in time."""
    seen = 0
    ended = False
    deadline = asyncio.get_running_loop().time() + BODY_SECONDS

    async def limited() -> MutableMapping[str, Any]:
        nonlocal seen, ended
        if ended:
            return await receive()  # waits for the caller to go: as long as the answer takes
        try:
            async with asyncio.timeout_at(deadline):
                message = await receive()
        except TimeoutError:
            raise BodyTooSlow from None
        if message["type"] == "http.request":
            seen += len(message.get("body", b""))
            ended = not message.get("more_body", False)
            if seen > limit:
                raise BodyTooLarge
        return message

    return limited


def replayed(body: bytes, receive: Receive) -> Receive:
    """A body that was read already, for somebody else to read."""
    given = False

    async def again() -> MutableMapping[str, Any]:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


class Capture:
    """A `send` that keeps the answer instead of sending it."""

    def __init__(self) -> None:
        self.status = 500
        self.headers: list[tuple[bytes, bytes]] = []
        self._parts: list[bytes] = []

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = [(bytes(k), bytes(v)) for k, v in message.get("headers", [])]
        elif message["type"] == "http.response.body":
            self._parts.append(bytes(message.get("body", b"")))

    @property
    def body(self) -> bytes:
        return b"".join(self._parts)

    def response(self) -> Response:
        kept = [(k, v) for k, v in self.headers if k.lower() != b"content-length"]
        return Response(self.status, self.body, kept)
