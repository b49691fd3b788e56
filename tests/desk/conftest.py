"""Desks on both engines, with and without a vendor."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.desk.counter import desk_at
from tests.desk.richpanel_server import vendor_server
from tests.support import moto_server
from waystation.clock import ManualClock
from waystation.desk.acting import pacing, richpanel

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.desk.counter import Counter
    from tests.desk.richpanel_server import Vendor


@pytest.fixture(autouse=True)
def _in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A vendor that hangs is given up sooner, and is asked again at once; turns are not waited for,
    since the clock stands still."""
    monkeypatch.setattr(richpanel, "SECONDS", 0.3)
    monkeypatch.setattr(pacing, "LONGEST_TURN", 0.0)
    monkeypatch.setattr(richpanel, "backoff", lambda *_, **__: 0.001)


@pytest.fixture
def clock() -> ManualClock:
    """Starts at the real time, because DynamoDB removes what has really expired."""
    return ManualClock(float(int(time.time())))


@pytest.fixture(params=["sqlite", "dynamodb"])
def engine(
    request: pytest.FixtureRequest, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """The settings of an engine."""
    found: dict[str, Any] = {}
    if request.param == "dynamodb":
        found = request.getfixturevalue("shared_aws")
        moto_server.follow(clock, monkeypatch)
    return found


@pytest.fixture
async def vendor() -> AsyncIterator[Vendor]:
    async with vendor_server() as running:
        yield running


@pytest.fixture
async def counter(
    clock: ManualClock, vendor: Vendor, engine: dict[str, Any]
) -> AsyncIterator[Counter]:
    """A desk that acts, on each engine."""
    async with desk_at(clock, vendor, **engine) as running:
        yield running


@pytest.fixture
async def local(clock: ManualClock, vendor: Vendor) -> AsyncIterator[Counter]:
    """A desk in memory that acts, for what no engine has a part in."""
    async with desk_at(clock, vendor) as running:
        yield running


@pytest.fixture
async def dry(clock: ManualClock) -> AsyncIterator[Counter]:
    """A desk as it comes: it records what it would do."""
    async with desk_at(clock) as running:
        yield running
