"""The product in processes that tests may kill."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@asynccontextmanager
async def process(
    settings: dict[str, Any], role: str, ahead: float, processes: int = 1
) -> AsyncIterator[Any]:
    """The product in a role. It is killed at the end, if not before."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("WAYSTATION_")}
    started = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.support.serve_process"),
        *(msgspec.json.encode(settings).decode(), role, str(ahead), str(processes)),
        env=environment,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert started.stdout is not None
        url = (await started.stdout.readline()).decode().strip()
        assert url.startswith("http"), "it did not start"
        yield started, url
    finally:
        if started.returncode is None:
            kill_all(started.pid)
        await started.wait()


def children(pid: int) -> list[int]:
    try:
        return [
            int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        ]
    except FileNotFoundError:
        return []


def kill_all(pid: int) -> None:
    """Kill a process, and then its children, whom nobody replaces any more."""
    for each in (pid, *children(pid)):
        with suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)
