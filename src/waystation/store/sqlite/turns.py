"""Whose turn it is to write, among the processes that share a file.

SQLite's own lock is waited for by asking again and again, with longer and longer pauses. Here the
system wakes whoever is next, in the order they came, and a turn ends with its process, however that
ends. SQLite's lock is taken all the same: a program that does not know of turns does no harm.
"""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType


class Turns:
    """A lock that is handed over. To wait for it one must hold the place at the head of the line,
    so that whoever has just had a turn does not come before those who wait."""

    def __init__(self, path: Path) -> None:
        self._line = _opened(path, "line")
        self._turn = _opened(path, "turn")

    def __enter__(self) -> None:
        fcntl.flock(self._line, fcntl.LOCK_EX)
        try:
            fcntl.flock(self._turn, fcntl.LOCK_EX)
        finally:
            fcntl.flock(self._line, fcntl.LOCK_UN)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        fcntl.flock(self._turn, fcntl.LOCK_UN)

    def close(self) -> None:
        os.close(self._line)
        os.close(self._turn)


def _opened(path: Path, name: str) -> int:
    return os.open(path.with_name(f"{path.name}-{name}"), os.O_RDWR | os.O_CREAT, 0o600)
