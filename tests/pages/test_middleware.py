"""The page cache in front of an app: what can be cached is, and nothing else changes."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from tests.support.site import listening
from waystation.blobs import open_blobs
from waystation.pages import TABLES, PageCache, PageCacheMiddleware
from waystation.store import open_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from waystation.clock import ManualClock


class App:
    """An ASGI app that does what a test tells it to."""

    def __init__(self) -> None:
        self.calls = 0
        self.status = 200
        self.headers: list[tuple[bytes, bytes]] = []
        self.pieces: list[bytes] | None = None
        self.gate: asyncio.Event | None = None
        self.error: Exception | None = None
        self.after: asyncio.Event = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        self.calls += 1
        if self.error is not None:
            raise self.error
        headers = [(b"content-type", b"text/plain"), *self.headers]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        for piece in self.pieces or [f"{scope['method']} {scope['path']} {self.calls}".encode()]:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            if self.gate is not None:
                await self.gate.wait()
        await send({"type": "http.response.body", "body": b""})
        self.after.set()


@asynccontextmanager
async def fronted(
    app: Any, clock: ManualClock, given: dict[str, Any] | None = None, **more: Any
) -> AsyncIterator[aiohttp.ClientSession]:
    async with await open_store("sqlite://:memory:", TABLES, clock=clock) as store:
        cache = PageCache(store, open_blobs("memory:///"), **given or {})
        front = PageCacheMiddleware(app, cache=cache, **more)
        async with listening(front) as url, aiohttp.ClientSession(url) as http:
            yield http
        await cache.close()


async def got(http: aiohttp.ClientSession, path: str = "/p", **more: Any) -> tuple[int, str]:
    async with http.get(path, **more) as answer:
        return answer.status, await answer.text()


async def test_a_page_of_the_app_is_cached(clock: ManualClock) -> None:
    app = App()
    async with fronted(app, clock) as http:
        assert await got(http) == await got(http) == (200, "GET /p 1")


async def test_the_app_is_asked_for_a_plain_body(clock: ManualClock) -> None:
    """It is kept, and goes to clients who take other encodings."""
    asked: list[bytes] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        asked.append(dict(scope["headers"])[b"accept-encoding"])
        await App()(scope, receive, send)

    async with fronted(app, clock) as http:
        await got(http, headers={"Accept-Encoding": "gzip"})
    assert asked == [b"identity"]


async def test_what_changes_a_page_reaches_the_app_and_purges_it(clock: ManualClock) -> None:
    app = App()
    async with fronted(app, clock) as http:
        await got(http)
        async with http.post("/p", data=b"x") as answer:
            assert await answer.text() == "POST /p 2"
        assert await got(http) == (200, "GET /p 3")


async def test_what_is_not_to_be_kept_is_sent_piece_by_piece(clock: ManualClock) -> None:
    """A client sees the first piece before there is a second one."""
    app = App()
    app.headers = [(b"cache-control", b"no-store")]
    app.pieces, app.gate = [b"one", b"two"], asyncio.Event()
    async with fronted(app, clock) as http, http.get("/p") as answer:
        assert await answer.content.readexactly(3) == b"one"
        app.gate.set()
        assert await answer.content.readexactly(3) == b"two"


async def test_events_are_sent_as_they_happen(clock: ManualClock) -> None:
    app = App()
    app.headers = [(b"content-type", b"text/event-stream")]
    app.headers, app.pieces, app.gate = [], [b"data: 1\n\n", b"data: 2\n\n"], asyncio.Event()

    async def stream(scope: Any, receive: Any, send: Any) -> None:
        async def renamed(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [(b"content-type", b"text/event-stream")]
            await send(message)

        await app(scope, receive, renamed)

    async with fronted(stream, clock) as http, http.get("/p") as answer:
        assert await answer.content.readexactly(9) == b"data: 1\n\n"
        app.gate.set()
        assert await answer.content.readexactly(9) == b"data: 2\n\n"


async def test_an_app_that_streams_hears_that_its_client_has_gone(clock: ManualClock) -> None:
    gone = asyncio.Event()

    async def endless(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            while True:
                await send({"type": "http.response.body", "body": b"x" * 1000, "more_body": True})
                await asyncio.sleep(0.001)
        finally:
            gone.set()

    async with fronted(endless, clock) as http:
        answer = await http.get("/p")
        await answer.content.readexactly(1000)
        answer.close()
        async with asyncio.timeout(5):
            await gone.wait()


async def test_a_page_that_is_too_large_to_keep_is_sent_all_the_same(clock: ManualClock) -> None:
    app = App()
    app.pieces = [b"x" * 1000] * 50
    async with fronted(app, clock, largest=10_000) as http:
        for _ in range(2):
            assert await got(http) == (200, "x" * 50_000)
    assert app.calls == 2


async def test_work_after_an_answer_is_done(clock: ManualClock) -> None:
    """Frameworks run background tasks once the answer is sent."""
    done = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})
        await asyncio.sleep(0.05)
        done.set()

    for headers in ({}, {"Cache-Control": "no-store"}):
        done.clear()
        async with fronted(app, clock) as http:
            assert await got(http, headers=headers) == (200, "ok")
            async with asyncio.timeout(5):
                await done.wait()


async def test_an_error_of_the_app_is_the_servers_to_show(clock: ManualClock) -> None:
    app = App()
    app.error = ValueError("a bug")
    async with fronted(app, clock) as http:
        assert (await got(http))[0] == 500
        app.error = None
        assert (await got(http))[0] == 200


async def test_an_error_of_the_app_does_not_take_an_old_page_away(clock: ManualClock) -> None:
    app = App()
    async with fronted(app, clock, {"revalidate_seconds": 10, "swr_seconds": 0}) as http:
        page = await got(http)
        clock.advance(20)
        app.error = ValueError("a bug")
        assert await got(http) == page


async def test_head_has_no_body_and_the_length_of_one(clock: ManualClock) -> None:
    app = App()
    async with fronted(app, clock) as http:
        await got(http)
        async with http.head("/p") as answer:
            assert (answer.status, answer.headers["Content-Length"]) == (200, "8")
            assert await answer.read() == b""


async def test_paths_that_are_not_named_are_none_of_its_business(clock: ManualClock) -> None:
    app = App()
    async with fronted(app, clock, paths=["/blog/"]) as http:
        assert await got(http, "/blog/1") == await got(http, "/blog/1")
        assert await got(http, "/cart") != await got(http, "/cart")
        async with http.get("/cart") as answer:
            assert "Cache-Status" not in answer.headers


def by_host(scope: Any) -> str | None:
    host = dict(scope["headers"]).get(b"host", b"").decode()
    return None if host.startswith("127.") else host


async def test_tenants_by_host_have_pages_of_their_own(clock: ManualClock) -> None:
    app = App()
    async with fronted(app, clock, {"tenants": True}, tenant=by_host) as http:
        ann = [await got(http, headers={"Host": "ann"}) for _ in range(2)]
        bob = [await got(http, headers={"Host": "bob"}) for _ in range(2)]
    assert ann == [(200, "GET /p 1")] * 2
    assert bob == [(200, "GET /p 2")] * 2


async def test_a_request_of_no_tenant_is_refused(clock: ManualClock) -> None:
    app = App()
    async with fronted(app, clock, {"tenants": True}, tenant=by_host) as http:
        status, body = await got(http)
    assert (status, app.calls) == (400, 0)
    assert "tenant" in body


@pytest.mark.parametrize("status", [204, 304])
async def test_answers_without_a_body_have_no_length(clock: ManualClock, status: int) -> None:
    app = App()
    app.status, app.pieces = status, [b""]
    async with fronted(app, clock) as http, http.get("/p") as answer:
        assert answer.status == status
        assert "Content-Length" not in answer.headers
