"""The whole ASGI app of a runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from waystation.accounts import api as accounts_api
from waystation.accounts import oauth_api
from waystation.accounts.oauth import SignInElsewhere, configured
from waystation.errors import NotFound
from waystation.relay import api as relay_api
from waystation.relay.events import Events
from waystation.server.api import build_api
from waystation.server.doors import description_doors, health_doors
from waystation.server.front import Front
from waystation.server.hooks import hook_door
from waystation.server.posts import IdempotentPosts

if TYPE_CHECKING:
    from waystation.accounts.oauth import Provider
    from waystation.server.asgi import Receive, Scope, Send
    from waystation.server.runtime import Runtime


def build_app(runtime: Runtime, providers: dict[str, Provider] | None = None) -> Front:
    """Doors and API. `providers` replaces those that the settings turn on."""
    settings = runtime.settings
    elsewhere = SignInElsewhere(
        runtime.store,
        runtime.accounts,
        configured(settings) if providers is None else providers,
        public_url=settings.public_url or "",
        signup_plan=settings.signup_plan,
        signups=settings.signups,
    )
    api = build_api(
        runtime.accounts,
        [accounts_api.router, oauth_api.router, relay_api.router],
        {
            "accounts": runtime.accounts,
            "elsewhere": elsewhere,
            "relay": runtime.relay,
            "events": Events(runtime.store, runtime.cursors),
            "replays": runtime.worker.replays,
            "tails": runtime.tails,
        },
    )
    doors = health_doors(runtime) | description_doors(api) | {"in": hook_door(runtime.relay)}
    asgi: Any = api  # Litestar's own types of ASGI are narrower
    posts = IdempotentPosts(
        asgi,
        runtime.accounts,
        runtime.idempotency,
        runtime.sign_ins,
        runtime.vault,
        runtime.store.clock,
    )
    return Front(doors, posts, runtime.metrics)


def build_worker_app(runtime: Runtime) -> Front:
    """For a process that only works in the background: how it is doing, and nothing else."""

    async def nothing(scope: Scope, receive: Receive, send: Send) -> None:
        raise NotFound("this process only works in the background")

    return Front(health_doors(runtime), nothing, runtime.metrics)
