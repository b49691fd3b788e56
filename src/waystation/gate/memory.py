"""What Slack has confirmed, in the table that other services may share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from waystation.gate.tables import CACHE_SECONDS, CacheEntry

if TYPE_CHECKING:
    from waystation.gate.existence import Ids
    from waystation.store import Store

_SKEW_SECONDS = 60


class StoredMemory:
    """An entry counts while its `ttl` lies ahead, whatever the database still holds, and never for
    longer than five minutes, whatever somebody wrote."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def get(self, ids: Ids) -> float | None:
        entry = await self._store.get(CacheEntry.key(*ids))
        now = self._store.clock()
        if entry is None or not now < entry.ttl <= now + CACHE_SECONDS + _SKEW_SECONDS:
            return None
        verified_at = entry.verified_at
        if verified_at is None or verified_at > now:
            verified_at = entry.ttl - CACHE_SECONDS
        return min(float(verified_at), now)

    async def put(self, ids: Ids, verified_at: float) -> None:
        team, user, channel = ids
        at = int(verified_at)
        await self._store.put(
            CacheEntry(
                team_id=team,
                user_id=user,
                channel_id=channel,
                ttl=at + CACHE_SECONDS,
                verified_at=at,
            )
        )

    async def delete(self, ids: Ids) -> None:
        await self._store.delete(CacheEntry.key(*ids))
