"""Pages on both engines."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from tests.pages.press import origin_at, press_at
from tests.support.wipe import emptied
from waystation.clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.pages.press import Origin, Press


@pytest.fixture
def clock() -> ManualClock:
    """Starts at the real time, because DynamoDB removes what has really expired."""
    return ManualClock(float(int(time.time())))


@pytest.fixture(scope="session")
def shared_env() -> str:
    """The environment whose tables all tests of a worker use, one after the other."""
    return f"t{uuid.uuid4().hex[:8]}"


@pytest.fixture(params=["sqlite", "dynamodb"])
def engine(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, shared_env: str
) -> Iterator[dict[str, Any]]:
    """The settings of an engine."""
    if request.param == "sqlite":
        yield {}
        return
    url = request.getfixturevalue("dynamodb_url")
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", url)
    try:
        yield {
            "store": "dynamodb://eu-west-1",
            "queue": "sqs://eu-west-1",
            "aws_endpoint_url": request.getfixturevalue("moto_url"),
            "env": shared_env,
            "allow_networks": ["127.0.0.0/8"],
        }
    finally:
        emptied(url, shared_env)


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
