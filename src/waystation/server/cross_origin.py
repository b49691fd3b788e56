"""Pages of other sites: which paths their scripts may call.

Callers prove themselves by a header that scripts must have been given, and never by a cookie, so
that any site may ask: it learns nothing that it could not have asked for itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from waystation.seam import Response
from waystation.server.asgi import header, send_response

if TYPE_CHECKING:
    from collections.abc import MutableMapping, Sequence

    from waystation.server.asgi import App, Receive, Scope, Send

_ANYBODY = (b"access-control-allow-origin", b"*")
_ALLOWED = [
    _ANYBODY,
    (b"access-control-allow-methods", b"GET, POST, DELETE"),
    (b"access-control-allow-headers", b"authorization, content-type, last-event-id"),
    (b"access-control-max-age", b"600"),
]
_READABLE = [
    _ANYBODY,
    (b"access-control-expose-headers", b"retry-after, x-request-id"),
    (b"cross-origin-resource-policy", b"cross-origin"),
]


class CrossOrigin:
    """In front of the API: answers what browsers ask before they call, and lets them read."""

    def __init__(self, app: App, prefixes: Sequence[str]) -> None:
        self._app = app
        self._prefixes = tuple(prefixes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if header(scope, b"origin") is None or not scope["path"].startswith(self._prefixes):
            await self._app(scope, receive, send)
            return
        asks = header(scope, b"access-control-request-method") is not None
        if scope["method"] == "OPTIONS" and asks:
            await send_response(Response(204, headers=_ALLOWED), send)
            return

        async def readable(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *_READABLE]
            await send(message)

        await self._app(scope, receive, readable)
