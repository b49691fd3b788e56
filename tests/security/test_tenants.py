"""A hostile tenant: more than its share, and what its keys must not reach."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from tests.relay.hub import hub_at
from tests.support.receiver import Reaction
from waystation.accounts import User
from waystation.errors import TooManyRequests, Unauthenticated
from waystation.relay.delivering.lanes import Lanes
from waystation.relay.tables import Connection
from waystation.store import exists, set_to

if TYPE_CHECKING:
    from tests.relay.hub import Hub
    from tests.support.receiver import Receiver
    from tests.support.site import Site
    from waystation.clock import ManualClock


def connection(account: str, n: int) -> Connection:
    return Connection(
        connection_id=f"conn_{account}_{n}",
        source_id="src_1",
        user_id=account,
        name="x",
        signing_secret="x",
        concurrency=100,
        created_at="",
        updated_at="",
    )


def filled(lanes: Lanes, account: str) -> int:
    """How many places an account gets that asks for all it can."""
    asked = [lanes.of(connection(account, n)) for n in range(20) for _ in range(100)]
    return sum(map(lanes.reserve, asked))


def test_no_account_takes_what_others_need(clock: ManualClock) -> None:
    lanes = Lanes(clock)
    shares = [filled(lanes, account) for account in ("a", "b", "c", "d", "e")]
    assert shares == [500, 250, 125, 63, 31]
    assert lanes.reserve(lanes.of(connection("newcomer", 1)))


def test_places_that_are_given_back_can_be_had_again(clock: ManualClock) -> None:
    lanes = Lanes(clock, most=10)
    assert filled(lanes, "a") == 5
    for _ in range(5):
        lanes.release(lanes.of(connection("a", 0)))
    assert lanes.running == 0
    assert filled(lanes, "b") == 5


async def test_slow_endpoints_of_two_accounts_do_not_delay_a_third(
    hub: Hub, receiver: Receiver
) -> None:
    hub.relay.tools.lanes.most = 8  # a thousand would need a thousand sockets
    receiver.decide = lambda got: Reaction(hang=got.path == "/slow")
    for name in ("a", "b"):
        key = await hub.server.api_key(email=f"{name}@example.com")
        source = (await hub.call("POST", "/v1/sources", {"name": "x"}, token=key)).json["id"]
        body = {"name": "x", "destination_url": f"{receiver.url}/slow", "timeout": 5}
        await hub.call("POST", f"/v1/sources/{source}/connections", body, token=key)
        for _ in range(20):
            await hub.send(source)
    source = await hub.source()
    await hub.connect(source, f"{receiver.url}/quick")
    event_id = (await hub.send(source)).json["id"]
    async with asyncio.timeout(4):  # less than the slow ones have
        while (await hub.statuses(event_id))[0] != "delivered":
            await asyncio.sleep(0.01)
    receiver.decide = None


async def test_an_endpoint_that_asks_for_a_pause_gets_it(hub: Hub, receiver: Receiver) -> None:
    """Everything for it waits, not only what was refused."""
    source = await hub.source()
    await hub.connect(source, receiver.url)
    receiver.answers = [Reaction(429, b"", {"Retry-After": "30"})]
    await hub.sent(source)
    for _ in range(8):
        await hub.sent(source)
    await hub.later(3)
    assert len(receiver.got) == 1
    await hub.later(30)
    assert len(receiver.got) >= 9


@pytest.mark.parametrize("status", [429, 502, 504])
async def test_a_busy_endpoint_rests_for_a_moment(
    hub: Hub, receiver: Receiver, status: int
) -> None:
    source = await hub.source()
    await hub.connect(source, receiver.url)
    receiver.answers = [Reaction(status)]
    await hub.sent(source)
    await hub.sent(source)
    assert len(receiver.got) == 1
    await hub.later(6)
    assert len(receiver.got) == 2


async def test_as_many_tails_as_are_allowed_and_no_more(hub: Hub) -> None:
    """However many ask at the same time."""
    headers = {"Authorization": f"Bearer {hub.key}"}
    url = f"{hub.server.url}/v1/events/tail"
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        answers = await asyncio.gather(*(http.get(url, headers=headers) for _ in range(100)))
        assert sum(answer.status == 200 for answer in answers) == 10
        for answer in answers:
            answer.close()


async def test_a_place_for_a_tail_that_nobody_comes_for_is_given_back(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waystation.relay.tail._CLAIM_SECONDS", 0.01)
    tails: Any = hub.runtime.provided["tails"]
    for _ in range(10):
        tails.reserve("usr_x")
    with pytest.raises(TooManyRequests):
        tails.reserve("usr_x")
    await asyncio.sleep(0.05)
    tails.reserve("usr_x")


async def test_a_write_key_does_not_reach_hidden_headers(hub: Hub, receiver: Receiver) -> None:
    source = await hub.source()
    created = await hub.connect(source, receiver.url, headers={"X-Api-Key": "hush"})
    path = f"/v1/connections/{created['id']}"
    writer = await hub.server.api_key("write")
    elsewhere = {"destination_url": f"{receiver.url}/mine"}
    assert (await hub.call("PATCH", path, elsewhere, token=writer)).status == 403
    assert (await hub.call("POST", f"{path}/test", token=writer)).status == 200
    assert [got.path for got in receiver.got] == ["/"]
    own = elsewhere | {"headers": {"X-Api-Key": "mine"}}
    assert (await hub.call("PATCH", path, own, token=writer)).status == 200
    assert (await hub.call("PATCH", path, {"name": "new"}, token=writer)).status == 200
    assert (await hub.call("PATCH", path, {"destination_url": receiver.url})).status == 200


async def test_rotating_again_and_again_drops_no_valid_secret(hub: Hub, receiver: Receiver) -> None:
    source = await hub.source()
    created = await hub.connect(source, receiver.url)
    path = f"/v1/connections/{created['id']}"
    statuses = [(await hub.call("POST", f"{path}/rotate-secret")).status for _ in range(6)]
    assert statuses == [201, 201, 201, 201, 409, 409]
    valid = [entry["signing_secret"] for entry in (await hub.get(f"{path}/secrets"))["data"]]
    assert created["signing_secret"] in valid
    hub.clock.advance(86_401)
    assert (await hub.call("POST", f"{path}/rotate-secret")).status == 201


async def test_replays_cost_quota(hub: Hub, receiver: Receiver) -> None:
    tokens = await hub.server.sign_up("free@example.com")
    token = tokens["access_token"]
    source = (await hub.call("POST", "/v1/sources", {"name": "x"}, token=token)).json["id"]
    body = {"name": "x", "destination_url": receiver.url}
    await hub.call("POST", f"/v1/sources/{source}/connections", body, token=token)
    event_id = await hub.sent(source)
    before = (await hub.call("GET", "/v1/usage", token=token)).json["events"]
    again = await hub.call("POST", f"/v1/events/{event_id}/replay", token=token)
    assert again.status == 202
    bulk = await hub.call("POST", "/v1/events/replay", {"source_id": source}, token=token)
    await hub.settle()
    assert (await hub.call("GET", "/v1/usage", token=token)).json["events"] == before + 2
    assert bulk.status == 202


async def test_a_plan_that_is_used_up_replays_nothing(hub: Hub, receiver: Receiver) -> None:
    tokens = await hub.server.sign_up("free@example.com")
    token = tokens["access_token"]
    me = (await hub.call("GET", "/v1/me", token=token)).json["id"]
    source = (await hub.call("POST", "/v1/sources", {"name": "x"}, token=token)).json["id"]
    body = {"name": "x", "destination_url": receiver.url}
    await hub.call("POST", f"/v1/sources/{source}/connections", body, token=token)
    event_id = await hub.sent(source)
    await use_up(hub, me)
    assert (await hub.call("POST", f"/v1/events/{event_id}/replay", token=token)).status == 429
    bulk = await hub.call("POST", "/v1/events/replay", {"source_id": source}, token=token)
    await hub.settle()
    replay = await hub.call("GET", f"/v1/replays/{bulk.json['id']}", token=token)
    assert replay.json["status"] == "failed"
    assert "allows 5000 events a month" in replay.json["error"]
    assert len(receiver.got) == 1


async def use_up(hub: Hub, user_id: str) -> None:
    key = User.key(user_id)
    await hub.runtime.store.update(key, set_to("usage_this_month", 5_000), when=exists())


async def test_strangers_cannot_lock_the_owner_out(server: Site) -> None:
    await server.sign_up("ann@example.com")
    accounts = server.accounts
    for n in range(120):
        with pytest.raises((Unauthenticated, TooManyRequests)):
            await accounts.log_in("ann@example.com", "wrong horse", f"198.51.100.{n}")
    with pytest.raises(TooManyRequests):  # not from yet another address
        await accounts.log_in("ann@example.com", "correct horse", "203.0.113.9")
    right = {"email": "ann@example.com", "password": "correct horse"}
    assert (await server.post("/v1/auth/login", right)).status == 200


async def test_guessing_from_one_address_is_stopped(server: Site) -> None:
    await server.sign_up("ann@example.com")
    wrong = {"email": "ann@example.com", "password": "wrong horse"}
    answers = [(await server.post("/v1/auth/login", wrong)).status for _ in range(12)]
    assert answers == [401] * 10 + [429] * 2


async def test_error_texts_do_not_show_what_a_name_resolves_to(clock: ManualClock) -> None:
    """A name of the operator's own network must not be a way to look around in it."""
    async with hub_at(clock, env="prod") as hub:
        source = await hub.source()
        created = await hub.connect(source, "http://public.example/")
        local = set_to("destination_url", "http://localhost:1/")
        key = Connection.key(source, created["id"])
        await hub.runtime.store.update(key, local, when=exists())
        event = await hub.event(await hub.sent(source))
    error = event["deliveries"][0]["error"]
    assert "refused" in error
    assert "127.0.0.1" not in error
    assert "::1" not in error


async def test_the_owners_sign_ins_give_a_guesser_no_more_tries(server: Site) -> None:
    await server.sign_up("ann@example.com")
    right = {"email": "ann@example.com", "password": "correct horse"}
    tried = 0
    for n in range(130):
        assert (await server.post("/v1/auth/login", right)).status == 200
        try:
            await server.accounts.log_in("ann@example.com", "wrong horse", f"198.51.100.{n}")
        except Unauthenticated:
            tried += 1
        except TooManyRequests:
            pass
    assert tried == 100
