"""The whole ASGI app of a runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from waystation.errors import NotFound
from waystation.seam import merged
from waystation.server.api import build_api
from waystation.server.cross_origin import CrossOrigin
from waystation.server.doors import description_doors, health_doors
from waystation.server.front import Front
from waystation.server.posts import IdempotentPosts

if TYPE_CHECKING:
    from waystation.seam import Door
    from waystation.server.asgi import Receive, Scope, Send
    from waystation.server.runtime import Runtime


def build_app(runtime: Runtime) -> Front:
    """Doors and API of all systems."""
    routers = [router for running in runtime.running for router in running.routers()]
    api = build_api(runtime.callers, routers, runtime.provided)
    doors = [door for running in runtime.running for door in running.doors]
    asgi: Any = api  # Litestar's own types of ASGI are narrower
    posts = IdempotentPosts(
        asgi,
        runtime.callers,
        runtime.idempotency,
        runtime.sign_ins,
        runtime.vault,
        runtime.store.clock,
    )
    everything = [*health_doors(runtime), *description_doors(api), *doors]
    open_to_others = [prefix for running in runtime.running for prefix in running.cross_origin]
    return Front(_by_segment(everything), CrossOrigin(posts, open_to_others), runtime.metrics)


def build_worker_app(runtime: Runtime) -> Front:
    """For a process that only works in the background: how it is doing, and nothing else."""

    async def nothing(scope: Scope, receive: Receive, send: Send) -> None:
        raise NotFound("this process only works in the background")

    return Front(_by_segment(health_doors(runtime)), nothing, runtime.metrics)


def _by_segment(doors: list[Door]) -> dict[str, Door]:
    return merged("door", ({door.segment: door} for door in doors))
