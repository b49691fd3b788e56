"""Three processes follow one table and are killed again and again: nothing is left out, and the
changes of an item stay in order."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import time
import uuid
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tests.support.site import SECRET, settings_with
from tests.toy.system import TOY
from tests.toy.tables import Letter, Note
from waystation.server.runtime import running
from waystation.systems import SYSTEMS

if TYPE_CHECKING:
    from pathlib import Path

    from waystation.store import Store

KILLS = int(os.environ.get("CRASH_ROUNDS", "6"))
BOXES = 5
SYSTEMS_WITH_TOY = [*SYSTEMS, TOY]


@pytest.fixture(params=["sqlite", "dynamodb"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    shared = {"secret_key": SECRET, "blobs": f"file:{tmp_path / 'blobs'}"}
    if request.param == "sqlite":
        return shared | {"store": f"sqlite:///{tmp_path / 'w.db'}"}
    return shared | {
        "store": "dynamodb://eu-west-1",
        "queue": "sqs://eu-west-1",
        "env": f"t{uuid.uuid4().hex[:8]}",
        "aws_endpoint_url": request.getfixturevalue("moto_url"),
    }


@pytest.fixture(autouse=True)
def _where_dynamodb_is(dynamodb_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", dynamodb_url)


def follower(settings: dict[str, Any]) -> subprocess.Popen[bytes]:
    given = msgspec.json.encode(settings).decode()
    return subprocess.Popen(
        [sys.executable, "-m", "tests.server.feed_process", given], stderr=subprocess.DEVNULL
    )


async def write(store: Store, box: str, stop: asyncio.Event) -> list[str]:
    written: list[str] = []
    while not stop.is_set():
        await store.put(Letter(box=box, letter_id=str(len(written))))
        written.append(str(len(written)))
        await asyncio.sleep(0.01)
    return written


async def test_nothing_is_left_out_and_order_is_kept(settings: dict[str, Any]) -> None:
    boxes = [f"box{n}" for n in range(BOXES)]
    async with running(settings_with(SYSTEMS_WITH_TOY, **settings), SYSTEMS_WITH_TOY) as runtime:
        store, stop = runtime.store, asyncio.Event()
        processes = [follower(settings) for _ in range(3)]
        writing = [asyncio.create_task(write(store, box, stop)) for box in boxes]
        try:
            for _ in range(KILLS):
                await asyncio.sleep(random.uniform(0.5, 1.5))
                victim = random.randrange(3)
                processes[victim].kill()
                processes[victim].wait()
                processes[victim] = follower(settings)
            stop.set()
            written = dict(zip(boxes, await asyncio.gather(*writing), strict=True))
            deadline = time.monotonic() + 60
            while (noted := await notes(store, boxes)) != written:
                assert time.monotonic() < deadline, (written, noted)
                await asyncio.sleep(0.1)
        finally:
            stop.set()
            for process in processes:
                process.kill()
                process.wait()
    assert all(len(ids) > 10 for ids in written.values())


async def notes(store: Store, boxes: list[str]) -> dict[str, list[str]]:
    found = [await store.get(Note.key(box)) for box in boxes]
    return {
        box: [] if note is None else note.letters for box, note in zip(boxes, found, strict=True)
    }
