"""Accounts: opening, signing in, and who is calling."""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING

from waystation.accounts.keys import PREFIX, ApiKeys
from waystation.accounts.passwords import Passwords, check_password
from waystation.accounts.tables import EmailClaim, Identity, KnownAddress, Plan, User
from waystation.accounts.tokens import Sessions, Tokens
from waystation.errors import (
    Conflict,
    Forbidden,
    InvalidInput,
    NotFound,
    Overloaded,
    TransactionCancelled,
    Unauthenticated,
)
from waystation.ids import new_id, secret_hash
from waystation.patterns import Limit, SharedLimiter
from waystation.seam import Principal, Role
from waystation.store import Put, absent
from waystation.times import iso

if TYPE_CHECKING:
    from waystation.patterns import Vault
    from waystation.store import Store

_EMAIL = re.compile(r"[^@\s#\x00-\x1f]{1,64}@(?:[^@\s.#\x00-\x1f]{1,63}\.)*[^@\s.#\x00-\x1f]{1,63}")
_PER_ACCOUNT_AND_ADDRESS = Limit(10, 900)
_PER_ADDRESS = Limit(50, 900)
_PER_ACCOUNT = Limit(100, 900)
"""From all addresses that the account has not been signed in to from before."""

_KNOWN_SECONDS = 90 * 86_400
_SIGNUPS = Limit(20, 3600)


class Accounts:
    """Everything about accounts but HTTP."""

    def __init__(
        self,
        store: Store,
        vault: Vault,
        *,
        passwords: Passwords | None = None,
        signups: bool = True,
        signup_plan: Plan = "free",
    ) -> None:
        self._store = store
        self._passwords = passwords or Passwords()
        self._signups = signups
        self._signup_plan = signup_plan
        self.sessions = Sessions(store, vault)
        self.keys = ApiKeys(store)
        self._by_account = SharedLimiter(store, "login-account", _PER_ACCOUNT)
        self._by_both = SharedLimiter(store, "login-account-address", _PER_ACCOUNT_AND_ADDRESS)
        self._by_address = SharedLimiter(store, "login-address", _PER_ADDRESS)
        self._by_signup = SharedLimiter(store, "signup", _SIGNUPS)

    async def sign_up(self, email: str, password: str, name: str, address: str) -> Tokens:
        """Open an account and sign in to it."""
        if not self._signups:
            raise Forbidden("sign-up is closed: accounts are created by the operator")
        email = folded(email)
        check_password(password)
        await self._by_signup.take(address)
        hashed = await self._passwords.hash(password)
        user = await self.open(email, name, self._signup_plan, password_hash=hashed)
        await self._remember(user, address)
        return await self.sessions.begin(user.user_id)

    async def open(
        self,
        email: str,
        name: str,
        plan: Plan,
        *,
        role: Role = "tenant",
        password_hash: str | None = None,
        identity: tuple[str, str] | None = None,
    ) -> User:
        """Write an account, with the claims that make its email and identity its own."""
        email = folded(email)
        now = iso(self._store.clock())
        user = User(
            user_id=new_id("usr"),
            email=email,
            name=name,
            password_hash=password_hash,
            plan=plan,
            role=role,
            github_id=identity[1] if identity and identity[0] == "github" else None,
            google_id=identity[1] if identity and identity[0] == "google" else None,
            usage_period_start=now[:10],
            created_at=now,
            updated_at=now,
        )
        if await self.by_email(email) is not None:  # also those that others wrote without a claim
            raise Conflict("an account with this email already exists")
        claims = [Put(EmailClaim(email=email, user_id=user.user_id), when=absent())]
        identities = [
            Put(Identity(provider=p, subject=s, user_id=user.user_id), when=absent())
            for p, s in ([identity] if identity else [])
        ]
        try:
            await self._store.transact(*claims, *identities, Put(user, when=absent()))
        except TransactionCancelled:
            raise Conflict("an account with this email already exists") from None
        return user

    async def log_in(self, email: str, password: str, address: str) -> Tokens:
        """Sign in. Whether the account exists shows neither in the answer nor in its time."""
        try:
            email = folded(email)
        except InvalidInput:
            email = "nobody"
        user = await self.by_email(email)
        await self._by_address.take(address)
        await self._by_both.take(f"{email} {address}")
        known = await self._is_known(user, address)
        if not known:  # the owner's own way in stays open
            await self._by_account.take(email)
        hashed = None if user is None else user.password_hash
        try:
            right = await self._passwords.matches(password, hashed)
        except Overloaded:
            await self._give_back(email, address, known=known)  # nothing was tried
            raise
        if not right or user is None:
            raise Unauthenticated("the email or the password is wrong")
        await self._give_back(email, address, known=known)
        await self._remember(user, address)
        return await self.sessions.begin(user.user_id)

    async def _give_back(self, email: str, address: str, *, known: bool) -> None:
        if not known:
            await self._by_account.give_back(email)
        await self._by_both.give_back(f"{email} {address}")
        await self._by_address.give_back(address)

    async def _is_known(self, user: User | None, address: str) -> bool:
        """Whether an account has been signed in to from an address. Others are asked for as well,
        so that the answer takes as long."""
        user_id = "nobody" if user is None else user.user_id
        key = KnownAddress.key(user_id, secret_hash(f"{user_id} {address}"))
        return await self._store.get(key) is not None

    async def _remember(self, user: User, address: str) -> None:
        known = KnownAddress(
            user_id=user.user_id,
            address_hash=secret_hash(f"{user.user_id} {address}"),
            expires_at=self._store.now() + _KNOWN_SECONDS,
        )
        await self._store.put(known)

    async def by_email(self, email: str) -> User | None:
        claim = await self._store.get(EmailClaim.key(email))
        if claim is not None:
            return await self._store.get(User.key(claim.user_id))
        page = await self._store.query(User.query(email, index="GSI1"))
        return page.items[0] if page.items else None

    async def by_identity(self, provider: str, subject: str) -> User | None:
        known = await self._store.get(Identity.key(provider, subject))
        return None if known is None else await self._store.get(User.key(known.user_id))

    async def get(self, user_id: str) -> User:
        user = await self._store.get(User.key(user_id))
        if user is None:
            raise NotFound("the account no longer exists")
        return user

    async def role(self, user_id: str) -> Role:
        """What an account is to the installation. Doubt makes it a tenant."""
        user = await self._store.get(User.key(user_id))
        return "tenant" if user is None else user.known_role

    async def find_or_open(self, email: str) -> User:
        """The account of an email; opened as an operator's, without limits, if there is none."""
        email = folded(email)
        user = await self.by_email(email)
        if user is not None:
            return user
        try:
            name = email.partition("@")[0]
            return await self.open(email, name, "unlimited", role="operator")
        except Conflict:
            user = await self.by_email(email)
            assert user is not None
            return user

    async def authenticate(self, authorization: str | None) -> Principal:
        """Who an `Authorization` header speaks for."""
        scheme, _, token = (authorization or "").partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token:
            raise Unauthenticated(
                "authentication is needed: send an API key or an access token as a bearer token"
            )
        if token.startswith(PREFIX):
            key = await self.keys.check(token)
            return Principal(key.user_id, key.permissions, "key")
        session = await self.sessions.check(token)
        return Principal(session.user_id, "admin", "session")

    async def close(self) -> None:
        self._passwords.close()


def folded(email: str) -> str:
    """An email in the one form that it is stored and compared in."""
    email = unicodedata.normalize("NFKC", email).strip().casefold()
    if len(email) > 254 or not _EMAIL.fullmatch(email):
        raise InvalidInput("email", "this is not an email address")
    return email
