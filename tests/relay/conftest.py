"""Fixtures of the relay's tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.relay.hub import Hub, hub_at
from tests.support.receiver import Receiver, receiving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from waystation.clock import ManualClock


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as running:
        yield running


@pytest.fixture
async def hub(clock: ManualClock) -> AsyncIterator[Hub]:
    async with hub_at(clock) as running:
        yield running
