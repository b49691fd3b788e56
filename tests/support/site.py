"""The whole server on a real socket, with a clock that tests can move."""

from __future__ import annotations

import asyncio
import io
import socket
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import aiohttp
import msgspec
import uvicorn

from waystation.accounts.passwords import Passwords
from waystation.accounts.system import open_accounts
from waystation.seam import settings_of
from waystation.server.app import build_app
from waystation.server.protocol import BoundedProtocol
from waystation.server.runtime import Runtime, running
from waystation.settings import Settings, load_settings
from waystation.systems import ACCOUNTS, SYSTEMS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from waystation.accounts.oauth import Provider
    from waystation.clock import ManualClock
    from waystation.seam import System
    from waystation.server.asgi import App

SECRET = "s" * 40


class Answer(msgspec.Struct):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    @property
    def fields(self) -> list[str]:
        """The parts that a problem document names."""
        return [entry["field"] for entry in self.json.get("errors", [])]


class Site:
    """A server, and somebody who calls it."""

    def __init__(self, url: str, runtime: Runtime, http: aiohttp.ClientSession) -> None:
        self.url = url
        self.runtime = runtime
        self._http = http

    async def call(
        self,
        method: str,
        path: str,
        json: object = None,
        *,
        body: bytes | None = None,
        token: str | None = None,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        sent = dict(headers or {})
        if json is not None:
            body = msgspec.json.encode(json)
            sent.setdefault("Content-Type", "application/json")
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        if key is not None:
            sent["Idempotency-Key"] = key
        async with self._http.request(
            method,
            self.url + path,
            data=None if body is None else io.BytesIO(body),
            headers=sent,
            allow_redirects=False,
        ) as response:
            headers_got = {name.lower(): value for name, value in response.headers.items()}
            return Answer(response.status, headers_got, await response.read())

    async def get(self, path: str, **more: Any) -> Answer:
        return await self.call("GET", path, **more)

    async def post(self, path: str, json: object = None, **more: Any) -> Answer:
        return await self.call("POST", path, json, **more)

    @property
    def accounts(self) -> Any:
        return self.runtime.provided["accounts"]

    async def sign_up(self, email: str = "ann@example.com") -> dict[str, Any]:
        """The tokens of a new account."""
        account = {"email": email, "password": "correct horse", "name": "Ann"}
        answer = await self.post("/v1/auth/signup", account)
        assert answer.status == 201, answer
        tokens: dict[str, Any] = answer.json
        return tokens

    async def api_key(
        self,
        permissions: Literal["read", "write", "admin"] = "admin",
        email: str = "ann@example.com",
    ) -> str:
        user = await self.accounts.find_or_open(email)
        _, secret = await self.accounts.keys.create(user.user_id, "test", permissions)
        return str(secret)


@asynccontextmanager
async def listening(app: App, **options: Any) -> AsyncIterator[str]:
    """The URL of an ASGI app on a real socket; `options` are uvicorn's."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        config = uvicorn.Config(
            app,
            lifespan="off",
            log_config=None,
            access_log=False,
            http=BoundedProtocol,
            proxy_headers=False,
            date_header=False,
            timeout_graceful_shutdown=2,
            **options,
        )
        config.load()
        server = uvicorn.Server(config)
        server.lifespan = config.lifespan_class(config)
        await server.startup(sockets=[listener])
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            await _stopped(server)


async def _stopped(server: uvicorn.Server) -> None:
    """Stop a server as uvicorn does, but without its pause of a tenth of a second."""
    for each in server.servers:
        each.close()
    state = server.server_state
    for connection in list(state.connections):
        connection.shutdown()
    with suppress(TimeoutError):
        async with asyncio.timeout(2):
            while state.connections or state.tasks:
                await asyncio.sleep(0.002)
    for task in list(state.tasks):
        task.cancel()
    await asyncio.gather(*state.tasks, return_exceptions=True)


def settings_with(systems: Sequence[System] = SYSTEMS, **given: Any) -> Settings:
    """Settings that nothing outside the test has a say in."""
    return load_settings(settings_of(systems), environ={}, **given)


def with_quick_passwords(
    systems: Sequence[System], providers: dict[str, Provider] | None = None
) -> list[System]:
    """The systems, with passwords that are hashed faster than is safe."""
    quick = partial(open_accounts, passwords=Passwords(cost=4), providers=providers)
    return [replace(system, open=quick) if system is ACCOUNTS else system for system in systems]


@asynccontextmanager
async def site(
    clock: ManualClock,
    *,
    systems: Sequence[System] = SYSTEMS,
    providers: dict[str, Provider] | None = None,
    background: bool = False,
    wrap: Any = None,
    **settings: Any,
) -> AsyncIterator[Site]:
    """A server in memory."""
    memory = {"store": "sqlite://:memory:", "blobs": "memory:///", "secret_key": SECRET}
    quick = with_quick_passwords(systems, providers)
    async with (
        running(
            settings_with(systems, **memory | settings), quick, background=background, clock=clock
        ) as runtime,
        aiohttp.ClientSession() as http,
    ):
        app: Any = build_app(runtime)
        async with listening(wrap(app) if wrap else app) as url:
            yield Site(url, runtime, http)
