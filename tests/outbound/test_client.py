"""The way out: connections are kept and counted, and hostile servers get nowhere."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
import uvloop

from tests.outbound.servers import OK, Authority, Line, always, once, serving
from waystation.outbound import Guard, Outbound
from waystation.outbound.exchange import Bounds, Exchange, NoAnswer
from waystation.outbound.pool import Pool


async def test_a_connection_is_used_again(outbound: Outbound) -> None:
    async with serving(always(OK)) as server:
        for _ in range(5):
            assert (await outbound.request("POST", server.url, body=b"x")).body == b"ok"
        assert server.lines == 1


@pytest.mark.parametrize(
    "answer",
    [
        OK + b"x",
        OK + OK,
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
    ],
    ids=["bytes after it", "two at once", "close", "HTTP/1.0"],
)
async def test_a_connection_is_not_used_again_after(outbound: Outbound, answer: bytes) -> None:
    async with serving(always(answer)) as server:
        for _ in range(3):
            reply = await outbound.request("POST", server.url, body=b"x")
            assert (reply.status, reply.body, reply.whole) == (200, b"ok", True)
        assert server.lines == 3


async def test_a_connection_that_was_closed_meanwhile_is_not_used(outbound: Outbound) -> None:
    async with serving(once(OK)) as server:
        for _ in range(5):
            assert (await outbound.request("POST", server.url, body=b"x")).ok
        assert server.lines == 5


async def test_what_comes_before_a_request_has_left_is_no_answer_to_it(outbound: Outbound) -> None:
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        asking = asyncio.create_task(outbound.request("POST", url, body=b"first"))
        line, _ = await loop.sock_accept(listener)
        with line:
            await loop.sock_recv(line, 65536)
            await loop.sock_sendall(line, OK)
            assert (await asking).ok
            asking = asyncio.create_task(outbound.request("POST", url, body=b"second"))
            await asyncio.sleep(0)
            line.setblocking(True)
            line.sendall(OK)  # in the turn of the loop in which the request was written
            reply = await asking
            line.settimeout(5)
            arrived = line.recv(65536).endswith(b"second")
    assert reply.sent == arrived
    if isinstance(loop, uvloop.Loop):  # asyncio's own sends before it looks
        assert not reply.ok


FRAMINGS = {
    "chunked": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;a=b\r\nok\r\n0\r\nX: y\r\n\r\n",
        (200, b"ok", True),
    ),
    "until it closes": (b"HTTP/1.1 200 OK\r\n\r\nok", (200, b"ok", True)),
    "too short": (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok", (200, b"ok", False)),
    "none": (b"HTTP/1.1 204 No Content\r\n\r\n", (204, b"", True)),
    "304": (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n", (304, b"", True)),
    "interim": (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 X\r\nA: b\r\n\r\n" + OK,
        (200, b"ok", True),
    ),
    "101": (b"HTTP/1.1 101 X\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", (101, b"", True)),
    "two lengths": (
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok",
        (0, b"", False),
    ),
    "nonsense": (b"SSH-2.0-x\r\n\r\n", (0, b"", False)),
    "nothing": (b"", (0, b"", False)),
}


@pytest.mark.parametrize("kind", FRAMINGS)
async def test_where_an_answer_ends(outbound: Outbound, kind: str) -> None:
    answer, expected = FRAMINGS[kind]
    async with serving(once(answer)) as server:
        reply = await outbound.request("POST", server.url, body=b"x", seconds=5)
    assert (reply.status, reply.body, reply.whole) == expected
    assert (reply.error is None) == (reply.status != 0)


async def test_a_head_has_no_body(outbound: Outbound) -> None:
    async with serving(always(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n")) as server:
        for _ in range(3):
            reply = await outbound.request("HEAD", server.url)
            assert (reply.status, reply.headers["content-length"]) == (200, "9")
        assert server.lines == 1


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
ENDLESS = {
    "chunk extensions": (CHUNKED + b"2", b";a=b" * 500),
    "trailers": (CHUNKED + b"0\r\n", b"A: b\r\n" * 500),
    "small chunks": (CHUNKED, b"1\r\na\r\n" * 300),
    "a header": (b"HTTP/1.1 200 OK\r\nA: ", b"a" * 2000),
}


@pytest.mark.parametrize("kind", ENDLESS)
async def test_an_answer_without_end_is_cut_off(outbound: Outbound, kind: str) -> None:
    beginning, more = ENDLESS[kind]

    async def flood(line: Line) -> None:
        await line.request()
        await line.send(beginning)
        while True:
            await line.send(more)

    async with serving(flood) as server, asyncio.timeout(5):
        reply = await outbound.request("POST", server.url, body=b"x", seconds=60, body_seconds=60)
    assert not reply.whole
    assert len(reply.body) <= 64 * 1024


@pytest.mark.parametrize("beginning", [b"HTTP/1.1 200", OK[:-2]], ids=["head", "body"])
async def test_a_drip_does_not_prolong_the_deadline(outbound: Outbound, beginning: bytes) -> None:
    async def drip(line: Line) -> None:
        await line.request()
        await line.send(beginning)
        while True:
            await line.send(b" ")
            await asyncio.sleep(0.05)

    answer = OK.replace(b"Content-Length: 2", b"Content-Length: 999")
    beginning = answer[:-2] if beginning.startswith(OK[:-2]) else beginning
    async with serving(drip) as server, asyncio.timeout(5):
        reply = await outbound.request("GET", server.url, seconds=0.3, body_seconds=0.3)
    assert not reply.whole
    assert reply.milliseconds < 3_000


async def test_no_more_is_kept_than_was_asked_for(outbound: Outbound) -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + b"a" * 1000
    taken: list[int] = []

    def grow(size: int) -> bool:
        taken.append(size)
        return sum(taken) <= 400

    async with serving(always(answer)) as server:
        few = await outbound.request("GET", server.url, most=100)
        all_of_it = await outbound.request("GET", server.url, most=1000)
        none = await outbound.request("GET", server.url, grow=grow)
    assert (len(few.body), few.whole) == (100, False)
    assert (len(all_of_it.body), all_of_it.whole) == (1000, True)
    assert (none.body, none.whole) == (b"", False)


async def test_who_answers_before_the_request_is_sent_is_not_kept(outbound: Outbound) -> None:
    async def refuse(line: Line) -> None:
        await line.reader.readuntil(b"\r\n\r\n")
        await line.send(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        await asyncio.sleep(60)

    async with serving(refuse) as server:
        for _ in range(2):
            reply = await outbound.request("POST", server.url, body=b"x" * 8_000_000, seconds=3)
            assert reply.status == 413
        assert server.lines == 2


# Cancelling, and waiting for each other


def counters(outbound: Outbound) -> tuple[int, int, int, int]:
    pool: Any = outbound._pool
    return len(pool._to), len(pool._all), pool._opening, len(pool._waiting)


async def test_a_request_that_is_cancelled_leaves_nothing(outbound: Outbound) -> None:
    asked = asyncio.Event()

    async def hang(line: Line) -> None:
        await line.request()
        asked.set()
        await line.reader.read()

    async with serving(hang) as server:
        request = asyncio.create_task(outbound.request("POST", server.url, body=b"x"))
        await asked.wait()
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        async with asyncio.timeout(5):
            while server.open:
                await asyncio.sleep(0.001)
        assert counters(outbound) == (0, 0, 0, 0)


async def test_one_that_is_cancelled_as_its_answer_comes_leaves_nothing(outbound: Outbound) -> None:
    requests: list[asyncio.Task[Any]] = []
    async with serving(always(OK)) as server:
        original = Exchange._finish

        def cancelled(self: Exchange, *, whole: bool) -> None:
            original(self, whole=whole)
            requests[-1].cancel()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Exchange, "_finish", cancelled)
            for _ in range(3):
                requests.append(asyncio.create_task(outbound.request("POST", server.url, body=b"")))
                with pytest.raises(asyncio.CancelledError):
                    await requests[-1]
        await asyncio.sleep(0.01)
        assert counters(outbound) == (0, 0, 0, 0)


async def test_all_get_their_turn_in_the_order_they_came() -> None:
    outbound = Outbound(Guard(["127.0.0.0/8"]))
    outbound._pool = Pool(outbound.guard, most=2, most_to_one=1)
    order: list[tuple[int, int]] = []
    async with serving(always(OK)) as one, serving(always(OK)) as other:

        async def ask(place: int, n: int) -> None:
            reply = await outbound.request("GET", (one, other)[place].url, seconds=20)
            assert reply.ok
            order.append((place, n))

        await asyncio.gather(*(ask(place, n) for n in range(20) for place in (0, 1)))
        for place in (0, 1):
            assert [n for at, n in order if at == place] == list(range(20))
        assert (one.lines, other.lines) == (1, 1)
        await outbound.close()
        assert counters(outbound) == (0, 0, 0, 0)


async def test_a_connection_that_was_just_closed_is_handed_to_nobody() -> None:
    """Whoever waits for one gets a new one, at once."""
    outbound = Outbound(Guard(["127.0.0.0/8"]))
    outbound._pool = Pool(outbound.guard, most_to_one=1)

    async def hang_up(line: Line) -> None:
        await line.request()
        line.writer.write(OK)
        line.writer.transport.abort()

    async with serving(hang_up) as server, asyncio.timeout(10):
        asked = [outbound.request("POST", server.url, body=b"x", seconds=60) for _ in range(5)]
        assert all(reply.ok for reply in await asyncio.gather(*asked))
    await outbound.close()


async def test_a_request_on_a_connection_that_has_ended_was_not_sent(outbound: Outbound) -> None:
    async with serving(always(OK)) as server:
        assert (await outbound.request("POST", server.url, body=b"x")).ok
        [exchange] = outbound._pool._all  # there is no other way to lose it in between
        exchange.transport.abort()
        while exchange.open:
            await asyncio.sleep(0)
        bounds = Bounds(False, asyncio.get_running_loop().time() + 1, 1.0, 1.0, 1000, None)
        with pytest.raises(NoAnswer) as caught:
            await exchange.ask(b"POST / HTTP/1.1\r\n\r\n", bounds)
        assert (caught.value.sent, caught.value.closed) == (False, True)


async def test_a_connection_that_fails_makes_room_for_others() -> None:
    outbound = Outbound(Guard(["127.0.0.0/8"]))
    outbound._pool = Pool(outbound.guard, most=1)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{nobody.getsockname()[1]}/"
        async with serving(always(OK)) as server:
            replies = await asyncio.gather(
                outbound.request("GET", closed, seconds=5),
                *(outbound.request("GET", server.url, seconds=5) for _ in range(4)),
            )
            await outbound.close()
    assert [reply.status for reply in replies] == [0, 200, 200, 200, 200]


async def test_a_client_that_is_closed_opens_nothing() -> None:
    outbound = Outbound(Guard(["127.0.0.0/8"]))
    async with serving(always(OK)) as server:
        assert (await outbound.request("GET", server.url)).ok
        await outbound.close()
        reply = await outbound.request("GET", server.url)
        assert (reply.status, reply.sent) == (0, False)
        assert server.lines == 1


# Requests


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("X-A", "b\r\nX-C: d"),
        ("X-A", "b\nX-C: d"),
        ("X-A", "b\0"),
        ("X-A\r\nX-C", "d"),
        ("X A", "b"),
        ("Transfer-Encoding ", "chunked"),
        ("X:A", "b"),
        ("", "b"),
    ],
)
async def test_a_header_cannot_add_another(outbound: Outbound, name: str, value: str) -> None:
    async with serving(always(OK)) as server:
        reply = await outbound.request("POST", server.url, headers={name: value}, body=b"")
        assert (reply.status, reply.sent) == (0, False)
        assert server.lines == 0


async def test_nobody_but_us_says_where_a_request_ends(outbound: Outbound) -> None:
    heads: list[bytes] = []

    async def note(line: Line) -> None:
        while (request := await line.request()) is not None:
            heads.append(request[0])
            await line.send(OK)

    given = {"Host": "x", "Content-Length": "99", "Transfer-Encoding": "chunked", "Upgrade": "h2c"}
    async with serving(note) as server:
        reply = await outbound.request(
            "POST", f"{server.url}p%2F?", headers=given | {"User-Agent": "me"}, body=b"abc"
        )
        assert reply.ok
    lines = heads[0].decode().lower().split("\r\n")
    assert lines[0] == "post /p%2f? http/1.1"
    assert f"host: 127.0.0.1:{server.port}" in lines
    assert [line for line in lines if line.startswith(("content-length", "user-agent"))] == [
        "user-agent: me",
        "content-length: 3",
    ]
    assert not any(line.startswith(("transfer-encoding", "upgrade")) for line in lines)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "x",
        "ftp://127.0.0.1/",
        "http://",
        "http://a..b/",
        "http://.a/",
        "http://h:0/",
        "http://h:99999/",
        "http://u@h/",
        "http://h/\ud800",
        "http://h h/",
        f"http://{'a' * 64}.b/",
        "http://[::1",
        "http://\u2100/",
    ],
)
async def test_a_url_that_cannot_be_used_is_an_answer(outbound: Outbound, url: str) -> None:
    reply = await outbound.request("GET", url, seconds=5)
    assert (reply.status, reply.sent, bool(reply.error)) == (0, False, True)


# Names


async def test_one_look_up_serves_all_who_want_the_name(
    outbound: Outbound, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    async def look_up(host: str) -> list[Any]:
        asked.append(host)
        await asyncio.sleep(0.01)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))] * 50

    monkeypatch.setattr("waystation.outbound.pool.look_up", look_up)
    async with serving(always(OK)) as server:
        url = f"http://hook.example:{server.port}/"
        replies = await asyncio.gather(*(outbound.request("GET", url) for _ in range(10)))
        assert all(reply.ok for reply in replies)
        assert asked == ["hook.example"]


# TLS


async def test_a_certificate_is_checked_and_a_session_gone_on_with(
    outbound: Outbound, authority: Authority
) -> None:
    answer = OK.replace(b"OK\r\n", b"OK\r\nConnection: close\r\n")
    async with serving(once(answer), authority.context(["localhost", "127.0.0.1"])) as server:
        for host in ("localhost", "127.0.0.1", "localhost", "127.0.0.1"):
            reply = await outbound.request("POST", f"https://{host}:{server.port}/", body=b"x")
            assert (reply.status, reply.body) == (200, b"ok")
        assert server.resumed == [False, False, True, True]


WRONG: dict[str, dict[str, Any]] = {
    "another name": {"names": ["other.example"]},
    "no name": {"names": None, "common": "localhost"},
    "expired": {"names": ["localhost"], "begins": -9, "ends": -1},
    "not yet": {"names": ["localhost"], "begins": 1},
}


@pytest.mark.parametrize("kind", WRONG)
async def test_a_wrong_certificate_is_refused(
    outbound: Outbound, authority: Authority, kind: str
) -> None:
    async with serving(always(OK), authority.context(**WRONG[kind])) as server:
        reply = await outbound.request("POST", f"https://localhost:{server.port}/", body=b"x")
    assert (reply.error, reply.sent) == ("the TLS connection failed", False)


async def test_an_authority_that_nobody_knows_is_refused(
    outbound: Outbound, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    async with serving(always(OK), authority.context(["localhost"])) as server:
        reply = await outbound.request("POST", f"https://localhost:{server.port}/", body=b"x")
    assert (reply.error, reply.sent) == ("the TLS connection failed", False)


async def test_a_handshake_that_does_not_end_keeps_to_the_deadline(outbound: Outbound) -> None:
    async def stall(line: Line) -> None:
        await line.reader.read()

    async with serving(stall) as server, asyncio.timeout(5):
        reply = await outbound.request("GET", f"https://127.0.0.1:{server.port}/", seconds=0.3)
    assert (reply.status, reply.sent) == (0, False)
    assert counters(outbound) == (0, 0, 0, 0)
