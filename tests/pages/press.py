"""A server with a site `shop` and its origin on a socket, and short ways to use them."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web
from multidict import CIMultiDict

from tests.support.site import Answer, Site, site
from waystation.pages.http.fields import format_date
from waystation.systems import SYSTEMS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from waystation.clock import ManualClock
    from waystation.pages.site_pages import SitePages

NEEDED = [each for each in SYSTEMS if each.name in ("accounts", "pages", "base")]
"""Every other system's tables take time to create on DynamoDB."""


class Made(msgspec.Struct):
    """What the origin answers. `headers` may name one several times."""

    body: bytes | None = None
    status: int = 200
    headers: list[tuple[str, str]] = []
    cut: bool = False
    """Whether the connection is cut instead."""


class Origin:
    """Answers every request with a page of its own number, or as it is told."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.url = ""
        self.clock = clock
        self.asked: list[web.BaseRequest] = []
        self.made = Made()
        self.decide: Callable[[web.BaseRequest], Made] | None = None
        self.gate: asyncio.Event | None = None
        self.arrived = asyncio.Event()
        self.at_once = self.most_at_once = 0

    def say(self, *headers: str, body: bytes | None = None, status: int = 200) -> None:
        """Answer from now on with headers such as `Cache-Control: max-age=60`."""
        pairs = [tuple(part.strip() for part in line.split(":", 1)) for line in headers]
        self.made = Made(body, status, pairs)  # type: ignore[arg-type]

    def fail(self, status: int = 503) -> None:
        self.made = Made(b"out of order", status)

    def cut(self) -> None:
        self.made = Made(cut=True)

    @property
    def count(self) -> int:
        return len(self.asked)

    @property
    def last(self) -> web.BaseRequest:
        return self.asked[-1]

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        await request.read()
        self.asked.append(request)
        number = len(self.asked)
        self.arrived.set()
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            if self.gate is not None:
                await self.gate.wait()
        finally:
            self.at_once -= 1
        made = self.made if self.decide is None else self.decide(request)
        if made.cut:
            assert request.transport is not None
            request.transport.abort()
        body = f"page {number} of {request.path_qs}".encode() if made.body is None else made.body
        headers = CIMultiDict(made.headers)
        headers.setdefault("Content-Type", "text/html; charset=utf-8")
        headers.setdefault("Date", format_date(self.clock()).decode())
        if made.status in (204, 304):
            body = b""
        return web.Response(body=body, status=made.status, headers=headers)


@asynccontextmanager
async def origin_at(clock: Callable[[], float]) -> AsyncIterator[Origin]:
    origin = Origin(clock)
    runner = web.ServerRunner(web.Server(origin.handle), shutdown_timeout=1)
    await runner.setup()
    listener = web.TCPSite(runner, "127.0.0.1", 0)
    await listener.start()
    origin.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield origin
    finally:
        if origin.gate is not None:
            origin.gate.set()
        await runner.cleanup()


class Press:
    """`shop` is the site unless another is named."""

    def __init__(self, server: Site, key: str, clock: ManualClock, origin: Origin) -> None:
        self.server = server
        self.key = key
        self.clock = clock
        self.origin = origin
        self.store = server.runtime.store
        self.service: SitePages = server.runtime.provided["pages"]
        self.base = "/v1/pages/sites/shop"

    async def call(self, method: str, path: str, json: object = None, **more: Any) -> Answer:
        return await self.server.call(method, path, json, token=more.pop("token", self.key), **more)

    async def put(self, name: str = "shop", status: int = 200, **given: Any) -> Any:
        body = {"origin": self.origin.url, "revalidate_seconds": 60, **given}
        answer = await self.call("PUT", f"/v1/pages/sites/{name}", body)
        assert answer.status == status, answer
        return answer.json

    async def get(
        self, path: str = "/p", method: str = "GET", site: str = "shop", **headers: str
    ) -> Answer:
        """Ask for a page as a visitor does: `if_none_match='"x"'` is a header."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.server.call(method, f"/pages/{site}{path}", headers=sent)

    async def text(self, path: str = "/p", **more: Any) -> str:
        answer = await self.get(path, **more)
        assert answer.status == 200, answer
        return answer.body.decode()

    async def how(self, path: str = "/p", **more: Any) -> str:
        """What the cache says that it did."""
        return (await self.get(path, **more)).headers["cache-status"]

    async def revalidate(self, **given: Any) -> Any:
        answer = await self.call("POST", f"{self.base}/revalidate", given)
        assert answer.status == 200, answer
        return answer.json

    async def entry(self, path: str = "/p") -> Any:
        answer = await self.call("GET", f"{self.base}/entry?path={path}")
        assert answer.status == 200, answer
        return answer.json["pages"][0]

    async def row(self, key: Any) -> Any:
        return await self.store.get(key)

    async def settle(self) -> None:
        """Let regeneration in the background come to an end."""
        await self.service.pages.regeneration.close()


@asynccontextmanager
async def press_at(clock: ManualClock, origin: Origin, **more: Any) -> AsyncIterator[Press]:
    given = more.pop("given", {})
    more.setdefault("systems", NEEDED)
    async with site(clock, **more) as server:
        press = Press(server, await server.api_key(), clock, origin)
        if not press.store.near:
            press.service.pages.purges.state_seconds = 0.0  # a second for each purge takes too long
        await press.put(**given)
        yield press
        await press.settle()
