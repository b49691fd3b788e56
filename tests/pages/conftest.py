"""Pages on both engines."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.pages.press import origin_at, press_at
from waystation.clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.pages.press import Origin, Press


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
async def origin(clock: ManualClock) -> AsyncIterator[Origin]:
    async with origin_at(clock) as running:
        yield running


@pytest.fixture
async def press(clock: ManualClock, origin: Origin, engine: dict[str, Any]) -> AsyncIterator[Press]:
    async with press_at(clock, origin, **engine) as running:
        yield running


@pytest.fixture
async def local(clock: ManualClock, origin: Origin) -> AsyncIterator[Press]:
    """Pages in memory, for what no engine has a part in."""
    async with press_at(clock, origin) as running:
        yield running
