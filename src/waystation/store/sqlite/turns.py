"""Whose turn it is to write, among the processes that share a file.

SQLite's own lock is waited for by asking again and again, with longer and longer pauses. Here the
system wakes whoever is next, in the order they came, and a turn ends with its process, however that
ends. SQLite's lock is taken all the same: a program that does not know of turns does no harm.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

_SHARED_BYTES = 16
_WAITING = 0
_LAST = slice(8, 16)


class Turns:
    """A lock that is handed over. To wait for it one must hold the place at the head of the line,
    so that whoever has just had a turn does not come before those who wait.

    All who share the file see in a few bytes of memory whether somebody waits, and who had the last
    turn: without asking the system, for which the interpreter's lock would be given up and waited
    for each time.
    """

    def __init__(self, path: Path) -> None:
        self._line = _opened(path, "line")
        self._turn = _opened(path, "turn")
        if os.fstat(self._turn).st_size < _SHARED_BYTES:
            os.ftruncate(self._turn, _SHARED_BYTES)
        self._shared = mmap.mmap(self._turn, _SHARED_BYTES)
        self._me = os.urandom(8)
        self.alone = False
        """In one's turn: whether nobody else had one since the last."""

    def __enter__(self) -> None:
        if self._shared[_WAITING] or not self._taken_at_once():
            self._wait()
        self.alone = self._shared[_LAST] == self._me
        self._shared[_LAST] = self._me

    def _wait(self) -> None:
        fcntl.flock(self._line, fcntl.LOCK_EX)
        try:
            self._shared[_WAITING] = 1
            fcntl.flock(self._turn, fcntl.LOCK_EX)
        finally:
            self._shared[_WAITING] = 0
            fcntl.flock(self._line, fcntl.LOCK_UN)

    def _taken_at_once(self) -> bool:
        try:
            fcntl.flock(self._turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        fcntl.flock(self._turn, fcntl.LOCK_UN)

    def close(self) -> None:
        self._shared.close()
        os.close(self._line)
        os.close(self._turn)


def _opened(path: Path, name: str) -> int:
    return os.open(path.with_name(f"{path.name}-{name}"), os.O_RDWR | os.O_CREAT, 0o600)
