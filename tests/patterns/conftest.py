"""Stores for the patterns: embedded, and DynamoDB Local."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING

import pytest

from waystation.clock import ManualClock
from waystation.seam import tables_of
from waystation.store import Store, open_store
from waystation.systems import SYSTEMS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(float(int(time.time())))


@pytest.fixture(params=["sqlite", "dynamodb"])
async def store(request: pytest.FixtureRequest, clock: ManualClock) -> AsyncIterator[Store]:
    """A store with all tables; on DynamoDB other tests' items are in it too."""
    if request.param == "sqlite":
        async with await open_store("sqlite://:memory:", tables_of(SYSTEMS), clock=clock) as store:
            yield store
        return
    endpoint = request.getfixturevalue("dynamodb_url")
    async with await open_store(
        "dynamodb://eu-west-1",
        tables_of(SYSTEMS),
        env="patterns",
        clock=clock,
        endpoint_url=endpoint,
    ) as store:
        await store.ensure_tables()
        yield store


@pytest.fixture
def name() -> str:
    """A name that no other test uses."""
    return uuid.uuid4().hex
