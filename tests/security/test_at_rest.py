"""What lies in the database: no credential in clear, and nothing that breaks when it cannot be
opened."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.relay.hub import hub_at
from waystation.clock import ManualClock
from waystation.relay.tables import Connection, Event, Source
from waystation.store import exists, key_of, set_to

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.relay.hub import Hub
    from tests.support.receiver import Receiver

WRONG = "sealed:AAAA"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(float(int(time.time())))


@pytest.fixture
async def hub(clock: ManualClock, tmp_path: Path) -> AsyncIterator[Hub]:
    async with hub_at(clock, store=f"sqlite:///{tmp_path}/way.db") as running:
        yield running


async def stored(hub: Hub, created: dict[str, Any]) -> Connection:
    found = await hub.relay.directory.find_connection(created["id"])
    assert found is not None
    return found


async def test_queries_and_keys_are_not_in_clear_in_the_file(
    hub: Hub, receiver: Receiver, tmp_path: Path
) -> None:
    source = await hub.source()
    await hub.connect(source, f"{receiver.url}/there?api_key=hush-destination")
    secrets = {
        "X-Api-Key": "hush-key",
        "X-Gitlab-Token": "hush-token",
        "Cookie": "session=hush-cookie",
        "Authorization": "Bearer hush-bearer",
    }
    event_id = await hub.sent(source, rest="?signature=hush-query", headers=secrets)
    [got] = receiver.got
    assert got.query == "api_key=hush-destination&signature=hush-query"
    assert (got.headers["x-api-key"], got.headers["x-gitlab-token"]) == ("hush-key", "hush-token")
    event = await hub.event(event_id)
    assert event["query"] == "signature=hush-query"
    assert event["headers"]["x-api-key"] == "hush-key"
    [attempt] = event["deliveries"][0]["attempts"]
    assert attempt["destination_url"] == f"{receiver.url}/there"
    files = list(tmp_path.glob("way.db*"))
    written = b"".join(file.read_bytes() for file in files)
    assert event_id.encode() in written
    assert b"hush" not in written


async def test_rules_see_what_is_sealed(hub: Hub, receiver: Receiver) -> None:
    source = await hub.source()
    rules = [
        {"path": "query.mode", "operator": "equals", "value": "live"},
        {"path": "headers.x-api-key", "operator": "equals", "value": "good"},
    ]
    await hub.connect(source, receiver.url, filters=rules)
    good = await hub.sent(source, rest="?mode=live", headers={"X-Api-Key": "good"})
    bad = await hub.sent(source, rest="?mode=live", headers={"X-Api-Key": "bad"})
    assert (await hub.statuses(good)) == ["delivered", "delivered"]
    assert (await hub.statuses(bad)) == ["filtered", "filtered"]


async def test_a_destination_keeps_its_query_when_something_else_changes(
    hub: Hub, receiver: Receiver
) -> None:
    source = await hub.source()
    created = await hub.connect(source, f"{receiver.url}/?a=1")
    changed = await hub.patch(created, name="other")
    assert changed["destination_url"] == created["destination_url"] == f"{receiver.url}/?a=1"
    changed = await hub.patch(created, destination_url=receiver.url)
    assert changed["destination_url"] == receiver.url


@pytest.mark.parametrize("field", ["signing_secret", "headers", "destination_query"])
async def test_a_connection_that_cannot_be_opened_says_so(
    hub: Hub, receiver: Receiver, field: str
) -> None:
    source = await hub.source()
    created = await hub.connect(source, f"{receiver.url}/?a=1", headers={"X-Key": "x"})
    await hub.runtime.store.update(
        key_of(await stored(hub, created)), set_to(field, WRONG), when=exists()
    )
    shown = await hub.get(f"/v1/connections/{created['id']}")
    assert ("[unreadable]" in str(shown)) == (field != "signing_secret")
    tested = await hub.call("POST", f"/v1/connections/{created['id']}/test")
    assert (tested.status, tested.json["ok"]) == (200, False)
    assert "cannot be used as it is stored" in tested.json["error"]
    event = await hub.event(await hub.sent(source))
    assert event["deliveries"][0]["status"] == "retrying"
    assert receiver.got == []


async def test_rotating_mends_a_secret_that_cannot_be_opened(hub: Hub, receiver: Receiver) -> None:
    source = await hub.source()
    created = await hub.connect(source, receiver.url)
    key = key_of(await stored(hub, created))
    await hub.runtime.store.update(key, set_to("signing_secret", WRONG), when=exists())
    path = f"/v1/connections/{created['id']}"
    assert (await hub.call("GET", f"{path}/secrets")).status == 409
    assert (await hub.call("POST", f"{path}/rotate-secret")).status == 201
    assert (await hub.statuses(await hub.sent(source))) == ["delivered", "delivered"]


async def test_a_source_whose_secrets_cannot_be_opened_takes_nothing(hub: Hub) -> None:
    source = await hub.source(signing_secrets=["a secret"])
    user = (await hub.get("/v1/me"))["id"]
    key = Source.key(user, source)
    await hub.runtime.store.update(key, set_to("signing_secret", WRONG), when=exists())
    hub.relay.directory.forget(source)
    assert (await hub.send(source)).status == 503
    assert (await hub.get(f"/v1/sources/{source}"))["signing_secrets"] == 0


@pytest.mark.parametrize("filters", [None, [{"path": "body.n", "operator": "exists"}]])
async def test_an_event_that_cannot_be_opened_fails_its_deliveries(
    hub: Hub, receiver: Receiver, filters: Any
) -> None:
    source = await hub.source()
    created = await hub.connect(source, receiver.url, filters=filters, status="paused")
    event_id = await hub.sent(source, rest="?a=1")
    event = await hub.relay.store.get(key_of(await found(hub, source, event_id)))
    assert event is not None
    await hub.runtime.store.update(key_of(event), set_to("sealed", WRONG), when=exists())
    shown = await hub.event(event_id)
    assert (shown["query"], shown["body"]) == ("", '{"n": 1}')
    again = await hub.call("POST", f"/v1/events/{event_id}/replay", {})
    assert again.status == 202
    await hub.patch(created, status="active")
    await hub.settle()
    replayed = (await hub.event(event_id))["deliveries"][1]
    assert replayed["status"] == "failed"
    assert "cannot be" in replayed["error"]
    connection = await hub.get(f"/v1/connections/{created['id']}")
    assert connection["status"] == "active"
    fine = await hub.sent(source)  # it is not the connection's fault
    assert (await hub.statuses(fine)) == ["delivered", "delivered"]
    receiver.got.clear()
    assert receiver.got == []


async def found(hub: Hub, source: str, event_id: str) -> Event:
    page = await hub.runtime.store.query(Event.query(source))
    return next(event for event in page.items if event.event_id == event_id)


async def test_two_processes_share_a_sources_minute(
    hub: Hub, clock: ManualClock, tmp_path: Path
) -> None:
    tokens = await hub.server.sign_up("free@example.com")
    source = (
        await hub.call("POST", "/v1/sources", {"name": "x"}, token=tokens["access_token"])
    ).json["id"]
    async with hub_at(clock, store=f"sqlite:///{tmp_path}/way.db") as other:
        answers = [await process.send(source) for _ in range(60) for process in (hub, other)]
        statuses = [answer.status for answer in answers]
        assert (statuses.count(200), statuses.count(429)) == (100, 20)
        clock.advance(60 - clock() % 60)
        assert [(await process.send(source)).status for process in (hub, other)] == [200, 200]


async def test_what_one_process_refused_is_not_counted_in_the_next_minute(
    hub: Hub, clock: ManualClock, tmp_path: Path
) -> None:
    tokens = await hub.server.sign_up("free@example.com")
    token = tokens["access_token"]
    source = (await hub.call("POST", "/v1/sources", {"name": "x"}, token=token)).json["id"]
    clock.advance(60 - clock() % 60)
    async with hub_at(clock, store=f"sqlite:///{tmp_path}/way.db") as other:
        assert {(await hub.send(source)).status for _ in range(100)} == {200}
        clock.advance(50)
        assert {(await other.send(source)).status for _ in range(100)} == {429}
        clock.advance(10)
        assert {(await other.send(source)).status for _ in range(100)} == {200}


async def test_a_clock_that_was_wrong_once_stops_nobody_for_long(
    hub: Hub, clock: ManualClock, tmp_path: Path
) -> None:
    tokens = await hub.server.sign_up("free@example.com")
    token = tokens["access_token"]
    source = (await hub.call("POST", "/v1/sources", {"name": "x"}, token=token)).json["id"]
    ahead = ManualClock(clock() + 3_600)
    async with hub_at(ahead, store=f"sqlite:///{tmp_path}/way.db") as wrong:
        assert (await wrong.send(source)).status == 200
    for _ in range(3):
        clock.advance(62)
        assert {(await hub.send(source)).status for _ in range(90)} == {200}


async def test_what_proxies_repeat_is_sealed_too(hub: Hub, tmp_path: Path) -> None:
    source = await hub.source()
    repeated = ("X-Original-URI", "X-Envoy-Original-Path", "Referer", "X-Forwarded-Url", "X-Odd")
    headers = dict.fromkeys(repeated, f"/in/{source}?token=hush-query")
    await hub.sent(source, rest="?token=hush-query", headers=headers | {"X-Pwd": "hush-pwd"})
    written = b"".join(file.read_bytes() for file in tmp_path.glob("way.db*"))
    assert source.encode() in written
    assert b"hush" not in written


async def test_our_query_is_not_sent_to_where_somebody_else_points(
    hub: Hub, receiver: Receiver
) -> None:
    source = await hub.source()
    created = await hub.connect(source, f"{receiver.url}/old?api_key=hush")
    key = key_of(await stored(hub, created))
    elsewhere = set_to("destination_url", f"{receiver.url}/new?x=1")
    await hub.runtime.store.update(key, elsewhere, when=exists())
    await hub.sent(source)
    assert [(got.path, got.query) for got in receiver.got] == [("/new", "x=1")]


@pytest.mark.parametrize("answer", [b"NOT HTTP hello\r\n\r\n", b"", b"HTTP/1.1 999999 x\r\n\r\n"])
async def test_an_endpoint_that_speaks_nonsense_makes_us_write_down_no_secret(
    hub: Hub, answer: bytes
) -> None:
    async def nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(nonsense, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        source = await hub.source()
        await hub.connect(source, f"http://127.0.0.1:{port}/x?api_key=HUSHHUSH")
        event = await hub.event(await hub.sent(source, rest="?token=HUSHQUERY"))
    [delivery] = event["deliveries"]
    assert delivery["status"] == "retrying"
    assert delivery["error"]
    assert "HUSH" not in str(delivery)


async def test_a_refused_connection_does_not_show_the_address(hub: Hub) -> None:
    source = await hub.source()
    await hub.connect(source, "http://localhost:1/")
    event = await hub.event(await hub.sent(source))
    [delivery] = event["deliveries"]
    assert delivery["error"] == "no connection: Connection refused"


async def test_a_short_query_hides_no_content_type(hub: Hub) -> None:
    source = await hub.source()
    event = await hub.event(await hub.sent(source, rest="?json"))
    assert event["content_type"] == "application/json"
