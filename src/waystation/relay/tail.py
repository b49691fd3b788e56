"""The live tail: new events of an account as they come, and after a reconnect those in between.

Events are read from the table, where other processes' are too. One may become visible a little
later than a younger one, so each look goes back a few seconds and passes over what it has shown.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from waystation.errors import TooManyRequests
from waystation.patterns import Newest
from waystation.relay.tables import Event, Source
from waystation.times import iso

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from waystation.store import Store

OVERLAP_MS = 3_000
_POLL_SECONDS = 1.0
_SOONEST_SECONDS = 0.2
_HEARTBEAT_SECONDS = 15.0
_MOST_TAILS = 200
_MOST_PER_ACCOUNT = 10
_MOST_SEEN = 50_000
_MOST_AT_A_TIME = 10_000
_FEWEST_OF_ONE = 50
_CLAIM_SECONDS = 5.0
_LIFE_SECONDS = 900.0


class Tails:
    def __init__(self, store: Store, stopping: asyncio.Event) -> None:
        self._store = store
        self._stopping = stopping
        self._bells: dict[str, set[asyncio.Event]] = {}
        self._waiting: dict[asyncio.Event, asyncio.TimerHandle] = {}

    def ring(self, event: Event) -> None:
        """An event has come in here."""
        for bell in self._bells.get(event.user_id, ()):
            bell.set()

    @property
    def open(self) -> int:
        """How many there are."""
        return sum(map(len, self._bells.values()))

    def reserve(self, user_id: str) -> asyncio.Event:
        """A place for one more tail, refused where there are enough. It is taken at once, and given
        back if nobody comes for it."""
        taken = len(self._bells.get(user_id, ()))
        if taken >= _MOST_PER_ACCOUNT or self.open >= _MOST_TAILS:
            raise TooManyRequests("too many tails are open", retry_after=30.0)
        bell = asyncio.Event()
        self._bells.setdefault(user_id, set()).add(bell)
        self._waiting[bell] = asyncio.get_running_loop().call_later(
            _CLAIM_SECONDS, self._give_back, user_id, bell
        )
        return bell

    def _give_back(self, user_id: str, bell: asyncio.Event) -> None:
        self._waiting.pop(bell, None)
        places = self._bells.get(user_id, set())
        places.discard(bell)
        if not places:
            self._bells.pop(user_id, None)

    async def follow(
        self, bell: asyncio.Event, user_id: str, source_id: str | None, since: int | None
    ) -> AsyncIterator[tuple[int, Event | None]]:
        """Events since a time in milliseconds, or from now on, each with the time to go on from
        after a break. None is a sign of life. It ends by itself after a while, so that its caller
        must show its key again. `bell` is the place that was reserved for it."""
        if (timer := self._waiting.pop(bell, None)) is None:
            return  # it came too late
        timer.cancel()
        try:
            async for shown in self._follow(user_id, source_id, since, bell):
                yield shown
        finally:
            self._give_back(user_id, bell)

    async def _follow(
        self, user_id: str, source_id: str | None, since: int | None, bell: asyncio.Event
    ) -> AsyncIterator[tuple[int, Event | None]]:
        """Look again and again. Whatever came before a look began, and a little before, has been
        shown when it is over, whichever source it was."""
        floor = self._now() if since is None else max(0, since - OVERLAP_MS)
        done = floor
        seen: Newest[str, None] = Newest(_MOST_SEEN)
        begun = heard = time.monotonic()
        yield done, None
        while not self._stopping.is_set() and time.monotonic() - begun < _LIFE_SECONDS:
            bell.clear()
            start, now = max(floor, done - OVERLAP_MS), self._now()
            sources = await self._sources(user_id, source_id, start)
            refs, until = await self._next(sources, start, seen)
            for received_at, event_id, source in refs:
                seen[event_id] = None
                heard = time.monotonic()
                event = await self._store.get(Event.key(source, received_at, event_id))
                if event is not None:
                    yield done, event
            done = max(done, now if until is None else until)
            if until is not None:
                continue  # there is more from before this look
            if time.monotonic() - heard > _HEARTBEAT_SECONDS:
                heard = time.monotonic()
                yield done, None
            await self._wait(bell)

    async def _next(
        self, sources: list[str], start: int, seen: Newest[str, None]
    ) -> tuple[list[tuple[int, str, str]], int | None]:
        """Where the events since a time are that were not shown, of all sources in the order of
        their arrival. If there are too many, only those up to a time, which is given."""
        found: list[tuple[int, str, str]] = []
        until: int | None = None
        share = max(_FEWEST_OF_ONE, _MOST_AT_A_TIME // max(1, len(sources)))
        for source in sources:
            taken = 0
            async for event in self._store.iterate(Event.query(source).at_least(start)):
                if until is not None and event.received_at > until:
                    break
                if event.event_id in seen:
                    continue
                if taken == share:
                    until = event.received_at
                    break
                taken += 1
                found.append((event.received_at, event.event_id, source))
        return sorted(ref for ref in found if until is None or ref[0] <= until), until

    async def _sources(self, user_id: str, source_id: str | None, start: int) -> list[str]:
        """The sources that may have something new."""
        if source_id is not None:
            return [source_id]
        since = iso(start / 1000 - 1)
        query = Source.query(user_id)
        return [
            source.source_id
            async for source in self._store.iterate(query)
            if (source.last_event_at or "") >= since
        ]

    async def _wait(self, bell: asyncio.Event) -> None:
        await asyncio.sleep(_SOONEST_SECONDS)
        try:
            async with asyncio.timeout(_POLL_SECONDS):
                await bell.wait()
        except TimeoutError:
            pass

    def _now(self) -> int:
        return int(self._store.clock() * 1000)
