"""What all the rules of one event may cost together.

Rules are a tenant's, and bodies are a stranger's. Every loop that runs over a body pays for its
steps before it takes them, and whoever has nothing left is stopped.
"""

from __future__ import annotations

import time

STEPS = 400_000
"""Some hundred milliseconds of one thread at the most."""

SECONDS = 1.0
_LOOK_EVERY = 2_000


class RulesTooCostly(Exception):
    """The rules of an event have used up what they may cost."""


class Budget:
    """Steps and time for the rules of one event. Only one thread at a time may spend it.

    A `trial` is for the event loop: what it does not suffice for is tried again beside it.
    """

    __slots__ = ("_look_at", "_seconds", "_steps", "_until", "trial")

    def __init__(
        self, steps: int = STEPS, seconds: float = SECONDS, *, trial: bool = False
    ) -> None:
        self.trial = trial
        self._steps = steps
        self._seconds = seconds
        self.start()

    def start(self) -> None:
        """Time runs from here: what rules wait for each other is not theirs to pay."""
        self._until = time.monotonic() + self._seconds
        self._look_at = self._steps - _LOOK_EVERY

    def spend(self, steps: int = 1) -> None:
        """Pay for steps that are about to be taken."""
        self._steps -= steps
        if self._steps < 0:
            raise RulesTooCostly("the rules of this event take too many steps on a body like this")
        if self._steps < self._look_at:
            self.look()

    def look(self) -> None:
        """See what time it is, also after something whose steps cannot be counted."""
        self._look_at = self._steps - _LOOK_EVERY
        if time.monotonic() > self._until:
            raise RulesTooCostly("the rules of this event take too long on a body like this")
