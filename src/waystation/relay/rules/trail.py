"""Trails: through which sources an event has come, so that it does not go round in circles.

Our deliveries carry a trail, and whoever sends one on to us, directly or through others, brings it
back. The names in it are hashes: a source's id is for its senders only.
"""

from __future__ import annotations

from functools import lru_cache

from waystation.ids import secret_hash

TRAIL = "x-waystation-trail"
MAX_HOPS = 10
_MARK_CHARACTERS = 12


def extended(trail: str, source_id: str) -> str:
    """A trail with one more source at its end."""
    return ",".join([*_marks(trail), _mark(source_id)]) if trail else _mark(source_id)


def loop(trail: str, source_id: str) -> str | None:
    """Why an event must not be delivered from here; None if it may be."""
    if not trail:
        return None
    marks = _marks(trail)
    if _mark(source_id) in marks:
        return "this is a loop: the event was delivered from this source before and came back"
    if len(marks) >= MAX_HOPS:
        return f"the event has come through {MAX_HOPS} sources, which is as many as are allowed"
    return None


def _marks(trail: str) -> list[str]:
    return [mark for part in trail.split(",")[: 2 * MAX_HOPS] if (mark := part.strip())]


@lru_cache(maxsize=4096)
def _mark(source_id: str) -> str:
    return secret_hash(f"trail {source_id}")[:_MARK_CHARACTERS]
