"""`waystation serve` as a process whose clock is set ahead, for those who kill it.

What a dead process has left behind is taken over after a minute or so. Each life of the product
begins two minutes after the last, so that nobody has to wait for that.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import TYPE_CHECKING, Any

import msgspec
import uvloop

from tests.support.site import settings_with
from waystation.server.processes import Processes
from waystation.server.serve import Role, listening, serve, url_of

if TYPE_CHECKING:
    from collections.abc import Callable


def main(given: dict[str, Any], role: Role, ahead: float, processes: int) -> None:
    def clock() -> float:
        return time.time() + ahead

    def greet(url: str) -> None:
        sys.stdout.write(f"{url}\n")
        sys.stdout.flush()

    settings = settings_with(**given, port=0)
    with listening(settings) as listener:

        def run(parent: int | None, started: Callable[[str], None]) -> None:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(
                    serve(settings, role, started, clock=clock, listener=listener, parent=parent)
                )

        if processes == 1:
            run(None, greet)
        else:
            Processes(
                processes,
                lambda parent, ready: run(parent, lambda url: ready()),
                lambda: greet(url_of(listener)),
            ).run()


if __name__ == "__main__":
    given = msgspec.json.decode(sys.argv[1], type=dict[str, Any])
    role = msgspec.convert(sys.argv[2], Role)
    main(given, role, float(sys.argv[3]), int(sys.argv[4]))
