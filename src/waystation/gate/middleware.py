"""The gate in front of an app of your own: ASGI middleware that asks for both keys.

What passes reaches the app with its body as it came, so that the app may check the signature too.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from waystation.gate import payloads
from waystation.gate.decisions import organisation_of, subject, teams_of
from waystation.gate.existence import ExistenceCheck, Refused
from waystation.gate.payloads import Asked, Unreadable
from waystation.gate.requests import is_signed, request_of
from waystation.gate.slack import SlackApi
from waystation.ids import secret_hash
from waystation.outbound import Guard, Outbound
from waystation.patterns import Newest

if TYPE_CHECKING:
    from collections.abc import Collection, MutableMapping

    from waystation.clock import Clock

    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]
    App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

MAX_BODY = 256 * 1024
_MOST_TOKENS = 1_000
SLACK_API_URL = "https://slack.com/api/"

TokenOf = Callable[[str], Awaitable[str | None]]
"""The bot token of a team, if there is one."""


class SlackCheck(ExistenceCheck):
    """Existence checks of teams, users and channels with a bot token, or one for each team. A token
    says nothing about teams that it is not of."""

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
        self._owners: Newest[str, str] = Newest(_MOST_TOKENS)

    async def _ask_slack(self, team: str, user: str, channel: str) -> None:
        own = teams_of(team)[0]
        token = self._token if isinstance(self._token, str) else await self._token(own)
        if not token:
            raise Refused("no_token")
        name = secret_hash(token)
        if name not in self._owners:
            self._owners[name] = (await self._slack.whose(token)).team_id
        owner, organisation = self._owners[name], organisation_of(team)
        team, origin = teams_of(team)
        if organisation is not None:
            if owner not in (organisation, team):
                raise Refused("other_team")
            owner = organisation
        await self._slack.verify(owner, token, team, user, channel, origin)

    async def close(self) -> None:
        await super().close()
        await self._outbound.close()


class TwoKeyMiddleware:
    """Lets requests through that have both keys, and answers Slack's own questions.

    With `paths`, other paths are none of its business. A slash more or less, or a prefix that the
    app is mounted at, makes no difference. `allowed_event_types` pass with the
    first key alone if they name neither user nor channel.
    """

    def __init__(
        self,
        app: App,
        *,
        signing_secret: str,
        check: ExistenceCheck,
        paths: Collection[str] | None = None,
        allowed_event_types: Collection[str] = ("app_uninstalled", "tokens_revoked"),
        max_body: int = MAX_BODY,
        clock: Clock = time.time,
    ) -> None:
        self._app = app
        self._secret = signing_secret
        self._check = check
        self._paths = None if paths is None else frozenset(map(_plain, paths))
        self._allowed = frozenset(allowed_event_types)
        self._max_body = max_body
        self._clock = clock

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or not self._guards(scope):
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            raise RuntimeError("only HTTP requests can have both keys")
        body = await _whole(receive, self._max_body)
        if body is None:
            await _answer(send, 413)
            return
        answer = await self._look(scope, body)
        if answer is None:
            await self._app(scope, _replayed(body, receive), send)
        else:
            await _answer(send, *answer)

    def _guards(self, scope: MutableMapping[str, Any]) -> bool:
        if self._paths is None:
            return True
        path = _plain(scope["path"])
        inside = _plain(path.removeprefix(scope.get("root_path", "").rstrip("/")))
        return path in self._paths or inside in self._paths

    async def _look(self, scope: MutableMapping[str, Any], body: bytes) -> tuple[int, bytes] | None:
        """What to answer a request with, with a status and a body; None if the app may see it."""
        request = request_of(list(scope["headers"]), body, None, "")
        if not is_signed(self._secret, request, self._clock()):
            return 401, b""
        try:
            asked = payloads.read(body, request.content_type)
        except Unreadable:
            return 400, b""
        if asked.kind == "challenge":
            return 200, msgspec.json.encode({"challenge": asked.challenge})
        if asked.kind == "ssl_check":
            return 200, b""
        return None if await self._exists(asked) else (403, b"")

    async def _exists(self, asked: Asked) -> bool:
        nothing = asked.user is None and asked.channel is None
        if nothing and asked.kind == "event" and asked.type in self._allowed:
            return True
        team = asked.team or asked.enterprise
        if team is None:
            return False
        # An organisation that is named must be the team's own: it is checked as its owner.
        owner = asked.enterprise or team
        return (await self._check.check(*subject(asked, owner))).passed


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


async def _answer(send: Send, status: int, body: bytes = b"") -> None:
    headers = [(b"content-length", str(len(body)).encode())]
    headers.append((b"content-type", b"application/json") if body else (b"x-slack-no-retry", b"1"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _plain(path: str) -> str:
    """A path in one of the spellings that many programs take for the same."""
    return "/" + "/".join(part for part in path.split("/") if part)
