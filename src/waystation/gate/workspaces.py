"""Workspaces: claimed by the account whose bot token proves them, and kept with sealed secrets.

Several Slack apps may be in one team, and accounts that know nothing of each other may each have
one of them: a workspace is a team as one app sees it.
"""

from __future__ import annotations

import math
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec
from msgspec import UNSET, Meta, UnsetType

from waystation.errors import (
    ConditionFailed,
    Conflict,
    InvalidInput,
    NotFound,
    Overloaded,
    TransactionCancelled,
)
from waystation.gate.existence import Refused, Unavailable
from waystation.gate.payloads import is_slack_id
from waystation.gate.tables import CACHE_SECONDS, Whitelist, Workspace
from waystation.patterns import Newest
from waystation.store import Delete, Put, absent, attr, key_of

if TYPE_CHECKING:
    from waystation.gate.slack import Identity, SlackApi
    from waystation.patterns import Vault
    from waystation.seam import Offer
    from waystation.store import Store

LAST_WORDS = ("app_uninstalled", "tokens_revoked")
"""Types of events after which a bot token is worth nothing."""

NO_APP = "-"
"""Where Slack does not say which app a token is of."""

EVERY = "*"
_FRESH_SECONDS = 2.0
_MOST_KEPT = 10_000
_MOST_OPEN = 1_000
_MOST_PER_TEAM = 20
_MOST_PER_ACCOUNT = 1_000
_MOST_FORGOTTEN = 50
_TRIES = 5

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


class _Proof(NamedTuple):
    """Whose a token is, and of which app."""

    identity: Identity
    app_id: str


class Workspaces:
    """`owns_source` says whether a relay source is an account's, `role` what an account is."""

    def __init__(
        self, store: Store, vault: Vault, slack: SlackApi, *, owns_source: Offer, role: Offer
    ) -> None:
        self._store = store
        self._vault = vault
        self._slack = slack
        self._owns_source = owns_source
        self._role = role
        self._open = lru_cache(_MOST_OPEN)(self._open_sealed)
        self._known: Newest[str, tuple[float, list[Workspace]]] = Newest(_MOST_KEPT)
        self._unknown: Newest[str, float] = Newest(_MOST_KEPT)
        self._lists: Newest[str, tuple[float, Whitelist]] = Newest(_MOST_KEPT)

    async def put(self, user_id: str, team_id: str, given: WorkspaceInput) -> Workspace:
        """Claim a workspace, or change one's own."""
        if not is_slack_id(team_id) or team_id[0] not in "TE":
            raise InvalidInput("team_id", "must be the id of a team (T…) or an organisation (E…)")
        known = await self._read(team_id)
        current = next((each for each in known if each.user_id == user_id), None)
        if current is None and len(known) >= _MOST_PER_TEAM:
            raise Conflict(f"a team has at most {_MOST_PER_TEAM} apps here")
        if current is None and not given.bot_token:
            raise InvalidInput("bot_token", "a new workspace needs the bot token that proves it")
        proof = await self._proof(given.bot_token, team_id) if given.bot_token else None
        if given.source_id is not None and not await self._owns_source(user_id, given.source_id):
            raise InvalidInput("source_id", "there is no such source")
        workspace = self._changed(user_id, team_id, current, given, proof)
        workspace.operator = await self._role(user_id) == "operator"
        await self._write(workspace, current)
        return workspace

    def _changed(
        self,
        user_id: str,
        team_id: str,
        current: Workspace | None,
        given: WorkspaceInput,
        proof: _Proof | None,
    ) -> Workspace:
        now = self._store.clock()
        workspace = Workspace(
            team_id=team_id, app_id=NO_APP, user_id=user_id, created_at=int(now), updated_at=0
        )
        if current is not None:
            workspace = msgspec.structs.replace(current)
        if given.bot_token is not UNSET:
            workspace.token, workspace.purged_at = None, now
        if given.bot_token and proof is not None:
            identity, workspace.app_id = proof.identity, proof.app_id
            sealed = self._vault.seal(given.bot_token.encode(), _token_context(team_id))
            workspace.token = sealed
            workspace.enterprise_id = _id_or(identity.enterprise_id, "") or None
            workspace.name = identity.team[:200]
            workspace.bot_user_id = _id_or(identity.user_id, "")
            workspace.scopes = [scope[:100] for scope in identity.scopes[:100]]
        if given.signing_secret is None:
            workspace.signing_secret = None
        elif given.signing_secret is not UNSET:
            sealed = self._vault.seal(given.signing_secret.encode(), _secret_context(team_id))
            workspace.signing_secret = sealed
        workspace.source_id = given.source_id
        workspace.rate_count = given.rate_limit.count
        workspace.rate_seconds = given.rate_limit.seconds
        workspace.allowed_event_types = given.allowed_event_types
        workspace.updated_at = int(now)
        return workspace

    async def _write(self, workspace: Workspace, current: Workspace | None) -> None:
        """Where another account has the same app in the same team, this fails."""
        try:
            if current is None or current.app_id == workspace.app_id:
                await self._store.put(workspace)
            else:
                workspace.version = 0
                await self._store.transact(
                    Delete(key_of(current), when=attr("version") == current.version),
                    Put(workspace, when=absent()),
                )
        except (ConditionFailed, TransactionCancelled):
            raise Conflict("another account has this workspace, or it was just changed") from None
        finally:
            self._forget(workspace.team_id)

    async def _proof(self, token: str, team_id: str) -> _Proof:
        """What Slack says about a token, if it is the team's."""
        if not all("!" <= c <= "~" for c in token):
            raise InvalidInput("bot_token", "must have printable ASCII characters only")
        try:
            identity = await self._slack.whose(token)
            bot = identity.bot_id
            app_id = await self._slack.app(token, bot) if bot else None
        except Refused as refused:
            raise InvalidInput("bot_token", f"Slack refuses it: {refused.detail}") from None
        except Unavailable as error:
            raise Overloaded(
                f"it cannot be checked now: {error.detail}", retry_after=error.retry_after or 5.0
            ) from None
        if identity.team_id != team_id:
            raise InvalidInput("bot_token", "it belongs to another team")
        if not identity.bot_id:
            raise InvalidInput("bot_token", "it is a user's token, not a bot's")
        return _Proof(identity, _id_or(app_id, NO_APP))

    async def get(self, user_id: str, team_id: str) -> Workspace:
        workspace = await self._own(user_id, team_id) if is_slack_id(team_id) else None
        if workspace is None:
            raise NotFound("there is no such workspace")
        return workspace

    async def _own(self, user_id: str, team_id: str) -> Workspace | None:
        found = await self._read(team_id)
        return next((each for each in found if each.user_id == user_id), None)

    async def _read(self, team_id: str) -> list[Workspace]:
        page = await self._store.query(Workspace.query(team_id), limit=_MOST_PER_TEAM)
        return list(page.items)

    async def of(self, user_id: str) -> list[Workspace]:
        found: list[Workspace] = []
        async for workspace in self._store.iterate(Workspace.query(user_id, index="GSI1")):
            found.append(workspace)
            if len(found) >= _MOST_PER_ACCOUNT:
                break
        return found

    async def delete(self, user_id: str, team_id: str) -> None:
        workspace = await self.get(user_id, team_id)
        with suppress(ConditionFailed):  # it is gone
            await self._store.delete(key_of(workspace), when=attr("user_id") == user_id)
        self._forget(team_id)

    async def purge(self, workspace: Workspace, user: str = EVERY, channel: str = EVERY) -> None:
        """Let nothing count that Slack has said so far, of a user, a channel, or anybody."""
        for _ in range(_TRIES):
            current = await self._store.get(key_of(workspace))
            if current is None or current.user_id != workspace.user_id:
                break
            now = self._store.clock()
            kept = {k: at for k, at in current.forgotten.items() if at > now - CACHE_SECONDS}
            current.forgotten = kept | {f"{user}#{channel}": now}
            if (user, channel) == (EVERY, EVERY) or len(kept) >= _MOST_FORGOTTEN:
                current.purged_at, current.forgotten = now, {}
            with suppress(ConditionFailed):  # it was changed meanwhile
                await self._store.put(current)
                break
        else:
            raise Overloaded("the workspace is being changed by others", retry_after=1.0)
        self._forget(workspace.team_id)

    async def joined(self, workspace: Workspace, enterprise: str) -> bool:
        """Whether a team has become part of an organisation, which is then written down."""
        token = self.token(workspace)
        if token is None:
            return False
        team = await self._slack.team(token, workspace.team_id)
        if team.id != workspace.team_id or team.enterprise_id != enterprise:
            return False
        workspace = msgspec.structs.replace(workspace, enterprise_id=enterprise)
        with suppress(ConditionFailed):  # then it is asked again another time
            await self._store.put(workspace)
        self._forget(workspace.team_id)
        return True

    # What the door needs, which is seen within two seconds of a change elsewhere

    async def find(self, team_id: str) -> list[Workspace]:
        """All that have an app in a team."""
        now = self._store.clock()
        at, found = self._known.get(team_id) or (-math.inf, [])
        if now - max(at, self._unknown.get(team_id, -math.inf)) >= _FRESH_SECONDS:
            found = await self._read(team_id)
            if found:
                self._known[team_id] = (now, found)
            else:  # kept apart: whoever makes up teams pushes out no real ones
                self._known.pop(team_id, None)
                self._unknown[team_id] = now
        return found

    def _forget(self, team_id: str) -> None:
        self._known.pop(team_id, None)
        self._unknown.pop(team_id, None)

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


def purged_at(workspace: Workspace, user: str, channel: str) -> float:
    """When what Slack said about a user in a channel was last purged."""
    if not workspace.forgotten:
        return workspace.purged_at
    keys = (f"{user}#{channel}", f"{user}#{EVERY}", f"{EVERY}#{channel}")
    return max(workspace.purged_at, *(workspace.forgotten.get(key, 0.0) for key in keys))


def _id_or(given: str | None, default: str) -> str:
    return given if given is not None and is_slack_id(given) else default


def _token_context(team_id: str) -> str:
    return f"slack bot token {team_id}"


def _secret_context(team_id: str) -> str:
    return f"slack signing secret {team_id}"
