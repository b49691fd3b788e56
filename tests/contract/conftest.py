"""The engines that the contract suite runs on."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from tests.contract.model import TABLES
from waystation.clock import ManualClock
from waystation.store import Item, Store, key_of, open_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

ENGINES = ["memory", "file", "dynamodb"]


@pytest.fixture
def clock() -> ManualClock:
    """Starts at the real time, because DynamoDB removes what has really expired."""
    return ManualClock(float(int(time.time())))


@pytest.fixture(params=ENGINES)
def engine_url(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str | None]:
    """The URL of a store, and the endpoint that goes with it."""
    if request.param == "memory":
        return "sqlite://:memory:", None
    if request.param == "file":
        return f"sqlite:///{tmp_path / 'store.db'}", None
    return "dynamodb://eu-west-1", request.getfixturevalue("dynamodb_url")


@pytest.fixture
def token() -> str:
    """A transaction token that no other test uses."""
    return uuid.uuid4().hex


_ensured: set[str] = set()


@pytest.fixture
async def store(engine_url: tuple[str, str | None], clock: ManualClock) -> AsyncIterator[Store]:
    """An empty store with the model's tables."""
    url, endpoint = engine_url
    async with await open_store(
        url, TABLES, env="contract", clock=clock, endpoint_url=endpoint
    ) as opened:
        if endpoint is None:
            yield opened
            return
        if endpoint not in _ensured:
            await opened.ensure_tables()
            _ensured.add(endpoint)
        try:
            yield opened
        finally:
            await _empty(opened)


@pytest.fixture
async def new_tables(
    engine_url: tuple[str, str | None], clock: ManualClock
) -> AsyncIterator[Store]:
    """A store whose tables, and so whose change feeds, no other test has touched."""
    url, endpoint = engine_url
    env = f"t{uuid.uuid4().hex[:8]}"
    async with await open_store(
        url, TABLES, env=env, clock=clock, endpoint_url=endpoint
    ) as opened:
        await opened.ensure_tables()
        yield opened


async def _empty(store: Store) -> None:
    for table in TABLES:
        for spec in table.specs:
            found = await everything(lambda after, item=spec.item: store.scan(  # type: ignore[misc]
                item, after=after, expired=True
            ))
            await store.batch_write(deletes=[key_of(item) for item in found])


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
