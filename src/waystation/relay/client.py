"""The relay's commands: they call a server's API, so that they work from anywhere."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections import OrderedDict
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import aiohttp
import msgspec
from yarl import URL

from waystation.backoff import backoff
from waystation.errors import ServerRefused

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from typing import Self

log = logging.getLogger(__name__)

_MOST_SEEN = 50_000
_IN_A_PATH = "/-._~!$&'()*+,;=:@"
_SILENCE_SECONDS = 60.0
"""A stream that says nothing for so long is dead: the server gives a sign of life in between."""

_NOT_FORWARDED = frozenset(
    {
        *("host", "connection", "content-length", "transfer-encoding", "accept-encoding"),
        *("keep-alive", "upgrade", "expect", "te", "trailer"),
    }
)


class Client:
    """Calls a server with an API key."""

    def __init__(self, url: str, key: str) -> None:
        self._url = url.rstrip("/")
        self._session = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {key}"}, read_bufsize=2**20
        )
        self._outside = aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()
        await self._outside.close()

    async def call(self, method: str, path: str, body: object = None) -> Any:
        data = None if body is None else msgspec.json.encode(body)
        headers = {"Content-Type": "application/json"} if data else {}
        try:
            async with self._session.request(
                method, self._url + path, data=data, headers=headers
            ) as response:
                content = await response.read()
                _check(response, content)
        except aiohttp.ClientError as error:
            raise ServerRefused(f"{self._url} cannot be reached: {error}") from error
        return msgspec.json.decode(content) if content else None

    async def tail(
        self, source_id: str | None, since: str | None, reconnecting: Callable[[str], None]
    ) -> AsyncIterator[dict[str, Any]]:
        """New events, for ever. A connection that breaks is made again, and goes on where it was:
        what comes twice is passed over, and nothing is left out."""
        seen: OrderedDict[str, None] = OrderedDict()
        last: str | None = None
        troubles = 0
        while True:
            params = {"source_id": source_id, "since": since if last is None else None}
            headers = {} if last is None else {"Last-Event-ID": last}
            try:
                async for id_, data in self._stream(params, headers):
                    troubles = 0
                    last = id_ or last
                    if data is None:
                        continue
                    event = msgspec.json.decode(data)
                    if event["id"] in seen:
                        continue
                    seen[event["id"]] = None
                    if len(seen) > _MOST_SEEN:
                        seen.popitem(last=False)
                    yield event
                reason = "the server ended it"
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                reason = str(error) or type(error).__name__
            troubles += 1
            reconnecting(reason)
            await asyncio.sleep(backoff(troubles, first=0.25, longest=15.0))

    async def _stream(
        self, params: dict[str, str | None], headers: dict[str, str]
    ) -> AsyncIterator[tuple[str | None, str | None]]:
        """The ids and data of a stream of server-sent events. A comment has neither."""
        given = {name: value for name, value in params.items() if value is not None}
        limit = aiohttp.ClientTimeout(total=None, sock_read=_SILENCE_SECONDS)
        async with self._session.get(
            f"{self._url}/v1/events/tail", params=given, headers=headers, timeout=limit
        ) as response:
            if 400 <= response.status < 500 and response.status not in (408, 429):
                _check(response, await response.read())
            response.raise_for_status()
            id_, data = None, []
            async for raw in response.content:
                line = raw.decode().rstrip("\r\n")
                if line.startswith("id:"):
                    id_ = line[3:].strip()
                elif line.startswith("data:"):
                    data.append(line[5:].removeprefix(" "))
                elif not line:
                    yield id_, "\n".join(data) if data else None
                    id_, data = None, []

    async def forward(self, event: dict[str, Any], target: str) -> tuple[int, str]:
        """Send an event on as it came; the status, or 0, and what was said."""
        body = event["body"].encode()
        if event["body_encoding"] == "base64":
            body = base64.b64decode(event["body"])
        headers = {n: v for n, v in event["headers"].items() if n not in _NOT_FORWARDED}
        headers["x-waystation-event"] = event["id"]
        if {".", ".."} & set(event["path"].split("/")):
            return 0, "its path leaves the target"
        url = (
            target.rstrip("/") + quote(event["path"], safe=_IN_A_PATH) if event["path"] else target
        )
        if event["query"]:
            url += f"{'&' if '?' in url else '?'}{event['query']}"
        try:
            async with self._outside.request(
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


def _check(response: aiohttp.ClientResponse, content: bytes) -> None:
    if response.status < 400:
        return
    try:
        told = msgspec.json.decode(content)
        detail = told.get("detail") or told.get("title")
    except (msgspec.DecodeError, AttributeError):
        detail = response.reason
    raise ServerRefused(f"the server said {response.status}: {detail}")
