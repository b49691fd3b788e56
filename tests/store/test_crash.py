"""Killed at any moment, the store has every write it acknowledged and no half transaction."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.contract.model import TABLES, Counter, Thing
from waystation.store import open_store

if TYPE_CHECKING:
    from pathlib import Path

ROUNDS = int(os.environ.get("CRASH_ROUNDS", "20"))

_WRITER = """
import asyncio, sys
from tests.contract.model import TABLES, Counter, Thing
from waystation.store import Put, Update, add, open_store

async def main(path, run):
    async with await open_store(f"sqlite:///{path}", TABLES) as store:
        async def write(caller):
            n = 0
            while True:
                thing = f"{run}-{caller}-{n}"
                if n % 3:
                    await store.put(Thing("single", thing, a="x" * 200))
                    print(f"single {thing}", flush=True)
                else:
                    await store.transact(
                        Put(Thing("left", thing)),
                        Put(Thing("right", thing)),
                        Update(Counter.key("pairs"), add("total", 1)),
                    )
                    print(f"pair {thing}", flush=True)
                n += 1
        await asyncio.gather(*(write(caller) for caller in range(16)))

asyncio.run(main(sys.argv[1], sys.argv[2]))
"""


def killed_while_writing(path: Path, run: int, acknowledged: int) -> list[str]:
    """What a process had acknowledged when it was killed."""
    process = subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(path), str(run)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    lines = []
    try:
        for line in process.stdout:
            lines.append(line)
            if len(lines) == acknowledged:
                process.send_signal(signal.SIGKILL)
        return [line.strip() for line in lines if line.endswith("\n")]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


async def stored(path: Path) -> tuple[dict[str, set[str]], int]:
    """The ids by owner, and the counter."""
    async with await open_store(f"sqlite:///{path}", TABLES) as store:
        found = {}
        for owner in ("single", "left", "right"):
            found[owner] = {item.thing_id async for item in store.iterate(Thing.query(owner))}
        counter = await store.get(Counter.key("pairs"))
        return found, counter.total if counter else 0


def test_nothing_acknowledged_is_lost_and_nothing_is_half_there(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    randomness = random.Random(7)
    acknowledged: set[str] = set()
    for run in range(ROUNDS):
        acknowledged |= set(killed_while_writing(path, run, randomness.randint(1, 1500)))
        found, total = asyncio.run(stored(path))
        singles = {line.split()[1] for line in acknowledged if line.startswith("single")}
        pairs = {line.split()[1] for line in acknowledged if line.startswith("pair")}
        assert singles <= found["single"]
        assert pairs <= found["left"]
        assert found["left"] == found["right"]
        assert total == len(found["left"])
