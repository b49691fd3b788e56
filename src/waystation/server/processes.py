"""Several processes that serve one port: started, replaced when they end, and stopped together.

The first process only watches. The others are its children: they share the listening socket, so
that whoever has time takes the next client, and the file, where they take turns to write.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)

_HEALTHY_SECONDS = 10.0
_LONGEST_WAIT = 10.0


class Processes:
    """`child` serves in a process of its own, until the file descriptor that it is given ends: then
    its parent has died. `ready` is called once, when all of them answer."""

    def __init__(
        self,
        count: int,
        child: Callable[[int, Callable[[], None]], None],
        ready: Callable[[], None],
    ) -> None:
        self._count = count
        self._child = child
        self._ready = ready
        self._begun: dict[int, float] = {}
        self._stopping = False

    def run(self) -> int:
        """Watch until told to stop; 0 when all of them ended in good order."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        alive, self._alive = os.pipe()
        self._parent = alive
        started, self._started = os.pipe()
        for _ in range(self._count):
            self._start()
        for _ in range(self._count):
            if os.read(started, 1) == b"" or self._stopping:
                break
        else:
            self._ready()
        return self._watch()

    def _start(self) -> None:
        pid = os.fork()
        if pid:
            self._begun[pid] = time.monotonic()
            return
        status = 1
        try:
            os.close(self._alive)
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            self._child(self._parent, self._report)
            status = 0
        except SystemExit as left:
            status = left.code if isinstance(left.code, int) else 1
        except BaseException:
            log.exception("a process failed")
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def _report(self) -> None:
        """Called in a child: it answers."""
        os.write(self._started, b".")

    def _watch(self) -> int:
        failures, worst = 0, 0
        while self._begun:
            pid, status = os.waitpid(-1, 0)
            begun = self._begun.pop(pid, None)
            if begun is None:
                continue
            code = os.waitstatus_to_exitcode(status)
            if self._stopping:
                began = code in (-signal.SIGTERM, -signal.SIGINT)  # it was about to begin
                worst = worst if began else max(worst, abs(code))
                continue
            healthy = time.monotonic() - begun > _HEALTHY_SECONDS
            failures = 1 if healthy else failures + 1
            log.error("process %d ended with %d: another one takes its place", pid, code)
            time.sleep(min(_LONGEST_WAIT, 0.1 * 2 ** min(failures, 10)))
            if not self._stopping:
                self._start()
        return worst

    def _stop(self, number: int, frame: object) -> None:
        self._stopping = True
        for pid in self._begun:
            os.kill(pid, number)
