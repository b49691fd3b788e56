"""What Slack has confirmed, in the table that other services may share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from waystation.gate.tables import CACHE_SECONDS, CacheEntry

if TYPE_CHECKING:
    from waystation.gate.existence import Ids
    from waystation.store import Store


class StoredMemory:
    """An entry counts while its `ttl` lies ahead, whatever the database still holds, and never for
    longer than five minutes, whatever somebody wrote."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def get(self, ids: Ids, asker: str) -> float | None:
        """When it was confirmed. One that claims to be of the future does not count, nor one that
        another's token was told: it may see what ours does not."""
        entry = await self._store.get(CacheEntry.key(*ids))
        now = self._store.clock()
        if entry is None or entry.ttl <= now or entry.asker not in (None, asker):
            return None
        verified_at = entry.ttl - CACHE_SECONDS
        if verified_at > now:
            return None
        return float(min(verified_at, entry.verified_at or verified_at))

    async def put(self, ids: Ids, asker: str, verified_at: float) -> None:
        team, user, channel = ids
        at = int(verified_at)
        entry = CacheEntry(
            team_id=team,
            user_id=user,
            channel_id=channel,
            ttl=at + CACHE_SECONDS,
            verified_at=at,
            asker=asker,
        )
        await self._store.put(entry)
