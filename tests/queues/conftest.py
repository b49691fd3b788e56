"""The engines that the queue contract runs on."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING

import pytest

from tests.support import moto_server
from waystation.clock import ManualClock
from waystation.queues import Queue, Queues, QueueSpec, open_queues, parked
from waystation.store import open_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

PLAIN = QueueSpec(name="plain", visibility=30, max_receives=3)
ORDERED = QueueSpec(name="ordered", ordered=True, visibility=30, max_receives=3)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(float(int(time.time())))


@pytest.fixture(params=["memory", "file", "sqs"])
async def queues(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Queues]:
    """Empty queues."""
    kind = request.param
    url = f"sqlite:///{tmp_path / 'queues.db'}" if kind == "file" else "sqlite://:memory:"
    env = f"t{uuid.uuid4().hex[:8]}"
    async with await open_store(url, [parked], env=env, clock=clock) as store:
        endpoint = None
        if kind == "sqs":
            endpoint = request.getfixturevalue("moto_url")
            moto_server.follow(clock, monkeypatch)
        async with await open_queues(
            "sqs://eu-west-1" if kind == "sqs" else "embedded",
            [PLAIN, ORDERED],
            store,
            endpoint_url=endpoint,
        ) as queues:
            await queues.ensure()
            yield queues


@pytest.fixture
def plain(queues: Queues) -> Queue:
    return queues[PLAIN]


@pytest.fixture
def ordered(queues: Queues) -> Queue:
    return queues[ORDERED]
