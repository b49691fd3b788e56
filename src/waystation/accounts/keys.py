"""API keys: shown once, kept as a hash."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from waystation.accounts.tables import ApiKey
from waystation.errors import ConditionFailed, Conflict, NotFound, StoreError, Unauthenticated
from waystation.ids import nanoid, new_id, secret_hash
from waystation.store import exists, key_of, set_to
from waystation.times import iso, seconds_of

if TYPE_CHECKING:
    from waystation.seam import Permission
    from waystation.store import Store

log = logging.getLogger(__name__)

PREFIX = "ws_live_"
MAX_KEYS = 100
_USED_EVERY = 60.0


class ApiKeys:
    """Makes, checks and revokes keys."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def create(self, user_id: str, name: str, permissions: Permission) -> tuple[ApiKey, str]:
        """A new key, and its secret, which nobody will see again."""
        if len(await self.of(user_id)) >= MAX_KEYS:
            raise Conflict(f"an account has at most {MAX_KEYS} keys")
        secret = PREFIX + nanoid(32)
        key = ApiKey(
            key_id=new_id("key"),
            user_id=user_id,
            name=name,
            key_hash=secret_hash(secret),
            key_prefix=secret.removeprefix(PREFIX)[:8],
            permissions=permissions,
            created_at=iso(self._store.clock()),
        )
        await self._store.put(key)
        return key, secret

    async def of(self, user_id: str) -> list[ApiKey]:
        return [key async for key in self._store.iterate(ApiKey.query(user_id))]

    async def revoke(self, user_id: str, key_id: str) -> None:
        try:
            await self._store.delete(ApiKey.key(user_id, key_id), when=exists())
        except ConditionFailed:
            raise NotFound("there is no such key") from None

    async def check(self, secret: str) -> ApiKey:
        """The key with this secret; Unauthenticated when it was revoked or never existed."""
        page = await self._store.query(ApiKey.query(secret_hash(secret), index="GSI2"))
        # The index may lag behind; the key itself does not.
        key = await self._store.get(key_of(page.items[0])) if page.items else None
        if key is None:
            raise Unauthenticated("the API key is not valid")
        await self._note_use(key)
        return key

    async def _note_use(self, key: ApiKey) -> None:
        """Remember that a key is in use, to the minute."""
        now = self._store.clock()
        if key.last_used_at is not None and now - seconds_of(key.last_used_at) < _USED_EVERY:
            return
        try:
            await self._store.update(key_of(key), set_to("last_used_at", iso(now)), when=exists())
        except StoreError as error:
            log.warning("the use of key %s was not noted: %s", key.key_id, error)
