"""Existence checks: does this really exist, asked of whoever knows, once for all who ask at a time.

Only a yes is remembered, and for a few minutes. Everything else is a no: one that was said, and
one for want of an answer. Whoever is asked is left alone for a while after it failed to answer
several times, or when it has asked for that.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from waystation.patterns import Newest

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from waystation.clock import Clock

log = logging.getLogger(__name__)

Ids = tuple[str, ...]
Verify = Callable[..., Awaitable[None]]
"""Asks whether the ids exist: returns if they do, raises Refused if not, and Unavailable (or
anything else) if that cannot be said."""

BUDGET_SECONDS = 1.8
_FRESH_SECONDS = 2.0
_CACHE_SECONDS = 0.5
_MOST_REMEMBERED = 100_000
_MOST_SCOPES = 10_000
_MOST_FLIGHTS = 1_000
_MOST_FLIGHTS_OF_ONE = 50
_BREAKS_AFTER = 5
_FIRST_PAUSE = 5.0
_LONGEST_PAUSE = 60.0
_LONGEST_ASKED = 600.0


class Refused(Exception):
    """One of the ids does not exist, or must not pass."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.detail = detail


class Unavailable(Exception):
    """There was no answer. `retry_after` is when to ask again, if that was said."""

    def __init__(
        self, detail: str, *, reason: str = "unavailable", retry_after: float | None = None
    ) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
        self.retry_after = retry_after


class Verdict(msgspec.Struct, frozen=True):
    """Whether it exists; if not, why not. `cached` says that nobody was asked."""

    passed: bool
    reason: str = ""
    detail: str = ""
    cached: bool = False


class Memory(Protocol):
    """Where a yes is kept that processes share: when it was said, while it counts."""

    async def get(self, ids: Ids, asker: str) -> float | None: ...

    async def put(self, ids: Ids, asker: str, verified_at: float) -> None: ...


class _Scope:
    """What we know of whoever is asked. What began before it was `blocked_at` says nothing new."""

    __slots__ = ("blocked_at", "blocked_until", "failures", "flights", "reason")

    def __init__(self) -> None:
        self.flights = 0
        self.forgive()

    def forgive(self) -> None:
        self.failures = 0
        self.blocked_at = self.blocked_until = 0.0
        self.reason = "unavailable"


class ExistenceCheck:
    """Checks ids with any provider that has an async function to ask.

    `asker` is whose provider is asked, the first id if nothing is said: trouble with one keeps
    nobody from asking another, and what one was told is not another's to rely on.
    """

    def __init__(
        self,
        verify: Verify,
        *,
        memory: Memory | None = None,
        seconds: float = 300.0,
        budget: float = BUDGET_SECONDS,
        clock: Clock = time.time,
    ) -> None:
        self._verify = verify
        self._memory = memory
        self._seconds = seconds
        self._budget = budget
        self._clock = clock
        self._recent: Newest[tuple[str, Ids], tuple[float, float]] = Newest(_MOST_REMEMBERED)
        self._scopes: Newest[str, _Scope] = Newest(_MOST_SCOPES)
        self._flights: dict[tuple[str, Ids, float], asyncio.Task[Verdict]] = {}
        self._writing: set[asyncio.Task[None]] = set()

    async def check(
        self, *ids: str, since: float = 0.0, asker: str = "", verify: Verify | None = None
    ) -> Verdict:
        """Whether all of the ids exist. What was said at `since` or before does not count. `verify`
        is another way to ask, for this `asker`."""
        asker = asker or ids[0]
        if await self.known(*ids, since=since, asker=asker):
            return Verdict(passed=True, cached=True)
        return await self.ask(*ids, since=since, asker=asker, verify=verify)

    async def ask(
        self, *ids: str, since: float = 0.0, asker: str = "", verify: Verify | None = None
    ) -> Verdict:
        """As `check`, for those who know already that nothing is remembered."""
        asker = asker or ids[0]
        flight = self._flights.get((asker, ids, since))
        if flight is None:
            scope = self._scope(asker)
            if (refusal := self._refusal(scope)) is not None:
                return refusal
            asking = self._ask(ids, asker, scope, verify or self._verify)
            flight = self._begin((asker, ids, since), scope, asking)
        await asyncio.wait({flight})
        if flight.cancelled():
            return Verdict(passed=False, reason="unavailable", detail="no answer in time")
        return flight.result()

    async def known(self, *ids: str, since: float = 0.0, asker: str = "") -> bool:
        """Whether a yes to these ids is remembered, said after `since`."""
        now, place = self._clock(), (asker or ids[0], ids)
        verified_at, read_at = self._recent.get(place) or (0.0, 0.0)
        if self._memory is not None and now - read_at >= _FRESH_SECONDS:
            verified_at = await self._read(*place)
            if verified_at:
                self._recent[place] = (verified_at, now)
        return since < verified_at and verified_at <= now + 1 and now < verified_at + self._seconds

    def forgive(self, asker: str) -> None:
        """Ask again at once, whatever has been wrong."""
        if asker in self._scopes:
            self._scopes[asker].forgive()

    async def settle(self) -> None:
        """Wait until what was confirmed is written."""
        await asyncio.gather(*self._writing)

    async def close(self) -> None:
        flights = list(self._flights.values())
        for flight in flights:
            flight.cancel()
        await asyncio.gather(*flights, return_exceptions=True)
        await self.settle()

    async def _read(self, asker: str, ids: Ids) -> float:
        assert self._memory is not None
        try:
            async with asyncio.timeout(_CACHE_SECONDS):
                return await self._memory.get(ids, asker) or 0.0
        except Exception as error:  # noqa: BLE001 - then it is asked for
            log.warning("the memory of checks could not be read: %s", type(error).__name__)
            return 0.0

    def _scope(self, asker: str) -> _Scope:
        scope = self._scopes.get(asker)
        if scope is None:
            scope = self._scopes[asker] = _Scope()
        return scope

    def _refusal(self, scope: _Scope) -> Verdict | None:
        """Why nobody is asked now."""
        if scope.blocked_until > self._clock():
            return Verdict(passed=False, reason=scope.reason, detail="it is being left alone")
        probing = scope.failures >= _BREAKS_AFTER and scope.flights
        if probing or scope.flights >= _MOST_FLIGHTS_OF_ONE or len(self._flights) >= _MOST_FLIGHTS:
            return Verdict(passed=False, reason="busy", detail="too many checks at the same time")
        return None

    def _begin(
        self, place: tuple[str, Ids, float], scope: _Scope, asking: Coroutine[Any, Any, Verdict]
    ) -> asyncio.Task[Verdict]:
        flight = asyncio.create_task(asking)
        self._flights[place] = flight
        scope.flights += 1

        def ended(_: object) -> None:
            scope.flights -= 1
            del self._flights[place]

        flight.add_done_callback(ended)
        return flight

    async def _ask(self, ids: Ids, asker: str, scope: _Scope, verify: Verify) -> Verdict:
        began = self._clock()
        try:
            async with asyncio.timeout(self._budget):
                await verify(*ids)
        except Refused as refused:
            scope.failures = 0
            return Verdict(passed=False, reason=refused.reason, detail=refused.detail)
        except Unavailable as error:
            self._failed(scope, began, error.reason, error.retry_after)
            return Verdict(passed=False, reason=error.reason, detail=error.detail)
        except TimeoutError:
            self._failed(scope, began)
            return Verdict(passed=False, reason="unavailable", detail="no answer in time")
        except Exception:
            log.exception("an existence check failed")
            self._failed(scope, began)
            return Verdict(passed=False, reason="unavailable", detail="the check failed")
        scope.failures = 0
        self._remember(ids, asker, began)
        return Verdict(passed=True)

    def _failed(
        self,
        scope: _Scope,
        began: float,
        reason: str = "unavailable",
        retry_after: float | None = None,
    ) -> None:
        now = self._clock()
        if retry_after is not None:
            pause = min(retry_after, _LONGEST_ASKED)
        elif scope.failures >= _BREAKS_AFTER and began <= scope.blocked_at:
            return  # one of many that failed together
        else:
            scope.failures += 1
            if scope.failures < _BREAKS_AFTER:
                return
            pause = _FIRST_PAUSE * 2.0 ** min(scope.failures - _BREAKS_AFTER, 10)
            pause = min(pause, _LONGEST_PAUSE)
        scope.reason, scope.blocked_at = reason, now
        scope.blocked_until = max(scope.blocked_until, now + pause)

    def _remember(self, ids: Ids, asker: str, began: float) -> None:
        """Keep a yes. It counts from when it was asked for: what changed since then may have
        changed the answer."""
        self._recent[asker, ids] = (began, self._clock())
        if self._memory is not None:
            writing = asyncio.create_task(_written(self._memory.put(ids, asker, began)))
            self._writing.add(writing)
            writing.add_done_callback(self._writing.discard)


async def _written(put: Coroutine[object, object, None]) -> None:
    try:
        await put
    except Exception as error:  # noqa: BLE001 - then it is asked for again
        log.warning("the memory of checks could not be written: %s", type(error).__name__)
