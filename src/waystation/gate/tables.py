"""The cache of existence checks that Slack has confirmed."""

from __future__ import annotations

from waystation.store import Item, Table

CACHE_SECONDS = 300

cache = Table("slack-existence-check-cache", pk="cache_key", ttl="ttl")


class ExistenceCheck(
    Item,
    table=cache,
    pk="{team_id}#{user_id}#{channel_id}",
    key_only=("team_id", "user_id", "channel_id"),
    kw_only=True,
):
    """That a team, user and channel exist. `ttl` is when to ask again."""

    team_id: str
    user_id: str
    channel_id: str
    ttl: int
    verified_at: int | None = None


TABLES = [cache]
