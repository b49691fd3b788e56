"""Rows that another service, such as Ferryhook, wrote into our tables through boto3.

Every one of them ends in a state that can be seen, works where it can, and keeps what we do not
know about it.
"""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any

import boto3
import pytest

from tests.relay.hub import hub_at
from waystation.clock import ManualClock
from waystation.relay.tables import events
from waystation.times import iso

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.relay.hub import Hub
    from tests.support.receiver import Receiver


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(float(int(time.time())))


class Ferryhook:
    """Another program with the same tables."""

    def __init__(self, url: str, env: str) -> None:
        dynamodb = boto3.resource("dynamodb", region_name="eu-west-1", endpoint_url=url)
        self.main = dynamodb.Table(f"{env}-ferryhook-main")
        self.events = dynamodb.Table(f"{env}-ferryhook-events")

    def connect(self, user_id: str, source_id: str, url: str, **more: Any) -> str:
        connection_id = f"conn_{uuid.uuid4().hex[:16]}"
        now = iso(time.time())
        self.main.put_item(
            Item={
                "PK": f"SRC#{source_id}",
                "SK": f"CONN#{connection_id}",
                "connectionId": connection_id,
                "sourceId": source_id,
                "userId": user_id,
                "name": "Theirs",
                "destinationUrl": url,
                "signingSecret": "a plain secret",
                "status": "active",
                "createdAt": now,
                "updatedAt": now,
                **more,
            }
        )
        return connection_id

    def ingest(self, user_id: str, source_id: str, at: float, **more: Any) -> str:
        event_id = f"evt_{uuid.uuid4().hex[:16]}"
        received = int(at * 1000)
        self.events.put_item(
            Item={
                "PK": f"SRC#{source_id}",
                "SK": f"EVT#{received}#{event_id}",
                "GSI1PK": f"EVTID#{event_id}",
                "GSI1SK": "EVENT",
                "eventId": event_id,
                "sourceId": source_id,
                "userId": user_id,
                "status": "received",
                "headers": '{"content-type":"application/json"}',
                "body": '{"theirs":true}',
                "sourceIp": "192.0.2.1",
                "contentType": "application/json",
                "method": "POST",
                "receivedAt": received,
                "expiresAt": int(at) + 86_400,
                **more,
            }
        )
        return event_id

    def set_status(self, event_id: str, status: str) -> None:
        row = self.event(event_id)
        self.events.update_item(
            Key={"PK": row["PK"], "SK": row["SK"]},
            UpdateExpression="SET #s = :s",
            ExpressionAttributeNames={"#s": "status"},
            ExpressionAttributeValues={":s": status},
        )

    def event(self, event_id: str) -> dict[str, Any]:
        [row] = self.events.query(
            IndexName="GSI1",
            KeyConditionExpression="GSI1PK = :id",
            ExpressionAttributeValues={":id": f"EVTID#{event_id}"},
        )["Items"]
        return dict(row)


async def heard(hub: Hub) -> None:
    """Let the relay hear of every change there has been."""
    feed = hub.runtime.store.changes(events, "relay-adoption")
    while changes := await feed.read():
        for change in changes:
            await hub.worker.due.adoption.notice(change)
        await feed.commit()


@pytest.fixture
async def hub(
    clock: ManualClock, dynamodb_url: str, moto_url: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Hub]:
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", dynamodb_url)
    async with hub_at(
        clock,
        store="dynamodb://eu-west-1",
        queue="sqs://eu-west-1",
        aws_endpoint_url=moto_url,
        env=f"t{uuid.uuid4().hex[:8]}",
        allow_networks=["127.0.0.0/8"],
    ) as running:
        yield running


@pytest.fixture
def ferryhook(hub: Hub, dynamodb_url: str) -> Ferryhook:
    return Ferryhook(dynamodb_url, hub.runtime.settings.env)


async def me(hub: Hub) -> str:
    return str((await hub.get("/v1/me"))["id"])


async def test_their_connection_is_found_by_its_id_and_delivers(
    hub: Hub, ferryhook: Ferryhook, receiver: Receiver
) -> None:
    source = await hub.source()
    theirs = ferryhook.connect(await me(hub), source, receiver.url)
    shown = await hub.get(f"/v1/connections/{theirs}")
    assert shown["name"] == "Theirs"
    event_id = await hub.sent(source)
    assert (await hub.statuses(event_id)) == ["delivered", "delivered"]
    assert receiver.got[0].headers["webhook-signature"].startswith("v1,")


async def test_to_another_account_their_connection_does_not_exist(
    hub: Hub, ferryhook: Ferryhook, receiver: Receiver
) -> None:
    source = await hub.source()
    theirs = ferryhook.connect(await me(hub), source, receiver.url)
    other = await hub.server.api_key(email="bob@example.com")
    for _ in range(2):
        assert (await hub.call("GET", f"/v1/connections/{theirs}", token=other)).status == 404
        await hub.get(f"/v1/sources/{source}/connections")


@pytest.mark.parametrize("config", ["[30, 60]", '{"maxRetries": 5}', "{", '"often"', "[-1, 1e999]"])
async def test_their_retries_end(
    hub: Hub, ferryhook: Ferryhook, receiver: Receiver, config: str
) -> None:
    source = await hub.source()
    ferryhook.connect(await me(hub), source, receiver.url, retryConfig=config)
    receiver.fail()
    event_id = await hub.sent(source)
    [delivery] = (await hub.event(event_id))["deliveries"]
    assert delivery["status"] == "retrying"
    assert len(delivery["attempts"]) == 1
    for _ in range(12):
        await hub.later(90_000)
    event = await hub.event(event_id)
    assert event["status"] == "failed"
    attempts = len(event["deliveries"][0]["attempts"])
    assert attempts == len(receiver.got) == (3 if config == "[30, 60]" else 8)


@pytest.mark.parametrize(
    "rules",
    [
        {"transform": '{"type": "lua", "code": "x"}'},
        {"transform": "not json"},
        {"filters": '[{"field": "a", "op": "is"}]'},
        {"filters": "not json"},
    ],
)
async def test_rules_that_we_cannot_read_fail_their_own_delivery(
    hub: Hub, ferryhook: Ferryhook, receiver: Receiver, rules: dict[str, str]
) -> None:
    source = await hub.source()
    ferryhook.connect(await me(hub), source, f"{receiver.url}/theirs", **rules)
    await hub.connect(source, f"{receiver.url}/ours")
    event = await hub.event(await hub.sent(source))
    assert sorted(d["status"] for d in event["deliveries"]) == ["delivered", "failed"]
    [failed] = [d for d in event["deliveries"] if d["status"] == "failed"]
    assert failed["error"]
    assert [got.path for got in receiver.got] == ["/ours"]
    assert len((await hub.get(f"/v1/sources/{source}/connections"))["data"]) == 2


async def test_their_paused_connection_keeps_its_events_and_costs_nothing(
    hub: Hub, ferryhook: Ferryhook, receiver: Receiver
) -> None:
    source = await hub.source()
    theirs = ferryhook.connect(await me(hub), source, receiver.url, status="paused")
    event_id = await hub.sent(source)
    for _ in range(3):
        await hub.later(61)
    assert (await hub.statuses(event_id)) == ["processing", "pending"]
    assert (
        await hub.call("PATCH", f"/v1/connections/{theirs}", {"status": "active"})
    ).status == 200
    await hub.settle()
    assert (await hub.statuses(event_id)) == ["delivered", "delivered"]


async def test_an_event_that_they_leave_lying_is_processed(
    hub: Hub, ferryhook: Ferryhook, receiver: Receiver, clock: ManualClock
) -> None:
    source = await hub.source()
    await hub.connect(source, receiver.url)
    event_id = ferryhook.ingest(await me(hub), source, clock())
    await heard(hub)
    await hub.later(11)
    assert (await hub.statuses(event_id)) == ["delivered", "delivered"]
    assert [got.body for got in receiver.got] == [b'{"theirs":true}']
    listed = await hub.get(f"/v1/sources/{source}/events?status=delivered")
    assert [event["id"] for event in listed["data"]] == [event_id]


async def test_an_event_that_they_process_themselves_is_left_to_them(
    hub: Hub, ferryhook: Ferryhook, receiver: Receiver, clock: ManualClock
) -> None:
    source = await hub.source()
    await hub.connect(source, receiver.url)
    event_id = ferryhook.ingest(await me(hub), source, clock())
    await heard(hub)
    ferryhook.set_status(event_id, "processing")
    await hub.later(11)
    assert (await hub.statuses(event_id)) == ["processing"]
    assert receiver.got == []


async def test_an_event_of_another_account_is_not_sent_for_it(
    hub: Hub, ferryhook: Ferryhook, receiver: Receiver, clock: ManualClock
) -> None:
    source = await hub.source()
    await hub.connect(source, receiver.url)
    ferryhook.ingest("usr_somebodyelse0000", source, clock())
    await heard(hub)
    await hub.later(11)
    assert receiver.got == []


async def test_our_own_events_are_not_taken_for_theirs(
    hub: Hub, receiver: Receiver, clock: ManualClock
) -> None:
    source = await hub.source()
    early = await hub.sent(source)
    await hub.connect(source, receiver.url)
    await heard(hub)
    await hub.later(11)
    assert (await hub.statuses(early)) == ["filtered"]
    assert receiver.got == []


async def test_the_watcher_runs_where_the_tables_are_shared(hub: Hub) -> None:
    assert "watch relay-adoption" in [feed.name for feed in hub.runtime.feeds]
    async with hub_at(ManualClock(time.time())) as embedded:
        names = [feed.name for feed in embedded.runtime.feeds]
        assert "watch relay-adoption" not in names


async def test_a_status_that_they_set_stays_until_a_replay(
    hub: Hub, ferryhook: Ferryhook, receiver: Receiver
) -> None:
    source = await hub.source()
    await hub.connect(source, receiver.url)
    receiver.fail()
    event_id = await hub.sent(source)
    ferryhook.set_status(event_id, "failed")
    receiver.work()
    await hub.later(40)
    event = await hub.event(event_id)
    assert (event["status"], list(event["connections"].values())) == ("failed", ["delivered"])
    assert (await hub.call("POST", f"/v1/events/{event_id}/replay", {})).status == 202
    await hub.settle()
    assert (await hub.statuses(event_id))[0] == "delivered"


async def test_a_query_and_a_missing_status_of_theirs_count(
    hub: Hub, ferryhook: Ferryhook, receiver: Receiver, clock: ManualClock
) -> None:
    source = await hub.source()
    await hub.connect(source, receiver.url)
    event_id = ferryhook.ingest(await me(hub), source, clock(), queryString="a=1")
    row = ferryhook.event(event_id)
    ferryhook.events.update_item(
        Key={"PK": row["PK"], "SK": row["SK"]},
        UpdateExpression="REMOVE #s",
        ExpressionAttributeNames={"#s": "status"},
    )
    await heard(hub)
    await hub.later(11)
    assert (await hub.statuses(event_id)) == ["delivered", "delivered"]
    assert [got.query for got in receiver.got] == ["a=1"]


async def test_a_status_that_we_do_not_know_is_shown_and_stops_nothing(
    hub: Hub, ferryhook: Ferryhook, receiver: Receiver
) -> None:
    source = await hub.source()
    await hub.connect(source, receiver.url)
    receiver.fail()
    event_id = await hub.sent(source)
    ferryhook.set_status(event_id, "archived")
    receiver.work()
    await hub.later(40)
    assert (await hub.statuses(event_id)) == ["archived", "delivered"]
    listed = (await hub.get(f"/v1/sources/{source}/events"))["data"]
    assert [event["status"] for event in listed] == ["archived"]


async def test_what_they_add_to_an_event_stays(
    hub: Hub, ferryhook: Ferryhook, receiver: Receiver
) -> None:
    source = await hub.source()
    await hub.connect(source, receiver.url)
    receiver.fail()
    event_id = await hub.sent(source)
    row = ferryhook.event(event_id)
    ferryhook.events.update_item(
        Key={"PK": row["PK"], "SK": row["SK"]},
        UpdateExpression="SET ferryLabel = :x",
        ExpressionAttributeValues={":x": "keep me"},
    )
    receiver.work()
    await hub.later(40)
    assert (await hub.statuses(event_id))[0] == "delivered"
    after = ferryhook.events.get_item(Key={"PK": row["PK"], "SK": row["SK"]})["Item"]
    assert (after["ferryLabel"], after["status"]) == ("keep me", "delivered")


async def test_attempts_sort(hub: Hub, ferryhook: Ferryhook, receiver: Receiver) -> None:
    source = await hub.source()
    retry = {"strategy": "linear", "first": 1, "attempts": 12}
    await hub.connect(source, receiver.url, retry=retry)
    receiver.fail()
    event_id = await hub.sent(source)
    for _ in range(14):
        await hub.later(700)
    keys = [
        row["SK"]
        for row in ferryhook.events.query(
            KeyConditionExpression="PK = :pk AND begins_with(SK, :att)",
            ExpressionAttributeValues={":pk": f"EVT#{event_id}", ":att": "ATT#"},
        )["Items"]
    ]
    assert [int(str(key).removeprefix("ATT#")) for key in keys] == list(range(1, 13))
