"""The change feed on DynamoDB Streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from waystation.aws import AwsClient
from waystation.errors import AwsError, StoreError, TableMismatch
from waystation.store.dynamodb.requests import translate
from waystation.store.dynamodb.wire import item_from_wire
from waystation.store.feed import CHECKPOINT_SECONDS, Change, ChangeFeed, Checkpoint, typed_changes

if TYPE_CHECKING:
    from waystation.aws import AwsSession
    from waystation.store.actions import Check
    from waystation.store.dynamodb.engine import DynamoStore
    from waystation.store.tables import Table

_MAX_RECORDS = 1000
_TRIMMED = "TrimmedDataAccessException"
_STALE = "ExpiredIteratorException"


class _Shard:
    """How far this reader has come in a shard."""

    __slots__ = ("dirty", "finished", "id", "iterator", "latest", "parent", "sequence")

    def __init__(self, shard_id: str, parent: str | None) -> None:
        self.id = shard_id
        self.parent = parent
        self.sequence: str | None = None
        self.finished = False
        self.iterator: str | None = None
        self.dirty = False
        self.latest = False
        """Whether to begin at its end."""


class _Reached:
    """What reading a shard gave, and where it leaves the shard once it is handed over."""

    __slots__ = ("changes", "finished", "iterator", "sequence", "shard")

    def __init__(self, shard: _Shard) -> None:
        self.shard = shard
        self.changes: list[Change] = []
        self.sequence = shard.sequence
        self.iterator: str | None = None
        self.finished = False

    def apply(self) -> None:
        shard = self.shard
        shard.dirty = shard.dirty or self.finished or self.sequence != shard.sequence
        shard.sequence = self.sequence
        shard.iterator = self.iterator
        shard.finished = self.finished


class DynamoFeed(ChangeFeed):
    """Reads every open shard in turn, a parent always to its end before its children."""

    idle_seconds = 1.0

    def __init__(
        self, store: DynamoStore, session: AwsSession, table: Table, consumer: str
    ) -> None:
        super().__init__(store, table, consumer)
        self._store = store
        self._session = session
        self._client = AwsClient(
            session,
            service="streams.dynamodb",
            signing_name="dynamodb",
            target="DynamoDBStreams_20120810",
            version="1.0",
        )
        self._stream: str | None = None
        self._shards: dict[str, _Shard] = {}
        self._checkpoints: dict[str, Checkpoint] | None = None
        self._outdated = True
        self._turn = 0

    async def read(self, limit: int = 100) -> list[Change]:
        if self._outdated or not self._readable():
            await self._refresh_shards()
        found: list[Change] = []
        reached: list[_Reached] = []
        try:
            for shard in self._in_turn():
                step = await self._read_shard(shard, min(limit - len(found), _MAX_RECORDS))
                reached.append(step)
                found += step.changes
                if len(found) >= limit:
                    break
        except StoreError:
            if not found:
                raise  # otherwise what was read is handed over first, and the trouble comes again
        self.moved = any(step.sequence != step.shard.sequence for step in reached)
        # Only now: whoever is interrupted before has read nothing.
        for step in reached:
            step.apply()
        self._outdated = not found or any(step.finished for step in reached)
        return found

    def _in_turn(self) -> list[_Shard]:
        """The readable shards, another one first each time, so that a busy one starves none."""
        ready = self._readable()
        self._turn += 1
        start = self._turn % len(ready) if ready else 0
        return ready[start:] + ready[:start]

    async def commit(self, *guards: Check[Any]) -> None:
        moved = [shard for shard in self._shards.values() if shard.dirty]
        positions = [
            Checkpoint(
                table=self.table.name,
                consumer=self.consumer,
                shard=shard.id,
                sequence=shard.sequence,
                finished=shard.finished,
                expires_at=self._store.now() + CHECKPOINT_SECONDS,
            )
            for shard in moved
        ]
        await self._save(positions, guards)
        for shard in moved:
            shard.dirty = False

    def _readable(self) -> list[_Shard]:
        ready = []
        for shard in self._shards.values():
            parent = self._shards.get(shard.parent or "")
            if not shard.finished and (parent is None or parent.finished):
                ready.append(shard)
        return ready

    async def _refresh_shards(self) -> None:
        """Learn of new shards; the stream names only those whose records it still keeps."""
        described = await self._describe()
        current = {shard["ShardId"] for shard in described}
        begins = self._checkpoints is None
        if self._checkpoints is None:
            saved = self._store.iterate(Checkpoint.query(self.table.name, self.consumer))
            self._checkpoints = {found.shard: found async for found in saved}
            unread = [found for found in self._checkpoints.values() if not found.finished]
            self.lost = any(found.shard not in current for found in unread)
        for description in described:
            if description["ShardId"] not in self._shards:
                shard = _Shard(description["ShardId"], description.get("ParentShardId"))
                checkpoint = self._checkpoints.get(shard.id)
                if checkpoint is not None:
                    shard.sequence, shard.finished = checkpoint.sequence, checkpoint.finished
                elif self.from_now and begins:
                    shard.latest = True
                    closed = description["SequenceNumberRange"].get("EndingSequenceNumber")
                    shard.finished = closed is not None
                self._shards[shard.id] = shard
        for gone in self._shards.keys() - current:
            shard = self._shards[gone]
            if not shard.finished:
                self.lost = True  # it went before we had read it
            if not shard.finished or not shard.dirty:
                del self._shards[gone]
        self._outdated = False

    async def _describe(self) -> list[dict[str, Any]]:
        if self._stream is None:
            self._stream = await self._find_stream()
        shards: list[dict[str, Any]] = []
        request: dict[str, Any] = {"StreamArn": self._stream}
        while True:
            stream = (await self._call("DescribeStream", request))["StreamDescription"]
            shards += stream["Shards"]
            last = stream.get("LastEvaluatedShardId")
            if last is None:
                return shards
            request["ExclusiveStartShardId"] = last

    async def _find_stream(self) -> str:
        name = self._store.table_name(self.table)
        answer = await self._store.call("DescribeTable", {"TableName": name}, table=name)
        stream = answer["Table"].get("LatestStreamArn")
        if stream is None:
            raise TableMismatch(f"table {name} has no stream: run ensure_tables")
        return str(stream)

    async def _read_shard(self, shard: _Shard, limit: int) -> _Reached:
        if shard.iterator is None:
            shard.iterator = await self._iterator(shard)
        step = _Reached(shard)
        try:
            request = {"ShardIterator": shard.iterator, "Limit": limit}
            answer = await self._call("GetRecords", request)
        except AwsError as error:
            if error.code == _TRIMMED:
                self.lost, step.sequence = True, None
            step.iterator = None  # stale or trimmed: the next read makes a new one
            return step
        for record in answer["Records"]:
            step.changes += changes_of(self.table, record)
            step.sequence = record["dynamodb"]["SequenceNumber"]
        shard.latest = False  # from here on by its iterator, or by what was read
        step.iterator = answer.get("NextShardIterator")
        step.finished = step.iterator is None
        return step

    async def _iterator(self, shard: _Shard) -> str:
        request = {"StreamArn": self._stream, "ShardId": shard.id}
        if shard.sequence is not None:
            request |= {
                "ShardIteratorType": "AFTER_SEQUENCE_NUMBER",
                "SequenceNumber": shard.sequence,
            }
        else:
            request["ShardIteratorType"] = "LATEST" if shard.latest else "TRIM_HORIZON"
        try:
            return str((await self._call("GetShardIterator", request))["ShardIterator"])
        except AwsError:
            self.lost, shard.sequence = True, None
            request = {"StreamArn": self._stream, "ShardId": shard.id}
            request["ShardIteratorType"] = "TRIM_HORIZON"
            return str((await self._call("GetShardIterator", request))["ShardIterator"])

    async def _call(self, operation: str, request: dict[str, Any]) -> dict[str, Any]:
        try:
            answer = await self._client.call(operation, request)
        except AwsError as error:
            if error.code in (_TRIMMED, _STALE):
                raise
            name = self._store.table_name(self.table)
            raise translate(error, name, self._session.region, writing=False) from error
        return msgspec.json.decode(answer, type=dict[str, Any])


def changes_of(table: Table, record: dict[str, Any]) -> list[Change]:
    """A record of a table's stream, as typed changes."""
    change = record["dynamodb"]
    old, new = change.get("OldImage"), change.get("NewImage")
    identity = record.get("userIdentity") or {}
    return list(
        typed_changes(
            table,
            change["SequenceNumber"],
            None if old is None else item_from_wire(old),
            None if new is None else item_from_wire(new),
            float(change["ApproximateCreationDateTime"]),
            _identity(identity, "type") == "Service",
        )
    )


def _identity(identity: dict[str, Any], name: str) -> str | None:
    """The wire says `type`, some tools write `Type`."""
    return identity.get(name) or identity.get(name.capitalize())
