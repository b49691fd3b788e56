"""What only the DynamoDB engine does: creating and checking tables."""

from __future__ import annotations

import uuid

import boto3
import pytest

from tests.contract.model import TABLES, Thing, things
from waystation.errors import TableMismatch, TableMissing
from waystation.seam import tables_of
from waystation.store import Index, Item, KeyAttribute, Store, Table, open_store
from waystation.systems import SYSTEMS


@pytest.fixture
def env() -> str:
    return f"t{uuid.uuid4().hex[:8]}"


async def opened(url: str, tables: list[Table], env: str) -> Store:
    return await open_store("dynamodb://eu-west-1", tables, env=env, endpoint_url=url)


async def test_ensure_tables_can_be_repeated(dynamodb_url: str, env: str) -> None:
    async with await opened(dynamodb_url, TABLES, env) as store:
        await store.ensure_tables()
        await store.put(Thing("ann", "1"))
        await store.ensure_tables()
        assert await store.get(Thing.key("ann", "1")) is not None


async def test_a_table_that_was_not_created_is_named(dynamodb_url: str, env: str) -> None:
    async with await opened(dynamodb_url, TABLES, env) as store:
        with pytest.raises(TableMissing, match=f"{env}-things"):
            await store.get(Thing.key("ann", "1"))


async def test_a_table_with_another_key_is_refused(dynamodb_url: str, env: str) -> None:
    async with await opened(dynamodb_url, [Table("things", pk="PK", sk="OTHER")], env) as store:
        await store.ensure_tables()
    async with await opened(dynamodb_url, [things], env) as store:
        with pytest.raises(TableMismatch, match="another key"):
            await store.ensure_tables()


async def test_a_key_of_another_type_is_refused(dynamodb_url: str, env: str) -> None:
    numbers = Table("things", pk=KeyAttribute("PK", "N"), sk="SK")
    async with await opened(dynamodb_url, [numbers], env) as store:
        await store.ensure_tables()
    async with await opened(dynamodb_url, [things], env) as store:
        with pytest.raises(TableMismatch, match="another type"):
            await store.ensure_tables()


async def test_missing_indexes_streams_and_ttls_are_added(new_dynamodb_url: str, env: str) -> None:
    async with await opened(new_dynamodb_url, [Table("things", pk="PK", sk="SK")], env) as store:
        await store.ensure_tables()
    async with await opened(new_dynamodb_url, [things], env) as store:
        await store.ensure_tables()
        await store.put(Thing("ann", "1", label="x"))
        assert len((await store.query(Thing.query("x", index="GSI2"))).items) == 1
        assert len(await store.changes(things, "test").read()) == 1
        await store.ensure_tables()


async def test_another_ttl_attribute_is_refused(dynamodb_url: str, env: str) -> None:
    async with await opened(
        dynamodb_url, [Table("visits", pk="visit_key", ttl="old")], env
    ) as store:
        await store.ensure_tables()
    changed = Table("visits", pk="visit_key", ttl="new")
    async with await opened(dynamodb_url, [changed], env) as store:
        with pytest.raises(TableMismatch, match="old"):
            await store.ensure_tables()


async def test_every_table_of_the_product_can_be_created(dynamodb_url: str, env: str) -> None:
    async with await opened(dynamodb_url, tables_of(SYSTEMS), env) as store:
        await store.ensure_tables()
        await store.ensure_tables()


async def test_an_index_on_a_field_itself(dynamodb_url: str, env: str) -> None:
    table = Table("plain", pk="id", indexes=[Index("by_size", pk=KeyAttribute("size", "N"))])

    class Box(Item, table=table, pk="{id}", indexes={"by_size": "{size}"}):
        id: str
        size: int

    async with await opened(dynamodb_url, [table], env) as store:
        await store.ensure_tables()
        await store.put(Box("a", 5))
        found = await store.query(Box.query(5, index="by_size"))
        assert list(found.items) == [Box("a", 5)]


@pytest.mark.parametrize(("view", "warns"), [("KEYS_ONLY", True), ("NEW_IMAGE", False)])
async def test_a_stream_that_shows_nothing_new_is_warned_of(
    dynamodb_url: str, caplog: pytest.LogCaptureFixture, view: str, warns: bool
) -> None:
    env = f"t{uuid.uuid4().hex[:8]}"
    client = boto3.client("dynamodb", region_name="eu-west-1", endpoint_url=dynamodb_url)
    client.create_table(
        TableName=f"{env}-theirs",
        KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "pk", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
        StreamSpecification={"StreamEnabled": True, "StreamViewType": view},
    )
    theirs = Table("theirs", pk="pk", stream="dynamodb")
    async with await open_store(
        "dynamodb://eu-west-1", [theirs], env=env, endpoint_url=dynamodb_url
    ) as store:
        await store.ensure_tables()
    assert ("goes unseen" in caplog.text) == warns
