from __future__ import annotations

import time
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
    request: pytest.FixtureRequest, clock: ManualClock, slack: Slack
) -> AsyncIterator[Post]:
    """A gate on each engine."""
    aws = request.getfixturevalue("shared_aws") if request.param == "dynamodb" else {}
    async with gate_at(clock, slack, **aws) as running:
        yield running


@pytest.fixture
async def local(clock: ManualClock, slack: Slack) -> AsyncIterator[Post]:
    """A gate in memory, for what no engine has a part in."""
    async with gate_at(clock, slack) as running:
        yield running
