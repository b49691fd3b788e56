"""`waystation serve` as a process whose clock is set ahead, for those who kill it.

What a dead process has left behind is taken over after a minute or so. Each life of the product
begins two minutes after the last, so that nobody has to wait for that.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import msgspec

from tests.support.site import settings_with
from waystation.server.serve import Role, serve
from waystation.server.several import run, serve_with_several


def main(given: dict[str, Any], role: Role, ahead: float, processes: int) -> None:
    def clock() -> float:
        return time.time() + ahead

    def greet(url: str) -> None:
        sys.stdout.write(f"{url}\n")
        sys.stdout.flush()

    settings = settings_with(**given, port=0)
    if processes > 1:
        serve_with_several(settings, role, processes, greet, clock=clock)
    else:
        run(serve(settings, role, greet, clock=clock))


if __name__ == "__main__":
    given = msgspec.json.decode(sys.argv[1], type=dict[str, Any])
    role = msgspec.convert(sys.argv[2], Role)
    main(given, role, float(sys.argv[3]), int(sys.argv[4]))
