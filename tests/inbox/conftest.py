"""Inboxes on both engines."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.inbox.office import office_at
from waystation.clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.inbox.office import Office


@pytest.fixture
def clock() -> ManualClock:
    """Starts at the real time, because DynamoDB removes what has really expired."""
    return ManualClock(float(int(time.time())))


@pytest.fixture(params=["sqlite", "dynamodb"])
def engine(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The settings of an engine."""
    found: dict[str, Any] = {}
    if request.param == "dynamodb":
        found = request.getfixturevalue("shared_aws")
    return found


@pytest.fixture
async def office(clock: ManualClock, engine: dict[str, Any]) -> AsyncIterator[Office]:
    async with office_at(clock, **engine) as running:
        yield running


@pytest.fixture
async def local(clock: ManualClock) -> AsyncIterator[Office]:
    """An inbox in memory, for what no engine has a part in."""
    async with office_at(clock) as running:
        yield running
