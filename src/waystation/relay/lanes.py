"""Lanes: how much of a connection's work this process may do at once.

Each connection has its own lane, so that a slow or broken endpoint holds up nobody else. A lane
that is full, rate-limited or broken leaves its deliveries in the table, however many there are.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from waystation.relay.connections import RateLimit

if TYPE_CHECKING:
    from waystation.clock import Clock
    from waystation.relay.tables import Connection

MOST_AT_ONCE = 1_000
BREAK_AFTER = 10
"""Failures in a row after which an endpoint is only tried now and then."""

_FIRST_PAUSE = 30.0
_LONGEST_PAUSE = 600.0
_SHORTEST_PAUSE = 5.0
_MOST_IDLE = 50_000


class Lane:
    """What this process is doing for one connection. Times are the clock's seconds."""

    __slots__ = ("backlog", "blocked_until", "failures", "freed", "running", "user_id")

    def __init__(self, failures: int) -> None:
        self.running = 0
        self.user_id = ""
        self.backlog = False
        self.failures = failures
        self.blocked_until = 0.0
        self.freed = asyncio.Event()

    @property
    def broken(self) -> bool:
        return self.failures >= BREAK_AFTER

    def room(self, connection: Connection) -> int:
        return (1 if self.broken else max(1, connection.concurrency)) - self.running


class Lanes:
    def __init__(self, clock: Clock, *, most: int = MOST_AT_ONCE) -> None:
        self._clock = clock
        self.most = most
        self._by_account: Counter[str] = Counter()
        self._lanes: dict[str, Lane] = {}
        self.running = 0

    def of(self, connection: Connection) -> Lane:
        lane = self._lanes.get(connection.connection_id)
        if lane is None:
            if len(self._lanes) > _MOST_IDLE:
                self._forget_idle()
            lane = self._lanes[connection.connection_id] = Lane(connection.failure_streak)
        return lane

    def __contains__(self, connection_id: str) -> bool:
        """Whether we work for a connection."""
        return connection_id in self._lanes

    def forget(self, connection_id: str) -> None:
        """The connection is paused: its deliveries need not be looked at."""
        lane = self._lanes.get(connection_id)
        if lane is not None and not lane.running:
            del self._lanes[connection_id]

    def current(self, connection: Connection) -> Lane:
        """The lane of a connection that was just read, unblocked if its owner has reset it."""
        lane = self.of(connection)
        if lane.broken and not connection.failure_streak:
            self.reset(connection.connection_id)
        return lane

    def reserve(self, connection: Connection) -> bool:
        """Take a place in the lane, if there is one."""
        lane = self.of(connection)
        now = self._clock()
        if lane.blocked_until > now or not self._has_share(connection.user_id):
            return False
        if lane.room(connection) <= 0:
            return False
        lane.running += 1
        self.running += 1
        lane.user_id = connection.user_id
        self._by_account[connection.user_id] += 1
        return True

    def block(self, connection: Connection, seconds: float) -> None:
        """Let a lane rest: its limit is used up."""
        lane = self.of(connection)
        lane.blocked_until = max(lane.blocked_until, self._clock() + seconds)

    def _has_share(self, user_id: str) -> bool:
        """Whether an account may have one more place. No account has more than there are free: one
        can take half of all, a second one a quarter, and a newcomer always finds room."""
        free = self.most - self.running
        return free > 0 and self._by_account[user_id] < free

    def release(self, connection_id: str) -> bool:
        """Give a place back; whether deliveries wait for it."""
        lane = self._lanes[connection_id]
        lane.running -= 1
        self.running -= 1
        self._by_account[lane.user_id] -= 1
        if not self._by_account[lane.user_id]:
            del self._by_account[lane.user_id]
        lane.freed.set()
        return lane.backlog

    def succeeded(self, connection_id: str) -> None:
        lane = self._lanes[connection_id]
        if lane.broken:  # what was asked for by others still holds
            lane.blocked_until = 0.0
        lane.failures = 0

    def failed(self, connection_id: str) -> None:
        """Count a failure. After some in a row the lane rests, longer and longer."""
        lane = self._lanes[connection_id]
        if lane.broken and lane.blocked_until > self._clock():
            return  # it was under way when the lane broke
        lane.failures += 1
        if lane.broken:
            pause = _FIRST_PAUSE * 2 ** min(10, lane.failures - BREAK_AFTER)
            lane.blocked_until = self._clock() + min(_LONGEST_PAUSE, pause)

    def throttle(self, connection_id: str, seconds: float) -> None:
        """The endpoint has asked for a pause, or cannot be reached behind its proxy: everything
        for it waits, not only what was refused."""
        lane = self._lanes[connection_id]
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
        idle = [key for key, lane in self._lanes.items() if not lane.running and not lane.failures]
        for key in idle:
            del self._lanes[key]


@lru_cache(maxsize=1024)
def stored_limit(text: str) -> RateLimit:
    """A connection's limit; one a second where another service wrote what we cannot read."""
    try:
        return msgspec.json.decode(text, type=RateLimit)
    except msgspec.MsgspecError:
        return RateLimit(1)
