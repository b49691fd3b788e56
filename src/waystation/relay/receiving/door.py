"""The door that webhooks come in by."""

from __future__ import annotations

from typing import TYPE_CHECKING

from waystation.relay.receiving.checking import MAX_BODY
from waystation.relay.rules.paths import Webhook
from waystation.seam import Request, Response

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from waystation.relay.receiving.checking import Checking

__all__ = ["MAX_BODY", "webhook_door"]

_PREFIX = "/in/"


def webhook_door(
    checking: Checking, public_url: str | None
) -> Callable[[Request], Awaitable[Response]]:
    async def handle(request: Request) -> Response:
        headers = _headers(request)
        raw = request.raw_path.decode("latin-1")
        source_id = raw.removeprefix(_PREFIX).partition("/")[0]
        path = request.path[len(_PREFIX) + len(source_id) :]
        webhook = Webhook(
            request.body,
            headers,
            request.query.decode("latin-1"),
            request.method,
            "" if path == "/" else path,
        )
        base = public_url or f"{request.scheme}://{headers.get('host', '')}"
        answer = await checking.take(source_id, webhook, request.client, base + raw)
        content = b"" if request.method == "HEAD" else answer.body
        return Response(200, content, [(b"content-type", answer.content_type)])

    return handle


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
