"""What the gate keeps: Slack's answers for five minutes, as the seed has them, and in a table of
its own the workspaces with their secrets sealed, whitelists, and the latest checks of each account.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from waystation.store import Index, Item, Table

CACHE_SECONDS = 300
CHECK_SECONDS = 30 * 86_400

cache = Table("slack-existence-check-cache", pk="cache_key", ttl="ttl")
gate = Table(
    "waystation-gate",
    pk="pk",
    sk="sk",
    indexes=[Index("GSI1", pk="gsi1pk", sk="gsi1sk")],
    ttl="ttl",
)


class CacheEntry(
    Item,
    table=cache,
    pk="{team_id}#{user_id}#{channel_id}",
    key_only=("team_id", "user_id", "channel_id"),
    kw_only=True,
):
    """That a team, user and channel exist. `ttl` is when to ask again, `asker` whose token was told
    so; other services do not say it."""

    team_id: str
    user_id: str
    channel_id: str
    ttl: int
    verified_at: int | None = None
    asker: str | None = None


class Workspace(
    Item,
    table=gate,
    pk="TEAM#{team_id}",
    sk="APP#{app_id}",
    indexes={"GSI1": ("USER#{user_id}", "TEAM#{team_id}")},
    version="version",
    kw_only=True,
):
    """A Slack team, or a whole organisation, as one Slack app sees it, and the account that has
    proved that it is theirs.

    `operator` says that the account is the installation's own. What Slack said at `purged_at` or
    before does not count any more; `forgotten` has such times for single users and channels.
    """

    team_id: str
    app_id: str
    user_id: str
    operator: bool = False
    enterprise_id: str | None = None
    name: str = ""
    bot_user_id: str = ""
    token: bytes | None = None
    signing_secret: bytes | None = None
    source_id: str | None = None
    rate_count: int = 10
    rate_seconds: int = 60
    allowed_event_types: list[str] = msgspec.field(default_factory=list)
    scopes: list[str] = msgspec.field(default_factory=list)
    purged_at: float = 0.0
    forgotten: dict[str, float] = msgspec.field(default_factory=dict)
    created_at: int
    updated_at: int
    version: int = 0


class Whitelist(Item, table=gate, pk="USER#{user_id}", sk="WHITELIST", kw_only=True):
    """Who may pass. A list that is empty lets everybody pass."""

    user_id: str
    team_ids: list[str] = msgspec.field(default_factory=list)
    user_ids: list[str] = msgspec.field(default_factory=list)
    channel_ids: list[str] = msgspec.field(default_factory=list)


class CheckRecord(Item, table=gate, pk="USER#{user_id}", sk="CHECK#{slot:04d}", kw_only=True):
    """One of an account's latest checks. There are so many slots and no more: a new record takes
    the place of an old one."""

    user_id: str
    slot: int
    check_id: str
    at: int
    outcome: Literal["passed", "refused"]
    reason: str = ""
    detail: str = ""
    team_id: str
    slack_user_id: str | None = None
    channel_id: str | None = None
    event_type: str = ""
    event_id: str | None = None
    ttl: int


TABLES = [cache, gate]
