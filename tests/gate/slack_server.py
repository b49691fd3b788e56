"""A server with the few methods of Slack's Web API that the gate uses, and their documented errors.

It keeps to what Slack's reference says: POST with a form and a bearer token, `ok` and `error` in
every answer, `needed` and `provided` beside `missing_scope`, 429 with `Retry-After`, the token's
scopes in `X-OAuth-Scopes`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from aiohttp import web

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

ALL = ("team:read", "users:read", "channels:read", "groups:read", "im:read", "mpim:read")
_NEEDED = {
    "auth.test": None,
    "team.info": "team:read",
    "users.info": "users:read",
    "conversations.info": "channels:read",
    "api.test": None,
    "bots.info": "users:read",
}


_WRONG: dict[str, Callable[[], web.Response]] = {
    "500": lambda: web.Response(status=500, text="oops"),
    "html": lambda: web.Response(text="<html>maintenance</html>", content_type="text/html"),
    "half": lambda: web.Response(text='{"ok": true', content_type="application/json"),
    "empty": lambda: web.json_response({"ok": True}),
}


def _refusal(error: str) -> web.Response:
    return web.json_response({"ok": False, "error": error})


class Token:
    def __init__(
        self, team: str, scopes: tuple[str, ...], enterprise: str | None, app: str
    ) -> None:
        self.team = team
        self.app = app
        self.scopes = scopes
        self.enterprise = enterprise
        self.revoked = False


class Slack:
    """Teams with their users and channels. `trouble` says how it misbehaves."""

    def __init__(self) -> None:
        self.url = ""
        self.tokens: dict[str, Token] = {}
        self.teams: dict[str, dict[str, Any]] = {}
        self.users: dict[str, dict[str, Any]] = {}
        self.channels: dict[str, dict[str, Any]] = {}
        self.calls: Counter[str] = Counter()
        self.trouble: str | None = None
        self.retry_after: str | None = "1"
        self.throttled = 0
        """How many calls are still answered with 429."""

        self.failing: set[str] = set()
        """Methods that answer with 500."""

        self.delay = 0.0
        self.at_once = 0
        self.most_at_once = 0

    def team(
        self,
        team: str = "T1",
        token: str = "xoxb-1",
        scopes: tuple[str, ...] = ALL,
        enterprise: str | None = None,
        app: str = "A1",
    ) -> None:
        self.teams[team] = {"id": team, "name": f"Team {team}", "enterprise_id": enterprise}
        self.tokens[token] = Token(team, scopes, enterprise, app)

    def user(self, user: str = "U1", team: str = "T1", **more: Any) -> None:
        self.users[user] = {"id": user, "team_id": team, "deleted": False, **more}

    def channel(self, channel: str = "C1", team: str = "T1", **more: Any) -> None:
        self.channels[channel] = {
            "id": channel,
            "is_archived": False,
            "context_team_id": team,
            **more,
        }

    @property
    def asked(self) -> int:
        """Calls of the three methods that say who exists."""
        return sum(self.calls[name] for name in ("team.info", "users.info", "conversations.info"))

    async def handle(self, request: web.Request) -> web.StreamResponse:
        method = request.match_info["method"]
        self.calls[method] += 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            if self.delay:
                await asyncio.sleep(self.delay)
            if (misbehaved := await self._misbehave(request)) is not None:
                return misbehaved
            form = await request.post() if request.method == "POST" else request.query
            answer, scopes = self._answer(method, request, {k: str(v) for k, v in form.items()})
        finally:
            self.at_once -= 1
        headers = {"X-OAuth-Scopes": ",".join(scopes)} if scopes else {}
        return web.json_response(answer, headers=headers)

    async def _misbehave(self, request: web.Request) -> web.StreamResponse | None:
        if self.throttled:
            self.throttled -= 1
            headers = {} if self.retry_after is None else {"Retry-After": self.retry_after}
            return web.json_response(
                {"ok": False, "error": "ratelimited"}, status=429, headers=headers
            )
        if request.match_info["method"] in self.failing:
            return web.Response(status=500)
        match self.trouble:
            case None:
                return None
            case "hang":
                await asyncio.sleep(60)
            case "cut":
                assert request.transport is not None
                request.transport.close()
            case "endless":
                response = web.StreamResponse(headers={"Content-Type": "application/json"})
                await response.prepare(request)
                await response.write(b'{"ok": true, "x": "')
                while True:
                    await response.write(b"x" * 4_096)
                    await asyncio.sleep(0.001)
            case trouble:
                return _WRONG.get(trouble, lambda: _refusal(trouble))()
        return web.Response(status=503)

    def _answer(
        self, method: str, request: web.Request, form: dict[str, str]
    ) -> tuple[dict[str, Any], tuple[str, ...]]:
        if method not in _NEEDED:
            return {"ok": False, "error": "unknown_method"}, ()
        if method == "api.test":
            return {"ok": True}, ()
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        token = self.tokens.get(given or form.get("token", ""))
        if token is None:
            return {"ok": False, "error": "invalid_auth" if given else "not_authed"}, ()
        if token.revoked:
            return {"ok": False, "error": "token_revoked"}, ()
        needed = _NEEDED[method]
        if needed is not None and needed not in token.scopes:
            provided = ",".join(token.scopes)
            refusal = {"error": "missing_scope", "needed": needed, "provided": provided}
            return {"ok": False, **refusal}, token.scopes
        return self._found(method, token, form), token.scopes

    def _found(self, method: str, token: Token, form: dict[str, str]) -> dict[str, Any]:
        if method == "auth.test":
            team = self.teams[token.team]
            who = {"user_id": "UBOT", "bot_id": "B1", "enterprise_id": token.enterprise}
            return {"ok": True, "team": team["name"], "team_id": token.team, "user": "bot", **who}
        if method == "bots.info":
            return {"ok": True, "bot": {"id": form.get("bot"), "app_id": token.app}}
        kind, group, name = {
            "team.info": ("team", self.teams, form.get("team", token.team)),
            "users.info": ("user", self.users, form.get("user", "")),
            "conversations.info": ("channel", self.channels, form.get("channel", "")),
        }[method]
        if name not in group:
            return {"ok": False, "error": f"{kind}_not_found"}
        return {"ok": True, kind: group[name]}


@asynccontextmanager
async def slack_server() -> AsyncIterator[Slack]:
    slack = Slack()
    app = web.Application()
    app.router.add_route("*", "/api/{method}", slack.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        listener = web.TCPSite(runner, "127.0.0.1", 0)
        await listener.start()
        host, port = runner.addresses[0][:2]
        slack.url = f"http://{host}:{port}/api/"
        yield slack
    finally:
        await runner.cleanup()
