"""The product as a process whose clock is set ahead, for those who kill it.

What a dead process has left behind is taken over after a minute or so. Each life of the product
begins two minutes after the last, so that nobody has to wait for that.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import TYPE_CHECKING, Any

import msgspec

from tests.support.site import listening, settings_with, with_quick_passwords
from waystation.server.app import build_app
from waystation.server.runtime import running
from waystation.systems import SYSTEMS

if TYPE_CHECKING:
    from waystation.settings import Settings


async def main(settings: Settings, role: str, ahead: float) -> None:
    def clock() -> float:
        return time.time() + ahead

    systems = with_quick_passwords(SYSTEMS)
    async with running(settings, systems, background=role != "api", clock=clock) as runtime:
        runtime.supervisor.start()
        async with listening(build_app(runtime)) as url:
            sys.stdout.write(f"{url}\n")
            sys.stdout.flush()
            await asyncio.Event().wait()


if __name__ == "__main__":
    given = msgspec.json.decode(sys.argv[1], type=dict[str, Any])
    asyncio.run(main(settings_with(**given), sys.argv[2], float(sys.argv[3])))
