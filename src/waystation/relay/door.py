"""The door that webhooks come in by."""

from __future__ import annotations

from typing import TYPE_CHECKING

from waystation.relay.ingest import MAX_BODY, Ingest
from waystation.seam import Request, Response

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from cryptography import x509

    from waystation.relay.service import Relay

__all__ = ["MAX_BODY", "webhook_door"]

_PREFIX = "/in/"


def webhook_door(
    relay: Relay, paypal_roots: Sequence[x509.Certificate] | None = None
) -> Callable[[Request], Awaitable[Response]]:
    ingest = Ingest(relay, paypal_roots)

    async def handle(request: Request) -> Response:
        headers = _headers(request)
        raw = request.raw_path.decode("latin-1")
        source_id = raw.removeprefix(_PREFIX).partition("/")[0]
        base = relay.public_url or f"{request.scheme}://{headers.get('host', '')}"
        answer = await ingest.take(
            request.method,
            source_id,
            request.path[len(_PREFIX) + len(source_id) :],
            request.query.decode("latin-1"),
            headers,
            request.body,
            request.client,
            base + raw,
        )
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
