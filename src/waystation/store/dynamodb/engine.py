"""The store on DynamoDB."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from waystation.aws import AwsClient, AwsSession
from waystation.errors import AwsError, TransactionConflict
from waystation.store import evaluate
from waystation.store.base import Returning, Store, check_page, pick_spec, resolve_filter
from waystation.store.compile import Expressions
from waystation.store.dynamodb import batches, requests, tables
from waystation.store.dynamodb.feed import DynamoFeed
from waystation.store.dynamodb.transactions import Transactions
from waystation.store.dynamodb.wire import item_from_wire, item_to_wire
from waystation.store.expiry import has_expired
from waystation.store.feed import checkpoints
from waystation.store.items import Item
from waystation.store.queries import Page, Query, decode_cursor, encode_cursor
from waystation.store.spec import Key

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from waystation.clock import Clock
    from waystation.store.actions import Write
    from waystation.store.expressions import Condition
    from waystation.store.feed import ChangeFeed
    from waystation.store.spec import Spec
    from waystation.store.tables import Table
    from waystation.store.values import RawItem

I = TypeVar("I", bound=Item)  # noqa: E741 - I for Item

_ATTEMPTS = 5
_OPERATIONS = {"put": "PutItem", "update": "UpdateItem", "delete": "DeleteItem"}


class DynamoStore(Store):
    """Tables in one region, or on any endpoint that speaks DynamoDB's protocol."""

    def __init__(
        self,
        session: AwsSession,
        tables: Sequence[Table],
        *,
        env: str,
        clock: Clock,
        names: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__([*tables, checkpoints], env=env, clock=clock, names=names)
        self._session = session
        self._client = AwsClient(
            session,
            service="dynamodb",
            signing_name="dynamodb",
            target="DynamoDB_20120810",
            version="1.0",
        )
        self._transactions = Transactions(self)

    @classmethod
    async def connect(
        cls,
        region: str,
        tables: Sequence[Table],
        *,
        env: str,
        clock: Clock,
        endpoint_url: str | None = None,
        names: Mapping[str, str] | None = None,
    ) -> DynamoStore:
        """Inside a running event loop, which the connections belong to."""
        session = AwsSession(region or None, endpoint_url)
        return cls(session, tables, env=env, clock=clock, names=names)

    async def call(
        self,
        operation: str,
        request: dict[str, Any],
        *,
        table: str,
        writing: bool = False,
        repeatable: bool = True,
    ) -> dict[str, Any]:
        """One call of the service, with its errors as ours."""
        try:
            answer = await self._client.call(operation, request, repeatable=repeatable)
        except AwsError as error:
            if error.code in ("ConditionalCheckFailedException", "TransactionCanceledException"):
                raise
            region = self._session.region
            raise requests.translate(error, table, region, writing=writing) from error
        return msgspec.json.decode(answer, type=dict[str, Any])

    async def ensure_tables(self) -> None:
        for table in self.tables:
            await tables.ensure(self, table)

    async def sweep(self, limit: int = 500) -> int:
        """DynamoDB removes expired items by itself."""
        return 0

    async def close(self) -> None:
        await self._session.close()

    # Reading

    async def get(self, key: Key[I], *, consistent: bool = True, expired: bool = False) -> I | None:
        table = self.table_name(key.spec.table)
        request = {
            "TableName": table,
            "Key": item_to_wire(key.attributes()),
            "ConsistentRead": consistent,
        }
        answer = await self.call("GetItem", request, table=table)
        if "Item" not in answer:
            return None
        raw = item_from_wire(answer["Item"])
        if not expired and has_expired(key.spec.table, raw, self.now()):
            return None
        return key.spec.decode(raw)  # type: ignore[return-value]

    async def batch_get(self, keys: Sequence[Key[I]], *, consistent: bool = True) -> list[I | None]:
        found = await batches.get(self, keys, consistent)
        now = self.now()
        items: list[I | None] = []
        for key in keys:
            raw = found.get(key)
            gone = raw is None or has_expired(key.spec.table, raw, now)
            items.append(None if raw is None or gone else key.spec.decode(raw))  # type: ignore[arg-type]
        return items

    async def query(
        self,
        query: Query[I],
        *,
        limit: int | None = None,
        after: str | None = None,
        reverse: bool = False,
        where: Condition | None = None,
        consistent: bool | None = None,
        expired: bool = False,
    ) -> Page[I]:
        check_page(query, limit, consistent)
        condition = resolve_filter(query, where)
        partial = query.index is not None and query.index.project != "all"
        request = self._query_request(query, None if partial else condition, expired)
        request["ScanIndexForward"] = not reverse
        request["ConsistentRead"] = query.index is None and consistent is not False
        if after is not None:
            start = query.start(after, reverse=reverse)
            if start is None:
                return Page([], None)
            request["ExclusiveStartKey"] = item_to_wire(start)
        if limit is not None:
            request["Limit"] = limit
        answer = await self.call("Query", request, table=request["TableName"])
        found = [item_from_wire(wired) for wired in answer["Items"]]
        if partial:
            found = await self._whole(query, found, condition, expired)
        return _page(found, answer, query, None if query.certain else query.specs)

    async def _whole(
        self, query: Query[Any], found: list[RawItem], condition: Condition | None, expired: bool
    ) -> list[RawItem]:
        """The items that an index has parts of, unless they have left it meanwhile."""
        table, index = query.table, query.index
        assert index is not None
        keys: list[Key[Any]] = [
            Key(query.specs[0], raw[table.pk.name], raw[table.sk.name] if table.sk else None)
            for raw in found
        ]
        there = await batches.get(self, keys, consistent=True)
        names = [key.name for key in (index.pk, index.sk) if key]
        now = self.now()
        whole = []
        for key, part in zip(keys, found, strict=True):
            raw = there.get(key)
            if raw is None or any(raw.get(name) != part[name] for name in names):
                continue
            if not expired and has_expired(table, raw, now):
                continue
            if condition is None or evaluate.holds(condition, raw):
                whole.append(raw)
        return whole

    async def count(self, query: Query[Any], *, where: Condition | None = None) -> int:
        partial = query.index is not None and query.index.project != "all"
        if not query.certain or (partial and where is not None):
            return await super().count(query, where=where)
        request = self._query_request(query, resolve_filter(query, where), expired=False)
        request["Select"] = "COUNT"
        request["ConsistentRead"] = query.index is None
        total = 0
        while True:
            answer = await self.call("Query", request, table=request["TableName"])
            total += int(answer["Count"])
            if "LastEvaluatedKey" not in answer:
                return total
            request["ExclusiveStartKey"] = answer["LastEvaluatedKey"]

    def _query_request(
        self, query: Query[Any], condition: Condition | None, expired: bool
    ) -> dict[str, Any]:
        expressions = Expressions()
        request: dict[str, Any] = {
            "TableName": self.table_name(query.table),
            "KeyConditionExpression": requests.key_condition(expressions, query),
        }
        if query.index is not None:
            request["IndexName"] = query.index.name
        return self._filtered(request, expressions, query.table, condition, expired)

    def _filtered(
        self,
        request: dict[str, Any],
        expressions: Expressions,
        table: Table,
        condition: Condition | None,
        expired: bool,
    ) -> dict[str, Any]:
        found = requests.read_filter(expressions, table, condition, self.now(), expired)
        if found is not None:
            request["FilterExpression"] = found
        return requests.with_placeholders(request, expressions)

    async def scan(
        self,
        item: type[I],
        *,
        limit: int | None = None,
        after: str | None = None,
        where: Condition | None = None,
        expired: bool = False,
    ) -> Page[I]:
        check_page(None, limit, None)
        table = item.spec.table
        name = self.table_name(table)
        request: dict[str, Any] = {"TableName": name, "ConsistentRead": True}
        if after is not None:
            request["ExclusiveStartKey"] = item_to_wire(decode_cursor(table, None, after, None))
        if limit is not None:
            request["Limit"] = limit
        condition = None if where is None else where.resolve(item.spec)
        request = self._filtered(request, Expressions(), table, condition, expired)
        answer = await self.call("Scan", request, table=name)
        everything: Query[I] = Query((item.spec,), None, "", None, (), None)
        found = [item_from_wire(wired) for wired in answer["Items"]]
        return _page(found, answer, everything, None if len(table.specs) == 1 else (item.spec,))

    # Writing

    async def _write(self, write: Write, returning: Returning | None) -> RawItem | None:
        for _ in range(_ATTEMPTS):
            now = self.now()
            try:
                return await self._write_once(write, returning, now)
            except AwsError as error:
                old = self.failed_item(error.details)
                if not requests.found_nothing(write, old, now):
                    raise self._failed(write, self._live(write, old, now)) from None
                done, new = await self._write_over_nothing(write, now)
                if done:
                    return new if returning == "new" else None
        raise TransactionConflict(f"others kept writing {write.key}")

    async def _write_once(
        self, write: Write, returning: Returning | None, now: int
    ) -> RawItem | None:
        table = self.table_name(write.key.spec.table)
        request = requests.write_request(write, table, now)
        if returning is not None:
            request["ReturnValues"] = "ALL_OLD" if returning == "old" else "ALL_NEW"
        answer = await self.call(
            _OPERATIONS[write.kind],
            request,
            table=table,
            writing=True,
            repeatable=requests.repeatable(write, returning),
        )
        if "Attributes" not in answer:
            return None
        raw = item_from_wire(answer["Attributes"])
        return self._live(write, raw, now) if returning == "old" else raw

    def _live(self, write: Write, old: RawItem | None, now: int) -> RawItem | None:
        return None if old is None or has_expired(write.key.spec.table, old, now) else old

    async def _write_over_nothing(self, write: Write, now: int) -> tuple[bool, RawItem | None]:
        """Carry out an update where no live item is: whether it worked, and the new item."""
        if not write.allows_absent():
            raise self._failed(write, None)
        new = write.outcome(None)
        if new is None:
            return True, None
        table = self.table_name(write.key.spec.table)
        request = requests.over_nothing_request(write, new, table, now)
        try:
            await self.call("PutItem", request, table=table, writing=True, repeatable=False)
        except AwsError:
            return False, None  # somebody was faster: look again
        return True, new

    async def _transact(self, writes: list[Write], token: str | None) -> None:
        await self._transactions.run(writes, token)

    async def _batch_write(self, writes: list[Write]) -> None:
        await batches.write(self, writes)

    def failed_item(self, details: dict[str, Any]) -> RawItem | None:
        """The item that a failed condition was about."""
        found = details.get("Item")
        return item_from_wire(found) if found else None

    # Upkeep

    def _feed(self, table: Table, consumer: str) -> ChangeFeed:
        return DynamoFeed(self, self._session, table, consumer)


def _page(
    items: list[RawItem],
    answer: dict[str, Any],
    query: Query[Any],
    specs: Sequence[Spec] | None,
) -> Page[Any]:
    """The items of an answer; `specs` are the types to tell apart, None for only one."""
    found: list[Item] = []
    for raw in items:
        spec = query.specs[0] if specs is None else pick_spec(specs, raw)
        if spec is not None:
            found.append(spec.decode(raw))
    last = answer.get("LastEvaluatedKey")
    if not last:
        return Page(found, None)
    return Page(found, encode_cursor(query.table, query.index, item_from_wire(last)))
