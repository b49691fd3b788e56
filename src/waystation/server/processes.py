"""Several processes that serve one port: started, replaced when they end, and stopped together.

The first process only watches. The others are its children: they share the listening socket, so
that whoever has time takes the next client, and the file. One of them serves nobody, but writes for
the others.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager, suppress
from operator import itemgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

log = logging.getLogger(__name__)

_HEALTHY_SECONDS = 10.0
_LONGEST_WAIT = 10.0
_LOOK_SECONDS = 0.05
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


Child = Callable[[int, Callable[[], None]], None]
"""What is done in a process of its own, until the file descriptor that it is given ends: then its
parent has died. It calls what it is given once it has begun."""


class Processes:
    """`ready` is called when all children have begun. One that cannot start ends everything; one
    that ends later is replaced."""

    def __init__(self, children: Sequence[Child], ready: Callable[[], None]) -> None:
        self._children = children
        self._count = len(children)
        self._ready = ready
        self._begun: dict[int, tuple[float, Child]] = {}
        self._asked = 0
        self._told: set[int] = set()
        self._waits: list[tuple[float, Child]] = []
        self._failures = 0
        self._answering = 0
        self._worst = 0

    def run(self) -> int:
        """Watch until told to stop; 0 when all of them ended in good order."""
        for number in _SIGNALS:
            signal.signal(number, self._stop)
        self._parent, self._alive = os.pipe()
        reports, self._reports = os.pipe()
        os.set_blocking(reports, False)
        for child in self._children:
            self._start(child)
        while self._begun or (self._waits and not self._asked):
            self._look(reports)
            time.sleep(_LOOK_SECONDS)
        return self._worst

    def _stop(self, number: int, frame: object) -> None:
        self._asked = self._asked or number

    def _look(self, reports: int) -> None:
        if self._answering < self._count:
            with suppress(BlockingIOError):
                self._answering += len(os.read(reports, self._count))
                if self._answering >= self._count:
                    self._ready()
        self._reap()
        if self._asked:
            self._pass_on()
        elif self._waits and time.monotonic() >= self._waits[0][0]:
            self._start(self._waits.pop(0)[1])

    def _pass_on(self) -> None:
        """Tell those to stop who have not been told."""
        for pid in self._begun.keys() - self._told:
            self._told.add(pid)
            with suppress(ProcessLookupError):
                os.kill(pid, self._asked)

    def _reap(self) -> None:
        while self._begun:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            begun = self._begun.pop(pid, None)
            if begun is not None:
                self._ended(pid, os.waitstatus_to_exitcode(status), *begun)

    def _ended(self, pid: int, code: int, begun: float, child: Child) -> None:
        if self._asked:
            stopped = code in [-number for number in _SIGNALS]  # it was about to begin
            self._worst = self._worst if stopped else max(self._worst, abs(code))
            return
        if self._answering < self._count:
            log.error("process %d could not start", pid)
            self._worst, self._asked = max(1, abs(code)), signal.SIGTERM
            return
        healthy = time.monotonic() - begun > _HEALTHY_SECONDS
        self._failures = 1 if healthy else self._failures + 1
        log.error("process %d ended with %d: another one takes its place", pid, code)
        wait = min(_LONGEST_WAIT, 0.1 * 2 ** min(self._failures, 10))
        self._waits.append((time.monotonic() + wait, child))
        self._waits.sort(key=itemgetter(0))

    def _start(self, child: Child) -> None:
        with _signals_wait():
            pid = os.fork()
            if pid:
                self._begun[pid] = time.monotonic(), child
                return
            for number in _SIGNALS:
                signal.signal(number, signal.SIG_DFL)
        status = 1
        try:
            os.close(self._alive)
            child(self._parent, self._report)
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
        """Called in a child: it has begun."""
        os.write(self._reports, b".")


@contextmanager
def _signals_wait() -> Iterator[None]:
    """Nobody is told to stop between being born and being known."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
