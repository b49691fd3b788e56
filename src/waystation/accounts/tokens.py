"""Sign-ins: short access tokens, and refresh tokens that are good once.

A refresh token names its session and its generation and is signed. Only the latest generation is
good; an older one means that somebody has a copy, and ends the session for everybody.
"""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Any

import jwt
import msgspec

from waystation.accounts.tables import Session
from waystation.errors import ConditionFailed, Unauthenticated
from waystation.ids import nanoid
from waystation.store import attr, key_of, set_to

if TYPE_CHECKING:
    from waystation.patterns import Vault
    from waystation.store import Store

ACCESS_SECONDS = 15 * 60
SESSION_SECONDS = 30 * 86_400
_ISSUER = "waystation"
_PREFIX = "wsr_"


class Tokens(msgspec.Struct, frozen=True, kw_only=True):
    """What a sign-in gives."""

    access_token: str
    refresh_token: str
    token_type: str = "Bearer"  # noqa: S105 - a kind, not a secret
    expires_in: int = ACCESS_SECONDS


class Sessions:
    """Begins, renews, checks and ends sign-ins."""

    def __init__(self, store: Store, vault: Vault) -> None:
        self._store = store
        self._access_key = vault.key("access tokens")
        self._refresh_key = vault.key("refresh tokens")

    async def begin(self, user_id: str) -> Tokens:
        now = self._store.now()
        session = Session(
            session_id=nanoid(21),
            user_id=user_id,
            created_at=now,
            expires_at=now + SESSION_SECONDS,
        )
        await self._store.put(session)
        return self._tokens(session)

    async def renew(self, refresh_token: str) -> Tokens:
        """New tokens for old ones, once."""
        session_id, generation = self._read_refresh(refresh_token)
        session = await self._store.get(Session.key(session_id))
        if session is None:
            raise Unauthenticated("the session has ended")
        try:
            renewed = await self._store.update(
                key_of(session),
                set_to("generation", generation + 1),
                set_to("expires_at", self._store.now() + SESSION_SECONDS),
                when=attr("generation") == generation,
                returning="new",
            )
        except ConditionFailed:
            await self._store.delete(key_of(session))
            raise Unauthenticated(
                "the refresh token was used before: the session has ended"
            ) from None
        assert renewed is not None
        return self._tokens(renewed)

    async def end(self, refresh_token: str) -> None:
        """End a session; nothing happens if it has ended."""
        session_id, _ = self._read_refresh(refresh_token)
        await self._store.delete(Session.key(session_id))

    async def check(self, access_token: str) -> Session:
        """The session of an access token, which is good only while the session lasts."""
        try:
            claims: dict[str, Any] = jwt.decode(
                access_token,
                self._access_key,
                algorithms=["HS256"],
                issuer=_ISSUER,
                options={
                    "require": ["exp", "sub", "sid"],
                    "verify_exp": False,
                    "verify_iat": False,
                },
            )
        except jwt.PyJWTError as error:
            raise Unauthenticated("the access token is not valid") from error
        if claims.get("use") != "access" or claims["exp"] <= self._store.clock():
            raise Unauthenticated("the access token has expired")
        session = await self._store.get(Session.key(str(claims["sid"])))
        if session is None or session.user_id != claims["sub"]:
            raise Unauthenticated("the session has ended")
        return session

    def _tokens(self, session: Session) -> Tokens:
        now = self._store.now()
        claims = {
            "iss": _ISSUER,
            "sub": session.user_id,
            "sid": session.session_id,
            "use": "access",
            "iat": now,
            "exp": now + ACCESS_SECONDS,
        }
        named = f"{session.session_id}.{session.generation}"
        return Tokens(
            access_token=jwt.encode(claims, self._access_key, algorithm="HS256"),
            refresh_token=f"{_PREFIX}{named}.{self._sign(named)}",
        )

    def _read_refresh(self, token: str) -> tuple[str, int]:
        named, _, signature = token.removeprefix(_PREFIX).rpartition(".")
        session_id, _, generation = named.partition(".")
        if not hmac.compare_digest(signature.encode(), self._sign(named).encode()):
            raise Unauthenticated("the refresh token is not valid")
        return session_id, int(generation)

    def _sign(self, named: str) -> str:
        return hmac.digest(self._refresh_key, named.encode(errors="replace"), "sha256").hex()
