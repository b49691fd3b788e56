"""The gate in front of an app of your own: ASGI middleware that asks for both keys.

What passes reaches the app with its body as it came, so that the app may check the signature too.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from waystation.gate import payloads
from waystation.gate.existence import ExistenceCheck, Refused
from waystation.gate.payloads import Asked, Unreadable
from waystation.gate.requests import request_of, signature_flaw
from waystation.gate.slack import ABSENT, SlackApi
from waystation.outbound import Guard, Outbound

if TYPE_CHECKING:
    from collections.abc import Collection, MutableMapping

    from waystation.clock import Clock

    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]
    App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

MAX_BODY = 256 * 1024
SLACK_API_URL = "https://slack.com/api/"

TokenOf = Callable[[str], Awaitable[str | None]]
"""The bot token of a team, if there is one."""


class SlackCheck(ExistenceCheck):
    """Existence checks of teams, users and channels with a bot token, or one for each team."""

    def __init__(
        self,
        bot_token: str | TokenOf,
        *,
        api_url: str = SLACK_API_URL,
        allow_networks: Collection[str] = (),
        clock: Clock = time.time,
    ) -> None:
        super().__init__(self._ask_slack, clock=clock)
        self._token = bot_token
        self._outbound = Outbound(Guard(list(allow_networks)))
        self._slack = SlackApi(self._outbound, api_url)

    async def _ask_slack(self, team: str, user: str, channel: str) -> None:
        token = self._token if isinstance(self._token, str) else await self._token(team)
        if not token:
            raise Refused("no_token")
        await self._slack.verify(team, token, team, user, channel)

    async def close(self) -> None:
        await super().close()
        await self._outbound.close()


class TwoKeyMiddleware:
    """Lets requests to `paths` through that have both keys; others are none of its business.

    `allowed_event_types` pass with the first key alone if they name neither user nor channel.
    """

    def __init__(
        self,
        app: App,
        *,
        signing_secret: str,
        check: ExistenceCheck,
        paths: Collection[str] = ("/slack/events",),
        allowed_event_types: Collection[str] = ("app_uninstalled", "tokens_revoked"),
        max_body: int = MAX_BODY,
        clock: Clock = time.time,
    ) -> None:
        self._app = app
        self._secret = signing_secret
        self._check = check
        self._paths = frozenset(paths)
        self._allowed = frozenset(allowed_event_types)
        self._max_body = max_body
        self._clock = clock

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] not in self._paths:
            await self._app(scope, receive, send)
            return
        body = await _whole(receive, self._max_body)
        if body is None:
            await _refuse(send, 413)
            return
        status = await self._refusal(scope, body)
        if status is not None:
            await _refuse(send, status)
            return
        await self._app(scope, _replayed(body, receive), send)

    async def _refusal(self, scope: MutableMapping[str, Any], body: bytes) -> int | None:
        """The status to refuse a request with; None if it may pass."""
        request = request_of(list(scope["headers"]), body, None, "")
        if not self._secret or signature_flaw(self._secret, request, self._clock()) is not None:
            return 401
        try:
            asked = payloads.read(body, request.content_type)
        except Unreadable:
            return 400
        if asked.kind in ("challenge", "ssl_check"):
            return None
        return None if await self._exists(asked) else 403

    async def _exists(self, asked: Asked) -> bool:
        if asked.user is None and asked.channel is None and asked.type in self._allowed:
            return True
        team = asked.team or asked.enterprise
        if team is None:
            return False
        verdict = await self._check.check(team, asked.user or ABSENT, asked.channel or ABSENT)
        return verdict.passed


async def _whole(receive: Receive, most: int) -> bytes | None:
    """The whole body; None when it is too large, or its sender has gone."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > most:
            return None
        if not message.get("more_body"):
            return b"".join(parts)


def _replayed(body: bytes, receive: Receive) -> Receive:
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


async def _refuse(send: Send, status: int) -> None:
    headers = [(b"x-slack-no-retry", b"1"), (b"content-length", b"0")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b""})
