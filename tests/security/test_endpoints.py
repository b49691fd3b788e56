"""A hostile endpoint: answers that never end, or never begin."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from tests.outbound.servers import Line, serving
from tests.security.onlookers import watching
from waystation.outbound import Guard, Outbound

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.relay.hub import Hub


@asynccontextmanager
async def endless(beginning: bytes, more: bytes) -> AsyncIterator[str]:
    """A server that goes on sending the same for as long as anybody listens."""

    async def flood(line: Line) -> None:
        await line.reader.readuntil(b"\r\n\r\n")
        await line.send(beginning)
        while True:
            await line.send(more)
            await asyncio.sleep(0)

    async with serving(flood) as server:
        yield server.url


ENDLESS = {
    "interim answers": (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 50),
    "early hints": (b"", b"HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n" * 50),
    "headers": (b"HTTP/1.1 200 OK\r\n", b"X-A: " + b"a" * 1000 + b"\r\n"),
    "one header": (b"HTTP/1.1 200 OK\r\nX: ", b"a" * 1000),
    "a body": (b"HTTP/1.1 500 No\r\nContent-Length: 99999999999\r\n\r\n", b"a" * 1000),
    "chunks": (b"HTTP/1.1 500 No\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\na\r\n" * 100),
    "a status line": (b"HTTP/1.1 200 ", b"OK" * 500),
}


@pytest.mark.parametrize("kind", ENDLESS)
async def test_an_answer_without_end_is_cut_short(hub: Hub, kind: str) -> None:
    """Long before the time that the endpoint has is over."""
    source = await hub.source()
    async with endless(*ENDLESS[kind]) as url:
        await hub.connect(source, url, timeout=30)
        async with watching(hub.server), asyncio.timeout(8):
            event = await hub.event(await hub.sent(source))
    assert event["status"] == "retrying"


async def test_a_few_interim_answers_are_none() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        interim = b"HTTP/1.1 103 Early Hints\r\n\r\n" * 3
        writer.write(interim + b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    outbound = Outbound(Guard(["127.0.0.0/8"]))
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    reply = await outbound.request("POST", url, body=b"{}")
    await outbound.close()
    server.close()
    assert (reply.status, reply.body) == (200, b"ok")
