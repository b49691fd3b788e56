"""The product as a process whose clock is set ahead, for those who kill it.

What a dead process has left behind is taken over after a minute or so. Each life of the product
begins two minutes after the last, so that nobody has to wait for that.
"""

from __future__ import annotations

import asyncio
import sys
import time

import msgspec

from tests.support.site import listening
from waystation.accounts.passwords import Passwords
from waystation.server.app import build_app
from waystation.server.runtime import running
from waystation.settings import Settings


async def main(settings: Settings, role: str, ahead: float) -> None:
    def clock() -> float:
        return time.time() + ahead

    async with running(settings, clock=clock, passwords=Passwords(cost=4)) as runtime:
        if role != "api":
            runtime.add_jobs()
            runtime.supervisor.start()
        async with listening(build_app(runtime)) as url:
            sys.stdout.write(f"{url}\n")
            sys.stdout.flush()
            await asyncio.Event().wait()


if __name__ == "__main__":
    given = msgspec.json.decode(sys.argv[1], type=dict[str, object])
    asyncio.run(main(Settings(**given), sys.argv[2], float(sys.argv[3])))  # type: ignore[arg-type]
