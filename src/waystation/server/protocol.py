"""HTTP on a socket: uvicorn's, with bounds on what comes before a request is one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

if TYPE_CHECKING:
    import asyncio

MAX_HEADERS = 64 * 1024
HEADER_SECONDS = 15.0

_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-length: 0\r\nconnection: close\r\n\r\n"
)


class BoundedProtocol(HttpToolsProtocol):
    """Closes connections whose headers are too large or do not come."""

    _timer: asyncio.TimerHandle | None = None
    _received = 0
    _trailers = 0
    _headers = 0
    _in_head = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(_Corked(transport, self.loop))  # type: ignore[arg-type]
        self._wait_for_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._headers_came()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        waiting = self._timer
        super().data_received(data)
        if self._timer is None:
            # An unfinished head, or blank lines, which stop uvicorn's own clock.
            if self._in_head or not self._answering():
                self._wait_for_headers()
        elif self._timer is waiting:
            self._received += len(data)
            if self._received > MAX_HEADERS:
                if not self._answering():
                    self.transport.write(_TOO_LARGE)
                self.transport.close()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._trailers = self._headers = 0
        self._in_head = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:  # after the body
            self._trailers += len(name) + len(value)
            if self._trailers > MAX_HEADERS:
                self.transport.close()
            return
        self._headers += len(name) + len(value)
        if self._headers > MAX_HEADERS:  # all in one packet: uvicorn answers 400 to an error here
            raise ValueError("the headers are too large")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._headers_came()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        # There is nothing of the body to wait for.
        self.scope["whole"] = True  # type: ignore[typeddict-unknown-key]
        super().on_message_complete()

    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _wait_for_headers(self) -> None:
        self._received = 0
        self._timer = self.loop.call_later(HEADER_SECONDS, self._give_up)

    def _headers_came(self) -> None:
        self._in_head = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        if self._answering():  # the one before is not answered yet, so this one is not read on
            self._wait_for_headers()
        else:
            self.transport.close()


class _Corked:
    """A transport that sends what is written in one turn of the loop at once.

    Uvicorn writes the head of an answer and its body one after the other; each would be a system
    call and a packet of its own.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> None:
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)

    def _flush(self) -> None:
        if self._parts:
            parts, self._parts = self._parts, []
            self._transport.write(b"".join(parts))

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
