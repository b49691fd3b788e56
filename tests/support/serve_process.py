"""`waystation serve` as a process whose clock is set ahead, for those who kill it.

What a dead process has left behind is taken over after a minute or so. Each life of the product
begins two minutes after the last, so that nobody has to wait for that.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import msgspec
import uvloop

from tests.support.site import settings_with
from waystation.server.serve import Role, serve


async def main(given: dict[str, Any], role: Role, ahead: float) -> None:
    def clock() -> float:
        return time.time() + ahead

    def started(url: str) -> None:
        sys.stdout.write(f"{url}\n")
        sys.stdout.flush()

    await serve(settings_with(**given, port=0), role, started, clock=clock)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        given = msgspec.json.decode(sys.argv[1], type=dict[str, Any])
        role = msgspec.convert(sys.argv[2], Role)
        runner.run(main(given, role, float(sys.argv[3])))
