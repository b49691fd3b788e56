"""The gate: two keys, then the relay. Doubt is a refusal.

The signing secret shows that a request came through Slack, the bot token that the team, user and
channel it names are real. A request that passes is written down by the relay before Slack gets its
answer, and all of it takes less than the three seconds that Slack waits.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from waystation.errors import NotFound, SettingsError, TooManyRequests, WaystationError
from waystation.gate import payloads
from waystation.gate.existence import ExistenceCheck, Refused, Unavailable, Verdict
from waystation.gate.memory import StoredMemory
from waystation.gate.metrics import GateMetrics
from waystation.gate.payloads import Asked, Unreadable
from waystation.gate.records import Records
from waystation.gate.requests import SlackRequest, signature_flaw
from waystation.gate.slack import ABSENT, SlackApi
from waystation.gate.workspaces import LAST_WORDS, Workspaces
from waystation.ids import secret_hash
from waystation.patterns import (
    Limit,
    LocalLimiter,
    Newest,
    SharedLimiter,
    sender_key,
)

if TYPE_CHECKING:
    from waystation.gate.settings import GateSettings
    from waystation.gate.tables import Workspace
    from waystation.seam import Offer, Parts

log = logging.getLogger(__name__)

REQUEST_SECONDS = 2.7
"""For all of a request: Slack waits for three seconds, and the way there takes time too."""

_FORGERIES = Limit(3_000, 60)
_MOST_PASSED = 50_000
_PART_OF = "-"
"""Between an organisation and one of its teams, where only the organisation has a token."""

_UNREAD = Asked(kind="event", type="")
_STATUS = {
    "signature_missing": 401,
    "signature_wrong": 401,
    "signature_old": 401,
    "no_secret": 401,
    "unreadable": 400,
    "rate_limited": 429,
    "too_many_forgeries": 429,
    "source_unavailable": 503,
    "relay_unavailable": 503,
    "too_slow": 503,
}
"""All others are 403. Slack tries again only after 503."""


class Decision(msgspec.Struct, frozen=True):
    """What to answer. `reason` is empty when it passed."""

    status: int
    body: bytes = b""
    reason: str = ""
    retry_after: float | None = None

    @property
    def final(self) -> bool:
        """Whether Slack should not try again."""
        return bool(self.reason) and self.status != 503


class No(Exception):
    """A refusal, with everything that the owner should know about it."""

    def __init__(
        self,
        reason: str,
        detail: str = "",
        *,
        asked: Asked | None = None,
        wait: float | None = None,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.detail = detail
        self.asked = asked
        self.wait = wait


class Gate:
    def __init__(self, parts: Parts, settings: GateSettings) -> None:
        self.store = parts.store
        self.metrics = GateMetrics()
        self.slack = SlackApi(parts.outbound, settings.slack_api_url, self.metrics.observe)
        self.workspaces = Workspaces(
            parts.store, parts.vault, self.slack, parts.offer("relay.owns")
        )
        self.records = Records(parts.store, parts.cursors)
        self.memory = StoredMemory(parts.store)
        self.existence = ExistenceCheck(self._verify, memory=self.memory, clock=parts.store.clock)
        self.signing_secret = settings.slack_signing_secret
        self._hand_over: Offer = parts.offer("relay.receive")
        self._seen: Offer = parts.offer("relay.seen")
        self._passed: Newest[str, None] = Newest(_MOST_PASSED)
        self._limiter = LocalLimiter(parts.store.clock)
        self._shared = parts.settings.store.startswith("dynamodb")
        self._strangers = LocalLimiter(parts.store.clock)

    # A request

    async def take(self, request: SlackRequest) -> Decision:
        """Let a request through, or not."""
        workspace = None
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                workspace = await self._workspace(request)
                self._check_signature(request, workspace)
                answer = await self._admit(request, workspace)
        except TimeoutError:
            return self._refusal(No("too_slow", "there was no time left"), workspace)
        except No as no:
            return self._refusal(no, workspace)
        self.metrics.passed.inc()
        return Decision(200, answer)

    async def _workspace(self, request: SlackRequest) -> Workspace | None:
        """The workspace that a request claims to be from: by it we know whose secret to expect."""
        claimed = payloads.claimed_teams(request.body, request.content_type)
        if request.named_team is not None:
            claimed = [request.named_team]
        for team in dict.fromkeys(claimed):
            if (workspace := await self.workspaces.find(team)) is not None:
                return workspace
        return None

    def _check_signature(self, request: SlackRequest, workspace: Workspace | None) -> None:
        stranger = f"{workspace.team_id if workspace else ''} {sender_key(request.sender)}"
        try:
            self._strangers.check(stranger, _FORGERIES)
        except TooManyRequests as error:
            raise No("too_many_forgeries", wait=error.retry_after) from None
        reason = self._signature_flaw(request, workspace)
        if reason is not None:
            self._strangers.take(stranger, _FORGERIES)
            raise No(reason)

    def _signature_flaw(self, request: SlackRequest, workspace: Workspace | None) -> str | None:
        try:
            own = self.workspaces.signing_secret(workspace) if workspace is not None else None
        except SettingsError as error:
            log.warning("%s", error)
            return "no_secret"
        secret = own or self.signing_secret
        if not secret:
            return "no_secret"
        return signature_flaw(secret, request, self.store.clock())

    async def _admit(self, request: SlackRequest, workspace: Workspace | None) -> bytes:
        """The answer to a request whose signature is good."""
        try:
            asked = payloads.read(request.body, request.content_type)
        except Unreadable as error:
            raise No("unreadable", str(error), asked=_UNREAD) from None
        if asked.kind == "challenge":
            return msgspec.json.encode({"challenge": asked.challenge})
        if asked.kind == "ssl_check":
            return b""
        if workspace is None:
            raise No("unknown_workspace", asked=asked)
        _check_named(asked, workspace)
        if workspace.source_id is None:
            raise No("no_source", "the workspace has no source_id", asked=asked)
        name = dedupe_name(asked, request, workspace)
        if name in self._passed:
            return b""
        if asked.type in LAST_WORDS:
            await self.workspaces.purge(workspace)
        await self._check_whitelist(asked, workspace)
        if await self._check_existence(asked, workspace, name):
            return b""
        await self._check_rate(asked, workspace)
        await self._give(request, asked, workspace, name)
        return b""

    async def _check_whitelist(self, asked: Asked, workspace: Workspace) -> None:
        allowed = await self.workspaces.whitelist(workspace.user_id)
        for what, ids, own in (
            ("team", allowed.team_ids, asked.team or asked.enterprise),
            ("user", allowed.user_ids, asked.user),
            ("channel", allowed.channel_ids, asked.channel),
        ):
            if ids and own not in ids and not (own is None and _exempt(asked, workspace)):
                raise No("whitelist", f"the {what} is not on the whitelist", asked=asked)

    async def _check_existence(self, asked: Asked, workspace: Workspace, name: str) -> bool:
        """The second key. True when the request turns out to have been handed over before."""
        if _exempt(asked, workspace):
            return False
        if workspace.token is None:
            raise No("no_token", "the workspace has no bot token", asked=asked)
        if asked.team is None and asked.user is None and asked.channel is None:
            raise No("no_ids", "it names no team, user or channel", asked=asked)
        ids = subject(asked, workspace)
        if await self.existence.known(*ids, since=workspace.purged_at):
            self.metrics.hits.inc()
            return False
        if await self._handed_over(workspace, name):
            return True
        self.metrics.cache.labels("miss").inc()
        verdict = await self.existence.check(*ids, since=workspace.purged_at)
        if not verdict.passed:
            raise No(verdict.reason, verdict.detail, asked=asked)
        self.records.add(workspace.user_id, workspace.team_id, "passed", "", asked=asked)
        return False

    async def _handed_over(self, workspace: Workspace, name: str) -> bool:
        """Whether another process, or this one before a restart, has let the same request pass."""
        try:
            return bool(await self._seen(workspace.source_id, name))
        except WaystationError as error:
            log.warning("the relay does not say what it has seen: %s", error)
            return False

    async def _check_rate(self, asked: Asked, workspace: Workspace) -> None:
        if asked.user is None:
            return
        key = f"{asked.team} {asked.user}"
        limit = Limit(workspace.rate_count, workspace.rate_seconds)
        try:
            self._limiter.take(key, limit)
            if self._shared:
                await SharedLimiter(self.store, "gate", limit).take(key)
        except TooManyRequests as error:
            raise No(
                "rate_limited",
                f"more than {limit.count} in {limit.seconds:g} seconds",
                asked=asked,
                wait=error.retry_after,
            ) from None

    async def _give(
        self, request: SlackRequest, asked: Asked, workspace: Workspace, name: str
    ) -> None:
        """Give it to the relay, which takes the same event once however often it comes."""
        headers = {
            "content-type": request.content_type,
            "x-slack-request-timestamp": request.timestamp,
            "x-slack-retry-num": request.retry,
            "x-slack-retry-reason": request.retry_reason,
        }
        try:
            await self._hand_over(
                workspace.user_id,
                workspace.source_id,
                request.body,
                {header: value for header, value in headers.items() if value},
                sender=request.sender,
                dedupe=name,
            )
        except NotFound:
            raise No("source_unavailable", "the source is gone or paused", asked=asked) from None
        except TooManyRequests as error:
            wait = error.retry_after
            raise No("relay_unavailable", str(error)[:200], asked=asked, wait=wait) from None
        except WaystationError as error:
            log.warning("the relay did not take an event: %s", error)
            raise No("relay_unavailable", "it could not be written down", asked=asked) from None
        self._passed[name] = None

    def _refusal(self, no: No, workspace: Workspace | None) -> Decision:
        self.metrics.checks.labels("refused", no.reason).inc()
        asked = no.asked or _UNREAD
        log.info(
            "gate: refused, %s (team %s, user %s, channel %s)",
            no.reason,
            *(_hashed(each) for each in (asked.team, asked.user, asked.channel)),
        )
        if workspace is not None:
            self.records.add(
                workspace.user_id, workspace.team_id, "refused", no.reason, no.detail, no.asked
            )
        return Decision(_STATUS.get(no.reason, 403), reason=no.reason, retry_after=no.wait)

    # Key two

    async def _verify(self, team: str, user: str, channel: str) -> None:
        """Ask Slack, with the token of the team, or of the organisation that it is part of."""
        owner, _, part = team.partition(_PART_OF)
        workspace = await self.workspaces.find(owner)
        try:
            token = self.workspaces.token(workspace) if workspace is not None else None
        except SettingsError as error:
            log.warning("%s", error)
            token = None
        if token is None:
            raise Refused("no_token", "the workspace has no bot token that can be used")
        await self.slack.verify(owner, token, part or owner, user, channel)

    async def try_out(
        self, workspace: Workspace, user: str, channel: str
    ) -> tuple[Verdict, list[str]]:
        """Ask Slack, whatever is remembered: what it says, and which scopes the token has."""
        trial = ExistenceCheck(self._verify, clock=self.store.clock)
        verdict = await trial.check(workspace.team_id, user, channel)
        scopes: list[str] = []
        with suppress(Refused, Unavailable, SettingsError):
            if (token := self.workspaces.token(workspace)) is not None:
                scopes = (await self.slack.whose(token)).scopes
        return verdict, scopes

    async def check_settings(self) -> str:
        """What the doctor says about the gate."""
        if self.signing_secret is None:
            return "no signing secret for all workspaces: each needs its own"
        if not await self.slack.alive():
            raise SettingsError("Slack's API does not answer")
        return "there is a signing secret, and Slack's API answers"

    async def forget(self, workspace: Workspace, user: str | None, channel: str | None) -> None:
        """Forget what Slack has confirmed: of one user in one channel, or of the whole team."""
        if user is not None and channel is not None:
            ids = (workspace.team_id, user, channel)
            await self.memory.delete(ids)
            self.existence.forget(*ids)
        else:
            await self.workspaces.purge(workspace)
        self.existence.reset(workspace.team_id)

    async def close(self) -> None:
        await self.existence.close()
        await self.records.finish()


def subject(asked: Asked, workspace: Workspace) -> tuple[str, str, str]:
    """The ids to check. Those of an organisation's team are its own: another's token says nothing
    about them."""
    team = asked.team or workspace.team_id
    if team != workspace.team_id:
        team = f"{workspace.team_id}{_PART_OF}{team}"
    return team, asked.user or ABSENT, asked.channel or ABSENT


def dedupe_name(asked: Asked, request: SlackRequest, workspace: Workspace) -> str:
    """The same for the same event. What has no id comes once, and has a signature of its own."""
    return f"slack {workspace.team_id} {asked.event_id or request.signature}"


def _check_named(asked: Asked, workspace: Workspace) -> None:
    """The team and the organisation that a request names must be the workspace's own. (Which
    teams are part of an organisation, Slack says.)"""
    named = {asked.team, asked.enterprise} - {None}
    if named and workspace.team_id not in named:
        raise No("other_team", "it names another team", asked=asked)
    if asked.enterprise not in (None, workspace.team_id, workspace.enterprise_id):
        raise No("other_team", "it names an organisation that the token is not of", asked=asked)


def _exempt(asked: Asked, workspace: Workspace) -> bool:
    """Whether the owner lets this type of event pass where there is nothing to check, or nothing
    to check it with."""
    nothing = workspace.token is None or (asked.user is None and asked.channel is None)
    return nothing and asked.type in workspace.allowed_event_types


def _hashed(text: str | None) -> str:
    return secret_hash(text)[:12] if text else "-"
