"""Accounts over HTTP: opening, signing in, tokens and keys."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import bcrypt
import pytest
from litestar.datastructures import Address

from tests.support.site import Site, site
from waystation.accounts import Accounts
from waystation.accounts.api import address_of
from waystation.accounts.passwords import Passwords
from waystation.accounts.plans import PLANS
from waystation.accounts.tables import ApiKey, User
from waystation.errors import Conflict, Overloaded
from waystation.store import Put, exists, remove, set_to

if TYPE_CHECKING:
    from pathlib import Path

    from waystation.clock import ManualClock

ANN = {"email": "ann@example.com", "password": "correct horse", "name": "Ann"}


async def test_an_account_is_opened_and_used(server: Site) -> None:
    tokens = await server.sign_up()
    assert tokens["token_type"] == "Bearer"
    me = await server.get("/v1/me", token=tokens["access_token"])
    assert me.status == 200
    assert me.json["email"] == "ann@example.com"
    assert me.json["plan"] == "free"
    assert me.json["limits"]["events_per_month"] == 5000
    assert me.json["id"].startswith("usr_")


async def test_a_password_is_kept_as_bcrypt(server: Site) -> None:
    await server.sign_up()
    user = await server.accounts.by_email("ann@example.com")
    assert user is not None
    assert user.password_hash is not None
    assert bcrypt.checkpw(b"correct horse", user.password_hash.encode())


def test_passwords_cost_what_the_seed_says() -> None:
    assert Passwords()._cost == 12


@pytest.mark.parametrize("again", ["ann@example.com", "ANN@Example.COM", " Ann@example.com "])
async def test_an_email_opens_one_account(server: Site, again: str) -> None:
    await server.sign_up()
    refused = await server.post("/v1/auth/signup", {**ANN, "email": again})
    assert (refused.status, refused.json["code"]) == (409, "conflict")


async def test_of_many_at_once_one_gets_the_email(clock: ManualClock, tmp_path: Path) -> None:
    """On a file, where a write takes long enough for all to have looked before."""
    async with site(clock, store=f"sqlite:///{tmp_path / 'w.db'}") as server:
        accounts = server.accounts
        opening = (accounts.open("ann@example.com", "Ann", "free") for _ in range(8))
        opened = await asyncio.gather(*opening, return_exceptions=True)
        assert len([user for user in opened if isinstance(user, User)]) == 1
        assert len([error for error in opened if isinstance(error, Conflict)]) == 7


async def test_an_account_that_another_service_wrote_keeps_its_email(server: Site) -> None:
    now = "2026-01-01T00:00:00Z"
    theirs = User(
        user_id="usr_x", email="ann@example.com", name="A", created_at=now, updated_at=now
    )
    await server.runtime.store.transact(Put(theirs))
    assert (await server.post("/v1/auth/signup", ANN)).status == 409


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"email": "not an email"}, "email"),
        ({"email": "a@b@c.example"}, "email"),
        ({"email": "a#b@example.com"}, "email"),
        ({"email": "x" * 300 + "@example.com"}, "email"),
        ({"email": 7}, "email"),
        ({"password": "short"}, "password"),
        ({"password": "x" * 73}, "password"),
        ({"password": "ü" * 40}, "password"),
        ({"password": "with\0nul1"}, "password"),
        ({"name": ""}, "name"),
        ({"name": "x" * 101}, "name"),
        ({"nick": "x"}, "nick"),
    ],
)
async def test_a_bad_sign_up_names_the_field(
    server: Site, change: dict[str, Any], field: str
) -> None:
    refused = await server.post("/v1/auth/signup", {**ANN, **change})
    assert refused.status == 400
    assert refused.fields == [field]


@pytest.mark.parametrize("missing", ["email", "password", "name"])
async def test_a_missing_field_is_named(server: Site, missing: str) -> None:
    body = {name: value for name, value in ANN.items() if name != missing}
    refused = await server.post("/v1/auth/signup", body)
    assert (refused.status, refused.fields) == (400, [missing])


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b"null", b"{}" * 2])
async def test_a_body_that_is_no_object_is_refused(server: Site, body: bytes) -> None:
    refused = await server.post(
        "/v1/auth/signup", body=body, headers={"Content-Type": "application/json"}
    )
    assert refused.status == 400
    assert refused.fields


async def test_sign_ups_can_be_turned_off(clock: ManualClock) -> None:
    async with site(clock, signups=False) as server:
        assert (await server.post("/v1/auth/signup", ANN)).status == 403


async def test_signing_in(server: Site) -> None:
    await server.sign_up()
    answer = await server.post(
        "/v1/auth/login", {"email": "Ann@Example.com", "password": "correct horse"}
    )
    assert answer.status == 200
    assert (await server.get("/v1/me", token=answer.json["access_token"])).status == 200


@pytest.mark.parametrize(
    "wrong",
    [
        {"email": "ann@example.com", "password": "wrong horse"},
        {"email": "nobody@example.com", "password": "correct horse"},
        {"email": "not an email", "password": "correct horse"},
        {"email": "ann@example.com", "password": "correct horse" + "x" * 70},
    ],
)
async def test_a_wrong_sign_in_does_not_say_what_was_wrong(
    server: Site, wrong: dict[str, str]
) -> None:
    await server.sign_up()
    refused = await server.post("/v1/auth/login", wrong)
    assert refused.status == 401
    assert refused.json["detail"] == "the email or the password is wrong"


async def test_nobodys_password_is_checked_as_thoroughly_as_somebodys(
    server: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time that a sign-in takes is that of bcrypt: one check at the same cost, always."""
    await server.sign_up()
    checked: list[bytes] = []
    check = bcrypt.checkpw

    def noted(password: bytes, hashed: bytes) -> bool:
        checked.append(hashed[:7])
        return check(password, hashed)

    monkeypatch.setattr(bcrypt, "checkpw", noted)
    for email in ("ann@example.com", "nobody@example.com"):
        await server.post("/v1/auth/login", {"email": email, "password": "wrong horse"})
    assert checked == [b"$2b$04$", b"$2b$04$"]


async def test_nobodys_password_costs_what_somebodys_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checked: list[bytes] = []

    def note(_: bytes, hashed: bytes) -> bool:
        checked.append(hashed[:7])
        return True

    monkeypatch.setattr(bcrypt, "checkpw", note)
    passwords = Passwords(cost=11)
    assert not await passwords.matches("anything", None)
    assert checked == [b"$2b$11$"]
    passwords.close()


async def test_an_account_without_a_password_cannot_be_signed_in_to(server: Site) -> None:
    await server.accounts.find_or_open("ann@example.com")
    refused = await server.post("/v1/auth/login", {"email": "ann@example.com", "password": "x"})
    assert refused.status == 401


async def test_sign_ins_that_were_not_checked_are_not_counted(server: Site) -> None:
    await server.sign_up()
    right = {"email": "ann@example.com", "password": "correct horse"}

    class Busy(Passwords):
        async def matches(self, password: str, hashed: str | None) -> bool:
            raise Overloaded("too many at once", retry_after=1)

    busy = Accounts(server.runtime.store, server.runtime.vault, passwords=Busy(cost=4))
    for _ in range(12):
        with pytest.raises(Overloaded):
            await busy.log_in(right["email"], right["password"], "127.0.0.1")
    await busy.close()
    assert (await server.post("/v1/auth/login", right)).status == 200


async def test_who_signed_up_is_a_tenant(server: Site) -> None:
    tokens = await server.sign_up()
    me = await server.get("/v1/me", token=tokens["access_token"])
    assert me.json["role"] == "tenant"


async def test_who_was_created_on_the_command_line_is_an_operator(server: Site) -> None:
    me = await server.get("/v1/me", token=await server.api_key())
    assert (me.json["role"], me.json["plan"]) == ("operator", "unlimited")


async def test_a_key_for_a_tenant_does_not_make_it_an_operator(server: Site) -> None:
    await server.sign_up("ann@example.com")
    me = await server.get("/v1/me", token=await server.api_key(email="ann@example.com"))
    assert me.json["role"] == "tenant"


async def test_an_account_that_another_service_wrote_is_a_tenant(server: Site) -> None:
    """It has no role: doubt fails closed."""
    now = "2026-01-01T00:00:00Z"
    user = User(user_id="usr_x", email="x@example.com", name="X", created_at=now, updated_at=now)
    await server.runtime.store.put(user)
    await server.runtime.store.update(User.key("usr_x"), remove("role"), when=exists())
    assert await server.accounts.role("usr_x") == "tenant"
    await server.runtime.store.update(User.key("usr_x"), set_to("role", "owner"), when=exists())
    assert await server.accounts.role("usr_x") == "tenant"
    assert await server.accounts.role("usr_gone") == "tenant"


async def test_a_hash_of_another_kind_lets_nobody_in(server: Site) -> None:
    now = "2026-01-01T00:00:00Z"
    theirs = User(
        user_id="usr_x",
        email="ann@example.com",
        name="A",
        password_hash="$argon2id$v=19$...",
        created_at=now,
        updated_at=now,
    )
    await server.runtime.store.put(theirs)
    answer = await server.post(
        "/v1/auth/login", {"email": "ann@example.com", "password": "correct horse"}
    )
    assert answer.status == 401


@pytest.mark.parametrize(
    ("host", "throttled"),
    [
        ("203.0.113.9", "203.0.113.9"),
        ("::ffff:203.0.113.9", "203.0.113.9"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("a name", "a name"),
    ],
)
def test_whom_to_throttle(host: str, throttled: str) -> None:
    assert address_of(Address(host, 1)) == throttled


async def test_guessing_is_throttled_by_account(server: Site, clock: ManualClock) -> None:
    await server.sign_up()
    wrong = {"email": "ann@example.com", "password": "wrong horse"}
    for _ in range(10):
        assert (await server.post("/v1/auth/login", wrong)).status == 401
    right = {"email": "ann@example.com", "password": "correct horse"}
    refused = await server.post("/v1/auth/login", right)
    assert refused.status == 429
    assert 0 < int(refused.headers["retry-after"]) <= 920
    clock.advance(920)
    assert (await server.post("/v1/auth/login", right)).status == 200


async def test_guessing_is_throttled_by_address(server: Site) -> None:
    statuses = [
        (await server.post("/v1/auth/login", {"email": f"u{n}@x.example", "password": "x"})).status
        for n in range(51)
    ]
    assert statuses == [401] * 50 + [429]


async def test_signing_in_rightly_is_not_throttled(server: Site) -> None:
    await server.sign_up()
    for _ in range(12):
        answer = await server.post(
            "/v1/auth/login", {"email": "ann@example.com", "password": "correct horse"}
        )
        assert answer.status == 200


async def test_an_access_token_is_good_for_fifteen_minutes(
    server: Site, clock: ManualClock
) -> None:
    token = (await server.sign_up())["access_token"]
    clock.advance(899)
    assert (await server.get("/v1/me", token=token)).status == 200
    clock.advance(2)
    assert (await server.get("/v1/me", token=token)).status == 401


async def test_refreshing_gives_new_tokens(server: Site, clock: ManualClock) -> None:
    tokens = await server.sign_up()
    clock.advance(3600)
    renewed = await server.post("/v1/auth/refresh", {"refresh_token": tokens["refresh_token"]})
    assert renewed.status == 200
    assert renewed.json["refresh_token"] != tokens["refresh_token"]
    assert (await server.get("/v1/me", token=renewed.json["access_token"])).status == 200


async def test_a_refresh_token_used_twice_ends_the_session(server: Site) -> None:
    first = (await server.sign_up())["refresh_token"]
    second = (await server.post("/v1/auth/refresh", {"refresh_token": first})).json
    third = (await server.post("/v1/auth/refresh", {"refresh_token": second["refresh_token"]})).json
    assert (await server.post("/v1/auth/refresh", {"refresh_token": first})).status == 401
    stolen = await server.post("/v1/auth/refresh", {"refresh_token": third["refresh_token"]})
    assert stolen.status == 401
    assert (await server.get("/v1/me", token=third["access_token"])).status == 401


async def test_of_two_refreshes_at_once_one_succeeds(server: Site) -> None:
    token = (await server.sign_up())["refresh_token"]
    body = {"refresh_token": token}
    answers = await asyncio.gather(*(server.post("/v1/auth/refresh", body) for _ in range(4)))
    assert sorted(answer.status for answer in answers) == [200, 401, 401, 401]


async def test_tokens_of_one_kind_are_not_good_for_the_other(server: Site) -> None:
    tokens = await server.sign_up()
    refused = await server.post("/v1/auth/refresh", {"refresh_token": tokens["access_token"]})
    assert refused.status == 401
    assert (await server.get("/v1/me", token=tokens["refresh_token"])).status == 401


async def test_signing_out_ends_the_session(server: Site) -> None:
    tokens = await server.sign_up()
    body = {"refresh_token": tokens["refresh_token"]}
    assert (await server.post("/v1/auth/logout", body)).status == 204
    assert (await server.get("/v1/me", token=tokens["access_token"])).status == 401
    assert (await server.post("/v1/auth/refresh", body)).status == 401


async def test_a_session_ends_after_thirty_days_unused(server: Site, clock: ManualClock) -> None:
    token = (await server.sign_up())["refresh_token"]
    clock.advance(30 * 86_400 + 1)
    assert (await server.post("/v1/auth/refresh", {"refresh_token": token})).status == 401


@pytest.mark.parametrize(
    "token",
    [
        "",
        "x",
        "wsr_",
        "wsr_a.b",
        "wsr_a.b.c",
        "wsr_..",
        "wsr_ü.1.x",
        "a.b.c",
        "wsr_a.1." + "0" * 64,
    ],
)
async def test_made_up_tokens_are_refused(server: Site, token: str) -> None:
    assert (await server.post("/v1/auth/refresh", {"refresh_token": token})).status == 401


async def test_another_servers_tokens_are_refused(server: Site, clock: ManualClock) -> None:
    async with site(clock, secret_key="t" * 40) as other:
        tokens = await other.sign_up()
    assert (await server.get("/v1/me", token=tokens["access_token"])).status == 401
    refused = await server.post("/v1/auth/refresh", {"refresh_token": tokens["refresh_token"]})
    assert refused.status == 401


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Basic YTpi",
        "Bearer ws_live_nonsense",
        "Bearer a.b.c",
        "\xff",
    ],
)
async def test_without_a_good_token_there_is_nothing(
    server: Site, authorization: str | None
) -> None:
    headers = {} if authorization is None else {"Authorization": authorization}
    refused = await server.get("/v1/me", headers=headers)
    assert refused.status == 401
    assert refused.headers["www-authenticate"].startswith("Bearer")


async def test_an_api_key_is_shown_once_and_works(server: Site) -> None:
    token = (await server.sign_up())["access_token"]
    created = await server.post(
        "/v1/api-keys", {"name": "Production", "permissions": "read"}, token=token
    )
    assert created.status == 201
    secret = created.json["key"]
    assert secret.startswith("ws_live_")
    assert (await server.get("/v1/me", token=secret)).status == 200
    listed = await server.get("/v1/api-keys", token=token)
    assert listed.json["has_more"] is False
    [key] = listed.json["data"]
    assert "key" not in key
    assert (key["id"], key["name"]) == (created.json["id"], "Production")
    assert secret.removeprefix("ws_live_").startswith(key["prefix"])


async def test_a_key_is_kept_as_a_hash(server: Site) -> None:
    secret = await server.api_key()
    page = await server.runtime.store.scan(ApiKey)
    assert secret not in str(page.items)


async def test_the_last_use_of_a_key_is_noted_to_the_minute(
    server: Site, clock: ManualClock
) -> None:
    secret = await server.api_key("admin")

    async def last_used() -> str | None:
        [key] = (await server.get("/v1/api-keys", token=secret)).json["data"]
        return key["last_used_at"]  # type: ignore[no-any-return]

    first = await last_used()
    assert first is not None
    clock.advance(30)
    assert await last_used() == first
    clock.advance(31)
    assert await last_used() != first


async def test_a_revoked_key_is_refused_at_once(server: Site) -> None:
    secret = await server.api_key("admin")
    [key] = (await server.get("/v1/api-keys", token=secret)).json["data"]
    assert (await server.call("DELETE", f"/v1/api-keys/{key['id']}", token=secret)).status == 204
    assert (await server.get("/v1/me", token=secret)).status == 401


async def test_anothers_key_is_not_there(server: Site) -> None:
    mine = await server.api_key("admin")
    await server.api_key("admin", "bob@example.com")
    bob = await server.accounts.find_or_open("bob@example.com")
    [theirs] = await server.accounts.keys.of(bob.user_id)
    refused = await server.call("DELETE", f"/v1/api-keys/{theirs.key_id}", token=mine)
    assert refused.status == 404
    assert len(await server.accounts.keys.of(bob.user_id)) == 1


@pytest.mark.parametrize("key_id", ["nothing", "key_x%23y", "x" * 65])
async def test_a_key_that_is_not_there(server: Site, key_id: str) -> None:
    secret = await server.api_key("admin")
    refused = await server.call("DELETE", f"/v1/api-keys/{key_id}", token=secret)
    assert refused.status in (400, 404)


@pytest.mark.parametrize("permissions", ["read", "write"])
async def test_only_an_admin_makes_keys(server: Site, permissions: Any) -> None:
    secret = await server.api_key(permissions)
    refused = await server.post("/v1/api-keys", {"permissions": "admin"}, token=secret)
    assert refused.status == 403
    assert (await server.get("/v1/api-keys", token=secret)).status == 403
    assert (await server.call("DELETE", "/v1/api-keys/key_x", token=secret)).status == 403


async def test_an_unknown_permission_is_refused(server: Site) -> None:
    secret = await server.api_key("admin")
    refused = await server.post("/v1/api-keys", {"permissions": "root"}, token=secret)
    assert (refused.status, refused.fields) == (400, ["permissions"])


async def test_keys_are_bounded(server: Site) -> None:
    secret = await server.api_key("admin")
    for _ in range(99):
        await server.api_key("read")
    assert (await server.post("/v1/api-keys", {}, token=secret)).status == 409


async def test_too_many_sign_ins_at_once_are_turned_away() -> None:
    passwords = Passwords(cost=4)
    tried = await asyncio.gather(
        *(passwords.matches("x", None) for _ in range(100)), return_exceptions=True
    )
    assert any(isinstance(error, Overloaded) for error in tried)
    assert tried.count(False) >= 64
    passwords.close()


def test_plans_are_those_of_the_seed() -> None:
    retention = {name: limits.retention for name, limits in PLANS.items()}
    assert retention == {
        "free": 86_400,
        "starter": 604_800,
        "pro": 2_592_000,
        "team": 7_776_000,
        "unlimited": 7_776_000,
    }
    assert PLANS["unlimited"].events_per_month is None
    assert [PLANS[name].sources for name in ("free", "starter", "pro", "team")] == [3, 10, 50, 200]
