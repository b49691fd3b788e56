"""The gate: two keys, then the relay. Doubt is a refusal.

The signing secret shows that a request came through Slack, the bot token that the team, user and
channel it names are real. A request that passes is written down by the relay before Slack gets its
answer, and all of it takes less than the three seconds that Slack waits.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from waystation.errors import (
    NotFound,
    Overloaded,
    SettingsError,
    TooManyRequests,
    WaystationError,
)
from waystation.gate import payloads
from waystation.gate.decisions import (
    UNREAD,
    Decision,
    No,
    asker,
    dedupe_name,
    exempt,
    rate_of,
    status_of,
    subject,
    teams_of,
)
from waystation.gate.existence import ExistenceCheck, Refused, Unavailable, Verdict
from waystation.gate.memory import StoredMemory
from waystation.gate.metrics import GateMetrics
from waystation.gate.payloads import Unreadable
from waystation.gate.records import Records
from waystation.gate.requests import flaw, is_signed
from waystation.gate.slack import SlackApi
from waystation.gate.workspaces import EVERY, LAST_WORDS, NO_APP, Workspaces, purged_at
from waystation.patterns import LocalLimiter, Newest, SharedLimiter

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from waystation.gate.payloads import Asked
    from waystation.gate.requests import SlackRequest
    from waystation.gate.settings import GateSettings
    from waystation.gate.tables import Workspace
    from waystation.patterns import Limit
    from waystation.seam import Offer, Parts

log = logging.getLogger(__name__)

T = TypeVar("T")

REQUEST_SECONDS = 2.7
"""For all of a request: Slack waits for three seconds, and the way there takes time too."""

KEY_SECONDS = 1.9
"""From the beginning of a request until Slack has confirmed it; the rest is for writing it down."""

_MOST_PASSED = 50_000
_MOST_DOUBTS = 1_000
_DOUBT_SECONDS = 60.0
_PURGED_LATELY_SECONDS = 2.0
_RELEASE_SECONDS = 0.2


class Gate:
    def __init__(self, parts: Parts, settings: GateSettings) -> None:
        self.store = parts.store
        self.metrics = GateMetrics()
        self.slack = SlackApi(parts.outbound, settings.slack_api_url, self.metrics.observe)
        self.workspaces = Workspaces(
            parts.store,
            parts.vault,
            self.slack,
            owns_source=parts.offer("relay.owns"),
            role=parts.offer("accounts.role"),
        )
        self.records = Records(parts.store, parts.cursors)
        self.memory = StoredMemory(parts.store)
        self.existence = ExistenceCheck(_nobody, memory=self.memory, clock=parts.store.clock)
        self.signing_secret = settings.slack_signing_secret
        self._hand_over: Offer = parts.offer("relay.receive")
        self._seen: Offer = parts.offer("relay.seen")
        self._passed: Newest[str, None] = Newest(_MOST_PASSED)
        self._doubts: Newest[str, float] = Newest(_MOST_DOUBTS)
        self._limiter = LocalLimiter(parts.store.clock)
        self._shared = parts.settings.store.startswith("dynamodb")
        self._asking = asyncio.Lock()
        self._releasing: set[asyncio.Task[None]] = set()
        self._log_key = parts.vault.key("gate logs")

    # A request

    async def take(self, request: SlackRequest) -> Decision:
        """Let a request through, or not."""
        workspace: Workspace | None = None
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                ends = asyncio.get_running_loop().time() + KEY_SECONDS
                workspace = await self._first_key(request)
                answer = await self._admit(request, workspace, ends)
        except No as no:
            return self._refusal(no, no.owner or workspace)
        except TimeoutError:
            return self._refusal(No("too_slow", "there was no time left"), workspace)
        except Exception:
            log.exception("a request from Slack could not be looked at")
            return self._refusal(No("failed", "something is wrong here"), workspace)
        self.metrics.passed.inc()
        return Decision(200, answer)

    async def _first_key(self, request: SlackRequest) -> Workspace | None:
        """The workspace whose secret a request is signed with; None if it is the installation's,
        and the request is nobody's."""
        now = self.store.clock()
        claim = payloads.claimed(request.body, request.content_type)
        teams = [request.named_team] if request.named_team is not None else claim.teams
        fitting = [
            each
            for team in teams
            for each in await self.workspaces.find(team)
            if each.app_id == NO_APP or claim.app in (None, each.app_id)
        ]
        problem, secrets = flaw(request, now), 0
        candidates: list[Workspace | None] = [*fitting] or [None]
        for workspace in candidates:
            secret = self._secret(workspace, claim.app) if workspace else self.signing_secret
            secrets += bool(secret)
            if problem is None and is_signed(secret, request, now):
                return workspace
        reason = (problem or "signature_wrong") if secrets else "no_secret"
        raise No(reason, owner=fitting[0] if fitting else None)

    def _secret(self, workspace: Workspace, app: str | None) -> str | None:
        """A workspace's own secret, or the installation's: for its operators, and for tenants
        whose token is of the very app that signs."""
        try:
            own = self.workspaces.signing_secret(workspace)
        except SettingsError as error:
            log.warning("%s", error)
            return None
        if own is not None:
            return own
        same_app = workspace.app_id != NO_APP and workspace.app_id == app
        return self.signing_secret if workspace.operator or same_app else None

    async def _admit(
        self, request: SlackRequest, workspace: Workspace | None, ends: float
    ) -> bytes:
        """The answer to a request whose signature is good. Slack has until `ends` to confirm it."""
        asked = await _read(request)
        if asked.kind == "challenge":
            return msgspec.json.encode({"challenge": asked.challenge})
        if asked.kind == "ssl_check":
            return b""
        if workspace is None:
            raise No("unknown_workspace", asked=asked)
        if workspace.app_id not in (NO_APP, asked.app or workspace.app_id):
            raise No("other_app", "it is from another app than the token", asked=asked)
        await self._check_named(asked, workspace, ends)
        if workspace.source_id is None:
            raise No("no_source", "the workspace has no source_id", asked=asked)
        name = dedupe_name(asked, request, workspace)
        if name in self._passed:
            return b""
        await self._heed_last_words(asked, workspace)
        await self._check_whitelist(asked, workspace)
        if await self._second_key(asked, workspace, name, ends):
            return b""
        await self._check_rate(asked, workspace)
        try:
            new = await self._give(request, asked, workspace, name)
        except BaseException:
            await self._uncount(asked, workspace)  # Slack will try again
            raise
        if not new:
            await self._uncount(asked, workspace)  # another process has counted it
        return b""

    async def _heed_last_words(self, asked: Asked, workspace: Workspace) -> None:
        """Forget what a token was told that is worth nothing any more, once in a while: one who has
        only the first key can say so, too."""
        last = asked.kind == "event" and asked.type in LAST_WORDS
        lately = self.store.clock() - workspace.purged_at < _PURGED_LATELY_SECONDS
        if last and asked.user is None and asked.channel is None and not lately:
            await self.workspaces.purge(workspace)

    async def _check_named(self, asked: Asked, workspace: Workspace, ends: float) -> None:
        """The team and the organisation that a request names must be the workspace's own. Which
        teams are part of an organisation, Slack says."""
        if workspace.team_id.startswith("E"):
            if asked.enterprise == workspace.team_id or asked.team == workspace.team_id:
                return
        elif asked.team in (None, workspace.team_id):
            if asked.enterprise in (None, workspace.enterprise_id):
                return
            if await _in_time(ends, asked, self._has_joined(workspace, asked.enterprise)):
                return
        if {asked.team, asked.origin, asked.enterprise} != {None}:
            raise No("other_team", "it names another team or organisation", asked=asked)

    async def _has_joined(self, workspace: Workspace, enterprise: str) -> bool:
        """Slack is asked once a minute at most whether a team has moved."""
        key = asker(workspace)
        async with self._asking:  # those who come at the same time wait for the answer
            if self.store.clock() - self._doubts.get(key, 0.0) < _DOUBT_SECONDS:
                known = await self.workspaces.find(workspace.team_id)
                return (workspace.app_id, enterprise) in {
                    (each.app_id, each.enterprise_id) for each in known
                }
            self._doubts[key] = self.store.clock()
            try:
                return await self.workspaces.joined(workspace, enterprise)
            except (Refused, Unavailable, SettingsError) as error:
                log.info("whether a team has moved is not known: %s", error)
                return False

    async def _check_whitelist(self, asked: Asked, workspace: Workspace) -> None:
        allowed = await self.workspaces.whitelist(workspace.user_id)
        for what, ids, own in (
            ("team", allowed.team_ids, asked.team or asked.enterprise),
            ("user", allowed.user_ids, asked.user),
            ("channel", allowed.channel_ids, asked.channel),
        ):
            if ids and own not in ids and not (own is None and exempt(asked, workspace)):
                raise No("whitelist", f"the {what} is not on the whitelist", asked=asked)

    # The second key

    async def _second_key(self, asked: Asked, workspace: Workspace, name: str, ends: float) -> bool:
        """Refuse what Slack does not confirm. True when the request turns out to have been handed
        over before."""
        if exempt(asked, workspace):
            return False
        if workspace.token is None:
            raise No("no_token", "the workspace has no bot token", asked=asked)
        if asked.team is None and asked.user is None and asked.channel is None:
            raise No("no_ids", "it names no team, user or channel", asked=asked)
        ids = subject(asked, workspace.team_id)
        since = purged_at(workspace, *ids[1:])
        if await self.existence.known(*ids, since=since, asker=asker(workspace)):
            self.metrics.hits.inc()
            return False
        if await self._handed_over(workspace, name):
            return True
        self.metrics.cache.labels("miss").inc()
        verdict = await _in_time(ends, asked, self._ask(self.existence, workspace, ids, since))
        if not verdict.passed:
            raise No(verdict.reason, verdict.detail, asked=asked)
        self.records.add(workspace.user_id, workspace.team_id, "passed", "", asked=asked)
        return False

    async def _ask(
        self,
        existence: ExistenceCheck,
        workspace: Workspace,
        ids: tuple[str, str, str],
        since: float = 0.0,
    ) -> Verdict:
        """Ask Slack, with the workspace's own token."""

        async def verify(first: str, user: str, channel: str) -> None:
            try:
                token = self.workspaces.token(workspace)
            except SettingsError as error:
                log.warning("%s", error)
                token = None
            if token is None:
                raise Refused("no_token", "the workspace has no bot token that can be used")
            team, origin = teams_of(first)
            await self.slack.verify(workspace.team_id, token, team, user, channel, origin)

        return await existence.ask(*ids, since=since, asker=asker(workspace), verify=verify)

    async def _handed_over(self, workspace: Workspace, name: str) -> bool:
        """Whether another process, or this one before a restart, has let the same request pass."""
        try:
            return bool(await self._seen(workspace.source_id, name))
        except WaystationError as error:
            log.warning("the relay does not say what it has seen: %s", error)
            return False

    # Through the gate

    async def _check_rate(self, asked: Asked, workspace: Workspace) -> None:
        if not _is_counted(asked, workspace):
            return
        key, limit = rate_of(asked, workspace)
        try:
            self._limiter.take(key, limit)
            if self._shared:
                try:
                    await SharedLimiter(self.store, "gate", limit).take(key)
                except BaseException:
                    self._limiter.give_back(key, limit)
                    raise
        except Overloaded:
            raise No("failed", "too many at the same time", asked=asked) from None
        except TooManyRequests as error:
            detail = f"more than {limit.count} in {limit.seconds:g} seconds"
            raise No("rate_limited", detail, asked=asked, wait=error.retry_after) from None

    async def _uncount(self, asked: Asked, workspace: Workspace) -> None:
        """It goes on by itself if it takes long: there may be no time left."""
        if not _is_counted(asked, workspace):
            return
        key, limit = rate_of(asked, workspace)
        self._limiter.give_back(key, limit)
        if self._shared:
            task = asyncio.create_task(self._release(key, limit))
            self._releasing.add(task)
            task.add_done_callback(self._releasing.discard)
            await asyncio.wait({task}, timeout=_RELEASE_SECONDS)

    async def _release(self, key: str, limit: Limit) -> None:
        with suppress(WaystationError):
            await SharedLimiter(self.store, "gate", limit).give_back(key)

    async def _give(
        self, request: SlackRequest, asked: Asked, workspace: Workspace, name: str
    ) -> bool:
        """Give it to the relay, which takes the same event once however often it comes. Whether it
        was new."""
        headers = {
            "content-type": request.content_type,
            "x-slack-request-timestamp": request.timestamp,
            "x-slack-retry-num": request.retry,
            "x-slack-retry-reason": request.retry_reason,
        }
        try:
            receipt = await self._hand_over(
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
        return bool(receipt.status != "duplicate")

    def _refusal(self, no: No, workspace: Workspace | None) -> Decision:
        self.metrics.checks.labels("refused", no.reason).inc()
        asked = no.asked or UNREAD
        log.info(
            "gate: refused, %s (team %s, user %s, channel %s)",
            no.reason,
            *(self._hashed(each) for each in (asked.team, asked.user, asked.channel)),
        )
        if workspace is not None:
            self.records.add(
                workspace.user_id, workspace.team_id, "refused", no.reason, no.detail, no.asked
            )
        return Decision(status_of(no.reason), reason=no.reason, retry_after=no.wait)

    def _hashed(self, id_: str | None) -> str:
        """An id as logs have it."""
        return hmac.digest(self._log_key, id_.encode(), "sha256").hex()[:12] if id_ else "-"

    # For the owner

    async def try_out(
        self, workspace: Workspace, user: str, channel: str
    ) -> tuple[Verdict, list[str]]:
        """Ask Slack, whatever is remembered: what it says, and which scopes the token has."""
        fresh = ExistenceCheck(_nobody, clock=self.store.clock)
        verdict = await self._ask(fresh, workspace, (workspace.team_id, user, channel))
        scopes: list[str] = []
        with suppress(Refused, Unavailable, SettingsError):
            if (token := self.workspaces.token(workspace)) is not None:
                scopes = (await self.slack.whose(token)).scopes
        return verdict, scopes

    async def forget(self, workspace: Workspace, user: str | None, channel: str | None) -> None:
        """Forget what Slack has confirmed of a user, of a channel, or of everybody."""
        await self.workspaces.purge(workspace, user or EVERY, channel or EVERY)
        self.forgive(workspace)

    def forgive(self, workspace: Workspace) -> None:
        """Ask Slack again at once, whatever has been wrong."""
        self.existence.forgive(asker(workspace))

    async def check_settings(self) -> str:
        """What the doctor says about the gate."""
        if self.signing_secret is None:
            return "no signing secret for all workspaces: each needs its own"
        if not await self.slack.alive():
            raise SettingsError("Slack's API does not answer")
        return "there is a signing secret, and Slack's API answers"

    async def close(self) -> None:
        await self.existence.close()
        await asyncio.gather(*self._releasing)
        await self.records.finish()


async def _in_time(ends: float, asked: Asked, work: Coroutine[Any, Any, T]) -> T:
    """What needs Slack's answer: without one by then, it is a no."""
    try:
        async with asyncio.timeout_at(ends):
            return await work
    except TimeoutError:
        raise No("unavailable", "no answer in time", asked=asked) from None


def _is_counted(asked: Asked, workspace: Workspace) -> bool:
    """What passes with one key has a limit as if it all were one user's."""
    return asked.user is not None or exempt(asked, workspace)


async def _read(request: SlackRequest) -> Asked:
    try:
        if len(request.body) <= payloads.SHORT:
            return payloads.read(request.body, request.content_type)
        return await asyncio.to_thread(payloads.read, request.body, request.content_type)
    except Unreadable as error:
        raise No("unreadable", str(error), asked=UNREAD) from None


async def _nobody(*ids: str) -> None:
    raise Refused("no_token")
