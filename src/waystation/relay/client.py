"""What the relay's commands do with a server's events: follow them, and send them on."""

from __future__ import annotations

import asyncio
import base64
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import aiohttp
import msgspec
from yarl import URL

from waystation.backoff import backoff
from waystation.patterns import Newest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from waystation.client import ApiClient

_MOST_SEEN = 50_000
_IN_A_PATH = "/-._~!$&'()*+,;=:@"

_NOT_FORWARDED = frozenset(
    {
        *("host", "connection", "content-length", "transfer-encoding", "accept-encoding"),
        *("keep-alive", "upgrade", "expect", "te", "trailer"),
    }
)


async def tail(
    api: ApiClient,
    source_id: str | None,
    since: str | None,
    reconnecting: Callable[[str], None],
) -> AsyncIterator[dict[str, Any]]:
    """New events, for ever. A connection that breaks is opened again, and goes on where it was:
    what comes twice is passed over, and nothing is left out."""
    seen: Newest[str, None] = Newest(_MOST_SEEN)
    last: str | None = None
    troubles = 0
    while True:
        params = {"source_id": source_id, "since": since if last is None else None}
        try:
            async for id_, data in api.stream("/v1/events/tail", params, last):
                troubles = 0
                last = id_ or last
                if data is None:
                    continue
                event = msgspec.json.decode(data)
                if event["id"] in seen:
                    continue
                seen[event["id"]] = None
                yield event
            reason = "the server ended it"
        except OSError as error:  # a TimeoutError is one
            reason = str(error) or type(error).__name__
        troubles += 1
        reconnecting(reason)
        await asyncio.sleep(backoff(troubles, first=0.25, longest=15.0))


async def forward(
    http: aiohttp.ClientSession, event: dict[str, Any], target: str
) -> tuple[int, str]:
    """Send an event on as it came; the status, or 0, and what was said."""
    body = event["body"].encode()
    if event["body_encoding"] == "base64":
        body = base64.b64decode(event["body"])
    headers = {n: v for n, v in event["headers"].items() if n not in _NOT_FORWARDED}
    headers["x-waystation-event"] = event["id"]
    if {".", ".."} & set(event["path"].split("/")):
        return 0, "its path leaves the target"
    url = target
    if event["path"]:
        url = target.rstrip("/") + quote(event["path"], safe=_IN_A_PATH)
    if event["query"]:
        url += f"{'&' if '?' in url else '?'}{event['query']}"
    try:
        async with http.request(
            event["method"],
            URL(url, encoded=True),
            data=body,
            headers=headers,
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=30),
        ) as response:
            return response.status, response.reason or ""
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        return 0, str(error) or type(error).__name__
