"""The way out: nothing else opens sockets to the outside.

Redirects are answers like any other. Of a body no more is read than was asked for. Nothing but GET
and HEAD is sent again when a connection turns out to be closed: the other side may have acted.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import aiohttp
import msgspec
from yarl import URL

from waystation.outbound.guard import AddressRefused, Guard

if TYPE_CHECKING:
    from aiohttp.connector import Connection

_CONNECT_SECONDS = 5.0
_BODY_SECONDS = 5.0
_MOST_SOCKETS = 1_000
_MOST_READ = 64 * 1024
_MOST_INTERIM = 10
_HARMLESS = frozenset({"GET", "HEAD"})
_OURS = frozenset({"host", "content-length", "transfer-encoding", "connection", "upgrade"})
"""Headers that say where a request ends and who gets it: no caller has a say in them."""


class Reply(msgspec.Struct, frozen=True):
    """What became of a request. `status` is 0 when there was no answer.

    `whole` says that all of the body was read: it was neither too large nor too slow. `sent` is
    False when it is certain that nothing has reached the other side.
    """

    status: int = 0
    body: bytes = b""
    milliseconds: int = 0
    error: str | None = None
    headers: Mapping[str, str] = {}
    whole: bool = True
    sent: bool = True

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    @property
    def retry_after(self) -> str | None:
        return self.headers.get("retry-after")

    def text(self, most: int) -> str:
        """The beginning of the body, as it is safe to keep."""
        return self.body.decode(errors="replace")[:most].replace("\0", "\ufffd")


class _Response(aiohttp.ClientResponse):
    """One that is not kept waiting by interim answers without end: each costs us time."""

    async def start(self, connection: Connection) -> aiohttp.ClientResponse:
        protocol: Any = connection.protocol
        read, answers = protocol.read, 0

        async def counted() -> Any:
            nonlocal answers
            answers += 1
            if answers > _MOST_INTERIM:
                raise aiohttp.ClientPayloadError("it sends interim answers without end")
            return await read()

        protocol.read = counted
        try:
            return await super().start(connection)
        finally:
            del protocol.read


class Outbound:
    """Sends requests out. Open it inside a running loop, close it at the end."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self._session: aiohttp.ClientSession | None = None
        self._once: aiohttp.ClientSession | None = None

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        seconds: float = 10.0,
        body_seconds: float = _BODY_SECONDS,
        most: int = _MOST_READ,
        grow: Callable[[int], bool] | None = None,
        exact: bool = False,
    ) -> Reply:
        """Send one request and say what came back. Never raises for what the other side does.

        `grow` is asked before so many more bytes of the answer are kept: no more are read when it
        says no. With `exact` the URL is sent as it is written.
        """
        begun = time.perf_counter()
        status, content, whole, error, sent = 0, b"", False, None, True
        reply_headers: Mapping[str, str] = {}
        given = {n: v for n, v in (headers or {}).items() if n.lower() not in _OURS}
        limit = aiohttp.ClientTimeout(total=seconds, sock_connect=min(_CONNECT_SECONDS, seconds))
        try:
            async with self._opened(method).request(
                method,
                URL(url, encoded=True),
                data=body,
                headers=given,
                timeout=limit,
                allow_redirects=False,
            ) as response:
                status, reply_headers = response.status, response.headers
                content, whole = await _beginning(response, most, body_seconds, grow)
        except TimeoutError as failure:
            error = None if status else f"no answer within {seconds:g} seconds"
            sent = not isinstance(failure, aiohttp.ConnectionTimeoutError)
        except (aiohttp.ClientError, OSError, ValueError) as failure:
            error = None if status else _explained(failure)
            sent = not isinstance(failure, aiohttp.ClientConnectorError | aiohttp.InvalidURL)
        elapsed = int((time.perf_counter() - begun) * 1000)
        return Reply(status, content, elapsed, error, reply_headers, whole, sent)

    def _opened(self, method: str) -> aiohttp.ClientSession:
        if self._session is None or self._once is None:
            connector = aiohttp.TCPConnector(
                limit=_MOST_SOCKETS, socket_factory=self.guard.socket, keepalive_timeout=15
            )
            self._session, self._once = _session(connector), _session(connector)
            self._once._retry_connection = False  # aiohttp repeats PUT and DELETE by itself
        return self._session if method in _HARMLESS else self._once

    async def close(self) -> None:
        for session in (self._session, self._once):
            if session is not None:
                await session.close()
        self._session = self._once = None


def _session(connector: aiohttp.TCPConnector) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        headers={"user-agent": "Waystation", "accept": "*/*", "accept-encoding": "identity"},
        trust_env=False,
        response_class=_Response,
    )


async def _beginning(
    response: aiohttp.ClientResponse,
    most: int,
    seconds: float,
    grow: Callable[[int], bool] | None,
) -> tuple[bytes, bool]:
    """The first bytes of a body, and whether that is all of it. What is left is not read, and its
    connection is closed."""
    parts: list[bytes] = []
    left = most
    with suppress(TimeoutError, aiohttp.ClientError):
        async with asyncio.timeout(seconds):
            while left > 0 and not response.content.at_eof():
                piece = await response.content.read(left)
                if grow is not None and not grow(len(piece)):
                    break
                parts.append(piece)
                left -= len(piece)
    if not response.content.at_eof():
        response.close()
        return b"".join(parts), False
    return b"".join(parts), True


def _explained(error: Exception) -> str:
    """What went wrong, in words that are safe to keep."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, AddressRefused):
            return f"the host was refused: {cause}"
        cause = cause.__cause__ or getattr(cause, "os_error", None) or cause.__context__
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "the name could not be resolved"
    if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientSSLError):
        return "the TLS connection failed"
    if isinstance(error, aiohttp.ClientConnectorError):
        code = error.os_error.errno  # its own text has the address in it
        return f"no connection: {os.strerror(code) if code else type(error.os_error).__name__}"
    if isinstance(error, aiohttp.InvalidURL):
        return "the URL cannot be used"
    if isinstance(error, aiohttp.ClientResponseError):
        return "the answer is not valid HTTP"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "the connection was closed without an answer"
    # Never its text: that may have the whole URL in it.
    return f"the request failed: {type(error).__name__}"
