"""What is written in one turn of the event loop leaves at its end, whatever connections it is for.

A peer on the same machine is woken by the first of many answers, not by each; and nobody's work is
interrupted to send what may as well leave with the rest.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, ref

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

log = logging.getLogger(__name__)


class Departures:
    """The writes of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = ref(loop)  # which these writes are known by for as long as it is there
        self._waiting: list[Callable[[], None]] = []

    def add(self, leave: Callable[[], None]) -> None:
        """Call this at the end of the turn."""
        if not self._waiting and (loop := self._loop()) is not None:
            loop.call_soon(self._leave)
        self._waiting.append(leave)

    def _leave(self) -> None:
        waiting, self._waiting = self._waiting, []
        for leave in waiting:
            try:
                leave()
            except Exception:
                log.exception("something that was written could not leave")


_of: WeakKeyDictionary[asyncio.AbstractEventLoop, Departures] = WeakKeyDictionary()


def departures_of(loop: asyncio.AbstractEventLoop) -> Departures:
    found = _of.get(loop)
    if found is None:
        found = _of[loop] = Departures(loop)
    return found
