"""The hot door of the relay, in bare ASGI."""

from __future__ import annotations

from typing import TYPE_CHECKING

from waystation.relay.ingest import MAX_BODY, Ingest
from waystation.server.asgi import Response, read_body
from waystation.server.front import Door

if TYPE_CHECKING:
    from waystation.relay.service import Relay
    from waystation.server.asgi import Receive, Scope, Send

_PREFIX = "/in/"


def hook_door(relay: Relay) -> Door:
    ingest = Ingest(relay)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_body(receive)
        client = scope.get("client")
        headers = _headers(scope)
        base = relay.public_url or f"{scope['scheme']}://{headers.get('host', '')}"
        answer = await ingest.take(
            scope["method"],
            scope["path"].removeprefix(_PREFIX),
            scope["query_string"].decode("latin-1"),
            headers,
            body,
            client[0] if client else "",
            base + scope["raw_path"].decode("latin-1"),
        )
        content = b"" if scope["method"] == "HEAD" else answer.body
        await Response(200, content, [(b"content-type", answer.content_type)])(send)

    return Door(app, MAX_BODY, programs=True)


def _headers(scope: Scope) -> dict[str, str]:
    """Header names in lower case; those that come several times are one, with commas."""
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        key = name.decode("latin-1")
        try:
            text = value.decode()
        except UnicodeDecodeError:
            text = value.decode("latin-1")
        found[key] = f"{found[key]}, {text}" if key in found else text
    return found
