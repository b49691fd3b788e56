"""The doors that show how the server is doing, and what its API is."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from waystation.errors import NotFound, WaystationError
from waystation.seam import Door, Request, Response, json_response
from waystation.server import metrics, openapi
from waystation.store import Checkpoint

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from litestar import Litestar

    from waystation.server.runtime import Runtime

_CHECK_SECONDS = 3.0
_HTML = [
    (b"content-type", b"text/html; charset=utf-8"),
    (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'"),
]


class Health:
    """Whether the process lives, and whether it should be given work."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def live(self) -> Response:
        return json_response(200, {"status": "ok"})

    async def ready(self) -> Response:
        """200 while we can take requests; jobs that fail are shown and do not change that."""
        supervisor = self._runtime.supervisor
        trouble = await self._trouble()
        status = "ready"
        if supervisor.stopping.is_set():
            status = "draining"
        elif trouble is not None:
            status = "unavailable"
        elif supervisor.failing:
            status = "degraded"
        shown = {
            "status": status,
            "store": trouble or "ok",
            "jobs": [msgspec.structs.asdict(state) for state in supervisor.states()],
        }
        return json_response(200 if status in ("ready", "degraded") else 503, shown)

    async def _trouble(self) -> str | None:
        """What keeps the store from answering, without the details that are for the log."""
        try:
            async with asyncio.timeout(_CHECK_SECONDS):
                await self._runtime.store.get(Checkpoint.key("health", "health", "health"))
        except (WaystationError, TimeoutError) as error:
            return type(error).__name__
        return None

    async def metrics(self) -> Response:
        runtime = self._runtime
        body = await runtime.metrics.page(runtime)
        return Response(200, body, [(b"content-type", metrics.CONTENT_TYPE)])


def health_doors(runtime: Runtime) -> list[Door]:
    health = Health(runtime)
    return [
        _page("/healthz", health.live, programs=True),
        _page("/readyz", health.ready, programs=True),
        _page("/metrics", health.metrics, programs=True),
    ]


def description_doors(api: Litestar) -> list[Door]:
    """The API's description, built when somebody first asks for it: it takes a while."""
    built: dict[str, Response] = {}
    building = asyncio.Lock()

    async def description(kind: str) -> Response:
        async with building:
            if not built:
                described = await asyncio.to_thread(openapi.document, api)
                built["json"] = json_response(200, described)
                built["html"] = Response(200, openapi.page(described), _HTML)
        return built[kind]

    async def for_programs() -> Response:
        return await description("json")

    async def for_people() -> Response:
        return await description("html")

    async def for_newcomers() -> Response:
        return Response(200, openapi.welcome(), _HTML)

    return [
        _page("/", for_newcomers),
        _page("/openapi.json", for_programs),
        _page("/docs", for_people),
    ]


def _page(path: str, answer: Callable[[], Awaitable[Response]], *, programs: bool = False) -> Door:
    """A door that answers GET at one path."""

    async def handle(request: Request) -> Response:
        if path != (request.path if path == "/" else request.path.rstrip("/")):
            raise NotFound("there is nothing at this address")
        if request.method not in ("GET", "HEAD"):
            return Response(405, headers=[(b"allow", b"GET, HEAD")])
        response = await answer()
        if request.method == "HEAD":
            return Response(response.status, headers=response.headers)
        return response

    return Door(path, handle, programs=programs)
