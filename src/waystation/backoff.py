"""Waiting before another try: twice as long each time, and never all at once."""

from __future__ import annotations

import random

_MOST_DOUBLINGS = 30


def backoff(attempt: int, *, first: float, longest: float) -> float:
    """Seconds to wait after so many failures, between half of the doubled wait and all of it."""
    wait: float = min(longest, first * 2 ** min(attempt, _MOST_DOUBLINGS))
    return wait * (0.5 + random.random() / 2)  # noqa: S311 - jitter, not a secret
