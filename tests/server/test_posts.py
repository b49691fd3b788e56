"""`Idempotency-Key` on POSTs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec
import pytest
from litestar import Router, post

from tests.support.site import site
from waystation.accounts.tables import ApiKey
from waystation.patterns import Record, fingerprint
from waystation.seam import Running, System
from waystation.systems import SYSTEMS

if TYPE_CHECKING:
    from tests.support.site import Site
    from waystation.clock import ManualClock

PATH = "/v1/api-keys"


async def keys_made(server: Site) -> int:
    """How many keys there are besides the one that the test calls with."""
    page = await server.runtime.store.scan(ApiKey)
    return len(page.items) - 1


async def test_a_repeated_post_gets_the_first_answer(server: Site) -> None:
    token = await server.api_key()
    first = await server.post(PATH, {"name": "a"}, token=token, key="k-1")
    again = await server.post(PATH, {"name": "a"}, token=token, key="k-1")
    assert first.status == again.status == 201
    assert first.body == again.body
    assert "idempotent-replayed" not in first.headers
    assert again.headers["idempotent-replayed"] == "true"
    assert await keys_made(server) == 1


async def test_without_a_key_every_post_is_its_own(server: Site) -> None:
    token = await server.api_key()
    for _ in range(2):
        await server.post(PATH, {"name": "a"}, token=token)
    assert await keys_made(server) == 2


async def test_another_payload_is_refused(server: Site) -> None:
    token = await server.api_key()
    await server.post(PATH, {"name": "a"}, token=token, key="k-1")
    refused = await server.post(PATH, {"name": "b"}, token=token, key="k-1")
    assert (refused.status, refused.json["code"]) == (422, "key_reused")
    assert await keys_made(server) == 1


async def test_a_replay_does_not_show_what_the_caller_may_not_have(server: Site) -> None:
    admin, reader = await server.api_key("admin"), await server.api_key("read")
    assert (await server.post(PATH, {"name": "a"}, token=admin, key="k-1")).status == 201
    assert (await server.post(PATH, {"name": "a"}, token=reader, key="k-1")).status == 403


async def test_accounts_do_not_share_keys(server: Site) -> None:
    ann, bob = await server.api_key(), await server.api_key(email="bob@example.com")
    answers = [
        await server.post(PATH, {"name": "a"}, token=token, key="k-1") for token in (ann, bob)
    ]
    assert answers[0].json["key"] != answers[1].json["key"]


async def test_of_many_at_once_one_is_done(server: Site) -> None:
    token = await server.api_key()
    answers = await asyncio.gather(
        *(server.post(PATH, {"name": "a"}, token=token, key="k-1") for _ in range(10))
    )
    assert await keys_made(server) == 1
    for answer in answers:
        assert answer.status in (201, 409)
        if answer.status == 409:
            assert answer.json["code"] == "in_progress"
            assert int(answer.headers["retry-after"]) >= 1


async def test_a_refusal_is_repeated_too(server: Site) -> None:
    token = await server.api_key()
    first = await server.post(PATH, {"permissions": "root"}, token=token, key="k-1")
    again = await server.post(PATH, {"permissions": "root"}, token=token, key="k-1")
    assert (first.status, again.status) == (400, 400)
    assert again.headers["idempotent-replayed"] == "true"


async def test_a_refused_caller_may_come_again_with_the_right_token(server: Site) -> None:
    reader = await server.api_key("read")
    assert (await server.post(PATH, {"name": "a"}, token=reader, key="k-1")).status == 403
    assert (await server.post(PATH, {"name": "a"}, token="nonsense", key="k-1")).status == 401
    admin = await server.api_key("admin")
    assert (await server.post(PATH, {"name": "a"}, token=admin, key="k-1")).status == 201


async def test_a_fault_of_ours_is_not_repeated(clock: ManualClock) -> None:
    asked = 0

    @post("/v1/flaky")
    async def flaky() -> None:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise ZeroDivisionError

    router = Router(path="/", route_handlers=[flaky])
    system = System(name="flaky", open=lambda parts: Running(routers=lambda: [router]))
    async with site(clock, systems=[*SYSTEMS, system]) as server:
        token = await server.api_key()
        assert (await server.post("/v1/flaky", token=token, key="k-1")).status == 500
        assert (await server.post("/v1/flaky", token=token, key="k-1")).status == 201
        assert (await server.post("/v1/flaky", token=token, key="k-1")).status == 201
    assert asked == 2


async def test_an_answer_is_forgotten_after_a_day(server: Site, clock: ManualClock) -> None:
    token = await server.api_key()
    await server.post(PATH, {"name": "a"}, token=token, key="k-1")
    clock.advance(86_401)
    await server.post(PATH, {"name": "a"}, token=token, key="k-1")
    assert await keys_made(server) == 2


async def test_secrets_in_answers_are_kept_encrypted(server: Site) -> None:
    token = await server.api_key()
    secret = (await server.post(PATH, {"name": "a"}, token=token, key="k-1")).json["key"]
    page = await server.runtime.store.scan(Record)
    assert page.items
    assert secret.encode() not in b"".join(record.result or b"" for record in page.items)


async def test_a_sign_up_can_be_repeated(server: Site) -> None:
    body = {"email": "ann@example.com", "password": "correct horse", "name": "Ann"}
    first = await server.post("/v1/auth/signup", body, key="k-1")
    again = await server.post("/v1/auth/signup", body, key="k-1")
    assert (first.status, again.status) == (201, 201)
    assert first.json == again.json


async def test_a_lost_refresh_is_repeated_from_another_address(server: Site) -> None:
    """As a phone does that has changed networks, whatever it still says of itself."""
    tokens = await server.sign_up()
    body = {"refresh_token": tokens["refresh_token"]}
    first = await server.post("/v1/auth/refresh", body, key="r-1", token=tokens["access_token"])
    again = await server.post("/v1/auth/refresh", body, key="r-1")
    assert (first.status, again.status) == (200, 200)
    assert first.json == again.json


async def test_tokens_are_repeated_for_a_minute_only(server: Site, clock: ManualClock) -> None:
    """After that, a refresh token that comes again is one that somebody has copied."""
    tokens = await server.sign_up()
    body = {"refresh_token": tokens["refresh_token"]}
    assert (await server.post("/v1/auth/refresh", body, key="r-1")).status == 200
    clock.advance(61)
    assert (await server.post("/v1/auth/refresh", body, key="r-1")).status == 401


async def test_strangers_do_not_share_keys(server: Site) -> None:
    for n in range(2):
        account = {"email": f"u{n}@example.com", "password": "correct horse", "name": "U"}
        assert (await server.post("/v1/auth/signup", account, key="1")).status == 201


async def test_a_password_leaves_no_fast_hash(server: Site) -> None:
    body = {"email": "ann@example.com", "password": "correct horse", "name": "Ann"}
    await server.post("/v1/auth/signup", body, key="k-1")
    page = await server.runtime.store.scan(Record)
    [record] = page.items
    sent = msgspec.json.encode(body)
    for guess in (["/v1/auth/signup", b"", sent], sent):
        assert record.fingerprint != fingerprint(guess)
    assert "http:anonymous:" in record.scope


async def test_strangers_cannot_make_us_remember(server: Site) -> None:
    for n in range(5):
        await server.post("/nothing/at/all", {}, key=f"k-{n}")
        await server.post(PATH, {"name": "a"}, token="nonsense", key=f"k-{n}")
    assert (await server.runtime.store.scan(Record)).items == []
    statuses = [
        (await server.post("/v1/auth/refresh", {"refresh_token": "x"}, key=f"k-{n}")).status
        for n in range(121)
    ]
    assert statuses == [401] * 120 + [429]


@pytest.mark.parametrize("key", ["", "x" * 256, "ü"])
async def test_a_bad_key_is_refused_by_name(server: Site, key: str) -> None:
    token = await server.api_key()
    refused = await server.post(PATH, {"name": "a"}, token=token, key=key)
    assert (refused.status, refused.fields) == (400, ["Idempotency-Key"])


async def test_the_header_means_nothing_to_a_get(server: Site) -> None:
    token = await server.api_key()
    for _ in range(2):
        answer = await server.get("/v1/me", token=token, key="k-1")
        assert "idempotent-replayed" not in answer.headers
