"""Streams with several shards, which DynamoDB Local does not have.

The endpoint here answers as DynamoDB Streams documents, from shards that the test lays out.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web

from tests.contract.model import TABLES, Thing, things
from tests.support.endpoint import served
from waystation.errors import StoreError
from waystation.store import Store, open_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Shard:
    def __init__(self, *ids: str, parent: str | None = None, closed: bool = False) -> None:
        self.ids = list(ids)
        self.parent = parent
        self.closed = closed
        self.trouble: dict[str, Any] | None = None


def record(thing_id: str, sequence: int, removed: dict[str, Any]) -> dict[str, Any]:
    image = {
        "PK": {"S": "OWNER#ann"},
        "SK": {"S": f"THING#{thing_id}"},
        "owner": {"S": "ann"},
        "thingId": {"S": thing_id},
    }
    return {
        "eventName": "REMOVE" if thing_id in removed else "INSERT",
        "userIdentity": removed.get(thing_id),
        "dynamodb": {
            "SequenceNumber": f"{sequence:03d}",
            "ApproximateCreationDateTime": 1_700_000_000,
            "OldImage" if thing_id in removed else "NewImage": image,
        },
    }


class Streams:
    """A stream of shards; an iterator is the shard and the position in it."""

    def __init__(self) -> None:
        self.shards: dict[str, Shard] = {}
        self.saved: dict[str, Any] = {}
        self.removed: dict[str, Any] = {}
        self.url = ""

    async def handle(self, request: web.Request) -> web.Response:
        operation = request.headers["X-Amz-Target"].partition(".")[2]
        answer = getattr(self, operation)(json.loads(await request.read()))
        status = 400 if "__type" in answer else 200
        return web.Response(status=status, body=json.dumps(answer).encode())

    def DescribeTable(self, _: Any) -> Any:  # noqa: N802 - the operation's name
        return {"Table": {"LatestStreamArn": "arn"}}

    def PutItem(self, asked: Any) -> Any:  # noqa: N802
        self.saved[asked["Item"]["sk"]["S"]] = asked["Item"]
        return {}

    def Query(self, _: Any) -> Any:  # noqa: N802
        return {"Items": list(self.saved.values())}

    def DescribeStream(self, _: Any) -> Any:  # noqa: N802
        shards = [
            {"ShardId": name} | ({"ParentShardId": shard.parent} if shard.parent else {})
            for name, shard in self.shards.items()
        ]
        return {"StreamDescription": {"Shards": shards}}

    def GetShardIterator(self, asked: Any) -> Any:  # noqa: N802
        start = int(asked.get("SequenceNumber", -1)) + 1
        return {"ShardIterator": f"{asked['ShardId']} {start}"}

    def GetRecords(self, asked: Any) -> Any:  # noqa: N802
        name, start = asked["ShardIterator"].split()
        shard, first = self.shards[name], int(start)
        if shard.trouble is not None:
            return shard.trouble
        last = min(first + asked["Limit"], len(shard.ids))
        records = [record(shard.ids[n], n, self.removed) for n in range(first, last)]
        answer: dict[str, Any] = {"Records": records}
        if not (shard.closed and last == len(shard.ids)):
            answer["NextShardIterator"] = f"{name} {last}"
        return answer


@pytest.fixture
async def streams(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Streams]:
    monkeypatch.setattr("waystation.aws.client.FIRST_WAIT", 0.0001)
    built = Streams()
    async with served(built.handle) as built.url:
        yield built


@pytest.fixture
async def store(streams: Streams) -> AsyncIterator[Store]:
    async with await open_store("dynamodb://eu-west-1", TABLES, endpoint_url=streams.url) as opened:
        yield opened


def ids(changes: Any) -> list[str]:
    found = []
    for change in changes:
        assert isinstance(change.new, Thing)
        found.append(change.new.thing_id)
    return found


TROUBLE = {"__type": "com.amazon#AccessDeniedException", "message": "no"}


async def test_trouble_with_one_shard_loses_nothing_of_another(
    streams: Streams, store: Store
) -> None:
    streams.shards = {"a": Shard("1", "2"), "b": Shard("3")}
    streams.shards["b"].trouble = TROUBLE
    feed = store.changes(things, "test")
    seen: list[str] = []
    for _ in range(4):
        try:
            seen += ids(await feed.read())
        except StoreError:
            continue
    assert seen == ["1", "2"]
    streams.shards["b"].trouble = None
    assert ids(await feed.read()) == ["3"]


async def test_a_parent_is_read_to_its_end_before_its_children(
    streams: Streams, store: Store
) -> None:
    streams.shards = {
        "child": Shard("3", "4", parent="parent"),
        "parent": Shard("1", "2", closed=True),
    }
    feed = store.changes(things, "test")
    seen: list[str] = []
    for _ in range(6):
        seen += ids(await feed.read(limit=1))
    assert seen == ["1", "2", "3", "4"]


async def test_a_busy_shard_does_not_starve_another(streams: Streams, store: Store) -> None:
    streams.shards = {"busy": Shard(*(f"b{n}" for n in range(100))), "quiet": Shard("q")}
    feed = store.changes(things, "test")
    seen = [ids(await feed.read(limit=5)) for _ in range(4)]
    assert any("q" in batch for batch in seen)


async def test_each_shard_goes_on_where_it_was_committed(streams: Streams, store: Store) -> None:
    streams.shards = {"a": Shard("1"), "b": Shard("2")}
    feed = store.changes(things, "test")
    assert sorted(ids(await feed.read())) == ["1", "2"]
    await feed.commit()
    streams.shards["a"].ids.append("3")
    again = store.changes(things, "test")
    assert ids(await again.read()) == ["3"]
    assert not again.lost


async def test_a_shard_that_went_before_it_was_read_is_a_loss(
    streams: Streams, store: Store
) -> None:
    streams.shards = {"a": Shard("1")}
    feed = store.changes(things, "test")
    await feed.read()
    await feed.commit()
    streams.shards = {"b": Shard("9", parent="a")}
    later = store.changes(things, "test")
    assert ids(await later.read()) == ["9"]
    assert later.lost


async def test_a_position_that_was_trimmed_is_a_loss(streams: Streams, store: Store) -> None:
    streams.shards = {"a": Shard("1", "2")}
    streams.shards["a"].trouble = {"__type": "com.amazon#TrimmedDataAccessException"}
    feed = store.changes(things, "test")
    assert await feed.read() == []
    streams.shards["a"].trouble = None
    assert ids(await feed.read()) == ["1", "2"]
    assert feed.lost


async def test_a_stale_iterator_is_made_anew(streams: Streams, store: Store) -> None:
    streams.shards = {"a": Shard("1", "2")}
    feed = store.changes(things, "test")
    assert ids(await feed.read(limit=1)) == ["1"]
    streams.shards["a"].trouble = {"__type": "com.amazon#ExpiredIteratorException"}
    assert await feed.read() == []
    streams.shards["a"].trouble = None
    assert ids(await feed.read()) == ["2"]
    assert not feed.lost


async def test_a_removal_by_the_service_itself_is_an_expiry(streams: Streams, store: Store) -> None:
    streams.shards = {"a": Shard("1", "2")}
    streams.removed = {"1": {"type": "Service", "principalId": "dynamodb.amazonaws.com"}, "2": None}
    found = await store.changes(things, "test").read()
    assert [change.kind for change in found] == ["remove", "remove"]
    assert [change.expired for change in found] == [True, False]
