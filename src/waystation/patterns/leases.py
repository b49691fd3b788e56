"""Leases: one holder at a time, and a fence that shuts out holders who do not know they are late.

A lease is a row with `lease_token`, `lease_expires_at` (epoch seconds) and `fence`, a number that
grows with every holder. The row stays when the lease is released, so that the fence never starts
again; it should carry no TTL that could remove it. Services in other languages may hold leases on
the same rows: a lease is held while `lease_expires_at` is in the future.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import msgspec

from waystation.errors import (
    ConditionFailed,
    LeaseLost,
    OutcomeUnknown,
    StoreError,
    StoreUnavailable,
    TransactionCancelled,
    TransactionConflict,
    WaystationError,
)
from waystation.ids import nanoid
from waystation.store import Check, Claims, Update, absent, attr, if_absent, key_of, remove, set_to

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine

    from waystation.clock import Clock
    from waystation.store import Action, Condition, Edit, Item, Key, Store

log = logging.getLogger(__name__)

CLAIMS = Claims("lease_token", "lease_expires_at")


class Leases:
    """Takes leases on rows of one store."""

    def __init__(
        self,
        store: Store,
        *,
        seconds: int = 30,
        longest: float = 600.0,
        skew: int = 1,
        monotonic: Clock = time.monotonic,
        sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
    ) -> None:
        """`longest` bounds one hold; `skew` is how far other machines' clocks may be off."""
        self.store = store
        self.seconds = seconds
        self.longest = longest
        self.skew = skew
        self.monotonic = monotonic
        self.sleep = sleep

    async def acquire(
        self, key: Key[Any], *, token: str | None = None, above: int = 0
    ) -> Lease | None:
        """The lease, or None when another holds it.

        Repeating a call with the same token is safe: what was acquired stays acquired. `above` is
        the last fence that is known from elsewhere, for a row that was lost.
        """
        ttl = key.spec.ttl_field
        keep = [] if ttl is None else [remove(ttl)]
        try:
            return await self.claim(key, *keep, token=token, above=above)
        except (ConditionFailed, TransactionConflict):
            return None

    async def claim(
        self,
        key: Key[Any],
        *changes: Edit,
        when: Condition | None = None,
        token: str | None = None,
        above: int = 0,
    ) -> Lease:
        """Take the lease and change the row in one step; ConditionFailed when it is not free."""
        token = token or nanoid(21)
        begun = self.monotonic()
        taking = (
            *CLAIMS.take(token, self.expiry()),
            set_to("fence", if_absent("fence", above) + 1),
            *changes,
        )
        free = self.free(token) if when is None else self.free(token) & when

        async def take() -> Lease:
            try:
                row = await self.store.update(key, *taking, when=free, returning="new")
            except OutcomeUnknown:
                # With our own token a repetition is safe, and shows who has the lease.
                row = await self.store.update(key, *taking, when=free, returning="new")
            return Lease(self, key, token, row, begun)

        return await _to_the_end(take())

    async def create(self, row: Item, token: str) -> Lease:
        """The lease on a row that is not there yet; ConditionFailed when it is."""
        begun = self.monotonic()
        held = msgspec.structs.replace(
            row, lease_token=token, lease_expires_at=self.expiry(), fence=1
        )

        async def take() -> Lease:
            await self.store.put(held, when=absent())
            return Lease(self, key_of(held), token, held, begun)

        return await _to_the_end(take())

    def free(self, token: str) -> Condition:
        """The condition that a lease can be taken: it is free, or `token` holds it already."""
        return CLAIMS.free(self.store.now() - self.skew, token)

    def expiry(self) -> int:
        """Whole seconds, rounded up: never earlier than we believe."""
        return math.ceil(self.store.clock()) + self.seconds

    @asynccontextmanager
    async def hold(self, key: Key[Any]) -> AsyncIterator[Lease | None]:
        """The lease for a block of code, kept alive and then released; None when it is taken."""
        lease = await self.acquire(key)
        if lease is None:
            yield None
            return
        async with lease.kept():
            try:
                yield lease
            finally:
                await lease.release()


async def _to_the_end(taking: Coroutine[Any, Any, Lease]) -> Lease:
    """The lease; if its caller goes away meanwhile, nobody holds it."""
    task = asyncio.create_task(taking)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.shield(asyncio.create_task(_let_go(task)))
        raise


async def _let_go(taking: asyncio.Task[Lease]) -> None:
    with suppress(WaystationError):
        lease = await taking
        await lease.release()


class Lease:
    """A lease that was taken. `lost` is set when it can no longer be relied on."""

    def __init__(
        self, leases: Leases, key: Key[Any], token: str, row: Item | None, begun: float
    ) -> None:
        self._leases = leases
        self.key = key
        self.token = token
        self.row = row
        self.fence: int = getattr(row, "fence", 0)
        self.lost = asyncio.Event()
        self.ended = False
        self.settling = False
        self._begun = begun
        self._deadline = begun + leases.seconds

    @property
    def held(self) -> bool:
        """Whether we may still work: by our own clock, counted from before we asked."""
        return not self.ended and self._leases.monotonic() < self._deadline

    def owned(self) -> Condition:
        """The condition that the lease is still this one."""
        return CLAIMS.owned(self.token) & (attr("fence") == self.fence)

    def check(self) -> Check[Any]:
        """The action that cancels a transaction unless the lease is still this one."""
        return Check(self.key, self.owned())

    async def refresh(self, *changes: Edit) -> None:
        """Hold on for another period; LeaseLost when that is no longer possible."""
        begun = self._leases.monotonic()
        if begun - self._begun >= self._leases.longest:
            self._lose()
            raise LeaseLost(f"{self.key} was held for longer than {self._leases.longest:g} s")
        try:
            await self._leases.store.update(
                self.key,
                set_to("lease_expires_at", self._leases.expiry()),
                *changes,
                when=self.owned(),
            )
        except ConditionFailed as error:
            if not self.settling:  # else it may be our own doing
                self._lose()
            raise LeaseLost(f"{self.key} is held by another") from error
        self._deadline = begun + self._leases.seconds

    def closing(self, *changes: Edit) -> Update[Any]:
        """The action that gives up the lease, if it is still ours: for a transaction."""
        return Update(
            self.key,
            *CLAIMS.give_up(),
            *changes,
            when=self.owned(),
        )

    async def publish(self, *actions: Action, closing: Update[Any] | None = None) -> None:
        """Carry out the actions and give up the lease, together; LeaseLost if it is not ours."""
        self.settling = True
        try:
            await self._leases.store.transact(*actions, closing or self.closing())
        except TransactionCancelled as error:
            if error.reasons[-1] is not None:
                self._lose()
                raise LeaseLost(f"{self.key} is held by another") from error
            self.settling = False
            raise
        except StoreUnavailable:
            if not await self._given_up():
                self.settling = False
                raise
        self.ended = True

    async def _given_up(self) -> bool:
        """Whether an answer that was lost was a success: only we could have cleared our token."""
        row = await self._leases.store.get(self.key)
        if row is None or row.fence != self.fence:
            raise OutcomeUnknown(f"{self.key} has had another holder since: read what it guards")
        return row.lease_token is None

    async def release(self) -> None:
        """Let others have it at once. Does nothing when it is no longer ours."""
        if self.ended:
            return
        self.ended = True
        action = self.closing()
        try:
            await self._leases.store.update(action.key, *action.changes, when=action.when)
        except ConditionFailed:
            pass
        except StoreError as error:
            log.warning("%s was not released and will run out: %s", self.key, error)

    @asynccontextmanager
    async def kept(self, worker: asyncio.Task[Any] | None = None) -> AsyncIterator[Lease]:
        """Refresh the lease in the background, at a third of its time, while the block runs.

        `worker` is cancelled when the lease is lost.
        """
        task = asyncio.create_task(self._keep(worker))
        try:
            yield self
        finally:
            task.cancel()

    async def _keep(self, worker: asyncio.Task[Any] | None) -> None:
        while not self.ended:
            await self._leases.sleep(self._leases.seconds / 3)
            if self.ended:
                return
            try:
                async with asyncio.timeout(max(0.0, self._deadline - self._leases.monotonic())):
                    await self.refresh()
            except LeaseLost:
                break
            except Exception as error:  # noqa: BLE001 - the next try may succeed
                log.warning("%s could not be refreshed: %s", self.key, error)
                if not self.held:
                    self._lose()
                    break
        if worker is not None and self.lost.is_set() and not self.settling:
            worker.cancel()

    def _lose(self) -> None:
        self.ended = True
        self.lost.set()


def newer(fence: int) -> Condition:
    """The condition that nothing was published under a later lease."""
    return absent() | attr("fence").absent() | (attr("fence") < fence)
