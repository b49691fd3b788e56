"""HTTP on a socket: uvicorn's, with bounds on what comes before a request is one.

Doors are answered past ASGI, which is worth a sixth to a third more webhooks taken in
(benchmarks/relay.md). That relies on uvicorn's inside (inside.py).
"""

from __future__ import annotations

import asyncio
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from waystation.deadlines import Deadline
from waystation.seam import Request
from waystation.server.asgi import body_for, with_length
from waystation.server.corked import Corked
from waystation.server.front import Front

if TYPE_CHECKING:
    from collections.abc import Callable

    from waystation.seam import Door, Response

MAX_HEADERS = 64 * 1024
HEADER_SECONDS = 15.0
WRITE_SECONDS = 30.0
"""How long a client may leave an answer unread."""

_PIECE = 4 * 1024
_BODY_PIECE = 16 * 1024
"""What is parsed at a time. A hundred of the smallest requests fit into the first."""

_WRITE_PIECE = 256 * 1024
_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-length: 0\r\nconnection: close\r\n\r\n"
)


_SHORT_URL = 200
_MOST_URLS = 1_000
"""Those that are asked for again and again are parsed once."""


@lru_cache(_MOST_URLS)
def _parsed(url: bytes) -> tuple[Any, str]:
    parsed = httptools.parse_url(url)
    return parsed, parsed.path.decode("ascii")


class _Flow(FlowControl):
    """Reads no more requests while some are waiting for their turn."""

    def __init__(self, transport: asyncio.Transport, waiting: Callable[[], bool]) -> None:
        super().__init__(transport)
        self._waiting = waiting

    def resume_reading(self) -> None:
        if self.read_paused and not self._waiting():
            super().resume_reading()


class _Exchange:
    """A request that a door is answering: what uvicorn wants to know of one."""

    __slots__ = ("disconnected", "keep_alive", "response_complete", "task")

    message_event = asyncio.Event()
    """Nobody waits for it: the whole request is here."""

    def __init__(self, *, keep_alive: bool) -> None:
        self.keep_alive = keep_alive
        self.disconnected = False
        self.response_complete = False
        self.task: asyncio.Task[None] | None = None


class BoundedProtocol(HttpToolsProtocol):
    """Closes connections whose headers are too large or do not come, or whose client does not read.

    Of what a client sends without waiting for answers, no more is parsed than a request or a few at
    a time: the rest lies unread in one buffer, and behind that in the client's own.

    A request for a door whose last byte has come with its first goes to the door directly. All
    others go through ASGI, where bodies are read in pieces and in time.
    """

    _timer: asyncio.TimerHandle | None = None
    _stuck: asyncio.TimerHandle | None = None
    _deaf = False
    """Whether what comes from now on is of no interest."""

    _ended = False
    """Whether the client has said that no more comes. It may still read."""

    _received = 0
    _trailers = 0
    _headers = 0
    _in_head = False
    _open = False
    _held = False
    """Whether the head is complete, and we wait to see if all of the request is here."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._cork = Corked(transport, self.loop)
        self._idle = Deadline(self.loop, self._close_idle)
        super().connection_made(self._cork)  # type: ignore[arg-type]
        self._unread = bytearray()
        self.flow = _Flow(self.transport, lambda: bool(self.pipeline or self._unread))
        if self.limit_concurrency and len(self.connections) > self.limit_concurrency:
            self._deaf = True
            transport.abort()  # even an answer would cost more than it is worth
            return
        self._wait_for_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._idle.stop()
        self._headers_came()
        self.resume_writing()
        self.pipeline.clear()
        self._unread.clear()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stuck is None:
            self._stuck = self.loop.call_later(WRITE_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None
        super().resume_writing()

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client sends no more. What it has sent is answered, if it was whole; one that goes in
        the middle of an answer has gone."""
        self._cork.flush()  # after this the transport may close
        begun = getattr(self.cycle, "response_started", False)
        if self._in_body() or begun or not (self._unread or self._answering()):
            return False
        self._ended = True
        self._close_after_the_last()
        return True

    def _close_after_the_last(self) -> None:
        if self._unread:
            return
        if self._answering():
            self.cycle.keep_alive = False
        else:
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        if self._unread or len(data) > _PIECE or self._answering():
            self._unread += data
        else:
            self._consume(data)
        self._read_on()

    def _read_on(self) -> None:
        """Parse what is there, as far as it is its turn."""
        while self._unread and not self._deaf and not (self._answering() and self.pipeline):
            size = _BODY_PIECE if self._in_body() else _PIECE
            piece = bytes(self._unread[:size])
            del self._unread[:size]
            self._consume(piece)
        if self._held:
            self._held = False
            if not self.transport.is_closing():
                self._pass_on()
        if self._unread:
            self.flow.pause_reading()
        elif self._ended:
            self._close_after_the_last()
        elif len(getattr(self.cycle, "body", b"")) <= HIGH_WATER_LIMIT:
            self.flow.resume_reading()  # an answer may have been refused to while more was unread

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if not self.transport.is_closing():
            self.flow.resume_reading()
            if self.pipeline:
                cycle, app = self.pipeline.pop()
                self._start_asgi_task(cycle, app)
            else:
                self._idle.set(self.loop.time() + self.timeout_keep_alive)
        if self._unread or self._ended:
            self.loop.call_soon(self._read_on)

    def _unset_keepalive_if_required(self) -> None:
        self._idle.clear()

    def _close_idle(self) -> None:
        """Close a connection that is kept for nothing. One on which another request came with the
        last one is not."""
        if not (self._answering() or self._in_body()):
            self.timeout_keep_alive_handler()

    def _consume(self, data: bytes) -> None:
        waiting = self._timer
        self._unset_keepalive_if_required()
        self._feed(data)
        if self._timer is None:
            # An unfinished head, or blank lines, which stop uvicorn's own clock.
            if self._in_head or not (self._answering() or self._in_body()):
                self._wait_for_headers()
        elif self._timer is waiting:
            self._received += len(data)
            if self._received > MAX_HEADERS:
                if not self._answering():
                    self.transport.write(_TOO_LARGE)
                self.transport.close()

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self._refuse()
        except httptools.HttpParserUpgrade as upgrade:
            self._decline(data[upgrade.args[0] :])

    def _refuse(self) -> None:
        """Answer that this is no HTTP. What was accepted before it is answered as such, though, and
        the connection ends after it."""
        self._deaf = True
        self._unread.clear()
        its_turn = self._in_body() and not self._held
        self._held = False
        if self._answering() and not its_turn:
            self.cycle.keep_alive = False
        elif its_turn and self.cycle is not None and self.cycle.response_complete:
            self.transport.close()  # it was answered before all of it had come
        else:
            self.send_400_response("Invalid HTTP request received.")

    def _in_body(self) -> bool:
        """Whether a request has begun whose end has not come."""
        return self._open and not self._in_head

    def _decline(self, rest: bytes) -> None:
        """Go on as if no other protocol had been offered. The parser would take the body for the
        beginning of that protocol."""
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        if method == b"CONNECT":
            self._refuse()
            return
        lines = [b"%b %b HTTP/%b" % (method, self.url, version)]
        for name, value in self.headers:
            if name == b"connection":
                options = [option.strip() for option in value.split(b",")]
                value = b", ".join(o for o in options if o.lower() != b"upgrade")
            if name != b"upgrade":
                lines.append(b"%b: %b" % (name, value))
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
        self._feed(b"\r\n".join([*lines, b"", rest]))

    def on_message_begin(self) -> None:
        self.url = b""
        self.headers = []
        self.expect_100_continue = False
        self._pieces: list[bytes] = []
        self._trailers = self._headers = 0
        self._in_head = self._open = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:  # after the body
            self._trailers += len(name) + len(value)
            if self._trailers > MAX_HEADERS:
                self.transport.close()
            return
        self._headers += len(name) + len(value)
        if self._headers > MAX_HEADERS:  # all in one packet: uvicorn answers 400 to an error here
            raise ValueError("the headers are too large")
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._headers_came()
        parse = _parsed if len(self.url) <= _SHORT_URL else _parsed.__wrapped__
        self._url, self._path = parse(self.url)
        self._held = not self.parser.should_upgrade()

    def on_body(self, body: bytes) -> None:
        if self._held:
            self._pieces.append(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return  # it is fed again without
        self._open = False
        if not self._held:
            super().on_message_complete()
            return
        self._held = False
        front = self.app
        door = front.door(self._path) if isinstance(front, Front) else None
        if door is not None and self._may_answer(door):
            self._answer(door)
        else:
            self._pass_on()
            super().on_message_complete()

    def _may_answer(self, door: Door) -> bool:
        """Whether a door may answer directly: in its turn, and with none of what needs ASGI."""
        most = self.limit_concurrency or 1 << 30
        return (
            not self._answering()
            and sum(map(len, self._pieces)) <= door.max_body
            and max(len(self.connections), len(self.tasks)) < most
        )

    def _pass_on(self) -> None:
        """Have ASGI answer."""
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expects
        self.headers += headers
        super().on_headers_complete()
        for piece in self._pieces:
            super().on_body(piece)

    def _answer(self, door: Door) -> None:
        path = self._path
        request = Request(
            method=self.parser.get_method().decode("ascii"),
            path=unquote(path) if "%" in path else path,
            raw_path=self._url.path,
            query=self._url.query or b"",
            headers=self.headers,
            scheme=self.scheme or "http",
            client=self.client[0] if self.client else "",
            body=b"".join(self._pieces),
        )
        version = self.parser.get_http_version()
        exchange = _Exchange(keep_alive=version != "1.0" and self.parser.should_keep_alive())
        if door.at_once is not None and self._answer_at_once(door, request, exchange):
            return
        self.cycle = exchange  # type: ignore[assignment]
        exchange.task = self.loop.create_task(self._exchange(door, request, exchange))
        self.tasks.add(exchange.task)

    def _answer_at_once(self, door: Door, request: Request, exchange: _Exchange) -> bool:
        """Answer without a task, where nothing has to be waited for: one request in each turn of
        the loop. Whoever sends many in one packet waits with everybody else."""
        if self._cork.pending:
            return False
        if self.flow.write_paused or not exchange.keep_alive:
            return False
        front: Any = self.app
        response = front.at_once(door, request)
        if response is None:
            return False
        if len(response.body) > _WRITE_PIECE or response.sent is not None:
            raise RuntimeError("a large answer cannot be written at once")
        head = self._head(request, response, exchange)
        self.transport.write(head + body_for(request.method, response))
        exchange.response_complete = True
        self.cycle = exchange  # type: ignore[assignment]
        self.on_response_complete()
        return True

    async def _exchange(self, door: Door, request: Request, exchange: _Exchange) -> None:
        try:
            front: Any = self.app
            response = await front.answer(door, request)
            try:
                await self._write(request, response, exchange)
            finally:
                if response.sent is not None:
                    response.sent()
        except BaseException:
            exchange.keep_alive = False
            raise
        finally:
            exchange.response_complete = True
            if exchange.task is not None:
                self.tasks.discard(exchange.task)
            if not exchange.keep_alive:
                self.transport.close()
            self.on_response_complete()

    async def _write(self, request: Request, response: Response, exchange: _Exchange) -> None:
        """Write an answer as its client reads it: a large one in pieces."""
        head = self._head(request, response, exchange)
        body = body_for(request.method, response)
        if len(body) <= _WRITE_PIECE:
            if self.flow.write_paused:
                await self._write_piece(head + body, exchange)
            elif not exchange.disconnected:
                self._cork.write(head + body)
            return
        await self._write_piece(head, exchange)
        view = memoryview(body)
        for at in range(0, len(body), _WRITE_PIECE):
            await self._write_piece(bytes(view[at : at + _WRITE_PIECE]), exchange)
            self._cork.flush()
        while self.flow.write_paused and not exchange.disconnected:
            await self.flow.drain()

    async def _write_piece(self, piece: bytes, exchange: _Exchange) -> None:
        if self.flow.write_paused and not exchange.disconnected:
            await self.flow.drain()
        if not exchange.disconnected:
            self.transport.write(piece)

    def _head(self, request: Request, response: Response, exchange: _Exchange) -> bytes:
        headers = with_length(request.method, response)
        if (b"connection", b"close") in headers:
            exchange.keep_alive = False
        elif not exchange.keep_alive:
            headers = [*headers, (b"connection", b"close")]
        lines = b"\r\n".join(map(b": ".join, headers))
        return b"%b%b\r\n\r\n" % (STATUS_LINE[response.status], lines)

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
