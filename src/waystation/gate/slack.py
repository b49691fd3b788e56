"""Slack's side of the check: what its API says about a team, a user and a channel."""

from __future__ import annotations

import asyncio
import re
import time
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlencode

import msgspec

from waystation.gate.existence import BUDGET_SECONDS, Refused, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from waystation.outbound import Outbound, Reply

ABSENT = "-"
"""Stands for an id that a request does not have."""

SCOPES = ("team:read", "users:read", "channels:read", "groups:read", "im:read", "mpim:read")
"""What a bot token needs for all kinds of channels."""

_TOO_MANY = 429
_UNKNOWN_PAUSE = 1.0
_SHORTEST_PAUSE = 0.1
_MOST_READ = 256 * 1024
_ERROR = re.compile(r"[a-z_]{1,60}")
_SCOPE_LIST = re.compile(r"[a-z0-9_.:, -]{1,500}")
_BAD_TOKEN = frozenset(
    {
        *("invalid_auth", "not_authed", "account_inactive", "token_revoked", "token_expired"),
        *("not_allowed_token_type", "org_login_required", "access_denied", "no_permission"),
    }
)
_TROUBLE = frozenset(
    {"internal_error", "fatal_error", "service_unavailable", "request_timeout", "team_added_to_org"}
)
_NOT_FOUND = {
    "team_not_found": "team_not_found",
    "user_not_found": "user_not_found",
    "user_not_visible": "user_not_found",
    "users_not_found": "user_not_found",
    "channel_not_found": "channel_not_found",
    "invalid_channel": "channel_not_found",
}

T = TypeVar("T", bound="_Answer")


class _Answer(msgspec.Struct, kw_only=True):
    ok: bool
    error: str = ""
    needed: str = ""


class Identity(_Answer, kw_only=True):
    """Whose a token is. An organisation's has its id in both places."""

    team_id: str = ""
    team: str = ""
    enterprise_id: str | None = None
    user_id: str = ""
    bot_id: str | None = None
    scopes: list[str] = []


class _Bot(msgspec.Struct):
    app_id: str | None = None


class _BotAnswer(_Answer, kw_only=True):
    bot: _Bot | None = None


class Team(msgspec.Struct):
    id: str
    enterprise_id: str | None = None


class _TeamAnswer(_Answer, kw_only=True):
    team: Team | None = None


class _EnterpriseUser(msgspec.Struct):
    enterprise_id: str = ""
    teams: list[str] = []


class _User(msgspec.Struct):
    id: str
    deleted: bool = False
    team_id: str | None = None
    enterprise_user: _EnterpriseUser | None = None


class _UserAnswer(_Answer, kw_only=True):
    user: _User | None = None


class _Channel(msgspec.Struct):
    id: str
    is_archived: bool = False
    is_ext_shared: bool = False
    is_org_shared: bool = False
    context_team_id: str | None = None
    shared_team_ids: list[str] = []
    internal_team_ids: list[str] = []
    connected_team_ids: list[str] = []

    @property
    def teams(self) -> set[str]:
        """Those that it belongs to, as far as Slack says."""
        return {*self.shared_team_ids, *self.internal_team_ids, self.context_team_id or ""} - {""}

    @property
    def shared_with(self) -> set[str]:
        """The other teams whose people are in it."""
        found: set[str] = set()
        if self.is_ext_shared:
            found |= {*self.connected_team_ids, *self.shared_team_ids}
        if self.is_org_shared:
            found |= {*self.internal_team_ids, *self.shared_team_ids}
        return found


class _ChannelAnswer(_Answer, kw_only=True):
    channel: _Channel | None = None


class SlackApi:
    """Calls Slack's methods: Refused for what it says no to, Unavailable for what it does not
    answer."""

    def __init__(
        self,
        outbound: Outbound,
        url: str,
        observe: Callable[[str, float], None] | None = None,
    ) -> None:
        self._outbound = outbound
        self._url = url.rstrip("/")
        self._observe = observe

    async def whose(self, token: str) -> Identity:
        """Whose a token is, and what it may do."""
        identity, reply = await self._call("auth.test", token, Identity, {})
        scopes = reply.headers.get("x-oauth-scopes", "")
        identity.scopes = [scope.strip() for scope in scopes.split(",") if scope.strip()]
        return identity

    async def app(self, token: str, bot_id: str) -> str | None:
        """The app that a bot belongs to, if Slack says so."""
        try:
            answer, _ = await self._call("bots.info", token, _BotAnswer, {"bot": bot_id})
        except Refused as refused:
            if refused.reason == "missing_scope":
                raise
            return None
        return answer.bot.app_id if answer.bot else None

    async def alive(self) -> bool:
        reply = await self._outbound.request("POST", f"{self._url}/api.test", seconds=5.0)
        try:
            return reply.ok and msgspec.json.decode(reply.body, type=_Answer).ok
        except (msgspec.MsgspecError, ValueError):
            return False

    async def verify(
        self, owner: str, token: str, team: str, user: str, channel: str, origin: str | None = None
    ) -> None:
        """Ask whether all of them exist and belong together. `owner` is whose the token is: the
        team, or the organisation that it is part of. `origin` is a team that shares the channel."""
        asking = asyncio.ensure_future
        found_team = asking(self.team(token, team))
        found_user = None if user == ABSENT else asking(self._user(token, user))
        found_channel = None if channel == ABSENT else asking(self._channel(token, channel))
        calls = [call for call in (found_team, found_user, found_channel) if call is not None]
        failures = await asyncio.gather(*calls, return_exceptions=True)
        for kind in (Refused, Exception):  # a no that was said comes before a missing answer
            for failure in failures:
                if isinstance(failure, kind):
                    raise failure
        _check_team(found_team.result(), team, owner)
        shared_with: set[str] = set()
        if found_channel is not None:
            _check_channel(found_channel.result(), channel, team, owner)
            shared_with = found_channel.result().shared_with
        if origin is not None and origin not in shared_with:
            raise Refused(
                "other_team", "it happened in a team that shares no channel with this one"
            )
        if found_user is not None:
            _check_user(found_user.result(), user, {team, owner} | shared_with)

    async def team(self, token: str, team: str) -> Team:
        answer, _ = await self._call("team.info", token, _TeamAnswer, {"team": team})
        return _present(answer.team)

    async def _user(self, token: str, user: str) -> _User:
        answer, _ = await self._call("users.info", token, _UserAnswer, {"user": user})
        return _present(answer.user)

    async def _channel(self, token: str, channel: str) -> _Channel:
        fields = {"channel": channel}
        answer, _ = await self._call("conversations.info", token, _ChannelAnswer, fields)
        return _present(answer.channel)

    async def _call(
        self, method: str, token: str, kind: type[T], fields: dict[str, str]
    ) -> tuple[T, Reply]:
        """One call, and another after the pause that Slack asks for, if there is time for it."""
        end = time.monotonic() + BUDGET_SECONDS
        for attempt in range(2):
            begun = time.monotonic()
            reply = await self._outbound.request(
                "POST",
                f"{self._url}/{method}",
                headers={
                    "authorization": f"Bearer {token}",
                    "content-type": "application/x-www-form-urlencoded",
                },
                body=urlencode(fields).encode(),
                seconds=max(0.01, end - begun),
                most=_MOST_READ,
            )
            if self._observe is not None:
                self._observe(method, time.monotonic() - begun)
            answer = _read(reply, kind)
            if answer is not None:
                _refuse(answer, method)
                return answer, reply
            pause = _pause(reply)
            if attempt or time.monotonic() + pause >= end:
                break
            await asyncio.sleep(pause)
        raise Unavailable(
            "Slack wants to be asked less often", reason="throttled", retry_after=pause
        )


def _read(reply: Reply, kind: type[T]) -> T | None:
    """What Slack said; None when it was asked too often."""
    if reply.status == _TOO_MANY:
        return None
    if not reply.ok or not reply.whole:
        why = f"status {reply.status}" if reply.status else "no answer"
        raise Unavailable(f"Slack: {why}")
    try:
        answer = msgspec.json.decode(reply.body, type=kind)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        raise Unavailable("Slack: an answer that cannot be read") from None
    return None if answer.error in ("ratelimited", "rate_limited") else answer


def _pause(reply: Reply) -> float:
    text = reply.retry_after or ""
    known = text.isascii() and text.isdigit() and len(text) < 6
    return max(_SHORTEST_PAUSE, float(text)) if known else _UNKNOWN_PAUSE


def _refuse(answer: _Answer, method: str) -> None:
    if answer.ok:
        return
    error = answer.error if _ERROR.fullmatch(answer.error) else "an unknown error"
    if error == "missing_scope":
        needed = answer.needed if _SCOPE_LIST.fullmatch(answer.needed) else "another one"
        raise Refused("missing_scope", f"{method} needs the scope {needed}")
    if error in _BAD_TOKEN:
        raise Refused("token_invalid", f"Slack says {error}")
    if error in _TROUBLE:
        raise Unavailable(f"Slack says {error}")
    raise Refused(_NOT_FOUND.get(error, "slack_error"), f"{method}: Slack says {error}")


P = TypeVar("P")


def _present(part: P | None) -> P:
    if part is None:
        raise Unavailable("Slack: an answer without what was asked for")
    return part


def _check_team(found: Team, team: str, owner: str) -> None:
    if found.id != team:
        raise Refused("team_not_found", "Slack names another team")
    if owner not in (team, found.enterprise_id):
        raise Refused("other_team", "the team is not part of the organisation")


def _check_channel(found: _Channel, channel: str, team: str, owner: str) -> None:
    if found.id != channel:
        raise Refused("channel_not_found", "Slack names another channel")
    if found.is_archived:
        raise Refused("channel_archived", "the channel is archived")
    elsewhere = not found.teams & {team, owner}
    # A team's own token sees its own channels; an organisation's sees those of all its teams.
    if elsewhere and (found.teams or owner != team):
        raise Refused("other_team", "the channel belongs to another team")


def _check_user(found: _User, user: str, homes: set[str]) -> None:
    """`homes` are the teams that the user may be from: this one, its organisation, and those that
    share the channel."""
    if found.id != user:
        raise Refused("user_not_found", "Slack names another user")
    if found.deleted:
        raise Refused("user_deleted", "the user was deleted")
    own = {found.team_id or ""}
    if found.enterprise_user is not None:
        own |= {*found.enterprise_user.teams, found.enterprise_user.enterprise_id}
    if not (own - {""}) & homes:
        raise Refused("other_team", "the user belongs to another team")
