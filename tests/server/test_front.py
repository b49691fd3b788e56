"""What every request gets, whatever it asks for."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import socket
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from tests.support.site import Site, listening
from waystation.errors import NotFound, StoreUnavailable, TooManyRequests
from waystation.seam import Door, Request, Response
from waystation.server import asgi, protocol
from waystation.server.front import Front
from waystation.server.logs import JsonFormatter
from waystation.server.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Doors:
    """Handlers that go wrong in their own ways."""

    async def echo(self, request: Request) -> Response:
        return Response(200, request.body, [(b"content-type", b"text/plain")])

    async def broken(self, request: Request) -> Response:
        raise ZeroDivisionError("the secret is ws_live_abcdefgh")

    async def absent(self, request: Request) -> Response:
        raise NotFound("not here")

    async def busy(self, request: Request) -> Response:
        raise TooManyRequests("slowly", retry_after=1.2)

    async def down(self, request: Request) -> Response:
        raise StoreUnavailable("disk of host-7 is gone")


async def api(scope: Any, receive: Any, send: Any) -> None:
    if scope["path"] != "/late":
        raise NotFound("not here")
    await send({"type": "http.response.start", "status": 200, "headers": []})
    raise ZeroDivisionError


def front() -> Front:
    doors = Doors()
    names = ("echo", "broken", "absent", "busy", "down")
    built = {name: Door(f"/{name}", getattr(doors, name), max_body=1000) for name in names}
    return Front(built, api, Metrics())


@pytest.fixture(params=["directly", "through ASGI"])
async def url(request: pytest.FixtureRequest) -> AsyncIterator[str]:
    """Doors are reached both ways, and behave the same."""
    doors = front()

    async def wrapped(scope: Any, receive: Any, send: Any) -> None:
        await doors(scope, receive, send)

    async with listening(doors if request.param == "directly" else wrapped) as url:
        yield url


async def raw(url: str, request: bytes, after: bytes = b"") -> bytes:
    """What the server answers to exactly these bytes, and some more once it has answered."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write(request)
    await writer.drain()
    if after:
        answer = await reader.read(65536)
        writer.write(after)
        await asyncio.wait_for(reader.read(65536), 5)  # until the server closes
        writer.close()
        await writer.wait_closed()
        return answer
    answer = b""
    with suppress(ConnectionError):  # closed on us before we had said everything
        answer = await asyncio.wait_for(reader.read(65536), 5)
        while more := await asyncio.wait_for(reader.read(65536), 5):
            answer += more
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()
    return answer


def request(path: str, body: bytes = b"", *headers: bytes, method: bytes = b"POST") -> bytes:
    length = b"" if any(h.startswith(b"Transfer") for h in headers) else b"%d" % len(body)
    lines = [method + b" " + path.encode() + b" HTTP/1.1", b"Host: x", b"Connection: close"]
    lines += [b"Content-Length: " + length] if length else []
    return b"\r\n".join([*lines, *headers, b"", body])


def kept(path: str, body: bytes = b"") -> bytes:
    """A request after which the connection is kept."""
    return request(path, body).replace(b"Connection: close\r\n", b"")


def problem(answer: bytes) -> dict[str, Any]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"application/problem+json" in head
    return json.loads(body)  # type: ignore[no-any-return]


async def test_a_door_gets_the_request(url: str) -> None:
    answer = await raw(url, request("/echo/more", b"hello"))
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.endswith(b"hello")


async def test_every_answer_has_the_headers_that_protect(url: str) -> None:
    for path in ("/echo", "/broken", "/nowhere"):
        answer = (await raw(url, request(path))).lower()
        assert b"x-content-type-options: nosniff" in answer
        assert b"x-frame-options: deny" in answer
        assert b"content-security-policy: default-src 'none'" in answer
        assert b"cache-control: no-store" in answer
        assert b"server:" not in answer


async def test_a_request_id_is_made_or_kept(url: str) -> None:
    answer = await raw(url, request("/echo"))
    assert b"x-request-id: " in answer
    kept = await raw(url, request("/absent", b"", b"X-Request-Id: my-own.id_1"))
    assert b"x-request-id: my-own.id_1" in kept
    assert problem(kept)["request_id"] == "my-own.id_1"


@pytest.mark.parametrize("forged", [b'x"} {"level":"fake', b"a b", b"x" * 65, b"\xff"])
async def test_a_request_id_that_could_forge_a_log_is_replaced(url: str, forged: bytes) -> None:
    answer = await raw(url, request("/echo", b"", b"X-Request-Id: " + forged))
    assert forged not in answer


async def test_a_body_that_says_it_is_too_large_is_refused_unread(url: str) -> None:
    head = request("/echo").replace(b"Content-Length: 0", b"Content-Length: 1001")
    answer = await raw(url, head)
    assert answer.startswith(b"HTTP/1.1 413")
    assert problem(answer)["detail"] == "a body has at most 1000 bytes here"


async def test_a_body_that_turns_out_too_large_is_refused(url: str) -> None:
    body = b"".join(b"100\r\n" + b"x" * 256 + b"\r\n" for _ in range(5)) + b"0\r\n\r\n"
    answer = await raw(url, request("/echo", body, b"Transfer-Encoding: chunked"))
    assert answer.startswith(b"HTTP/1.1 413")


async def test_a_body_of_the_largest_size_is_let_in(url: str) -> None:
    assert (await raw(url, request("/echo", b"x" * 1000))).startswith(b"HTTP/1.1 200")


async def test_a_body_that_does_not_arrive_is_given_up(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asgi, "BODY_SECONDS", 0.05)
    head = request("/echo").replace(b"Content-Length: 0", b"Content-Length: 10")
    assert (await raw(url, head)).startswith(b"HTTP/1.1 408")


async def test_our_own_faults_are_told_without_detail(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    answer = await raw(url, request("/broken"))
    assert answer.startswith(b"HTTP/1.1 500")
    assert b"ws_live" not in answer
    assert problem(answer)["code"] == "internal_server_error"
    failures = [r for r in caplog.records if r.name == "waystation.server.front"]
    assert failures
    line = JsonFormatter().format(failures[0])
    assert "ZeroDivisionError" in line
    assert "ws_live_abcdefgh" not in line


async def test_what_is_down_is_said_to_be_without_detail(url: str) -> None:
    answer = await raw(url, request("/down"))
    assert answer.startswith(b"HTTP/1.1 503")
    assert b"host-7" not in answer
    assert b"retry-after: 5" in answer


async def test_when_to_come_again_is_said_in_whole_seconds(url: str) -> None:
    answer = await raw(url, request("/busy"))
    assert answer.startswith(b"HTTP/1.1 429")
    assert b"retry-after: 2" in answer


async def test_a_failure_after_the_answer_began_ends_it(url: str) -> None:
    answer = await raw(url, request("/late"))
    assert answer.count(b"HTTP/1.1") == 1


async def test_headers_without_end_are_refused(url: str) -> None:
    answer = await raw(url, b"GET /echo HTTP/1.1\r\nHost: x\r\nX-Much: " + b"x" * 200_000)
    assert answer.startswith(b"HTTP/1.1 431")


async def test_headers_of_a_usual_size_are_let_in(url: str) -> None:
    assert (await raw(url, request("/echo", b"x", b"X-Much: " + b"x" * 30_000))).endswith(b"x")


@pytest.mark.parametrize("sent", [b"", b"GET /echo HTTP/1.1\r\nHost:"])
async def test_a_connection_that_says_nothing_is_closed(
    url: str, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(protocol, "HEADER_SECONDS", 0.05)
    assert await raw(url, sent) == b""


async def test_blank_lines_do_not_hold_a_connection(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "HEADER_SECONDS", 0.05)
    first = request("/echo", b"one").replace(b"Connection: close\r\n", b"")
    assert (await raw(url, first, b"\r\n")).endswith(b"one")


async def test_trailers_without_end_are_refused(url: str) -> None:
    head = request("/echo", b"3\r\nabc\r\n0\r\n", b"Transfer-Encoding: chunked")
    trailers = b"".join(b"x-%d: %s\r\n" % (n, b"y" * 1000) for n in range(200))
    assert b"200 OK" not in await raw(url, head + trailers)


async def test_the_body_before_does_not_count_as_headers(url: str) -> None:
    large = request("/echo", b"x" * 900).replace(b"Connection: close\r\n", b"")
    answer = await raw(url, large * 100 + request("/echo", b"end"))
    assert answer.count(b"HTTP/1.1 200") == 101


async def test_a_connection_is_used_again(url: str) -> None:
    one = request("/echo", b"one").replace(b"Connection: close\r\n", b"")
    two = request("/echo", b"two")
    answer = await raw(url, one + two)
    assert answer.count(b"HTTP/1.1 200") == 2


async def test_requests_at_once_are_answered_in_their_order(url: str) -> None:
    paths = [f"/echo/{n}" if n % 3 else "/nowhere" for n in range(20)]
    bodies = [b"<%d>" % n for n in range(20)]
    requests = [request(*pair) for pair in zip(paths, bodies, strict=True)]
    kept = [one.replace(b"Connection: close\r\n", b"") for one in requests[:-1]]
    answer = await raw(url, b"".join([*kept, requests[-1]]))
    assert answer.count(b"HTTP/1.1 ") == 20
    wanted = [body for path, body in zip(paths, bodies, strict=True) if path != "/nowhere"]
    assert re.findall(rb"<\d+>", answer) == wanted


@pytest.mark.parametrize("connection", [b"Upgrade, HTTP2-Settings", b"close, upgrade"])
async def test_the_offer_of_another_protocol_is_declined(url: str, connection: bytes) -> None:
    """Some clients make it with every request, and send the body all the same."""
    offer = b"Connection: " + connection + b"\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
    one = request("/echo", b"one").replace(b"Connection: close\r\n", offer)
    answer = await raw(url, one + request("/echo", b"two"))
    assert re.findall(rb"\r\n\r\n(one|two)", answer)[0] == b"one"
    assert answer.count(b"HTTP/1.1 200") == (1 if b"close" in connection else 2)


async def test_a_client_who_never_reads_is_not_read_for_ever(url: str) -> None:
    parts = urlsplit(url)
    assert parts.port is not None
    many = request("/echo", b"x" * 900).replace(b"Connection: close\r\n", b"") * 32_000
    with socket.create_connection((parts.hostname, parts.port)) as caller:
        caller.setblocking(False)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.5):
                await asyncio.get_running_loop().sock_sendall(caller, many)


async def test_a_length_may_begin_with_any_number_of_zeros(url: str) -> None:
    zeros = request("/echo", b"abc").replace(
        b"Content-Length: 3", b"Content-Length: " + b"0" * 5000 + b"3"
    )
    assert (await raw(url, zeros)).endswith(b"abc")


async def test_head_gets_the_headers_alone(url: str) -> None:
    head, _, body = (await raw(url, request("/echo", b"hello", method=b"HEAD"))).partition(
        b"\r\n\r\n"
    )
    assert b"content-length: 5" in head
    assert body == b""


async def test_an_old_callers_connection_is_closed(url: str) -> None:
    old = b"POST /echo HTTP/1.0\r\nContent-Length: 3\r\n\r\nabc"
    assert (await raw(url, old)).endswith(b"abc")


async def test_a_caller_who_waits_to_be_asked_for_the_body_is_asked(url: str) -> None:
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    whole = request("/echo", b"hello", b"Expect: 100-continue")
    writer.write(whole.removesuffix(b"hello"))
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
    writer.write(b"hello")
    assert (await asyncio.wait_for(reader.read(), 5)).endswith(b"hello")
    writer.close()
    await writer.wait_closed()


async def test_what_was_begun_is_answered_before_the_server_ends() -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(asked: Request) -> Response:
        begun.set()
        await go_on.wait()
        return Response(200, b"done")

    async with listening(Front({"slow": Door("/slow", slow)}, api, Metrics())) as url:
        asking = asyncio.create_task(raw(url, kept("/slow")))
        await begun.wait()
        asyncio.get_running_loop().call_soon(go_on.set)
    answer = await asking
    assert b"connection: close" in answer
    assert answer.endswith(b"done")


async def test_a_connection_that_is_kept_for_nothing_is_closed() -> None:
    """But not while it is answered, however long that takes."""
    go_on = asyncio.Event()

    async def slow(asked: Request) -> Response:
        await go_on.wait()
        return Response(200, b"done")

    async def echo(asked: Request) -> Response:
        return Response(200, asked.body)

    doors = {"slow": Door("/slow", slow), "echo": Door("/echo", echo, max_body=10)}
    async with listening(Front(doors, api, Metrics()), timeout_keep_alive=0.2) as url:
        parts = urlsplit(url)
        idle, busy = [await asyncio.open_connection(parts.hostname, parts.port) for _ in range(2)]
        for _ in range(3):
            for reader, writer in (busy, idle):
                writer.write(kept("/echo", b"hello"))
                await asyncio.wait_for(reader.readuntil(b"hello"), 5)
        answered = time.monotonic()
        busy[1].write(kept("/slow"))
        assert await asyncio.wait_for(idle[0].read(), 5) == b""
        assert time.monotonic() - answered > 0.19
        go_on.set()
        assert (await asyncio.wait_for(busy[0].readuntil(b"done"), 5)).endswith(b"done")
        for _, writer in (busy, idle):
            writer.close()
            await writer.wait_closed()


async def test_what_came_with_another_request_is_answered_however_long_it_takes() -> None:
    """The first is answered at once, in the middle of reading both."""
    go_on = asyncio.Event()

    async def slow(asked: Request) -> Response:
        await go_on.wait()
        return Response(200, b"done")

    quick = Door("/quick", slow, at_once=lambda asked: Response(200, b"at once"))
    doors = {"slow": Door("/slow", slow), "quick": quick}
    async with listening(Front(doors, api, Metrics()), timeout_keep_alive=0.1) as url:
        parts = urlsplit(url)
        both, idle = [await asyncio.open_connection(parts.hostname, parts.port) for _ in range(2)]
        both[1].write(kept("/quick") + kept("/slow"))
        await asyncio.wait_for(both[0].readuntil(b"at once"), 5)
        for _ in range(2):
            idle[1].write(kept("/quick"))
            await asyncio.wait_for(idle[0].readuntil(b"at once"), 5)
        assert await asyncio.wait_for(idle[0].read(), 5) == b""  # its time is over, and the other's
        go_on.set()
        assert (await asyncio.wait_for(both[0].readuntil(b"done"), 5)).endswith(b"done")
        for _, writer in (both, idle):
            writer.close()
            await writer.wait_closed()


async def test_a_door_knows_who_asks_for_what() -> None:
    seen: list[Request] = []

    async def note(asked: Request) -> Response:
        seen.append(asked)
        return Response(200)

    noting = Front({"note": Door("/note", note, max_body=10)}, api, Metrics())
    sent = request("/note/a%20b?x=%31&y", b"abc", b"X-Two: 1", b"x-two: 2")
    async with listening(noting) as url:
        await raw(url, sent)

    async def wrapped(scope: Any, receive: Any, send: Any) -> None:
        await noting(scope, receive, send)

    async with listening(wrapped) as url:
        await raw(url, sent)
    directly, through_asgi = seen
    directly.id = through_asgi.id
    assert directly == through_asgi
    assert (directly.path, directly.query) == ("/note/a b", b"x=%31&y")
    assert directly.headers[-2:] == [(b"x-two", b"1"), (b"x-two", b"2")]


async def test_a_caller_who_leaves_is_nobodys_fault(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    parts = urlsplit(url)
    assert parts.port is not None
    with socket.create_connection((parts.hostname, parts.port)) as caller:
        caller.sendall(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc")
        await asyncio.sleep(0.05)
    await asyncio.sleep(0.05)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    [logged] = [record for record in caplog.records if record.name == "waystation.access"]
    assert logged.__dict__["fields"]["status"] == 499
    assert (await raw(url, request("/echo", b"still here"))).endswith(b"still here")


async def test_requests_are_logged_without_what_is_personal(
    server: Site, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    key = await server.api_key()
    await server.get("/v1/me?email=ann@example.com", token=key)
    [record] = [r for r in caplog.records if r.name == "waystation.access"]
    line = json.loads(JsonFormatter().format(record))
    assert (line["method"], line["path"], line["status"]) == ("GET", "/v1/me", 200)
    assert line["account"].startswith("usr_")
    assert key not in str(line)
    assert "ann@example.com" not in str(line)


async def test_the_probes_are_not_logged(server: Site, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for path in ("/healthz", "/readyz", "/metrics"):
        await server.get(path)
    assert not [r for r in caplog.records if r.name == "waystation.access"]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/deep/door", 200),
        ("/deep/door/behind", 200),
        ("/deep", 404),
        ("/deep/doorway", 404),
        ("/deep/other", 404),
        ("//deep/door", 404),
    ],
)
async def test_a_door_opens_at_its_prefix_and_below(path: str, status: int) -> None:
    async def opened(asked: Request) -> Response:
        return Response(200)

    deep = Front({"deep": Door("/deep/door", opened)}, api, Metrics())

    async def wrapped(scope: Any, receive: Any, send: Any) -> None:
        await deep(scope, receive, send)

    for app in (deep, wrapped):
        async with listening(app) as url:
            answer = await raw(url, request(path))
        assert answer.startswith(f"HTTP/1.1 {status}".encode())


@pytest.mark.parametrize("between", [0, 1])
async def test_a_request_that_breaks_later_is_not_the_answer_to_the_one_before(
    between: int,
) -> None:
    """Each has one answer, in its turn."""
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(asked: Request) -> Response:
        begun.set()
        await go_on.wait()
        return Response(200, b"done")

    async with listening(Front({"slow": Door("/slow", slow)}, api, Metrics())) as url:
        parts = urlsplit(url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        first = request("/slow").replace(b"Connection: close\r\n", b"")
        chunked = b"POST /x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"
        writer.write(first * (1 + between) + chunked)
        await asyncio.wait_for(begun.wait(), 5)
        writer.write(b"ZZ\r\n")
        await writer.drain()
        await asyncio.sleep(0.05)
        go_on.set()
        answers = await asyncio.wait_for(reader.read(), 5)
        writer.close()
    statuses = [answer[:4].strip() for answer in answers.split(b"HTTP/1.1")[1:]]
    assert statuses == [b"200"] * (1 + between) + [b"404"]
