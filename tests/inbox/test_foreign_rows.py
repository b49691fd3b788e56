"""Rows that a Stak service wrote, as its document says, through boto3 and past our types."""

from __future__ import annotations

import time
import uuid
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import boto3
import pytest

from tests.inbox.office import PLACE, office_at

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.inbox.office import Office
    from waystation.clock import ManualClock


class Stak:
    """Another program with the same table, doing what the document says."""

    def __init__(self, url: str, env: str) -> None:
        dynamodb = boto3.resource("dynamodb", region_name="eu-west-1", endpoint_url=url)
        self.table = dynamodb.Table(f"{env}-stak-inbox")

    def publish(self, id_: str, uid: str | None = None, count: bool = True, **more: Any) -> None:
        pk = "t#acmeG#$public#main" if uid is None else f"t#acmeU#{uid}#main"
        item = {
            "pk": pk,
            "sk": f"m#{id_}",
            "kind": "UM",
            "id": id_,
            "host_system_id": None,
            "sender": "stak",
            "audiences": {"kind": "users" if uid else "everyone", "label": "x", "uids": ["u"]},
            "received": int(time.time() * 1000),
            "delivered": int(time.time() * 1000),
            "readat": None,
            "expiredat": int(time.time()) + 3_600,
            "taxonomy": {"category": "news"},
            "message": {"title": f"Stak's {id_}", "body": "b", "cta_uri": None},
            "tenant_key": "acme",
            "inbox_key": "main",
            "uid": uid or "$public",
            **more,
        }
        self.table.put_item(Item=item)
        if count:
            for category in ("*", "news"):
                self.add(pk, category, "published", 1)

    def add(self, pk: str, category: str, counter: str, number: int) -> None:
        self.table.update_item(
            Key={"pk": pk, "sk": f"c#{category}"},
            UpdateExpression="ADD #c :n",
            ExpressionAttributeNames={"#c": counter},
            ExpressionAttributeValues={":n": number},
        )

    def read(self, id_: str, uid: str) -> None:
        """Mark a message as read: its own copy, or a receipt with the same kind of key."""
        self.table.update_item(
            Key={"pk": f"t#acmeU#{uid}#main", "sk": f"m#{id_}"},
            UpdateExpression="SET readat = :t, expiredat = if_not_exists(expiredat, :e)",
            ExpressionAttributeValues={
                ":t": int(time.time() * 1000),
                ":e": int(time.time()) + 3_600,
            },
        )
        self.add(f"t#acmeU#{uid}#main", "*", "read", 1)

    def rows(self, pk: str, prefix: str) -> list[dict[str, Any]]:
        found = self.table.query(
            KeyConditionExpression="pk = :pk AND begins_with(sk, :sk)",
            ExpressionAttributeValues={":pk": pk, ":sk": prefix},
        )
        return list(found["Items"])


@pytest.fixture
async def office(
    clock: ManualClock, dynamodb_url: str, moto_url: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Office]:
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", dynamodb_url)
    async with office_at(
        clock,
        store="dynamodb://eu-west-1",
        queue="sqs://eu-west-1",
        aws_endpoint_url=moto_url,
        env=f"t{uuid.uuid4().hex[:8]}",
    ) as running:
        yield running


@pytest.fixture
def stak(office: Office, dynamodb_url: str) -> Stak:
    return Stak(dynamodb_url, office.runtime.settings.env)


async def test_what_was_there_before_us_is_shown_and_counted(office: Office, stak: Stak) -> None:
    stak.publish("lz0000a1", "u")
    stak.publish("lz0000a2", "u")
    stak.publish("p1")
    stak.read("lz0000a1", "u")
    stak.read("p1", "u")
    assert [m["message"]["title"] for m in await office.messages()] == [
        "Stak's p1",
        "Stak's lz0000a2",
        "Stak's lz0000a1",
    ]
    counts = await office.counts()
    assert (counts["total"], counts["unread"]) == (3, 1)
    assert counts["categories"] == {"news": {"total": 3, "unread": 1}}
    await office.mark("lz0000a2", "read")
    await office.mark("p1", "unread")
    assert await office.numbers() == (3, 1)
    assert await office.drift() == []


async def test_what_comes_while_we_are_there_is_counted_once(office: Office, stak: Stak) -> None:
    await office.counts()
    stak.publish("lz0000a1", "u")
    stak.publish("b1")
    for _ in range(2):
        await office.heard()
        office.clock.advance(2)
        assert await office.numbers() == (2, 2)
    stak.read("lz0000a1", "u")
    stak.read("b1", "u")
    for _ in range(2):
        await office.heard()
        assert await office.numbers() == (2, 0)
    assert {m["read"] for m in await office.messages()} == {True}
    drift = [each for each in await office.drift() if each.category == "*"]
    assert drift == []


async def test_a_receipt_of_theirs_beside_ours_counts_once(office: Office, stak: Stak) -> None:
    await office.counts()
    id_ = await office.sent()
    await office.mark(id_, "read")
    stak.read(id_, "u")
    await office.heard()
    await office.heard()
    await office.sent("u")
    assert await office.numbers() == (2, 1)
    assert await office.drift() == []


async def test_their_messages_expire_out_of_our_counts(office: Office, stak: Stak) -> None:
    await office.counts()
    stak.publish("lz0000a1", "u", expiredat=office.store.now() + 60)
    await office.heard()
    assert await office.numbers() == (1, 1)
    office.clock.advance(61)
    assert await office.numbers() == (0, 0)


@pytest.mark.parametrize(
    "more",
    [
        {"message": "a text"},
        {"message": {"body": 3}},
        {"sender": 7, "audiences": "all", "taxonomy": "news"},
        {"taxonomy": {"category": "*"}},
        {"taxonomy": {"category": "a#b"}},
        {"expiredat": "never", "received": "yesterday"},
        {"readat": "once"},
        {"kind": "XX"},
    ],
)
async def test_messages_of_any_shape_leave_the_others_alone(
    office: Office, stak: Stak, more: dict[str, Any]
) -> None:
    ours = await office.sent("u")
    stak.publish("lz0000a1", "u", **more)
    stak.publish("lz0000b1", **more)
    await office.heard()
    office.clock.advance(2)
    found = await office.ids()
    assert {ours, "lz0000a1", "lz0000b1"} == set(found)
    await office.counts()
    for id_ in ("lz0000a1", "lz0000b1"):
        await office.mark(id_, "read")
        await office.mark(id_, "unread")
        await office.mark(id_, "archive")
    assert await office.ids() == [ours]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("readat", "1700000000000"),
        ("readat", Decimal("1700000000000.5")),
        ("readat", False),
        ("readat", ""),
        ("unread_epoch", "x"),
        ("epoch", "3"),
        ("archivedat", "1"),
        ("id", "another"),
        ("tenant_key", "another"),
    ],
)
async def test_marks_of_another_kind_hold_up_nobody(
    office: Office, stak: Stak, name: str, value: Any
) -> None:
    await office.counts()
    stak.publish("lz0000a1", "u", **{name: value})
    await office.heard()
    for mark in ("read", "unread", "archive", "unarchive"):
        await office.mark("lz0000a1", mark)
    assert await office.ids() == ["lz0000a1"]
    assert await office.ids(status="unread") == ["lz0000a1"]


@pytest.mark.parametrize("pk", ["t#acmeU#u#main", "t#acmeG#$public#main"])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("published", "5"),
        ("published", Decimal("5.5")),
        ("read", "2"),
        ("category", "news"),
        ("revision", "x"),
        ("revision", Decimal("1.5")),
        ("revision", 0),
        ("epoch", "1"),
    ],
)
async def test_counters_of_another_kind_hold_up_nobody(
    office: Office, stak: Stak, pk: str, name: str, value: Any
) -> None:
    stak.table.put_item(Item={"pk": pk, "sk": "c#*", name: value})
    own, public = await office.sent("u"), None
    await office.counts()
    public = await office.sent()
    assert await office.numbers() == (2, 2)
    for id_ in (own, public):
        await office.mark(id_, "read")
    assert await office.numbers() == (2, 0)
    assert await office.drift() == []


async def test_counters_that_make_no_sense_are_counted_anew(office: Office, stak: Stak) -> None:
    await office.sent("u")
    stak.add("t#acmeU#u#main", "*", "read", 5)
    assert await office.numbers() == (1, 1)
    assert await office.drift() == []
    page = (await office.server.get("/metrics")).body.decode()
    assert 'waystation_inbox_drift_total{counter="read"} 5.0' in page


async def test_attributes_that_we_do_not_know_survive(office: Office, stak: Stak) -> None:
    stak.publish("lz0000a1", "u", theirs={"x": 1})
    await office.counts()
    await office.mark("lz0000a1", "read")
    await office.mark("lz0000a1", "archive")
    [row] = stak.rows("t#acmeU#u#main", "m#lz0000a1")
    assert row["theirs"] == {"x": 1}


async def test_what_we_write_is_found_by_the_documents_own_queries(
    office: Office, stak: Stak
) -> None:
    await office.counts()
    own, public = await office.sent("u", category="news"), await office.sent(category="news")
    await office.mark(own, "read")
    await office.mark(public, "read")
    [message] = stak.rows("t#acmeU#u#main", "m#")
    assert (message["kind"], message["id"], message["uid"]) == ("UM", own, "u")
    assert message["taxonomy"] == {"category": "news"}
    assert message["audiences"] == {"kind": "users"}
    assert message["readat"] > 10**12
    [shared] = stak.rows("t#acmeG#$public#main", "m#")
    assert (shared["id"], shared["uid"], "readat" in shared) == (public, "$public", False)
    for category in ("*", "news"):
        [stats] = [r for r in stak.rows("t#acmeU#u#main", "c#") if r["sk"] == f"c#{category}"]
        assert (stats["kind"], stats["published"], stats["read"]) == ("US", 1, 2)
        [stats] = [r for r in stak.rows("t#acmeG#$public#main", "c#") if r["sk"][2:] == category]
        assert (stats["published"], stats["uid"]) == (1, "$public")
    [settings] = stak.rows("t#acme", "st#")
    assert (settings["kind"], settings["title"], settings["ttl"]) == ("TS", "Acme", "30d")
    [config] = stak.rows("t#acme", "si#")
    assert (config["kind"], config["inbox_key"], config["title"]) == ("IC", "main", "Main")
    assert PLACE.tenant == "acme"
