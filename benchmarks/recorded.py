"""An endpoint that answers every call with what DynamoDB Local once answered.

It measures clients alone: DynamoDB Local itself is slower than our client. Run as a process of
its own; the file it is given has a recorded answer per operation.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Answering(asyncio.Protocol):
    def __init__(self, answers: dict[bytes, bytes]) -> None:
        self._answers = answers
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            head = self._received[:end].lower()
            length = int(head.split(b"content-length:", 1)[1].split(b"\r\n", 1)[0])
            if len(self._received) < end + 4 + length:
                return
            self._received = self._received[end + 4 + length :]
            operation = head.split(b"x-amz-target:", 1)[1].split(b"\r\n", 1)[0].rpartition(b".")[2]
            self._transport.write(self._answers[operation])


async def _serve(recorded: str) -> None:
    answers = {}
    for operation, body in json.loads(recorded).items():
        head = (
            "HTTP/1.1 200 OK\r\nContent-Type: application/x-amz-json-1.0\r\n"
            f"Content-Length: {len(body.encode())}\r\n\r\n"
        )
        answers[operation.lower().encode()] = head.encode() + body.encode()
    server = await asyncio.get_running_loop().create_server(
        lambda: _Answering(answers), "127.0.0.1", 0
    )
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


@contextmanager
def recorded_endpoint(answers: dict[str, str], folder: Path) -> Iterator[str]:
    """The URL of an endpoint that gives these answers."""
    file = folder / "answers.json"
    file.write_text(json.dumps(answers))
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.recorded", str(file)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1]).read_text()))
