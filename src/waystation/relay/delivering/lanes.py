"""Lanes: how much of a connection's work this process may do at once.

Each connection has its own lane, so that a slow or broken endpoint holds up nobody else. Some
deliveries wait in memory for their turn; a lane that is rate-limited or broken, or has too many of
them, leaves the rest in the table, however many there are.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from waystation.relay.connections import RateLimit

if TYPE_CHECKING:
    from waystation.clock import Clock
    from waystation.relay.delivering.parcels import Held
    from waystation.relay.tables import Connection

MOST_AT_ONCE = 1_000
BREAK_AFTER = 10
"""Failures in a row after which an endpoint is only tried now and then."""

_FIRST_PAUSE = 30.0
_LONGEST_PAUSE = 600.0
_SHORTEST_PAUSE = 5.0
_MOST_IDLE = 50_000
_MOST_WAITING = 5_000


class Lane:
    """What this process is doing for one connection. Times are the clock's seconds.

    `waiting` are deliveries in memory; `backlog` says that there are more in the table. `tainted`
    says that the connection's row may count failures, which a success resets.
    """

    __slots__ = (
        "backlog",
        "blocked_until",
        "concurrency",
        "connection_id",
        "failures",
        "freed",
        "running",
        "tainted",
        "user_id",
        "waiting",
    )

    def __init__(self, connection_id: str, user_id: str = "", failures: int = 0) -> None:
        self.connection_id = connection_id
        self.user_id = user_id
        self.concurrency = 1
        self.running = 0
        self.waiting: deque[Held] = deque()
        self.backlog = False
        self.failures = failures
        self.tainted = bool(failures)
        self.blocked_until = 0.0
        self.freed = asyncio.Event()

    @property
    def broken(self) -> bool:
        return self.failures >= BREAK_AFTER

    @property
    def places(self) -> int:
        return 1 if self.broken else max(1, self.concurrency)

    @property
    def idle(self) -> bool:
        return not self.running and not self.waiting


class Lanes:
    def __init__(self, clock: Clock, *, most: int = MOST_AT_ONCE) -> None:
        self._clock = clock
        self.most = most
        self._by_account: Counter[str] = Counter()
        self._lanes: dict[str, Lane] = {}
        self._starved: dict[str, Lane] = {}
        self.running = 0

    def of(self, connection: Connection) -> Lane:
        lane = self._lanes.get(connection.connection_id)
        if lane is None:
            if len(self._lanes) > _MOST_IDLE:
                self._forget_idle()
            lane = Lane(connection.connection_id, connection.user_id, connection.failure_streak)
            self._lanes[connection.connection_id] = lane
        lane.concurrency = connection.concurrency
        return lane

    def get(self, connection_id: str) -> Lane | None:
        """The lane of a connection that we work for."""
        return self._lanes.get(connection_id)

    def known(self, lane: Lane) -> Lane:
        """A lane that may have been forgotten meanwhile, because nothing was in it."""
        return self._lanes.setdefault(lane.connection_id, lane)

    def all(self) -> list[Lane]:
        return list(self._lanes.values())

    def forget(self, connection_id: str) -> None:
        """The connection is paused: its deliveries need not be looked at."""
        lane = self._lanes.get(connection_id)
        if lane is not None and lane.idle:
            del self._lanes[connection_id]

    def current(self, connection: Connection) -> Lane:
        """The lane of a connection that was just read, unblocked if its owner has reset it."""
        lane = self.of(connection)
        if lane.broken and not connection.failure_streak:
            self.reset(connection.connection_id)
        return lane

    def takes(self, connection: Connection) -> bool:
        """Whether a new delivery may wait in memory. It goes behind those in the table; and where
        the rate is limited, it is counted only once it is written."""
        if connection.status != "active" or connection.rate_limit is not None:
            return False
        lane = self.of(connection)
        if lane.backlog or lane.broken or len(lane.waiting) >= _MOST_WAITING:
            return False
        return not lane.blocked_until or lane.blocked_until <= self._clock()

    def reserve(self, lane: Lane) -> bool:
        """Take a place in a lane, if there is one."""
        if lane.running >= lane.places:
            return False
        if lane.blocked_until and lane.blocked_until > self._clock():
            return False
        if not self._has_share(lane.user_id):
            self._starved[lane.connection_id] = lane
            return False
        lane.running += 1
        self.running += 1
        self._by_account[lane.user_id] += 1
        return True

    def block(self, lane: Lane, seconds: float) -> None:
        """Let a lane rest: its limit is used up."""
        lane.blocked_until = max(lane.blocked_until, self._clock() + seconds)

    def _has_share(self, user_id: str) -> bool:
        """Whether an account may have one more place. No account has more than there are free: one
        can take half of all, a second one a quarter, and a newcomer always finds room."""
        free = self.most - self.running
        return free > 0 and self._by_account[user_id] < free

    def starved(self) -> list[Lane]:
        """Those that have found no place. They are to try again."""
        if not self._starved:
            return []
        found = list(self._starved.values())
        self._starved.clear()
        return found

    def release(self, lane: Lane) -> None:
        """Give a place back."""
        lane.running -= 1
        self.running -= 1
        self._by_account[lane.user_id] -= 1
        if not self._by_account[lane.user_id]:
            del self._by_account[lane.user_id]
        lane.freed.set()

    def succeeded(self, lane: Lane) -> None:
        if lane.broken:  # what was asked for by others still holds
            lane.blocked_until = 0.0
        lane.failures = 0
        lane.tainted = False

    def failed(self, lane: Lane) -> None:
        """Count a failure. After some in a row the lane rests, longer and longer."""
        lane.tainted = True
        if lane.broken and lane.blocked_until > self._clock():
            return  # it was under way when the lane broke
        lane.failures += 1
        if lane.broken:
            pause = _FIRST_PAUSE * 2 ** min(10, lane.failures - BREAK_AFTER)
            lane.blocked_until = self._clock() + min(_LONGEST_PAUSE, pause)
            lane.backlog = True

    def throttle(self, lane: Lane, seconds: float) -> None:
        """The endpoint has asked for a pause, or cannot be reached behind its proxy: everything
        for it waits, not only what was refused."""
        pause = min(_LONGEST_PAUSE, max(_SHORTEST_PAUSE, seconds))
        lane.blocked_until = max(lane.blocked_until, self._clock() + pause)
        lane.backlog = True

    def reset(self, connection_id: str) -> None:
        """Forget the failures: the owner says that the endpoint works again."""
        lane = self._lanes.get(connection_id)
        if lane is not None:
            lane.failures = 0
            lane.blocked_until = 0.0

    def _forget_idle(self) -> None:
        idle = [key for key, lane in self._lanes.items() if lane.idle and not lane.failures]
        for key in idle:
            del self._lanes[key]


@lru_cache(maxsize=1024)
def stored_limit(text: str) -> RateLimit:
    """A connection's limit; one a second where another service wrote what we cannot read."""
    try:
        return msgspec.json.decode(text, type=RateLimit)
    except msgspec.MsgspecError:
        return RateLimit(1)
