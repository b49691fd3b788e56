"""Sign-in elsewhere, against a provider on this machine that checks what it is sent."""

from __future__ import annotations

import asyncio
import base64
import secrets
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest
from aiohttp import web

from tests.support.site import Answer, Site, site
from waystation.accounts.oauth import Provider, configured
from waystation.accounts.settings import AccountSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from waystation.clock import ManualClock

PUBLIC = "https://waystation.example"


class LocalProvider:
    """An authorization server by the book: one-time codes, PKCE, client secret, redirect URI."""

    def __init__(self) -> None:
        self.codes: dict[str, dict[str, str]] = {}
        self.user: dict[str, Any] = {"id": 77, "login": "ann", "name": "Ann"}
        self.emails: Any = [
            {"email": "other@example.com", "primary": False, "verified": True},
            {"email": "Ann@Example.com", "primary": True, "verified": True},
        ]
        self.token_status = 200

    def authorize(self, url: str) -> tuple[str, str]:
        """What happens in the browser: the user agrees, and a code and the state come back."""
        query = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
        assert query["response_type"] == "code"
        assert query["client_id"] == "our-id"
        assert query["code_challenge_method"] == "S256"
        code = secrets.token_urlsafe()
        self.codes[code] = query
        return code, query["state"]

    async def token(self, request: web.Request) -> web.StreamResponse:
        form = await request.post()
        begun = self.codes.pop(str(form["code"]), None)
        digest = sha256(str(form["code_verifier"]).encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        good = (
            begun is not None
            and begun["code_challenge"] == challenge
            and begun["redirect_uri"] == form["redirect_uri"]
            and form["client_secret"] == "our-secret"
        )
        if self.token_status != 200:
            return web.Response(status=self.token_status, text="down")
        if not good:
            return web.json_response({"error": "bad_verification_code"})
        answer = web.StreamResponse(headers={"Content-Type": "application/json"})
        await answer.prepare(request)
        await answer.write(b'{"access_token": "the')  # as answers come: in pieces
        await asyncio.sleep(0.01)
        await answer.write(b'irs", "token_type": "bearer"}')
        return answer

    async def me(self, request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == "Bearer theirs"
        return web.json_response(self.user)

    async def all_emails(self, request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == "Bearer theirs"
        return web.json_response(self.emails)


@asynccontextmanager
async def with_provider(
    clock: ManualClock, **settings: Any
) -> AsyncIterator[tuple[Site, LocalProvider]]:
    local = LocalProvider()
    app = web.Application()
    app.router.add_post("/token", local.token)
    app.router.add_get("/user", local.me)
    app.router.add_get("/emails", local.all_emails)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        github = Provider(
            client_id="our-id",
            client_secret="our-secret",
            authorize_url=f"{url}/authorize",
            token_url=f"{url}/token",
            user_url=f"{url}/user",
            emails_url=f"{url}/emails",
            scope="read:user user:email",
        )
        google = Provider(
            client_id="our-id",
            client_secret="our-secret",
            authorize_url=f"{url}/authorize",
            token_url=f"{url}/token",
            user_url=f"{url}/user",
            scope="openid email profile",
        )
        providers = {"github": github, "google": google}
        async with site(clock, providers=providers, public_url=PUBLIC, **settings) as server:
            yield server, local
    finally:
        await runner.cleanup()


@pytest.fixture
async def both(clock: ManualClock) -> AsyncIterator[tuple[Site, LocalProvider]]:
    async with with_provider(clock) as pair:
        yield pair


async def begin(server: Site, provider: str = "github") -> tuple[str, str]:
    """Where the browser is sent, and the cookie it got."""
    answer = await server.get(f"/v1/auth/{provider}/start")
    assert answer.status == 302
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "samesite=lax" in cookie.lower()
    assert "Secure" in cookie
    return answer.headers["location"], cookie.partition(";")[0]


async def finish(
    server: Site, code: str, state: str, cookie: str, provider: str = "github"
) -> Answer:
    return await server.get(
        f"/v1/auth/{provider}/callback?code={code}&state={state}", headers={"Cookie": cookie}
    )


async def sign_in(server: Site, local: LocalProvider, provider: str = "github") -> Answer:
    url, cookie = await begin(server, provider)
    return await finish(server, *local.authorize(url), cookie, provider)


async def test_signing_in_opens_an_account_without_a_password(
    both: tuple[Site, LocalProvider],
) -> None:
    server, local = both
    answer = await sign_in(server, local)
    assert answer.status == 200
    me = await server.get("/v1/me", token=answer.json["access_token"])
    assert (me.json["email"], me.json["name"]) == ("ann@example.com", "Ann")
    user = await server.accounts.by_email("ann@example.com")
    assert user is not None
    assert (user.password_hash, user.github_id, user.google_id) == (None, "77", None)


async def test_signing_in_again_is_the_same_account(both: tuple[Site, LocalProvider]) -> None:
    server, local = both
    accounts = set()
    for email in ("ann@example.com", "new-address@example.com"):
        local.emails = [{"email": email, "primary": True, "verified": True}]
        answer = await sign_in(server, local)
        me = await server.get("/v1/me", token=answer.json["access_token"])
        accounts.add(me.json["id"])
    assert len(accounts) == 1


async def test_google_says_itself_whether_the_email_is_verified(
    both: tuple[Site, LocalProvider],
) -> None:
    server, local = both
    local.user = {"sub": "g-1", "email": "ann@example.com", "email_verified": True, "name": "Ann"}
    assert (await sign_in(server, local, "google")).status == 200
    local.user = {"sub": "g-2", "email": "bob@example.com", "email_verified": False}
    assert (await sign_in(server, local, "google")).status == 403
    user = await server.accounts.by_email("ann@example.com")
    assert user is not None
    assert user.google_id == "g-1"


@pytest.mark.parametrize(
    "emails",
    [
        [],
        {},
        ["nonsense"],
        [{"primary": True, "verified": True}],
        [{"email": "a@example.com", "primary": True, "verified": False}],
    ],
)
async def test_without_a_verified_email_there_is_no_account(
    both: tuple[Site, LocalProvider], emails: Any
) -> None:
    server, local = both
    local.emails = emails
    assert (await sign_in(server, local)).status == 403


async def test_an_account_is_not_taken_over_by_its_email(
    both: tuple[Site, LocalProvider],
) -> None:
    server, local = both
    await server.sign_up("ann@example.com")
    refused = await sign_in(server, local)
    assert refused.status == 409
    assert "password" in refused.json["detail"]


async def test_a_sign_in_comes_back_once(both: tuple[Site, LocalProvider]) -> None:
    server, local = both
    url, cookie = await begin(server)
    code, state = local.authorize(url)
    assert (await finish(server, code, state, cookie)).status == 200
    again, _ = local.authorize(url)
    assert (await finish(server, again, state, cookie)).status == 401


async def test_a_sign_in_comes_back_to_the_browser_that_began_it(
    both: tuple[Site, LocalProvider],
) -> None:
    server, local = both
    url, _ = await begin(server)
    _, other = await begin(server)
    code, state = local.authorize(url)
    assert (await finish(server, code, state, other)).status == 401


async def test_a_sign_in_comes_back_from_where_it_was_sent(
    both: tuple[Site, LocalProvider],
) -> None:
    server, local = both
    url, cookie = await begin(server, "github")
    code, state = local.authorize(url)
    refused = await finish(server, code, state, cookie, "google")
    assert (refused.status, "another browser" in refused.json["detail"]) == (401, True)


async def test_a_sign_in_comes_back_within_ten_minutes(
    both: tuple[Site, LocalProvider], clock: ManualClock
) -> None:
    server, local = both
    url, cookie = await begin(server)
    clock.advance(601)
    assert (await finish(server, *local.authorize(url), cookie)).status == 401


async def test_a_stolen_code_is_of_no_use(both: tuple[Site, LocalProvider]) -> None:
    """The code of one sign-in does not go with the verifier of another."""
    server, local = both
    victims_url, _ = await begin(server)
    stolen, _ = local.authorize(victims_url)
    url, cookie = await begin(server)
    _, state = local.authorize(url)
    assert (await finish(server, stolen, state, cookie)).status == 401


@pytest.mark.parametrize("query", ["", "?error=access_denied&state=x", "?code=x", "?state=x"])
async def test_a_sign_in_that_was_not_completed(
    both: tuple[Site, LocalProvider], query: str
) -> None:
    server, _ = both
    assert (await server.get(f"/v1/auth/github/callback{query}")).status == 401


async def test_a_provider_that_is_down_is_not_our_fault(
    both: tuple[Site, LocalProvider],
) -> None:
    server, local = both
    local.token_status = 502
    refused = await sign_in(server, local)
    assert refused.status == 503
    assert "retry-after" in refused.headers


async def test_sign_ins_cannot_be_begun_without_end(both: tuple[Site, LocalProvider]) -> None:
    server, _ = both
    statuses = [(await server.get("/v1/auth/github/start")).status for _ in range(61)]
    assert statuses == [302] * 60 + [429]


async def test_it_is_off_until_configured(server: Site) -> None:
    for provider in ("github", "google", "nobody"):
        assert (await server.get(f"/v1/auth/{provider}/start")).status == 404


async def test_sign_ups_can_be_turned_off_here_too(clock: ManualClock) -> None:
    async with with_provider(clock, signups=False) as (server, local):
        assert (await sign_in(server, local)).status == 403


def test_settings_turn_providers_on() -> None:
    settings = AccountSettings(
        github_client_id="a",
        github_client_secret="b",
        google_client_id="c",
        google_client_secret="d",
    )
    found = configured(settings)
    assert found["github"].authorize_url == "https://github.com/login/oauth/authorize"
    assert found["google"].user_url == "https://openidconnect.googleapis.com/v1/userinfo"
    assert configured(AccountSettings()) == {}
