"""Clients that send without end, never read, send garbage, or hang up halfway."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.security.onlookers import megabytes, watching
from waystation.server import protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.relay.hub import Hub
    from tests.support.site import Site


@asynccontextmanager
async def connected(
    url: str,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


def post(path: str, body: bytes = b'{"n": 1}') -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def read_all(reader: asyncio.StreamReader) -> bytes:
    return await asyncio.wait_for(reader.read(), 10)


async def count(hub: Hub, source: str) -> int:
    found: int = (await hub.get(f"/v1/sources/{source}"))["event_count"]
    return found


GARBAGE = [
    b"GARBAGE\r\n\r\n",
    b"\x00\x01\x02",
    b"GET / HTTP/9.9\r\n\r\n",
    b"POST /x HTTP/1.1\r\nA\r\n",
]


@pytest.mark.parametrize("garbage", GARBAGE)
async def test_what_was_accepted_is_answered_whatever_comes_behind_it(
    hub: Hub, garbage: bytes
) -> None:
    source = await hub.source()
    async with connected(hub.server.url) as (reader, writer):
        writer.write(post(f"/in/{source}") + garbage)
        answer = await read_all(reader)
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"HTTP/1.1 400" not in answer.split(b"\r\n\r\n", 1)[0]
    assert await count(hub, source) == 1


async def test_garbage_alone_is_refused(hub: Hub) -> None:
    async with connected(hub.server.url) as (reader, writer):
        writer.write(b"GARBAGE\r\n\r\n")
        assert (await read_all(reader)).startswith(b"HTTP/1.1 400")


async def test_garbage_in_a_body_stores_nothing(hub: Hub) -> None:
    source = await hub.source()
    async with connected(hub.server.url) as (reader, writer):
        head = f"POST /in/{source} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        writer.write(head.encode() + b"3\r\nabc\r\nZZZ\r\n")
        assert (await read_all(reader)).startswith(b"HTTP/1.1 400")
    assert await count(hub, source) == 0


@pytest.mark.parametrize("path", ["/in/{source}", "/v1/auth/login"])
async def test_who_half_closes_after_a_request_gets_its_answer(hub: Hub, path: str) -> None:
    source = await hub.source()
    async with connected(hub.server.url) as (reader, writer):
        writer.write(post(path.format(source=source)))
        writer.write_eof()
        assert (await read_all(reader)).startswith(b"HTTP/1.1 ")
    assert await count(hub, source) == (1 if "in" in path.split("/") else 0)


async def test_who_half_closes_after_several_requests_gets_all_answers(hub: Hub) -> None:
    source = await hub.source()
    async with connected(hub.server.url) as (reader, writer):
        writer.write(post(f"/in/{source}") * 5)
        writer.write_eof()
        assert (await read_all(reader)).count(b"HTTP/1.1 200") == 5
    assert await count(hub, source) == 5


async def test_half_a_request_is_none(hub: Hub) -> None:
    source = await hub.source()
    async with connected(hub.server.url) as (reader, writer):
        writer.write(post(f"/in/{source}")[:-2])
        writer.write_eof()
        assert await read_all(reader) == b""
    assert await count(hub, source) == 0


async def test_many_requests_in_a_row_are_all_answered(hub: Hub) -> None:
    source = await hub.source()
    async with connected(hub.server.url) as (reader, writer):
        writer.write(
            post(f"/in/{source}") * 300 + b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 300
        )
        writer.write_eof()
        answers = await asyncio.wait_for(reader.read(), 30)
    assert answers.count(b"HTTP/1.1 ") == 600
    assert await count(hub, source) == 300


async def test_reading_goes_on_after_answers_that_come_at_once(hub: Hub) -> None:
    """A head that is cut where a piece ends, behind requests that are answered in one step."""
    first = b"GET /v1/sources HTTP/1.1\r\nHost: x\r\n\r\nGET /nothing HTTP/1.1\r\nHost: x\r\n\r\n"
    head = b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Filler: "
    sent = first + head + b"a" * (4200 - len(first) - len(head))
    async with connected(hub.server.url) as (reader, writer):
        writer.write(sent)
        await writer.drain()
        got = b""
        while got.count(b"HTTP/1.1 ") < 2:
            got += await asyncio.wait_for(reader.read(65536), 5)
        await asyncio.sleep(0.05)
        writer.write(b"\r\nConnection: close\r\n\r\n")
        got += await asyncio.wait_for(reader.read(), 5)
    assert got.count(b"HTTP/1.1 ") == 3


BAD_CHUNK = (
    b"POST {path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nZZ\r\n"
)


@pytest.mark.parametrize("good", [1, 2, 3])
async def test_a_broken_request_is_not_the_answer_to_those_before_it(hub: Hub, good: int) -> None:
    source = await hub.source()
    path = f"/in/{source}"
    broken = BAD_CHUNK.replace(b"{path}", path.encode())
    async with connected(hub.server.url) as (reader, writer):
        writer.write(post(path) * good + broken)
        answers = await read_all(reader)
    assert answers.count(b"HTTP/1.1 200") == good
    assert await count(hub, source) == good


async def test_clients_that_pipeline_and_never_read_hold_up_nobody(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "WRITE_SECONDS", 0.3)
    assert (await hub.server.get("/docs")).status == 200  # it is built at the first request
    host, port = hub.server.url.removeprefix("http://").split(":")
    request = b"GET /docs HTTP/1.1\r\nHost: x\r\n\r\n"
    before = megabytes()
    writers = []
    async with watching(hub.server):
        for _ in range(40):
            _, writer = await asyncio.open_connection(host, int(port), limit=1)
            writer.write(request * 2_000)
            writers.append(writer)
        await asyncio.sleep(0.1)
        async with asyncio.timeout(30):
            while any(not writer.transport.is_closing() for writer in writers):
                await asyncio.sleep(0.05)
                for writer in writers:
                    if not writer.transport.is_closing():
                        writer.write(b" ")
    assert megabytes() - before < 300


async def test_a_client_that_does_not_read_its_answer_is_dropped(
    server: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "WRITE_SECONDS", 0.2)
    host, port = server.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1)
    reader._transport.pause_reading()  # type: ignore[attr-defined]
    writer.write(b"GET /docs HTTP/1.1\r\nHost: x\r\n\r\n" * 2_000)
    async with asyncio.timeout(20):
        while True:
            writer.write(b"\r\n")
            try:
                await writer.drain()
            except ConnectionError:
                break
            await asyncio.sleep(0.02)
    writer.close()


async def answers(url: str) -> bool:
    async with connected(url) as (reader, writer):
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        try:
            return (await read_all(reader)).startswith(b"HTTP/1.1 200")
        except ConnectionError:
            return False


async def test_open_sockets_do_not_use_up_the_files_that_others_need(tmp_path: Path) -> None:
    """With few files allowed, few clients are: the rest is for deliveries."""
    command = f"ulimit -n 1600; exec {sys.executable} -m waystation.cli serve --port 0 --json"
    process = await asyncio.create_subprocess_exec(
        "sh",
        "-c",
        command,
        cwd=tmp_path,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        url = json.loads(await asyncio.wait_for(process.stdout.readline(), 60))["url"]
        host, port = url.removeprefix("http://").split(":")
        idle = [await asyncio.open_connection(host, int(port)) for _ in range(400)]
        async with asyncio.timeout(20):
            while sum(reader.at_eof() or bool(reader.exception()) for reader, _ in idle) < 290:
                await asyncio.sleep(0.01)
        files = len(list(Path(f"/proc/{process.pid}/fd").iterdir()))
        assert files < 300
        for _, writer in idle:
            writer.transport.abort()
        async with asyncio.timeout(20):
            while not await answers(url):  # it has yet to see that they have gone
                await asyncio.sleep(0.01)
    finally:
        process.kill()
        await process.wait()
