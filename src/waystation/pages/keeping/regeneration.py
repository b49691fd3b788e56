"""Regeneration: of all who need a page anew, in this process and in others, one generates it.

In a process the first goes and the rest wait for it; between processes a lease decides. Whoever
cannot have the lease waits for what its holder publishes, but not for ever.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from waystation.backoff import backoff
from waystation.errors import InvalidRequest, LeaseLost, StoreError, WaystationError
from waystation.pages.http.fields import Headers
from waystation.pages.http.policies import Policy
from waystation.pages.keeping.entries import Held
from waystation.pages.keeping.publishing import Publisher, Rendered
from waystation.patterns import Leases, Newest
from waystation.store import set_to

if TYPE_CHECKING:
    from waystation.pages.keeping.entries import Entry
    from waystation.pages.keeping.places import Place
    from waystation.pages.keeping.shelf import Shelf
    from waystation.pages.serving.limits import Allowance
    from waystation.patterns import Lease

log = logging.getLogger(__name__)

LEASE_SECONDS = 15
LONGEST_SECONDS = 120.0
WAIT_SECONDS = 5.0
_FIRST_LOOK = 0.03
_SLOWEST_LOOK = 0.5
_MOST_REMEMBERED = 20_000
_LONGEST_REST = 60.0
_LONGEST_LEASE = 3_600
"""A lease that is said to last longer than this is a mistake of whoever wrote it."""

_JOINS = 3


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


class Varies(WaystationError):
    """A page turned out to depend on request headers that were not known to matter. `asker` is
    whose request it was generated for, and `seq` the purges there had been before."""

    def __init__(self, asker: object, rendered: Rendered, names: frozenset[str]) -> None:
        super().__init__("the page depends on more request headers than were known")
        self.asker = asker
        self.rendered = rendered
        self.names = names
        self.seq = 0


Render = Callable[["Entry | None"], Awaitable[Rendered | Unchanged]]
"""Generates a page. Given the one that is kept, it may find that nothing has changed."""


class Job(NamedTuple):
    """A page to be generated: where, how, for which owner, and how many versions of it are kept."""

    place: Place
    render: Render
    owner: str | None
    keep: int


class Outcome(msgspec.Struct):
    """What came of it: the page that is kept now, or one that is not kept, and why. One that is
    `shared` was generated for somebody else's request."""

    held: Held | None = None
    rendered: Rendered | None = None
    reason: str | None = None
    shared: bool = False


_Flight = tuple[str, str | None, int]
"""A page, its owner, and the last purge before it was begun: what was begun earlier is of no use to
who comes after a purge."""


class Regeneration:
    """Generates pages, each once."""

    def __init__(self, shelf: Shelf, publisher: Publisher, allowance: Allowance) -> None:
        self._shelf = shelf
        self._publisher = publisher
        self._allowance = allowance
        self._clock = shelf.store.clock
        self.leases = Leases(shelf.store, seconds=LEASE_SECONDS, longest=LONGEST_SECONDS)
        self.wait_seconds = WAIT_SECONDS
        self._flights: dict[_Flight, asyncio.Task[Outcome]] = {}
        self._failures: Newest[str, tuple[int, float]] = Newest(_MOST_REMEMBERED)

    async def under_way(self, place: Place) -> bool:
        """Whether somebody, here or elsewhere, is generating a page."""
        if any(flight[0] == place.pk for flight in self._flights):
            return True
        lock = await self._shelf.store.get(place.lock, expired=True)
        return lock is not None and (lock.lease_expires_at or 0) > self._clock()

    def resting(self, place: Place) -> bool:
        """Whether a page failed so lately that it is not tried again yet, where there is an old one
        to use."""
        failed = self._failures.get(place.pk)
        return failed is not None and self._clock() < failed[1]

    async def run(self, job: Job, known: Held | None) -> Outcome:
        """Have a page generated, or wait for who does so already. It goes on when the caller
        goes away: others may be waiting."""
        for _ in range(_JOINS):
            state = await self._shelf.purges.state(job.place.scope)
            flight = self._flights.get((job.place.pk, job.owner, state.seq))
            joined = flight is not None
            if flight is None:
                flight = self._begun(job, known, state.seq, wait=True)
            try:
                outcome = await asyncio.shield(flight)
            except asyncio.CancelledError:
                if not flight.cancelled():
                    raise  # it is we who are to stop
                raise RenderFailed("the server is stopping", status=503) from None
            if joined and outcome.reason == "busy" and outcome.rendered is None:
                continue  # it was in the background, where nobody waits for a lease
            return msgspec.structs.replace(outcome, shared=joined or outcome.shared)
        return Outcome(reason="busy", shared=True)

    def start(self, job: Job, known: Held | None, seq: int) -> None:
        """Have a page generated in the background, unless that is being done."""
        if (job.place.pk, job.owner, seq) not in self._flights and not self.resting(job.place):
            self._begun(job, known, seq, wait=False)

    def _begun(
        self, job: Job, known: Held | None, seq: int, *, wait: bool
    ) -> asyncio.Task[Outcome]:
        key = (job.place.pk, job.owner, seq)
        flight = asyncio.create_task(self._generate(job, known, wait=wait))
        self._flights[key] = flight
        flight.add_done_callback(lambda task: self._landed(key, task))
        return flight

    def _landed(self, key: _Flight, flight: asyncio.Task[Outcome]) -> None:
        self._flights.pop(key, None)
        error = None if flight.cancelled() else flight.exception()
        if error is None or isinstance(error, Varies | StoreError):
            return
        times = (self._failures.get(key[0]) or (0, 0.0))[0] + 1
        rest = backoff(times - 1, first=1.0, longest=_LONGEST_REST)
        self._failures[key[0]] = (times, self._clock() + rest)
        if not isinstance(error, WaystationError):
            log.error("a page could not be generated", exc_info=error)

    async def _generate(self, job: Job, known: Held | None, *, wait: bool) -> Outcome:
        lease = await self._lease(job.place, known, wait=wait)
        if isinstance(lease, Held):
            return Outcome(lease, shared=True)
        if lease is None:
            if not wait:
                return Outcome(reason="busy")
            rendered = await job.render(None)
            assert isinstance(rendered, Rendered)
            return Outcome(rendered=rendered, reason="busy")
        current: Held | None = None
        try:
            async with lease.kept():
                current = await self._shelf.find(job.place, now=True)
                if current is not None and _newer(current, known) and self._is_good(current, job):
                    return Outcome(current, shared=True)
                return await self._under(lease, job, current)
        finally:
            if not lease.ended:
                await self._publisher.give_up(lease, current)

    def _is_good(self, current: Held, job: Job) -> bool:
        return current.usable(self._clock()) and current.entry.owner in (None, job.owner)

    async def _under(self, lease: Lease, job: Job, current: Held | None) -> Outcome:
        """Generate a page under its lease, and publish it."""
        if current is not None and lease.fence <= current.entry.fence:
            await self._raise_fence(lease, job.place, current.entry.fence + 1)
        seq = (await self._shelf.purges.state(job.place.scope, now=True)).seq
        entry = None if current is None else current.entry
        if current is not None and (current.verdict.hard or current.gone):
            entry = None  # nothing that the origin could confirm
        try:
            rendered = await job.render(entry)
        except Varies as found:
            found.seq = seq
            raise
        self._failures.pop(job.place.pk, None)
        if isinstance(rendered, Unchanged):
            assert entry is not None
            return await self._renewed(lease, entry, rendered, seq)
        return await self._published(lease, job, rendered, current, seq)

    async def _renewed(self, lease: Lease, entry: Entry, rendered: Unchanged, seq: int) -> Outcome:
        try:
            held = await self._publisher.renew(lease, entry, rendered.headers, rendered.policy, seq)
        except (LeaseLost, StoreError) as error:
            log.warning("a page could not be renewed: %s", error)
            return Outcome(Held(entry, {}, checked=self._clock(), seq=seq), reason="lost")
        return Outcome(held)

    async def _published(
        self, lease: Lease, job: Job, rendered: Rendered, current: Held | None, seq: int
    ) -> Outcome:
        known = None if current is None else current.entry
        if known is not None and current is not None and current.gone:
            known = msgspec.structs.replace(known, digest=None)
        if rendered.policy.refused is not None:
            return Outcome(rendered=rendered, reason=rendered.policy.refused)
        if rendered.status >= 500 and known is not None and known.status < 500:
            return Outcome(rendered=rendered, reason="error")
        if not self._allowance.take(rendered.account, len(rendered.body)):
            return Outcome(rendered=rendered, reason="allowance")
        seq = seq if rendered.seq is None else min(seq, rendered.seq)
        try:
            held = await self._publisher.publish(lease, rendered, known, seq, job.place, job.keep)
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
            lease = await self._acquired(place, above)
            if lease is not None or not wait:
                return lease
            if asyncio.get_running_loop().time() >= until:
                return None
            await asyncio.sleep(pause * (0.5 + random.random()))  # noqa: S311 - not all at once
            pause = min(pause * 1.5, _SLOWEST_LOOK)
            current = await self._shelf.find(place, now=True)
            if current is not None and _newer(current, known) and current.usable(self._clock()):
                return current

    async def _acquired(self, place: Place, above: int) -> Lease | None:
        """The lease, if it is free. A row that makes no sense is no lease, and goes."""
        try:
            lease = await self.leases.acquire(place.lock, above=above)
        except InvalidRequest:
            lease = None  # its fence is no number
        else:
            if lease is not None:
                return lease
        lock = await self._shelf.store.get(place.lock, expired=True)
        expires = None if lock is None else lock.lease_expires_at
        if lock is not None and (expires is None or expires > self._clock() + _LONGEST_LEASE):
            await self._shelf.store.delete(place.lock)
            return await self.leases.acquire(place.lock, above=max(above, lock.fence))
        return None

    async def _raise_fence(self, lease: Lease, place: Place, fence: int) -> None:
        """Number a lease after the page that it is for: its row had lost count."""
        await self._shelf.store.update(place.lock, set_to("fence", fence), when=lease.owned())
        lease.fence = fence

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
