# ruff: noqa: F401, F811 - fixtures of another file
"""Rows of other services in shapes that ours never have: nobody's list or webhook breaks by one."""

from __future__ import annotations

import asyncio
import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from tests.security.test_foreign_rows import (
    Ferryhook,
    clock,
    ferryhook,
    heard,
    hub,
    me,
)
from waystation.relay.tables import Source

if TYPE_CHECKING:
    from tests.relay.hub import Hub
    from tests.support.receiver import Receiver


@pytest.mark.parametrize(
    ("more", "statuses"),
    [
        ({"status": "disabled"}, ["delivered", "pending"]),
        ({"failureCount": "3"}, ["delivered", "pending"]),
        ({"retryConfig": [Decimal(30), Decimal(60)]}, ["delivered", "delivered"]),
        ({"filters": []}, ["delivered", "delivered"]),
        ({"timeoutSeconds": Decimal("2.5")}, ["delivered", "delivered"]),
        ({"createdAt": Decimal(1_700_000_000)}, ["delivered", "delivered"]),
        ({"name": None}, ["delivered", "delivered"]),
        ({"signingSecret": None}, ["delivered", "delivered"]),
        ({"concurrency": Decimal(0)}, ["delivered", "delivered"]),
    ],
)
async def test_a_connection_of_any_shape_leaves_the_others_alone(
    hub: Hub,
    ferryhook: Ferryhook,
    receiver: Receiver,
    more: dict[str, Any],
    statuses: list[str],
) -> None:
    source = await hub.source()
    theirs = ferryhook.connect(await me(hub), source, f"{receiver.url}/theirs", **more)
    await hub.connect(source, f"{receiver.url}/ours")
    event = await hub.event(await hub.sent(source))
    assert sorted(delivery["status"] for delivery in event["deliveries"]) == statuses
    assert "/ours" in [got.path for got in receiver.got]
    shown = await hub.get(f"/v1/connections/{theirs}")
    assert len((await hub.get(f"/v1/sources/{source}/connections"))["data"]) == 2
    if statuses == ["delivered", "pending"]:
        assert (shown["status"], bool(shown["disabled_reason"])) == ("paused", True)


@pytest.mark.parametrize(
    "missing", ["sourceIp", "method", "expiresAt", "body", "headers", "userId", "receivedAt"]
)
async def test_an_event_of_any_shape_leaves_the_list_alone(
    hub: Hub,
    ferryhook: Ferryhook,
    receiver: Receiver,
    missing: str,
) -> None:
    source = await hub.source()
    ours = await hub.sent(source)
    theirs = ferryhook.ingest(await me(hub), source, hub.clock(), **{missing: None})
    listed = await hub.get(f"/v1/sources/{source}/events")
    assert {event["id"] for event in listed["data"]} == {ours, theirs}
    if missing != "userId":
        assert (await hub.event(theirs))["id"] == theirs


@pytest.mark.parametrize(
    ("attribute", "value", "status"),
    [("status", "archived", 404), ("eventCount", "7", 404), ("status", None, 200)],
)
async def test_a_source_of_any_shape_leaves_the_account_alone(
    hub: Hub,
    ferryhook: Ferryhook,
    attribute: str,
    value: Any,
    status: int,
) -> None:
    source, other = await hub.source(), await hub.source()
    key = Source.key(await me(hub), source)
    change: dict[str, Any] = {"ExpressionAttributeNames": {"#a": attribute}}
    change |= {"UpdateExpression": "REMOVE #a"}
    if value is not None:
        change |= {"UpdateExpression": "SET #a = :v", "ExpressionAttributeValues": {":v": value}}
    ferryhook.main.update_item(Key={"PK": key.pk, "SK": key.sk}, **change)
    hub.clock.advance(5)
    assert (await hub.send(source)).status == status
    assert (await hub.send(other)).status == 200
    assert len((await hub.get("/v1/sources"))["data"]) >= 2


async def test_their_headers_are_headers_whatever_their_case(
    hub: Hub,
    ferryhook: Ferryhook,
    receiver: Receiver,
) -> None:
    """Framing, credentials and hop-by-hop headers do not pass, and filters see the rest."""
    source = await hub.source()
    wanted = [{"path": "headers.x-github-event", "operator": "equals", "value": "push"}]
    transform = {"type": "field_map", "rules": [{"from": "$.theirs", "to": "something_long"}]}
    await hub.connect(source, receiver.url, filters=wanted, transform=transform)
    headers = {
        "X-GitHub-Event": "push",
        "Host": "ferry.example",
        "Content-Length": "5",
        "Transfer-Encoding": "chunked",
        "Authorization": "Bearer hush",
        "X-Forwarded-For": "192.0.2.7",
        "Connection": "X-Private",
        "X-Private": "1",
        "X-Many": ["1", "2"],
    }
    ferryhook.ingest(await me(hub), source, hub.clock(), headers=json.dumps(headers))
    await heard(hub)
    await hub.later(11)
    [got] = receiver.got
    assert got.body == b'{"something_long":true}'
    assert got.headers["x-github-event"] == "push"
    assert got.headers["x-many"] == "1, 2"
    assert "hush" not in str(got.headers)
    assert not {"x-forwarded-for", "x-private", "transfer-encoding"} & got.headers.keys()
    assert got.headers["host"] == receiver.url.removeprefix("http://")


async def test_their_status_is_what_an_event_is_listed_by(
    hub: Hub,
    ferryhook: Ferryhook,
    receiver: Receiver,
) -> None:
    source = await hub.source()
    await hub.connect(source, receiver.url)
    event_id = await hub.sent(source)
    ferryhook.set_status(event_id, "failed")
    await heard(hub)
    path = f"/v1/sources/{source}/events?status="
    assert [e["id"] for e in (await hub.get(path + "failed"))["data"]] == [event_id]
    assert (await hub.get(path + "delivered"))["data"] == []


async def test_the_feed_itself_leads_to_their_events(
    hub: Hub,
    ferryhook: Ferryhook,
    receiver: Receiver,
) -> None:
    source = await hub.source()
    await hub.connect(source, receiver.url)
    [runner] = [f for f in hub.runtime.feeds if f.watcher.name == "relay-adoption"]
    stopping = asyncio.Event()
    following = asyncio.create_task(runner.run(stopping))
    try:
        ferryhook.ingest(await me(hub), source, hub.clock())
        async with asyncio.timeout(60):
            while not receiver.got:
                await hub.later(11)
                await asyncio.sleep(0.1)
    finally:
        stopping.set()
        await following
    assert receiver.got[0].body == b'{"theirs":true}'
