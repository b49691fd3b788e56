"""One connection to the outside: a request at a time, and of its answer no more than is bounded.

The other side may be hostile. Whatever it sends costs a bounded number of bytes and callbacks, and
the time that the caller gives it.
"""

from __future__ import annotations

import asyncio
import select
import time
from collections.abc import Callable
from typing import Any

import httptools
import msgspec

from waystation.deadlines import Deadline
from waystation.departures import departures_of

MOST_HEAD = 64 * 1024
"""Bytes of a status line with its headers, interim answers included."""

_MOST_INTERIM = 8
_SLACK = 64 * 1024
"""Bytes beside the body's own: chunk sizes, extensions and trailers. They may also be as many as
the body has."""

_SURELY_FRESH = 0.25
"""Seconds after which it is worth asking the system whether a connection was closed."""

_CLOSED = "the connection was closed without an answer"
_SWITCHING = 101
_OK = 200

Grow = Callable[[int], bool]


class NoAnswer(Exception):
    """The other side did not answer, or not in HTTP. Its text is safe to keep."""

    def __init__(self, text: str, *, sent: bool = True, closed: bool = False) -> None:
        super().__init__(text)
        self.sent = sent
        self.closed = closed
        """Whether the connection was closed before the first byte of an answer."""


class Bounds(msgspec.Struct, gc=False):
    """What an answer may cost. `until` is the loop's time by which it must have begun, after so
    many `seconds` in all."""

    head_only: bool
    until: float
    seconds: float
    body_seconds: float
    most: int
    grow: Grow | None


class Answer:
    """What has come back so far."""

    __slots__ = ("body", "grow", "headers", "most", "status", "whole")

    def __init__(self, most: int, grow: Grow | None) -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.body = bytearray()
        self.whole = False
        self.most = most
        self.grow = grow


class Exchange(asyncio.BufferedProtocol):
    """`buffer` is shared by all connections of a loop: it is read into and parsed in one step."""

    def __init__(self, place: Any, buffer: memoryview, lost: Callable[[Exchange], None]) -> None:
        self.place = place
        self.transport: Any = None  # uvloop's is not asyncio's
        self.idle_since = 0.0
        self.used = 0
        self.open = False
        self._buffer = buffer
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._departures = departures_of(self._loop)
        self._unsent = b""
        self._parser: Any = httptools.HttpResponseParser(self)
        self._answer: Answer | None = None
        self._done: asyncio.Future[None] | None = None
        self._deadline = Deadline(self._loop, self._late)
        self._seconds = self._body_seconds = 0.0
        self._begun = self._ended = self._head_only = self._interim = self._keep = False
        self._fed = self._interims = 0
        self._poll: select.poll | None = None

    # The connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.open = True
        poll = select.poll()
        poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
        self._poll = poll

    def connection_lost(self, error: Exception | None) -> None:
        self.open = False
        self._deadline.stop()
        answer, done = self._answer, self._done
        if answer is not None and done is not None and not done.done():
            if self._begun:
                answer.whole = self._until_closed() and error is None
                done.set_result(None)
            else:
                nothing = self._fed == 0
                done.set_exception(NoAnswer(_CLOSED, sent=not self._unsent, closed=nothing))
        self._lost(self)

    def _until_closed(self) -> bool:
        """Whether the end of the connection is the end of the body. With TLS it cannot be told from
        one that somebody else has brought about."""
        assert self._answer is not None
        if self.place.tls:
            return False
        framed = {b"content-length", b"transfer-encoding"}
        return not any(name.lower() in framed for name, _ in self._answer.headers)

    def close(self) -> None:
        if self.open:
            self.open = False
            self.transport.abort()

    @property
    def usable(self) -> bool:
        """Whether it is open, as far as we have heard."""
        return self.open and not self.transport.is_closing()

    def is_fresh(self) -> bool:
        """Whether a connection that was kept can still be used: nothing has come on it meanwhile,
        not even its end."""
        if not self.usable:
            return False
        if self.used > 1 and time.monotonic() - self.idle_since < _SURELY_FRESH:
            return True  # the other side keeps connections, and this one was used just now
        return self._poll is None or not self._poll.poll(0)

    # A request and its answer

    async def ask(self, request: bytes, bounds: Bounds) -> Answer:
        """Send a request, and read its answer."""
        if not self.usable:  # it was closed since somebody else has given it back
            raise NoAnswer(_CLOSED, sent=False, closed=True)
        answer = self._answer = Answer(bounds.most, bounds.grow)
        self._begun = self._ended = self._interim = self._keep = False
        self._fed = self._interims = 0
        self._head_only, self._body_seconds = bounds.head_only, bounds.body_seconds
        done = self._done = self._loop.create_future()
        self._seconds = bounds.seconds
        self._deadline.set(bounds.until)
        try:
            self._unsent = request
            self._departures.add(self._leave)
            await done
        except BaseException:
            self._keep = False
            raise
        finally:
            self._deadline.clear()
            self._answer = self._done = None
            self._unsent = b""
            self.used += 1
            if not self._keep or self.transport.get_write_buffer_size():
                self.close()
        return answer

    def _leave(self) -> None:
        if self._unsent and self.open:
            request, self._unsent = self._unsent, b""
            self.transport.write(request)

    def _late(self) -> None:
        if self._done is None or self._done.done():
            return
        if self._begun:
            self._done.set_result(None)
        else:
            text = f"no answer within {self._seconds:g} seconds"
            self._done.set_exception(NoAnswer(text, sent=not self._unsent))

    def _finish(self, *, whole: bool) -> None:
        """The answer is there, or as much of it as is wanted."""
        if self._answer is not None and self._done is not None and not self._done.done():
            self._answer.whole = whole
            self._done.set_result(None)

    def _fail(self, text: str) -> None:
        self._keep = False
        if self._done is not None and not self._done.done():
            if self._begun:
                self._done.set_result(None)
            else:
                self._done.set_exception(NoAnswer(text))

    # What arrives

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, count: int) -> None:
        if self._answer is None or self._ended or self._unsent:
            self._keep = False
            self.close()  # nobody has asked for anything yet
            return
        self._fed += count
        try:
            self._parser.feed_data(self._buffer[:count])
        except httptools.HttpParserUpgrade:
            self._ended = True
            self._keep = False
            self._finish(whole=True)
        except httptools.HttpParserError:
            self._fail("the answer is not valid HTTP")
        if not self._ended:
            self._check_bounds()
        elif self._head_only:  # the old one waits for the body that was not asked for
            self._parser = httptools.HttpResponseParser(self)

    def _check_bounds(self) -> None:
        answer = self._answer
        if answer is None or self._done is None or self._done.done():
            return
        if not self._begun:
            if self._fed > MOST_HEAD:
                self._fail("the answer is not valid HTTP: it has headers without end")
            return
        if self._fed > MOST_HEAD + _SLACK + 2 * len(answer.body):
            self._fail("the answer has more around its body than in it")
        elif self._body_seconds:
            self._deadline.set(self._loop.time() + self._body_seconds)
            self._body_seconds = 0.0

    def on_message_begin(self) -> None:
        if self._ended:
            self._keep = False  # it goes on after its end

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._answer is not None and not self._begun:
            self._answer.headers.append((name, value))

    def on_headers_complete(self) -> None:
        answer = self._answer
        if answer is None or self._ended:
            return
        status = self._parser.get_status_code()
        if status < _OK and status != _SWITCHING:
            self._interims += 1
            self._interim = True
            answer.headers.clear()
            if self._interims > _MOST_INTERIM:
                self._fail("it sends interim answers without end")
                self.close()
            return
        answer.status = status
        self._begun = True
        if self._head_only:
            self._ended = True
            self._keep = self._parser.should_keep_alive()
            self.idle_since = time.monotonic()
            self._finish(whole=True)

    def on_body(self, piece: bytes) -> None:
        answer = self._answer
        if answer is None or self._ended:
            self._keep = False
            return
        wanted = answer.most - len(answer.body)
        if len(piece) > wanted:
            piece = piece[:wanted]
            self._ended = True
        if piece and answer.grow is not None and not answer.grow(len(piece)):
            self._ended = True
        else:
            answer.body += piece
        if self._ended:
            self._finish(whole=False)

    def on_message_complete(self) -> None:
        if self._interim:
            self._interim = False
            return
        if self._ended:
            return
        self._ended = True
        self._keep = self._parser.should_keep_alive()
        self.idle_since = time.monotonic()
        self._finish(whole=True)
