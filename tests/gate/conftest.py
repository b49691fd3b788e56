from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING

import pytest

from tests.gate.post import gate_at
from tests.gate.slack_server import slack_server
from waystation.clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.gate.post import Post
    from tests.gate.slack_server import Slack


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(float(int(time.time())))


@pytest.fixture
async def slack() -> AsyncIterator[Slack]:
    async with slack_server() as running:
        yield running


@pytest.fixture(params=["sqlite", "dynamodb"])
async def post(
    request: pytest.FixtureRequest,
    clock: ManualClock,
    slack: Slack,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Post]:
    """A gate on each engine."""
    settings = {}
    if request.param == "dynamodb":
        monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", request.getfixturevalue("dynamodb_url"))
        settings = {
            "store": "dynamodb://eu-west-1",
            "queue": "sqs://eu-west-1",
            "aws_endpoint_url": request.getfixturevalue("moto_url"),
            "env": f"t{uuid.uuid4().hex[:8]}",
            "allow_networks": ["127.0.0.0/8"],
        }
    async with gate_at(clock, slack, **settings) as running:
        yield running


@pytest.fixture
async def local(clock: ManualClock, slack: Slack) -> AsyncIterator[Post]:
    """A gate in memory, for what no engine has a part in."""
    async with gate_at(clock, slack) as running:
        yield running
