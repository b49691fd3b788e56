"""The whole ASGI app of a runtime."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from waystation.errors import NotFound
from waystation.seam import Response, merged
from waystation.server.api import build_api
from waystation.server.asgi import Capture, send_response
from waystation.server.cross_origin import CrossOrigin
from waystation.server.doors import description_doors, health_doors
from waystation.server.front import Front
from waystation.server.posts import IdempotentPosts

if TYPE_CHECKING:
    from waystation.seam import Door
    from waystation.server.asgi import App, Receive, Scope, Send
    from waystation.server.runtime import Runtime


def build_app(runtime: Runtime) -> Front:
    """Doors and API of all systems."""
    routers = [router for running in runtime.running for router in running.routers()]
    api = build_api(runtime.callers, routers, runtime.provided)
    doors = [door for running in runtime.running for door in running.doors]
    posts = IdempotentPosts(
        _with_options(api),
        runtime.callers,
        runtime.idempotency,
        runtime.sign_ins,
        runtime.vault,
        runtime.store.clock,
    )
    everything = [*health_doors(runtime), *description_doors(api), *doors]
    open_to_others = [prefix for running in runtime.running for prefix in running.cross_origin]
    return Front(_by_segment(everything), CrossOrigin(posts, open_to_others), runtime.metrics)


def _with_options(api: Any) -> App:
    """Litestar's answer to OPTIONS has the methods of one of a path's handlers; its refusal of
    another method has those of all."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "OPTIONS":
            await api(scope, receive, send)
            return
        capture = Capture()
        await api({**scope, "method": "TRACE"}, receive, capture)
        response = capture.response()
        if response.status == HTTPStatus.METHOD_NOT_ALLOWED:
            methods = dict(response.headers).get(b"allow", b"").split(b", ")
            response = Response(204, b"", [(b"allow", b", ".join(sorted(methods)))])
        await send_response(response, send)

    return answer


def build_worker_app(runtime: Runtime) -> Front:
    """For a process that only works in the background: how it is doing, and nothing else."""

    async def nothing(scope: Scope, receive: Receive, send: Send) -> None:
        raise NotFound("this process only works in the background")

    return Front(_by_segment(health_doors(runtime)), nothing, runtime.metrics)


def _by_segment(doors: list[Door]) -> dict[str, Door]:
    return merged("door", ({door.segment: door} for door in doors))
