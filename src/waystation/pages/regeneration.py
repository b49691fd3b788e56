"""Regeneration: of all who need a page anew, in this process and in others, one generates it.

In a process the first goes and the rest wait for it; between processes a lease decides. Whoever
cannot have the lease waits for what its holder publishes, but not for ever.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec

from waystation.backoff import backoff
from waystation.errors import LeaseLost, StoreError, WaystationError
from waystation.pages.entries import Held
from waystation.pages.http.fields import Headers
from waystation.pages.http.policies import Policy
from waystation.pages.publishing import Publisher, Rendered
from waystation.patterns import Leases, Newest

if TYPE_CHECKING:
    from waystation.pages.entries import Entry
    from waystation.pages.limits import Allowance
    from waystation.pages.places import Place
    from waystation.pages.shelf import Shelf
    from waystation.patterns import Lease

log = logging.getLogger(__name__)

LEASE_SECONDS = 15
LONGEST_SECONDS = 120.0
WAIT_SECONDS = 5.0
_FIRST_LOOK = 0.03
_SLOWEST_LOOK = 0.5
_MOST_REMEMBERED = 20_000
_LONGEST_REST = 60.0


class Unchanged(msgspec.Struct, frozen=True):
    """That a page is as it was, with the headers and the policy that it has from now on."""

    headers: Headers
    policy: Policy


class RenderFailed(WaystationError):
    """A page could not be generated. `rendered` is what came instead, if anything."""

    def __init__(
        self,
        reason: str,
        rendered: Rendered | None = None,
        status: int = 502,
        cause: Exception | None = None,
    ) -> None:
        super().__init__(reason)
        self.rendered = rendered
        self.status = status
        self.cause = cause


Render = Callable[["Entry | None"], Awaitable[Rendered | Unchanged]]
"""Generates a page. Given the one that is kept, it may find that nothing has changed."""


class Outcome(msgspec.Struct):
    """What came of it: the page that is kept now, or one that is not kept, and why."""

    held: Held | None = None
    rendered: Rendered | None = None
    reason: str | None = None
    collapsed: bool = False


class Regeneration:
    """Generates pages, each once."""

    def __init__(self, shelf: Shelf, publisher: Publisher, allowance: Allowance) -> None:
        self._shelf = shelf
        self._publisher = publisher
        self._allowance = allowance
        self._clock = shelf.store.clock
        self.leases = Leases(shelf.store, seconds=LEASE_SECONDS, longest=LONGEST_SECONDS)
        self.wait_seconds = WAIT_SECONDS
        self._flights: dict[Place, asyncio.Task[Outcome]] = {}
        self._failures: Newest[Place, tuple[int, float]] = Newest(_MOST_REMEMBERED)

    def under_way(self, place: Place) -> bool:
        return place in self._flights

    def resting(self, place: Place) -> bool:
        """Whether a page failed so lately that it is not tried again yet, where there is an old one
        to use."""
        failed = self._failures.get(place)
        return failed is not None and self._clock() < failed[1]

    def failed(self, place: Place) -> None:
        times = (self._failures.get(place) or (0, 0.0))[0] + 1
        rest = backoff(times - 1, first=1.0, longest=_LONGEST_REST)
        self._failures[place] = (times, self._clock() + rest)

    async def run(
        self,
        place: Place,
        render: Render,
        known: Held | None,
        keep: int,
        *,
        wait: bool = True,
    ) -> Outcome:
        """Have a page generated, or wait for who does so already. It goes on when the caller
        goes away: others may be waiting."""
        flight = self._flights.get(place)
        collapsed = flight is not None
        if flight is None:
            flight = asyncio.create_task(self._generate(place, render, known, keep, wait=wait))
            self._flights[place] = flight
            flight.add_done_callback(lambda task: self._landed(place, task))
        outcome = await asyncio.shield(flight)
        return Outcome(outcome.held, outcome.rendered, outcome.reason, collapsed)

    def start(
        self,
        place: Place,
        render: Render,
        known: Held | None,
        keep: int,
    ) -> None:
        """Have a page generated in the background, unless that is being done."""
        if place not in self._flights and not self.resting(place):
            flight = asyncio.create_task(self._generate(place, render, known, keep, wait=False))
            self._flights[place] = flight
            flight.add_done_callback(lambda task: self._landed(place, task))

    def _landed(self, place: Place, flight: asyncio.Task[Outcome]) -> None:
        self._flights.pop(place, None)
        error = None if flight.cancelled() else flight.exception()
        if isinstance(error, RenderFailed):
            self.failed(place)
        elif error is not None and not isinstance(error, WaystationError):
            self.failed(place)
            log.error("a page could not be generated", exc_info=error)

    async def _generate(
        self,
        place: Place,
        render: Render,
        known: Held | None,
        keep: int,
        *,
        wait: bool,
    ) -> Outcome:
        lease = await self._lease(place, known, wait=wait)
        if isinstance(lease, Held):
            return Outcome(lease)
        if lease is None:
            if not wait:
                return Outcome(known, reason="busy")
            rendered = await render(None)
            assert isinstance(rendered, Rendered)
            return Outcome(rendered=rendered, reason="busy")
        try:
            current = await self._shelf.find(place, now=True)
            if current is not None and _newer(current, known) and current.usable(self._clock()):
                return Outcome(current)
            async with lease.kept(asyncio.current_task()):
                return await self._under(lease, place, render, current, keep)
        finally:
            if not lease.ended:
                await self._publisher.give_up(lease)

    async def _under(
        self,
        lease: Lease,
        place: Place,
        render: Render,
        current: Held | None,
        keep: int,
    ) -> Outcome:
        """Generate a page under its lease, and publish it."""
        state = await self._shelf.purges.state(place.scope, now=True)
        entry = None if current is None else current.entry
        if current is not None and (current.verdict.hard or current.gone):
            entry = None  # nothing that the origin could confirm
        rendered = await render(entry)
        self._failures.pop(place, None)
        if isinstance(rendered, Unchanged):
            assert entry is not None
            try:
                held = await self._publisher.renew(
                    lease, entry, rendered.headers, rendered.policy, state.seq
                )
            except (LeaseLost, StoreError) as error:
                log.warning("a page could not be renewed: %s", error)
                return Outcome(current, reason="lost")
            return Outcome(held)
        if rendered.policy.refused is not None:
            return Outcome(rendered=rendered, reason=rendered.policy.refused)
        if rendered.status >= 500 and entry is not None and entry.status < 500:
            return Outcome(rendered=rendered, reason="error")
        known = None if current is None else current.entry
        if known is not None and current is not None and current.gone:
            known = msgspec.structs.replace(known, digest=None)
        if rendered.account is not None and not self._allowance.take(
            rendered.account, len(rendered.body)
        ):
            return Outcome(rendered=rendered, reason="allowance")
        try:
            held = await self._publisher.publish(lease, rendered, known, state.seq, place, keep)
        except LeaseLost:
            return Outcome(rendered=rendered, reason="lost")
        except WaystationError as error:
            log.warning("a page could not be published: %s", error)
            return Outcome(rendered=rendered, reason="storage")
        return Outcome(held, rendered)

    async def _lease(self, place: Place, known: Held | None, *, wait: bool) -> Lease | Held | None:
        """The lease, or what its holder has published meanwhile; None if neither is to be had."""
        above = 0 if known is None else known.entry.fence
        until = asyncio.get_running_loop().time() + self.wait_seconds
        pause = _FIRST_LOOK
        while True:
            lease = await self.leases.acquire(place.lock, above=above)
            if lease is not None or not wait:
                return lease
            if asyncio.get_running_loop().time() >= until:
                return None
            await asyncio.sleep(pause * (0.5 + random.random()))  # noqa: S311 - not all at once
            pause = min(pause * 1.5, _SLOWEST_LOOK)
            current = await self._shelf.find(place, now=True)
            if current is not None and _newer(current, known) and current.usable(self._clock()):
                return current

    async def close(self) -> None:
        """Wait for what is under way."""
        await asyncio.gather(*self._flights.values(), return_exceptions=True)


def _newer(current: Held, known: Held | None) -> bool:
    one, other = current.entry, None if known is None else known.entry
    return other is None or (one.fence, one.s3_key, one.generated_at) != (
        other.fence,
        other.s3_key,
        other.generated_at,
    )
