"""User tokens: what a user's browser shows instead of an API key.

Signed, expiring, and bound to a tenant, an inbox and a user. The tenant's generation is part of
what is signed: rotating it makes all of them worthless.
"""

from __future__ import annotations

import base64
import hmac
from typing import TYPE_CHECKING

import msgspec

from waystation.errors import Unauthenticated
from waystation.inbox.readers import Reader

if TYPE_CHECKING:
    from waystation.inbox.tenants import Tenants
    from waystation.patterns import Vault
    from waystation.store import Store

PREFIX = "wsu_"
LONGEST_SECONDS = 30 * 86_400


class _Claims(msgspec.Struct, array_like=True):
    tenant: str
    inbox: str
    uid: str
    expires: int


class UserTokens:
    def __init__(self, store: Store, vault: Vault, tenants: Tenants) -> None:
        self._store = store
        self._tenants = tenants
        self._key = vault.key("inbox users")

    async def issue(self, reader: Reader, seconds: int) -> tuple[str, int]:
        """A token, and when it expires."""
        settings = await self._tenants.settings(reader.tenant)
        generation = settings.token_generation if settings is not None else 0
        expires = self._store.now() + seconds
        claims = msgspec.json.encode(_Claims(*reader, expires))
        signature = self._signature(claims, generation)
        return PREFIX + _text(claims) + "." + _text(signature), expires

    async def check(self, token: str) -> Reader:
        """Whose token it is."""
        named, _, signature = token.removeprefix(PREFIX).partition(".")
        try:
            encoded = _bytes(named)
            claims = msgspec.json.decode(encoded, type=_Claims)
            given = _bytes(signature)
        except (ValueError, msgspec.MsgspecError):
            raise Unauthenticated("the user token is not valid") from None
        settings = await self._tenants.settings(claims.tenant)
        generation = settings.token_generation if settings is not None else 0
        if settings is None or not hmac.compare_digest(given, self._signature(encoded, generation)):
            raise Unauthenticated("the user token is not valid")
        if claims.expires <= self._store.clock():
            raise Unauthenticated("the user token has expired")
        return Reader(claims.tenant, claims.inbox, claims.uid)

    def _signature(self, claims: bytes, generation: int) -> bytes:
        return hmac.digest(self._key, b"%d:%s" % (generation, claims), "sha256")


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    padded = text.encode("ascii") + b"=" * (-len(text) % 4)
    return base64.b64decode(padded, altchars=b"-_", validate=True)
