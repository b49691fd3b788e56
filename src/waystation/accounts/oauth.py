"""Sign-in with GitHub or Google: the authorization code flow with PKCE, state and a cookie.

The state ties the return to a sign-in that we began, the cookie to the browser that began it, and
the verifier the code to us. All are good once, for ten minutes.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
from hashlib import sha256
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import msgspec

from waystation.accounts.tables import SignIn
from waystation.errors import (
    ConditionFailed,
    Conflict,
    Forbidden,
    NotFound,
    Overloaded,
    Unauthenticated,
)
from waystation.ids import nanoid, secret_hash
from waystation.patterns import Limit, LocalLimiter
from waystation.store import exists

if TYPE_CHECKING:
    from waystation.accounts.service import Accounts
    from waystation.accounts.settings import AccountSettings
    from waystation.accounts.tables import Plan
    from waystation.accounts.tokens import Tokens
    from waystation.outbound import Outbound
    from waystation.store import Store

_SECONDS = 600
_BEGINNINGS = Limit(60, 600)
_MAX_ANSWER = 256 * 1024


class Provider(msgspec.Struct, frozen=True, kw_only=True):
    """A service that users sign in with, instead of a password here."""

    client_id: str
    client_secret: str
    authorize_url: str
    token_url: str
    user_url: str
    emails_url: str | None = None
    scope: str


class Person(msgspec.Struct, frozen=True):
    """A user as a provider knows them, with an email that it has verified."""

    subject: str
    email: str
    name: str


def configured(settings: AccountSettings) -> dict[str, Provider]:
    """The providers that the settings turn on."""
    found = {}
    if settings.github_client_id and settings.github_client_secret:
        found["github"] = Provider(
            client_id=settings.github_client_id,
            client_secret=settings.github_client_secret,
            authorize_url="https://github.com/login/oauth/authorize",
            token_url="https://github.com/login/oauth/access_token",  # noqa: S106 - an address
            user_url="https://api.github.com/user",
            emails_url="https://api.github.com/user/emails",
            scope="read:user user:email",
        )
    if settings.google_client_id and settings.google_client_secret:
        found["google"] = Provider(
            client_id=settings.google_client_id,
            client_secret=settings.google_client_secret,
            authorize_url="https://accounts.google.com/o/oauth2/v2/auth",
            token_url="https://oauth2.googleapis.com/token",  # noqa: S106 - an address
            user_url="https://openidconnect.googleapis.com/v1/userinfo",
            scope="openid email profile",
        )
    return found


class SignInElsewhere:
    """Begins sign-ins with a provider and makes accounts of those who come back."""

    def __init__(
        self,
        store: Store,
        accounts: Accounts,
        outbound: Outbound,
        providers: dict[str, Provider],
        *,
        public_url: str,
        signup_plan: Plan,
        signups: bool,
    ) -> None:
        self._store = store
        self._outbound = outbound
        self._accounts = accounts
        self._providers = providers
        self._public_url = public_url.rstrip("/")
        self._signup_plan = signup_plan
        self._signups = signups
        self._limiter = LocalLimiter(store.clock)

    @property
    def secure(self) -> bool:
        """Whether browsers reach us over TLS, whatever a proxy makes of it."""
        return self._public_url.startswith("https:")

    async def begin(self, name: str, address: str) -> tuple[str, str]:
        """Where to send the browser, and the cookie to give it."""
        provider = self._provider(name)
        self._limiter.take(address, _BEGINNINGS)
        state, verifier, cookie = nanoid(32), nanoid(64), nanoid(32)
        await self._store.put(
            SignIn(
                state_hash=secret_hash(state),
                provider=name,
                verifier=verifier,
                cookie_hash=secret_hash(cookie),
                expires_at=self._store.now() + _SECONDS,
            )
        )
        digest = sha256(verifier.encode()).digest()
        query = {
            "response_type": "code",
            "client_id": provider.client_id,
            "redirect_uri": self._return_url(name),
            "scope": provider.scope,
            "state": state,
            "code_challenge": base64.urlsafe_b64encode(digest).rstrip(b"=").decode(),
            "code_challenge_method": "S256",
        }
        return f"{provider.authorize_url}?{urlencode(query)}", cookie

    async def finish(self, name: str, code: str, state: str, cookie: str | None) -> Tokens:
        """Sign in the user who came back with a code; the first time, an account is opened."""
        provider = self._provider(name)
        begun = await self._take(state)
        same = hmac.compare_digest(begun.cookie_hash, secret_hash(cookie or ""))
        if begun.provider != name or not same:
            raise Unauthenticated(
                "this sign-in was started in another browser, or with another provider: start again"
            )
        try:
            token = await self._exchange(provider, name, code, begun.verifier)
            person = await self._person(provider, token)
        except OSError as error:
            raise Overloaded(f"{name} did not answer", retry_after=10) from error
        user = await self._accounts.by_identity(name, person.subject)
        if user is None:
            if not self._signups:
                raise Forbidden("sign-up is closed: accounts are created by the operator")
            try:
                user = await self._accounts.open(
                    person.email, person.name, self._signup_plan, identity=(name, person.subject)
                )
            except Conflict:
                # Taking over an account because the email matches would hand it to whoever
                # registered that email first.
                raise Conflict(
                    "an account with this email already exists: sign in to it with its password"
                ) from None
        return await self._accounts.sessions.begin(user.user_id)

    async def _take(self, state: str) -> SignIn:
        try:
            begun = await self._store.delete(
                SignIn.key(secret_hash(state)), when=exists(), returning="old"
            )
        except ConditionFailed:
            begun = None
        if begun is None:
            raise Unauthenticated("this sign-in has expired or was already used: start again")
        return begun

    async def _exchange(self, provider: Provider, name: str, code: str, verifier: str) -> str:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._return_url(name),
            "client_id": provider.client_id,
            "client_secret": provider.client_secret,
            "code_verifier": verifier,
        }
        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        answer = await self._fetch("POST", provider.token_url, kind, urlencode(form).encode())
        token = answer.get("access_token") if isinstance(answer, dict) else None
        if not isinstance(token, str):
            raise Unauthenticated(f"{name} did not accept the code")
        return token

    async def _person(self, provider: Provider, token: str) -> Person:
        """The person behind a token, if their email was verified."""
        bearer = {"Authorization": f"Bearer {token}"}
        fetched = [self._fetch("GET", provider.user_url, bearer)]
        if provider.emails_url is not None:
            fetched.append(self._fetch("GET", provider.emails_url, bearer))
        user, *emails = await asyncio.gather(*fetched)
        subject = user.get("sub") or user.get("id") if isinstance(user, dict) else None
        email = _primary(emails[0]) if emails else _verified(user)
        if subject is None or email is None:
            raise Forbidden("that account has no verified email: verify one there first")
        name = user.get("name") or user.get("login") or email.partition("@")[0]
        return Person(str(subject), email, str(name)[:100])

    async def _fetch(
        self, method: str, url: str, headers: dict[str, str], body: bytes | None = None
    ) -> Any:
        """An answer's JSON, empty where the provider refused; OSError when there was none."""
        reply = await self._outbound.request(
            method,
            url,
            headers={"Accept": "application/json", **headers},
            body=body,
            most=_MAX_ANSWER,
        )
        if reply.status == 0 or reply.status >= 500 or not reply.whole:
            raise OSError(reply.error or f"status {reply.status}, or too large an answer")
        if reply.status >= 400:
            return {}
        try:
            return msgspec.json.decode(reply.body)
        except msgspec.DecodeError as error:
            raise OSError("the answer is not JSON") from error

    def _provider(self, name: str) -> Provider:
        if name not in self._providers:
            raise NotFound(f"sign-in with {name} is not turned on")
        return self._providers[name]

    def _return_url(self, name: str) -> str:
        return f"{self._public_url}/v1/auth/{name}/callback"


def _verified(user: Any) -> str | None:
    if isinstance(user, dict) and user.get("email_verified") is True:
        return str(user["email"]) if user.get("email") else None
    return None


def _primary(emails: Any) -> str | None:
    for entry in emails if isinstance(emails, list) else []:
        good = isinstance(entry, dict) and entry.get("primary") is True
        if good and entry.get("verified") is True and entry.get("email"):
            return str(entry["email"])
    return None
