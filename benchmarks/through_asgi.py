"""`waystation` whose doors are answered through ASGI, as everything else is: for comparison."""

from __future__ import annotations

import sys

from waystation.cli import main
from waystation.server.protocol import BoundedProtocol


def _never(*_: object) -> bool:
    return False


if __name__ == "__main__":
    BoundedProtocol._may_answer = _never  # type: ignore[method-assign, assignment]
    sys.exit(main())
