"""An endpoint on a real socket that writes down what it gets, and answers as it is told."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec
from aiohttp import web

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


class Got(msgspec.Struct):
    """A request that arrived."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes


class Reaction(msgspec.Struct):
    """What to answer. A `hang` never does."""

    status: int = 200
    body: bytes = b"ok"
    headers: dict[str, str] = {}
    hang: bool = False


class Receiver:
    """`answers` are used up in turn; after them, and without any, the `default` is given."""

    def __init__(self) -> None:
        self.url = ""
        self.got: list[Got] = []
        self.answers: list[Reaction] = []
        self.default = Reaction()
        self.decide: Callable[[Got], Reaction] | None = None
        self.at_once = 0
        self.most_at_once = 0
        self.gate: asyncio.Event | None = None

    def fail(self, status: int = 500) -> None:
        self.default = Reaction(status, b"no")

    def work(self) -> None:
        self.default = Reaction()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in request.headers.items()}
        got = Got(request.method, request.path, request.query_string, headers, await request.read())
        self.got.append(got)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            if self.gate is not None:
                await self.gate.wait()
            reaction = self.decide(got) if self.decide else None
            reaction = reaction or (self.answers.pop(0) if self.answers else self.default)
            if reaction.hang:
                await asyncio.sleep(3600)
            return web.Response(
                status=reaction.status, body=reaction.body, headers=reaction.headers
            )
        finally:
            self.at_once -= 1


@asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    app = web.Application(client_max_size=2**21)
    app.router.add_route("*", "/{tail:.*}", receiver.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        listener = web.TCPSite(runner, "127.0.0.1", 0)
        await listener.start()
        host, port = runner.addresses[0][:2]
        receiver.url = f"http://{host}:{port}"
        yield receiver
    finally:
        await runner.cleanup()
