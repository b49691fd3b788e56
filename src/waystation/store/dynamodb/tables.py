"""Creating and checking tables on DynamoDB."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from waystation.errors import InvalidRequest, StoreUnavailable, TableMismatch, TableMissing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from waystation.store.dynamodb.engine import DynamoStore
    from waystation.store.tables import Index, KeyAttribute, Table

log = logging.getLogger(__name__)

_POLLS = 600
_POLL_SECONDS = 0.5
_IMAGES = "NEW_AND_OLD_IMAGES"


def definition(table: Table) -> dict[str, Any]:
    """A table's keys, indexes and stream, as CreateTable and CloudFormation both write them."""
    attributes = {key.name: key.type for key in table.key_attributes()}
    request: dict[str, Any] = {
        "AttributeDefinitions": _attribute_definitions(attributes),
        "KeySchema": _key_schema(table.pk, table.sk),
        "BillingMode": "PAY_PER_REQUEST",
    }
    if table.indexes:
        request["GlobalSecondaryIndexes"] = [_index(table, i) for i in table.indexes.values()]
    if table.stream:
        request["StreamSpecification"] = {"StreamViewType": _IMAGES}
    return request


def _attribute_definitions(attributes: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"AttributeName": n, "AttributeType": t} for n, t in attributes.items()]


def _key_schema(pk: KeyAttribute, sk: KeyAttribute | None) -> list[dict[str, str]]:
    schema = [{"AttributeName": pk.name, "KeyType": "HASH"}]
    if sk is not None:
        schema.append({"AttributeName": sk.name, "KeyType": "RANGE"})
    return schema


def _index(table: Table, index: Index) -> dict[str, Any]:
    return {
        "IndexName": index.name,
        "KeySchema": _key_schema(index.pk, index.sk),
        "Projection": _projection(table, index),
    }


def _projection(table: Table, index: Index) -> dict[str, Any]:
    """What is in an index: always when an item expires, so that expired ones are passed over."""
    if index.project == "all":
        return {"ProjectionType": "ALL"}
    wanted = set() if index.project == "keys" else set(index.project)
    if table.ttl is not None:
        wanted.add(table.ttl)
    keys = {key.name for key in (table.pk, table.sk, index.pk, index.sk) if key}
    if not wanted - keys:
        return {"ProjectionType": "KEYS_ONLY"}
    return {"ProjectionType": "INCLUDE", "NonKeyAttributes": sorted(wanted - keys)}


async def ensure(store: DynamoStore, table: Table) -> None:
    """Create the table, or check it and add what it lacks."""
    name = store.table_name(table)
    try:
        found = await _describe(store, name)
    except TableMissing:
        await _create(store, table, name)
    else:
        _check_keys(table, name, found)
        await _add_indexes(store, table, name, found)
        await _add_stream(store, table, name, found)
    await _ensure_ttl(store, table, name)


async def _describe(store: DynamoStore, name: str) -> dict[str, Any]:
    answer = await store.call("DescribeTable", {"TableName": name}, table=name)
    found: dict[str, Any] = answer["Table"]
    return found


async def _create(store: DynamoStore, table: Table, name: str) -> None:
    request = {"TableName": name, **definition(table)}
    if table.stream:
        request["StreamSpecification"] = {"StreamEnabled": True, **request["StreamSpecification"]}
    try:
        await store.call("CreateTable", request, table=name, writing=True, repeatable=False)
    except StoreUnavailable as error:
        if getattr(error.__cause__, "code", "") != "ResourceInUseException":
            raise  # otherwise another process was faster
    await _wait_until_active(store, name)
    await _keep_backups(store, name)


async def _keep_backups(store: DynamoStore, name: str) -> None:
    """Turn on point-in-time recovery, where the endpoint knows it."""
    request = {
        "TableName": name,
        "PointInTimeRecoverySpecification": {"PointInTimeRecoveryEnabled": True},
    }
    try:
        await store.call("UpdateContinuousBackups", request, table=name)
    except StoreUnavailable as error:
        if getattr(error.__cause__, "code", "") != "UnknownOperationException":
            raise  # otherwise this is DynamoDB Local, which keeps none


async def _wait_until_active(store: DynamoStore, name: str) -> None:
    for _ in range(_POLLS):
        try:
            found = await _describe(store, name)
        except TableMissing:
            states = ["UNKNOWN"]  # a table just created may not be known everywhere yet
        else:
            indexes = found.get("GlobalSecondaryIndexes", [])
            states = [found["TableStatus"], *(index["IndexStatus"] for index in indexes)]
        if all(state == "ACTIVE" for state in states):
            return
        await asyncio.sleep(_POLL_SECONDS)
    raise StoreUnavailable(f"table {name} did not become active")


def _check_keys(table: Table, name: str, found: dict[str, Any]) -> None:
    wanted = {key.name: key.type for key in table.key_attributes()}
    if found["KeySchema"] != _key_schema(table.pk, table.sk):
        raise TableMismatch(f"table {name} exists with another key")
    for attribute in found["AttributeDefinitions"]:
        kind = wanted.get(attribute["AttributeName"], attribute["AttributeType"])
        if kind != attribute["AttributeType"]:
            raise TableMismatch(f"table {name}: {attribute['AttributeName']} has another type")
    for index in found.get("GlobalSecondaryIndexes", []):
        declared = table.indexes.get(index["IndexName"])
        if declared and index["KeySchema"] != _key_schema(declared.pk, declared.sk):
            raise TableMismatch(f"table {name}: index {declared.name} has another key")


async def _add_indexes(store: DynamoStore, table: Table, name: str, found: dict[str, Any]) -> None:
    present = {index["IndexName"] for index in found.get("GlobalSecondaryIndexes", [])}
    for index in table.indexes.values():
        if index.name in present:
            continue
        keys = {key.name: key.type for key in (index.pk, index.sk) if key}
        for key in (table.pk, table.sk):
            if key is not None:
                keys[key.name] = key.type
        request = {
            "TableName": name,
            "AttributeDefinitions": _attribute_definitions(keys),
            "GlobalSecondaryIndexUpdates": [{"Create": _index(table, index)}],
        }
        await store.call("UpdateTable", request, table=name, writing=True, repeatable=False)
        await _wait_until_active(store, name)


async def _add_stream(store: DynamoStore, table: Table, name: str, found: dict[str, Any]) -> None:
    present = found.get("StreamSpecification", {})
    if table.stream and present.get("StreamEnabled"):
        if present.get("StreamViewType") != _IMAGES and table.stream is True:
            raise TableMismatch(f"the stream of table {name} lacks old or new images")
        if present.get("StreamViewType") not in (_IMAGES, "NEW_IMAGE"):
            log.warning(
                "the stream of table %s lacks new images: what others write goes unseen", name
            )
        return
    if not table.stream:
        return
    specification = {"StreamEnabled": True, "StreamViewType": _IMAGES}
    request = {"TableName": name, "StreamSpecification": specification}
    await store.call("UpdateTable", request, table=name, writing=True, repeatable=False)
    await _wait_until_active(store, name)


async def _ensure_ttl(store: DynamoStore, table: Table, name: str) -> None:
    if table.ttl is None:
        return
    answer = await store.call("DescribeTimeToLive", {"TableName": name}, table=name)
    found = answer["TimeToLiveDescription"]
    if found.get("TimeToLiveStatus") in ("ENABLED", "ENABLING"):
        if found.get("AttributeName") != table.ttl:
            raise TableMismatch(f"table {name} expires by {found.get('AttributeName')}")
        return
    request = {
        "TableName": name,
        "TimeToLiveSpecification": {"Enabled": True, "AttributeName": table.ttl},
    }
    try:
        await store.call("UpdateTimeToLive", request, table=name, writing=True, repeatable=False)
    except InvalidRequest as error:
        raise TableMismatch(f"table {name}: the TTL attribute cannot be set: {error}") from error
