"""Workspaces: claimed by the account whose bot token proves them, and kept with sealed secrets."""

from __future__ import annotations

import math
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from waystation.errors import ConditionFailed, Conflict, InvalidInput, NotFound, Overloaded
from waystation.gate.existence import Refused, Unavailable
from waystation.gate.payloads import is_slack_id
from waystation.gate.tables import Whitelist, Workspace
from waystation.patterns import Newest
from waystation.store import attr, exists, key_of, set_to

if TYPE_CHECKING:
    from waystation.gate.slack import Identity, SlackApi
    from waystation.patterns import Vault
    from waystation.seam import Offer
    from waystation.store import Store

LAST_WORDS = ("app_uninstalled", "tokens_revoked")
"""Types of events after which a bot token is worth nothing."""

_FRESH_SECONDS = 2.0
_MOST_KEPT = 10_000
_MOST_OPEN = 1_000
_MOST_PER_ACCOUNT = 1_000

Ids = Annotated[list[str], Meta(max_length=1_000)]


class RateLimit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """At most `count` events of one user in any `seconds`."""

    count: Annotated[int, Meta(ge=1, le=100_000)] = 10
    seconds: Annotated[int, Meta(ge=1, le=3_600)] = 60


class WorkspaceInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Secrets that are left out stay as they are, and null removes them."""

    bot_token: Annotated[str, Meta(min_length=1, max_length=500)] | UnsetType | None = UNSET
    signing_secret: Annotated[str, Meta(min_length=8, max_length=200)] | UnsetType | None = UNSET
    source_id: Annotated[str, Meta(max_length=64)] | None = None
    rate_limit: RateLimit = RateLimit()
    allowed_event_types: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=100)]], Meta(max_length=100)
    ] = msgspec.field(default_factory=lambda: list(LAST_WORDS))


class WhitelistInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    team_ids: Ids = []
    user_ids: Ids = []
    channel_ids: Ids = []


class Workspaces:
    """`owns_source` says whether a relay source is an account's to use."""

    def __init__(self, store: Store, vault: Vault, slack: SlackApi, owns_source: Offer) -> None:
        self._store = store
        self._vault = vault
        self._slack = slack
        self._owns_source = owns_source
        self._open = lru_cache(_MOST_OPEN)(self._open_sealed)
        self._known: Newest[str, tuple[float, Workspace | None]] = Newest(_MOST_KEPT)
        self._lists: Newest[str, tuple[float, Whitelist]] = Newest(_MOST_KEPT)

    async def put(self, user_id: str, team_id: str, given: WorkspaceInput) -> Workspace:
        """Claim a workspace, or change one's own."""
        check_team_id(team_id)
        current = await self._own(user_id, team_id)
        if current is None and not given.bot_token:
            raise InvalidInput("bot_token", "a new workspace needs the bot token that proves it")
        identity = await self._proof(given.bot_token, team_id) if given.bot_token else None
        if given.source_id is not None and not await self._owns_source(user_id, given.source_id):
            raise InvalidInput("source_id", "there is no such source")
        now = self._store.clock()
        workspace = current or Workspace(
            team_id=team_id, user_id=user_id, created_at=int(now), updated_at=int(now)
        )
        self._change(workspace, given, identity, now)
        try:
            # Another account's, or one that was changed meanwhile, fails by its version.
            await self._store.put(workspace)
        except ConditionFailed:
            self._known.pop(team_id, None)
            raise Conflict("another account has this workspace, or it was just changed") from None
        self._known.pop(team_id, None)
        return workspace

    def _change(
        self, workspace: Workspace, given: WorkspaceInput, identity: Identity | None, now: float
    ) -> None:
        if given.bot_token is not UNSET:
            workspace.token = None
            workspace.purged_at = now
        if given.bot_token and identity is not None:
            context = _token_context(workspace.team_id)
            workspace.token = self._vault.seal(given.bot_token.encode(), context)
            workspace.enterprise_id = identity.enterprise_id
            workspace.name = identity.team[:200]
            workspace.bot_user_id = identity.user_id[:64]
            workspace.scopes = [scope[:100] for scope in identity.scopes[:100]]
        if given.signing_secret is None:
            workspace.signing_secret = None
        elif given.signing_secret is not UNSET:
            workspace.signing_secret = self._vault.seal(
                given.signing_secret.encode(), _secret_context(workspace.team_id)
            )
        workspace.source_id = given.source_id
        workspace.rate_count = given.rate_limit.count
        workspace.rate_seconds = given.rate_limit.seconds
        workspace.allowed_event_types = given.allowed_event_types
        workspace.updated_at = int(now)

    async def _proof(self, token: str, team_id: str) -> Identity:
        """What Slack says about a token, if it is the team's."""
        if not all("!" <= c <= "~" for c in token):
            raise InvalidInput("bot_token", "must have printable ASCII characters only")
        try:
            identity = await self._slack.whose(token)
        except Refused as refused:
            raise InvalidInput("bot_token", f"Slack refuses it: {refused.detail}") from None
        except Unavailable as error:
            wait = error.retry_after or 5.0
            raise Overloaded(
                f"it cannot be checked now: {error.detail}", retry_after=wait
            ) from None
        if identity.team_id != team_id:
            raise InvalidInput("bot_token", "it belongs to another team")
        return identity

    async def get(self, user_id: str, team_id: str) -> Workspace:
        workspace = await self._own(user_id, team_id) if is_slack_id(team_id) else None
        if workspace is None:
            raise NotFound("there is no such workspace")
        return workspace

    async def _own(self, user_id: str, team_id: str) -> Workspace | None:
        found = await self._store.get(Workspace.key(team_id))
        return found if found is not None and found.user_id == user_id else None

    async def of(self, user_id: str) -> list[Workspace]:
        found: list[Workspace] = []
        async for workspace in self._store.iterate(Workspace.query(user_id, index="GSI1")):
            found.append(workspace)
            if len(found) >= _MOST_PER_ACCOUNT:
                break
        return found

    async def delete(self, user_id: str, team_id: str) -> None:
        workspace = await self.get(user_id, team_id)
        try:
            await self._store.delete(key_of(workspace), when=attr("user_id") == user_id)
        except ConditionFailed:
            raise NotFound("there is no such workspace") from None
        self._known.pop(team_id, None)

    async def purge(self, workspace: Workspace) -> None:
        """Let nothing count that Slack has said so far."""
        with suppress(ConditionFailed):  # it is gone, or somebody else's
            await self._store.update(
                key_of(workspace),
                set_to("purged_at", self._store.clock()),
                when=exists() & (attr("user_id") == workspace.user_id),
            )
        self._known.pop(workspace.team_id, None)

    # What the door needs, which is seen within two seconds of a change elsewhere

    async def find(self, team_id: str) -> Workspace | None:
        now = self._store.clock()
        at, workspace = self._known.get(team_id) or (-math.inf, None)
        if now - at >= _FRESH_SECONDS:
            workspace = await self._store.get(Workspace.key(team_id))
            self._known[team_id] = (now, workspace)
        return workspace

    def token(self, workspace: Workspace) -> str | None:
        if workspace.token is None:
            return None
        return self._open(workspace.token, _token_context(workspace.team_id))

    def signing_secret(self, workspace: Workspace) -> str | None:
        if workspace.signing_secret is None:
            return None
        return self._open(workspace.signing_secret, _secret_context(workspace.team_id))

    def _open_sealed(self, sealed: bytes, context: str) -> str:
        return self._vault.open(sealed, context).decode()

    # Whitelists

    async def whitelist(self, user_id: str) -> Whitelist:
        now = self._store.clock()
        at, found = self._lists.get(user_id) or (-math.inf, None)
        if found is None or now - at >= _FRESH_SECONDS:
            found = await self._store.get(Whitelist.key(user_id)) or Whitelist(user_id=user_id)
            self._lists[user_id] = (now, found)
        return found

    async def set_whitelist(self, user_id: str, given: WhitelistInput) -> Whitelist:
        lists = msgspec.structs.asdict(given)
        for name, ids in lists.items():
            if not all(map(is_slack_id, ids)):
                raise InvalidInput(name, "must have ids of Slack: upper-case letters and digits")
        whitelist = Whitelist(user_id=user_id, **lists)
        await self._store.put(whitelist)
        self._lists.pop(user_id, None)
        return whitelist


def check_team_id(team_id: str) -> None:
    if not is_slack_id(team_id) or team_id[0] not in "TE":
        raise InvalidInput("team_id", "must be the id of a team (T…) or an organisation (E…)")


def _token_context(team_id: str) -> str:
    return f"slack bot token {team_id}"


def _secret_context(team_id: str) -> str:
    return f"slack signing secret {team_id}"
