"""Batches of any size: cut into what DynamoDB takes, and leftovers tried again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from waystation.aws import wait_before
from waystation.errors import Throttled
from waystation.store.dynamodb.wire import item_from_wire, item_to_wire
from waystation.store.spec import Key

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from waystation.store.actions import Write
    from waystation.store.dynamodb.engine import DynamoStore
    from waystation.store.values import RawItem

T = TypeVar("T")

_GETS, _WRITES = 100, 25
_AT_ONCE = 8
_FRUITLESS = 10
"""Attempts in a row that got nothing done before we give up."""


async def get(
    store: DynamoStore, keys: Sequence[Key[Any]], consistent: bool
) -> dict[Key[Any], RawItem]:
    """The stored items by key."""
    found: dict[Key[Any], RawItem] = {}
    specs = {store.table_name(key.spec.table): key.spec for key in keys}

    def keep(answer: dict[str, Any]) -> None:
        for name, items in answer["Responses"].items():
            table = specs[name].table
            for wired in items:
                raw = item_from_wire(wired)
                sk = None if table.sk is None else raw[table.sk.name]
                found[Key(specs[name], raw[table.pk.name], sk)] = raw

    batches: list[dict[str, Any]] = []
    for part in _parts(list(dict.fromkeys(keys)), _GETS):
        asked: dict[str, Any] = {}
        for key in part:
            table = asked.setdefault(
                store.table_name(key.spec.table), {"Keys": [], "ConsistentRead": consistent}
            )
            table["Keys"].append(item_to_wire(key.attributes()))
        batches.append(asked)
    await _all(store, "BatchGetItem", "UnprocessedKeys", batches, keep)
    return found


async def write(store: DynamoStore, writes: list[Write]) -> None:
    """Puts and deletes without conditions. All are encoded before the first is sent."""
    batches: list[dict[str, Any]] = []
    for part in _parts(writes, _WRITES):
        asked: dict[str, Any] = {}
        for write in part:
            requests = asked.setdefault(store.table_name(write.key.spec.table), [])
            if write.item is not None:
                requests.append({"PutRequest": {"Item": item_to_wire(write.item)}})
            else:
                requests.append({"DeleteRequest": {"Key": item_to_wire(write.key.attributes())}})
        batches.append(asked)
    await _all(store, "BatchWriteItem", "UnprocessedItems", batches, lambda _: None)


def _parts(things: list[T], size: int) -> list[list[T]]:
    return [things[start : start + size] for start in range(0, len(things), size)]


async def _all(
    store: DynamoStore,
    operation: str,
    left: str,
    batches: list[dict[str, Any]],
    keep: Callable[[dict[str, Any]], None],
) -> None:
    """Send batches, some at once; when one fails, the others stop before we say so."""
    slots = asyncio.Semaphore(_AT_ONCE)

    async def one(asked: dict[str, Any]) -> None:
        async with slots:
            async for answer in _leftovers(store, operation, asked, left):
                keep(answer)

    tasks = [asyncio.ensure_future(one(asked)) for asked in batches]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _leftovers(
    store: DynamoStore, operation: str, asked: dict[str, Any], left: str
) -> AsyncIterator[dict[str, Any]]:
    """The answers to a batch, asked again for what was left over until nothing is."""
    fruitless = 0
    while asked:
        table = next(iter(asked))
        answer = await store.call(operation, {"RequestItems": asked}, table=table)
        yield answer
        rest = answer.get(left) or {}
        fruitless = fruitless + 1 if _size(rest) == _size(asked) else 0
        if fruitless >= _FRUITLESS:
            raise Throttled(f"DynamoDB leaves a batch on {table} undone")
        asked = rest
        if asked:
            await asyncio.sleep(wait_before(fruitless + 1))


def _size(asked: dict[str, Any]) -> int:
    return sum(len(part["Keys"] if isinstance(part, dict) else part) for part in asked.values())
