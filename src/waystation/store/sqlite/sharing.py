"""One process writes for several: the others have nothing to do with SQLite's locks and syncs, nor
with the interpreter's lock that a writing thread would want, and what they write at the same time
is one commit.

It does only what is quick. Whatever it refuses, and all the rest, each process does for itself, in
its turn (turns.py); so it does everything while there is nobody to write for it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from waystation.errors import StoreError, StoreUnavailable, TransactionCancelled
from waystation.store.sqlite.messages import UNUSUAL, Reader, packed_transaction
from waystation.store.sqlite.transactions import check_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from waystation.store.actions import Write
    from waystation.store.sqlite.schema import Layout
    from waystation.store.sqlite.transactions import Failure, RowWrites
    from waystation.store.sqlite.writer import Writer
    from waystation.store.tables import Table

log = logging.getLogger(__name__)

_AGAIN_SECONDS = 1.0
_PATIENCE_SECONDS = 20.0
"""After so long without an answer somebody is no longer believed to write."""

_MOST_UNREAD = 16 * 1024 * 1024
_LENGTH = 4
_HELLO = 0
_DONE = b"\1"
_REFUSED = b"\0"


# Those who have somebody write for them


class Link(asyncio.Protocol):
    """The way to the process that writes, if there is one."""

    def __init__(self, meeting: socket.socket) -> None:
        """`meeting` is where the process that writes finds whom to write for."""
        self._meeting = meeting
        self._loop = asyncio.get_running_loop()
        self._transport: Any = None  # uvloop's is not asyncio's
        self._waiting: dict[int, asyncio.Future[bool]] = {}
        self._number = _HELLO
        self._heard = b""
        self._answers = 0
        self._watch: asyncio.TimerHandle | None = None
        self._full = False
        self.open = False
        """Whether there is somebody at the other end."""

        self._closed = False
        self._opening: asyncio.Task[None] | None = None
        self._meet()

    def _meet(self) -> None:
        if not self._closed:
            self._opening = self._loop.create_task(self._connect())

    async def _connect(self) -> None:
        try:
            mine = self._leave_word()
        except OSError:  # nobody has come there for long, or there are no more files to be had
            self._loop.call_later(_AGAIN_SECONDS, self._meet)
            return
        try:
            await self._loop.create_unix_connection(lambda: self, sock=mine)
        except BaseException:
            mine.close()
            raise

    def _leave_word(self) -> socket.socket:
        mine, theirs = socket.socketpair()
        with theirs:
            try:
                mine.setblocking(False)
                socket.send_fds(self._meeting, [b"+"], [theirs.fileno()])
            except BaseException:
                mine.close()
                raise
        return mine

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._transport.set_write_buffer_limits(high=_MOST_UNREAD)

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False

    def data_received(self, data: bytes) -> None:
        self._heard += data
        while len(self._heard) > _LENGTH:
            number = int.from_bytes(self._heard[1 : 1 + _LENGTH], "big")
            done, self._heard = self._heard[:1] == _DONE, self._heard[1 + _LENGTH :]
            if number == _HELLO:
                self.open = True
                continue
            future = self._waiting.pop(number)
            self._answers += 1
            if not future.done():
                future.set_result(done)

    def connection_lost(self, error: Exception | None) -> None:
        was_open, self.open = self.open, False
        self._heard = b""
        self._full = False
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                lost = "the process that writes has ended: it may have been written or not"
                future.set_exception(StoreUnavailable(lost))
        if self._closed:
            return
        if was_open:
            self._meet()
        else:
            self._loop.call_later(_AGAIN_SECONDS, self._meet)

    def _look(self, answers: int) -> None:
        """Give up on somebody who has not answered for long."""
        self._watch = None
        if not self._waiting:
            return
        if answers == self._answers:
            log.error("the process that writes does not answer: it is left to itself")
            self._transport.abort()
        else:
            self._watch_on()

    def _watch_on(self) -> None:
        if self._watch is None:
            self._watch = self._loop.call_later(_PATIENCE_SECONDS, self._look, self._answers)

    @property
    def ready(self) -> bool:
        return self.open and not (self._full or self._closed)

    async def write(
        self, writes: Sequence[Write], now: int, layout_of: Callable[[Table], Layout]
    ) -> bool:
        """Have a transaction written; False when it is not, and one must do it oneself."""
        self._number = self._number % 0xFFFF_FFFF + 1
        number = self._number
        try:
            packed = packed_transaction(number, now, writes, layout_of)
        except UNUSUAL:
            return False
        future: asyncio.Future[bool] = self._loop.create_future()
        self._waiting[number] = future
        self._transport.write(len(packed).to_bytes(_LENGTH, "big") + packed)
        self._watch_on()
        return await future

    async def close(self) -> None:
        """Have what was sent answered, as far as it is in time."""
        self._closed = True
        if self._waiting:
            await asyncio.wait(self._waiting.values(), timeout=_PATIENCE_SECONDS)
        if self._watch is not None:
            self._watch.cancel()
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        if self._transport is not None:
            self._transport.abort()


# The process that writes


class Clerk:
    """Writes for others, with a store's own writer."""

    def __init__(self, writer: Writer, rows: RowWrites, tables: Sequence[Table]) -> None:
        self._writer = writer
        self._rows = rows
        self._reader = Reader(rows.layouts, tables)
        self._clients: set[_Client] = set()
        self._gone: asyncio.Future[None] | None = None

    async def work(self, meeting: socket.socket, stopping: asyncio.Event) -> None:
        """Write for whoever comes to the meeting place, until told to stop and nobody is left."""
        loop = asyncio.get_running_loop()
        greetings: set[asyncio.Task[None]] = set()

        def met() -> None:
            with suppress(BlockingIOError):
                _, found, _, _ = socket.recv_fds(meeting, 1, 1)
                task = loop.create_task(self._greet([socket.socket(fileno=fd) for fd in found]))
                greetings.add(task)
                task.add_done_callback(greetings.discard)

        await self._writer.leave_thread()
        loop.add_reader(meeting.fileno(), met)
        try:
            await stopping.wait()
        finally:
            loop.remove_reader(meeting.fileno())
            await asyncio.gather(*greetings, return_exceptions=True)
        while self._clients:
            self._gone = loop.create_future()
            await self._gone

    async def _greet(self, found: list[socket.socket]) -> None:
        for one in found:
            one.setblocking(False)
            await asyncio.get_running_loop().create_unix_connection(self._client, sock=one)

    def _client(self) -> _Client:
        client = _Client(self._write, self._lost)
        self._clients.add(client)
        return client

    def _lost(self, client: _Client) -> None:
        self._clients.discard(client)
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)

    def _write(self, packed: bytes, answer: Callable[[bytes], None]) -> None:
        asked = self._reader.read(packed)
        number = asked.number.to_bytes(_LENGTH, "big")
        try:
            planned = self._reader.planned(asked)
            check_bytes(planned)
        except Exception as error:
            if not isinstance(error, StoreError):
                log.exception("a transaction of another process makes no sense")
            answer(_REFUSED + number)
            return
        job = partial(self._rows.transact, planned, None, asked.now, _refusal)
        written = asyncio.ensure_future(self._writer.run(job))
        written.add_done_callback(
            lambda done: answer((_REFUSED if _failed(done) else _DONE) + number)
        )


class _Client(asyncio.Protocol):
    """Another process, and what it sends."""

    def __init__(
        self,
        write: Callable[[bytes, Callable[[bytes], None]], None],
        lost: Callable[[_Client], None],
    ) -> None:
        self._write = write
        self._lost = lost
        self._unread = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        self._answer(_DONE + _HELLO.to_bytes(_LENGTH, "big"))

    def _answer(self, text: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(text)

    def data_received(self, data: bytes) -> None:
        self._unread += data
        while len(self._unread) >= _LENGTH:
            end = _LENGTH + int.from_bytes(self._unread[:_LENGTH], "big")
            if len(self._unread) < end:
                return
            packed = bytes(self._unread[_LENGTH:end])
            del self._unread[:end]
            try:
                self._write(packed, self._answer)
            except Exception:
                log.exception("a process has sent what makes no sense")
                self._transport.abort()
                return

    def connection_lost(self, error: Exception | None) -> None:
        self._lost(self)


def _refusal(writes: Sequence[Write], failures: Sequence[Failure | None]) -> TransactionCancelled:
    """The process that asked will find out why."""
    return TransactionCancelled([])


def _failed(done: asyncio.Future[Any]) -> bool:
    error = None if done.cancelled() else done.exception()
    if error is not None and not isinstance(error, StoreError):
        log.error("a transaction of another process failed", exc_info=error)
    return done.cancelled() or error is not None
