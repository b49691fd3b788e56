"""The engines that the contract suite runs on."""

from __future__ import annotations

import time
import uuid
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from tests.contract import model
from tests.support.sharing import shared
from waystation.clock import ManualClock
from waystation.seam import tables_of
from waystation.store import Item, Page, Store, key_of, open_store
from waystation.systems import SYSTEMS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from pathlib import Path

    from waystation.store import Table

ENGINES = ["memory", "file", "shared", "dynamodb"]
"""A shared file is written by another process; here, by another store that does the same."""


class Engine(NamedTuple):
    """The URL of a store, and the endpoint that goes with it."""

    url: str
    endpoint: str | None = None
    shared: bool = False


@pytest.fixture
def clock() -> ManualClock:
    """Starts at the real time, because DynamoDB removes what has really expired."""
    return ManualClock(float(int(time.time())))


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    if request.param == "memory":
        return Engine("sqlite://:memory:")
    if request.param in ("file", "shared"):
        return Engine(f"sqlite:///{tmp_path / 'store.db'}", shared=request.param == "shared")
    return Engine("dynamodb://eu-west-1", request.getfixturevalue("dynamodb_url"))


@pytest.fixture
def token() -> str:
    """A transaction token that no other test uses."""
    return uuid.uuid4().hex


_ensured: set[tuple[str, str]] = set()


@asynccontextmanager
async def opened(
    engine: Engine, tables: Sequence[Table], env: str, clock: ManualClock
) -> AsyncIterator[Store]:
    """An empty store. Tables on DynamoDB are made once and emptied after every test."""
    url, endpoint, is_shared = engine
    if is_shared:
        async with shared(url, tables, env, clock) as store:
            yield store
        return
    async with await open_store(url, tables, env=env, clock=clock, endpoint_url=endpoint) as store:
        if endpoint is None:
            yield store
            return
        if (endpoint, env) not in _ensured:
            await store.ensure_tables()
            _ensured.add((endpoint, env))
        try:
            yield store
        finally:
            await _empty(store, tables)


@pytest.fixture
async def store(engine: Engine, clock: ManualClock) -> AsyncIterator[Store]:
    """An empty store with the model's tables."""
    async with opened(engine, model.TABLES, "contract", clock) as store:
        yield store


@pytest.fixture
async def seeds(engine: Engine, clock: ManualClock) -> AsyncIterator[Store]:
    """An empty store with the tables of all five systems."""
    async with opened(engine, tables_of(SYSTEMS), "seeds", clock) as store:
        yield store


@pytest.fixture
async def new_tables(engine: Engine, clock: ManualClock) -> AsyncIterator[Store]:
    """A store whose tables, and so whose change feeds, no other test has touched."""
    url, endpoint, is_shared = engine
    env = f"t{uuid.uuid4().hex[:8]}"
    if is_shared:
        async with shared(url, model.TABLES, env, clock) as store:
            yield store
        return
    async with await open_store(
        url, model.TABLES, env=env, clock=clock, endpoint_url=endpoint
    ) as store:
        await store.ensure_tables()
        yield store


async def _empty(store: Store, tables: Sequence[Table]) -> None:
    for table in tables:
        for spec in table.specs:
            scan = partial(_scan, store, spec.item)
            await store.batch_write(deletes=[key_of(item) for item in await everything(scan)])


async def _scan(store: Store, item: type[Item], after: str | None) -> Page[Item]:
    return await store.scan(item, after=after, expired=True)


async def everything(page: Callable[[str | None], Any]) -> list[Item]:
    """The items of all pages that `page` gives when asked cursor after cursor."""
    found: list[Item] = []
    cursor: str | None = None
    while True:
        got = await page(cursor)
        found += got.items
        cursor = got.cursor
        if cursor is None:
            return found
