"""A process that follows the toy's letters until it is killed."""

from __future__ import annotations

import asyncio
import math
import sys
from typing import Any

import msgspec

from tests.support.site import settings_with
from tests.toy.system import TOY
from waystation.errors import WaystationError
from waystation.patterns import Leases
from waystation.server.feeds import FeedRunner
from waystation.server.runtime import running
from waystation.systems import SYSTEMS


async def main(given: dict[str, Any]) -> None:
    systems = [*SYSTEMS, TOY]
    async with running(settings_with(systems, **given), systems) as runtime:
        [watcher] = [w for w in runtime.watchers if w.name == "toy-notes"]
        leases = Leases(runtime.store, seconds=1, skew=0, longest=math.inf)
        runner = FeedRunner(runtime.store, watcher, leases=leases)
        while True:
            try:
                await runner.run(asyncio.Event())
            except WaystationError as error:
                sys.stderr.write(f"{error}\n")


if __name__ == "__main__":
    asyncio.run(main(msgspec.json.decode(sys.argv[1], type=dict[str, Any])))
