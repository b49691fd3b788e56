"""The web component, as pages of any site load it."""

from __future__ import annotations

from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING

from waystation.errors import NotFound
from waystation.seam import Request, Response

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from waystation.seam import Headers

PATH = "/static/waystation-inbox.js"


def component_door() -> Callable[[Request], Awaitable[Response]]:
    script = files("waystation.inbox").joinpath("waystation-inbox.js").read_bytes()
    tag = f'"{sha256(script).hexdigest()[:20]}"'.encode()
    headers: Headers = [
        (b"content-type", b"text/javascript; charset=utf-8"),
        (b"cache-control", b"public, max-age=300"),
        (b"etag", tag),
        (b"access-control-allow-origin", b"*"),
        (b"cross-origin-resource-policy", b"cross-origin"),
    ]

    async def answer(request: Request) -> Response:
        if request.path != PATH:
            raise NotFound("there is nothing at this address")
        if request.method not in ("GET", "HEAD"):
            return Response(405, headers=[(b"allow", b"GET, HEAD")])
        if (b"if-none-match", tag) in request.headers:
            return Response(304, headers=headers)
        return Response(200, script if request.method == "GET" else b"", headers)

    return answer
