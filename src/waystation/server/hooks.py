"""The door that webhooks come in by."""

from __future__ import annotations

from typing import TYPE_CHECKING

from waystation.relay.ingest import MAX_BODY, Ingest
from waystation.server.asgi import Request, Response
from waystation.server.front import Door

if TYPE_CHECKING:
    from waystation.relay.service import Relay

_PREFIX = "/in/"


def hook_door(relay: Relay) -> Door:
    ingest = Ingest(relay)

    async def handle(request: Request) -> Response:
        headers = _headers(request)
        base = relay.public_url or f"{request.scheme}://{headers.get('host', '')}"
        answer = await ingest.take(
            request.method,
            request.path.removeprefix(_PREFIX),
            request.query.decode("latin-1"),
            headers,
            request.body,
            request.client,
            base + request.raw_path.decode("latin-1"),
        )
        content = b"" if request.method == "HEAD" else answer.body
        return Response(200, content, [(b"content-type", answer.content_type)])

    return Door(handle, MAX_BODY, programs=True)


def _headers(request: Request) -> dict[str, str]:
    """Headers that come several times are one, with commas."""
    found: dict[str, str] = {}
    for name, value in request.headers:
        key = name.decode("latin-1")
        try:
            text = value.decode()
        except UnicodeDecodeError:
            text = value.decode("latin-1")
        found[key] = f"{found[key]}, {text}" if key in found else text
    return found
