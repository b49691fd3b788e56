"""Wake-ups: what has changed is looked at now, or soon after a crash, and never forgotten.

Whoever changes a source, a connection or a replay says so before, so that its timer is set whatever
happens to this process, and again when it is done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from waystation.patterns import RESCUE_MS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from waystation.patterns import Timers
    from waystation.relay.delivering.onward import Onward


class Wakeups:
    def __init__(self, timers: Timers, onward: Onward) -> None:
        self._timers = timers
        self._onward = onward

    async def expect(self, names: Iterable[str]) -> None:
        """These are about to change."""
        for name in names:
            await self._timers.expect(name, self._timers.now() + RESCUE_MS)

    async def wake(self, names: Iterable[str], *, anew: bool = False) -> None:
        """These have changed: have a worker look at them now."""
        for name in names:
            await self._timers.ensure(name, self._timers.now())
            self._onward.look(name, anew=anew)
