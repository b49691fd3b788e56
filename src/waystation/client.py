"""The API's client for the command line: calls a server, so that commands work from anywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import aiohttp
import msgspec

from waystation.errors import ServerRefused

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from typing import Self

_SILENCE_SECONDS = 60.0
"""A stream that says nothing for so long is dead: the server gives a sign of life in between."""

_PASSING = (408, 429)


class ApiClient:
    """Calls a server with an API key."""

    def __init__(self, url: str, key: str) -> None:
        self._url = url.rstrip("/")
        self._session = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {key}"}, read_bufsize=2**20
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

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

    async def stream(
        self, path: str, params: Mapping[str, str | None], last_event_id: str | None
    ) -> AsyncIterator[tuple[str | None, str | None]]:
        """The ids and data of a stream of server-sent events. A comment has neither.

        Raises OSError or TimeoutError where trying again may help.
        """
        given = {name: value for name, value in params.items() if value is not None}
        headers = {} if last_event_id is None else {"Last-Event-ID": last_event_id}
        limit = aiohttp.ClientTimeout(total=None, sock_read=_SILENCE_SECONDS)
        try:
            async with self._session.get(
                self._url + path, params=given, headers=headers, timeout=limit
            ) as response:
                if 400 <= response.status < 500 and response.status not in _PASSING:
                    _check(response, await response.read())
                response.raise_for_status()
                async for message in _messages(response):
                    yield message
        except aiohttp.ClientError as error:
            raise OSError(str(error) or type(error).__name__) from error


async def _messages(
    response: aiohttp.ClientResponse,
) -> AsyncIterator[tuple[str | None, str | None]]:
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


def _check(response: aiohttp.ClientResponse, content: bytes) -> None:
    if response.status < 400:
        return
    try:
        document = msgspec.json.decode(content)
        detail = document.get("detail") or document.get("title")
    except (msgspec.DecodeError, AttributeError):
        detail = response.reason
    raise ServerRefused(f"the server said {response.status}: {detail}")
