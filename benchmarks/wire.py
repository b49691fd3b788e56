"""HTTP on bare sockets: a sender and a receiver that cost as little as possible themselves."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_MARK = b'"sent":'
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_TAKEN = b"HTTP/1.1 200"


def _end(data: bytes) -> int:
    """Where the message that `data` begins with ends; 0 if that is not known yet."""
    head = data.find(b"\r\n\r\n")
    if head < 0:
        return 0
    length = _LENGTH.search(data, 0, head)
    return head + 4 + (int(length[1]) if length else 0)


class _Caller(asyncio.Protocol):
    """One connection; a request at a time."""

    def __init__(self) -> None:
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport  # uvloop's is not asyncio's

    def data_received(self, data: bytes) -> None:
        self._buffer = data = self._buffer + data if self._buffer else data
        if 0 < _end(data) <= len(data):
            self._buffer = b""
            self.answered(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.failed(ConnectionError("the server hung up"))

    def answered(self, answer: bytes) -> None:
        raise NotImplementedError

    def failed(self, error: Exception) -> None:
        raise NotImplementedError


class _Repeating(_Caller):
    """Sends the next request as soon as it has its answer, without a task: what it costs is taken
    from the server, with which it shares the machine."""

    def __init__(self, send: Callable[[_Repeating], None], done: asyncio.Future[None]) -> None:
        super().__init__()
        self._send = send
        self._done = done

    def answered(self, answer: bytes) -> None:
        if answer.startswith(_TAKEN):
            self._send(self)
        else:
            self.failed(RuntimeError(answer[:500].decode()))

    def failed(self, error: Exception) -> None:
        if not self._done.done():
            self._done.set_exception(error)


class _Single(_Caller):
    """Requests that somebody waits for."""

    _answer: asyncio.Future[bytes] | None = None

    def answered(self, answer: bytes) -> None:
        assert self._answer is not None
        self._answer.set_result(answer)

    def failed(self, error: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)

    async def call(self, request: bytes) -> bool:
        """Whether it was taken; a server may say that it has too much to do."""
        self._answer = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        answer = await self._answer
        if not answer.startswith((_TAKEN, b"HTTP/1.1 503")):
            raise RuntimeError(answer[:500].decode())
        return answer.startswith(_TAKEN)


def _head(path: str, length: int, headers: str = "") -> str:
    return (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"{headers}Content-Length: {length}\r\n\r\n"
    )


def request(path: str, body: bytes, headers: str = "") -> bytes:
    return _head(path, len(body), headers).encode() + body


Make = Callable[[], bytes]
"""The next request to send."""


def plain(path: str, size: int) -> Make:
    """Requests with bodies of about so many bytes, which say when they were sent."""
    text = b',"text":"' + b"x" * (size - 40) + b'"}'
    stamp = b"{" + _MARK + b"%17.6f"
    head = _head(path, len(stamp % 0.0) + len(text)).encode() + stamp
    return lambda: head % time.monotonic() + text


async def closed_loop(port: int, make: Make, connections: int, count: int) -> float:
    """Requests per second when every connection sends the next as soon as it has its answer."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    unsent = unanswered = count

    def send(caller: _Repeating) -> None:
        nonlocal unsent
        if unsent > 0:
            unsent -= 1
            caller.transport.write(make())

    def send_next(caller: _Repeating) -> None:
        nonlocal unanswered
        unanswered -= 1
        if not unanswered and not done.done():
            done.set_result(None)
        send(caller)

    callers: list[_Repeating] = []
    for _ in range(connections):
        _, caller = await loop.create_connection(
            lambda: _Repeating(send_next, done), "127.0.0.1", port
        )
        callers.append(caller)
    begun = time.perf_counter()
    for caller in callers:
        send(caller)
    await done
    rate = count / (time.perf_counter() - begun)
    for caller in callers:
        caller.transport.close()
    return rate


async def _connect(port: int) -> _Single:
    _, caller = await asyncio.get_running_loop().create_connection(_Single, "127.0.0.1", port)
    return caller


async def open_loop(port: int, make: Make, rate: float, seconds: float) -> list[float]:
    """Milliseconds that answers took when requests come at a rate, whether answered or not.

    Those that were refused are left out.
    """
    idle = [await _connect(port) for _ in range(32)]
    took: list[float] = []
    tasks: set[asyncio.Task[None]] = set()

    async def send(due: float) -> None:
        caller = idle.pop() if idle else await _connect(port)
        if caller.transport.is_closing():  # it was of no use for too long
            caller = await _connect(port)
        if await caller.call(make()):
            took.append((time.perf_counter() - due) * 1000)
        idle.append(caller)

    begun = time.perf_counter()
    for n in range(int(rate * seconds)):
        due = begun + n / rate
        if (wait := due - time.perf_counter()) > 0:
            await asyncio.sleep(wait)
        task = asyncio.create_task(send(due))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    while tasks:
        await asyncio.wait(tasks)
    for caller in idle:
        caller.transport.close()
    return took


def percentiles(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {
        name: round(ordered[min(len(ordered) - 1, int(len(ordered) * share))], 2)
        for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
    }


class _Receiver(asyncio.Protocol):
    """Answers every POST with 200 and notes when its body was sent, and how long ago that was. GET
    gives the notes."""

    notes: list[tuple[float, float]] = []  # noqa: RUF012 - shared by all connections

    def __init__(self) -> None:
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self._buffer = data = self._buffer + data if self._buffer else data
        while 0 < (end := _end(data)) <= len(data):
            answer = b""
            if data.startswith(b"GET"):
                answer = json.dumps(self.notes).encode()
                self.notes.clear()
            elif (at := data.find(_MARK, 0, end)) >= 0:
                at += len(_MARK)
                sent = float(data[at : data.index(b",", at)])
                self.notes.append((sent, (time.monotonic() - sent) * 1000))
            self._buffer = data = data[end:]
            self._transport.write(
                b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(answer) + answer
            )


async def _receive() -> None:
    server = await asyncio.get_running_loop().create_server(_Receiver, "127.0.0.1", 0)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


async def _echo(scope: Any, receive: Any, send: Any) -> None:
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body", False):
            break
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _serve_echo() -> None:
    """A bare ASGI app on the same server: uvicorn with uvloop and httptools."""
    import socket

    import uvicorn

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1024)
        sys.stdout.write(f"{listener.getsockname()[1]}\n")
        sys.stdout.flush()
        config = uvicorn.Config(
            _echo,
            loop="uvloop",
            http="httptools",
            lifespan="off",
            log_config=None,
            access_log=False,
        )
        uvicorn.Server(config).run(sockets=[listener])


@contextmanager
def helper(kind: str) -> Iterator[int]:
    """The port of a receiver or an echo in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.wire", kind],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[1],
    )
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


if __name__ == "__main__":
    if sys.argv[1] == "echo":
        _serve_echo()
    else:
        import uvloop

        uvloop.run(_receive())
