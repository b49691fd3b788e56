"""Leases: one holder at a time, and the late shut out."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.faults import Faults
from waystation.errors import LeaseLost, OutcomeUnknown, TransactionConflict
from waystation.pages.keeping.places import partition
from waystation.pages.tables import PageLock, PageMeta
from waystation.patterns import Lease, Leases, newer
from waystation.seam import tables_of
from waystation.store import Item, Put, Store, Table, TransactionCancelled, key_of, open_store
from waystation.systems import SYSTEMS

if TYPE_CHECKING:
    from pathlib import Path

    from waystation.clock import ManualClock


@pytest.fixture
def leases(store: Store, clock: ManualClock) -> Leases:
    return Leases(store, seconds=30, longest=120, skew=2, monotonic=clock)


def page(name: str, fence: int, body: str = "body") -> PageMeta:
    return PageMeta(
        pk=partition("t", name),
        s3_key=body,
        generated_at=0,
        revalidate_seconds=60,
        fence=fence,
    )


async def taken(leases: Leases, name: str) -> Lease:
    lease = await leases.acquire(PageLock.key(partition("t", name)))
    assert lease is not None
    return lease


async def test_one_holder_at_a_time(leases: Leases, name: str) -> None:
    first = await taken(leases, name)
    assert await leases.acquire(PageLock.key(partition("t", name))) is None
    assert first.held


async def test_of_many_at_once_one_gets_it(leases: Leases, name: str) -> None:
    got = await asyncio.gather(
        *(leases.acquire(PageLock.key(partition("t", name))) for _ in range(20))
    )
    assert len([lease for lease in got if lease]) == 1


async def test_a_repeated_acquire_is_still_ours(leases: Leases, name: str) -> None:
    assert await leases.acquire(PageLock.key(partition("t", name)), token="mine")
    again = await leases.acquire(PageLock.key(partition("t", name)), token="mine")
    assert again is not None
    await again.publish(Put(page(name, again.fence), when=newer(again.fence)))


async def test_a_released_lease_can_be_had_at_once(leases: Leases, name: str) -> None:
    first = await taken(leases, name)
    await first.release()
    second = await taken(leases, name)
    assert second.fence > first.fence


async def test_a_lease_runs_out_with_an_allowance_for_skew(
    leases: Leases, name: str, clock: ManualClock
) -> None:
    first = await taken(leases, name)
    clock.advance(31)
    assert not first.held
    assert await leases.acquire(PageLock.key(partition("t", name))) is None
    clock.advance(1)
    assert await leases.acquire(PageLock.key(partition("t", name))) is not None


async def test_refreshing_holds_on(leases: Leases, name: str, clock: ManualClock) -> None:
    lease = await taken(leases, name)
    for _ in range(4):
        clock.advance(20)
        await lease.refresh()
        assert await leases.acquire(PageLock.key(partition("t", name))) is None
    assert lease.held


async def test_nobody_holds_for_ever(leases: Leases, name: str, clock: ManualClock) -> None:
    lease = await taken(leases, name)
    for _ in range(5):
        clock.advance(20)
        await lease.refresh()
    clock.advance(20)
    with pytest.raises(LeaseLost, match="longer"):
        await lease.refresh()
    assert lease.lost.is_set()


async def test_a_late_holder_cannot_refresh(leases: Leases, name: str, clock: ManualClock) -> None:
    late = await taken(leases, name)
    clock.advance(33)
    await taken(leases, name)
    with pytest.raises(LeaseLost):
        await late.refresh()
    assert late.lost.is_set()
    assert not late.held


async def test_publishing_gives_up_the_lease(leases: Leases, name: str) -> None:
    lease = await taken(leases, name)
    await lease.publish(Put(page(name, lease.fence), when=newer(lease.fence)))
    assert await leases.store.get(PageMeta.key(partition("t", name))) == page(name, lease.fence)
    lock = await leases.store.get(PageLock.key(partition("t", name)))
    assert lock is not None
    assert (lock.lease_token, lock.lease_expires_at, lock.fence) == (None, None, lease.fence)


async def test_a_late_holder_cannot_publish(leases: Leases, name: str, clock: ManualClock) -> None:
    late = await taken(leases, name)
    clock.advance(33)
    successor = await taken(leases, name)
    with pytest.raises(LeaseLost):
        await late.publish(Put(page(name, late.fence, "late"), when=newer(late.fence)))
    await successor.publish(Put(page(name, successor.fence, "right"), when=newer(successor.fence)))
    with pytest.raises(LeaseLost):
        await late.publish(Put(page(name, late.fence, "late"), when=newer(late.fence)))
    meta = await leases.store.get(PageMeta.key(partition("t", name)))
    assert meta is not None
    assert meta.s3_key == "right"


async def test_a_failed_write_keeps_the_lease(leases: Leases, name: str) -> None:
    await leases.store.put(page(name, fence=1000))
    lease = await taken(leases, name)
    with pytest.raises(TransactionCancelled):
        await lease.publish(Put(page(name, lease.fence), when=newer(lease.fence)))
    assert lease.held
    await lease.refresh()


async def test_releasing_a_lost_lease_leaves_the_new_holder_alone(
    leases: Leases, name: str, clock: ManualClock
) -> None:
    late = await taken(leases, name)
    clock.advance(33)
    successor = await taken(leases, name)
    await late.release()
    await successor.refresh()


async def test_a_lock_that_another_service_left_half_written_can_be_had(
    leases: Leases, name: str
) -> None:
    await leases.store.put(PageLock(pk=partition("t", name), lease_token="theirs"))
    assert await leases.acquire(PageLock.key(partition("t", name))) is not None


async def test_a_lease_of_another_service_is_respected(
    leases: Leases, name: str, clock: ManualClock
) -> None:
    theirs = PageLock(pk=partition("t", name), lease_token="t", lease_expires_at=int(clock()) + 9)
    await leases.store.put(theirs)
    assert await leases.acquire(PageLock.key(partition("t", name))) is None


async def test_a_ttl_that_another_service_set_does_not_take_the_fence_along(
    leases: Leases, name: str, clock: ManualClock
) -> None:
    theirs = PageLock(pk=partition("t", name), fence=7, ttl=int(clock()) + 60)
    await leases.store.put(theirs)
    assert (await taken(leases, name)).fence == 8
    clock.advance(3600)
    assert (await taken(leases, name)).fence == 9


async def test_the_ttl_goes_whatever_it_is_called(clock: ManualClock) -> None:
    locks = Table("locks", pk="pk", ttl="expiresAt")

    class Lock(Item, table=locks, pk="LOCK#{name}", rename="camel", kw_only=True):
        name: str = "n"
        lease_token: str | None = None
        lease_expires_at: int | None = None
        fence: int = 0
        expires_at: int | None = None

    async with await open_store("sqlite://:memory:", [locks], clock=clock) as store:
        await store.put(Lock(fence=7, expires_at=int(clock()) + 60))
        lease = await Leases(store, monotonic=clock).acquire(Lock.key("n"))
        clock.advance(3600)
        kept = await store.get(Lock.key("n"))
        assert lease is not None
        assert kept is not None
        assert (lease.fence, kept.fence) == (8, 8)


async def test_a_row_that_was_lost_goes_on_above_what_was_published(
    leases: Leases, name: str
) -> None:
    lease = await leases.acquire(PageLock.key(partition("t", name)), above=41)
    assert lease is not None
    assert lease.fence == 42


async def test_whoever_leaves_while_taking_a_lease_does_not_hold_it(
    tmp_path: Path, clock: ManualClock
) -> None:
    """On a file, where taking it needs a moment."""
    async with await open_store(
        f"sqlite:///{tmp_path / 'w.db'}", tables_of(SYSTEMS), clock=clock
    ) as store:
        leases = Leases(store, monotonic=clock)
        for _ in range(10):
            task = asyncio.create_task(leases.acquire(PageLock.key(partition("t", "p"))))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            lease = await leases.acquire(PageLock.key(partition("t", "p")))
            assert lease is not None
            await lease.release()


async def test_a_worker_is_stopped_when_its_lease_is_lost(
    store: Store, name: str, clock: ManualClock
) -> None:
    pauses = Pauses()
    leases = Leases(store, seconds=30, skew=0, monotonic=clock, sleep=pauses)
    lease = await taken(leases, name)

    async def work() -> None:
        async with lease.kept(asyncio.current_task()):
            await asyncio.Event().wait()

    worker = asyncio.create_task(work())
    await asyncio.sleep(0)
    clock.advance(40)
    await taken(leases, name)
    await pauses.end()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(worker, 5)
    assert lease.lost.is_set()


async def test_trouble_with_the_store_does_not_end_the_keeping(clock: ManualClock) -> None:
    """And when it lasts as long as the lease, the lease counts as lost."""
    pauses = Pauses()
    async with await open_store("sqlite://:memory:", tables_of(SYSTEMS), clock=clock) as store:
        faults: Any = Faults(store)
        leases = Leases(faults, seconds=30, skew=0, monotonic=clock, sleep=pauses)
        async with leases.hold(PageLock.key(partition("t", "p"))) as lease:
            assert lease is not None

            async def conflict(*_: object, **__: object) -> None:
                raise TransactionConflict("others write here")

            faults.around["update"] = conflict
            for _ in range(3):
                assert not lease.lost.is_set()
                clock.advance(10)
                await pauses.end()
                await asyncio.sleep(0.01)
            assert lease.lost.is_set()


class Pauses:
    """A sleep that ends when the test says so."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[tuple[float, asyncio.Event]] = asyncio.Queue()

    async def __call__(self, seconds: float) -> None:
        over = asyncio.Event()
        self.asked.put_nowait((seconds, over))
        await over.wait()

    async def end(self) -> float:
        seconds, over = await self.asked.get()
        over.set()
        return seconds


async def test_a_block_keeps_its_lease_alive(store: Store, name: str, clock: ManualClock) -> None:
    pauses = Pauses()
    leases = Leases(store, seconds=30, skew=0, monotonic=clock, sleep=pauses)
    async with leases.hold(PageLock.key(partition("t", name))) as lease:
        assert lease is not None
        for _ in range(5):
            clock.advance(10)
            assert await pauses.end() == 10
            await asyncio.wait_for(_until(lambda: not pauses.asked.empty()), 5)
            assert await leases.acquire(PageLock.key(partition("t", name))) is None
    assert await leases.acquire(PageLock.key(partition("t", name))) is not None


async def test_a_block_hears_that_its_lease_is_lost(
    store: Store, name: str, clock: ManualClock
) -> None:
    pauses = Pauses()
    leases = Leases(store, seconds=30, skew=0, monotonic=clock, sleep=pauses)
    async with leases.hold(PageLock.key(partition("t", name))) as lease:
        assert lease is not None
        clock.advance(40)
        await taken(leases, name)
        await pauses.end()
        await asyncio.wait_for(lease.lost.wait(), 5)


async def test_a_taken_lease_is_none_in_a_block(leases: Leases, name: str) -> None:
    await taken(leases, name)
    async with leases.hold(PageLock.key(partition("t", name))) as lease:
        assert lease is None


async def _until(condition: Any) -> None:
    while not condition():
        await asyncio.sleep(0)


class Contender:
    """Somebody who takes a lease, works and publishes, and may die after any step."""

    def __init__(self, leases: Leases, key: Any) -> None:
        self.leases = leases
        self.key = key
        self.lease: Lease | None = None

    async def step(self, chance: random.Random) -> int | None:
        """One step; the fence that was published under, if it was."""
        if chance.random() < 0.15:
            self.lease = None  # dies, and starts again knowing nothing
        elif self.lease is None:
            self.lease = await self.leases.acquire(self.key)
        elif chance.random() < 0.3:
            await self._refresh()
        elif chance.random() < 0.2:
            await self.lease.release()
            self.lease = None
        else:
            return await self._publish()
        return None

    async def _refresh(self) -> None:
        assert self.lease is not None
        try:
            await self.lease.refresh()
        except LeaseLost:
            self.lease = None

    async def _publish(self) -> int | None:
        assert self.lease is not None
        lease, self.lease = self.lease, None
        meta = page("p", lease.fence, f"{id(self)}")
        try:
            await lease.publish(Put(meta, when=newer(lease.fence)))
        except LeaseLost:
            return None
        return lease.fence


@pytest.mark.parametrize("seed", range(40))
async def test_never_two_who_could_both_publish(clock: ManualClock, seed: int) -> None:
    """Crashes at every step, clocks that jump: fences only grow, and every key recovers."""
    chance = random.Random(seed)
    async with await open_store("sqlite://:memory:", tables_of(SYSTEMS), clock=clock) as store:
        leases = Leases(store, seconds=30, longest=90, skew=2, monotonic=clock)
        key = PageLock.key(partition("t", "p"))
        crew = [Contender(leases, key) for _ in range(5)]
        published: list[int] = []
        for _ in range(150):
            fence = await chance.choice(crew).step(chance)
            if fence is not None:
                published.append(fence)
            holders = [c.lease for c in crew if c.lease is not None and c.lease.held]
            assert len(holders) <= 1
            if chance.random() < 0.2:
                clock.advance(chance.choice([0.4, 1, 15, 29, 31, 35]))
        assert published == sorted(set(published))
        assert published
        meta = await store.get(PageMeta.key(partition("t", "p")))
        assert meta is not None
        assert meta.fence == published[-1]
        clock.advance(33)
        assert await leases.acquire(key) is not None


async def test_a_lost_answer_to_publishing_is_looked_up(clock: ManualClock) -> None:
    """The store did it, and could not say so."""
    async with await open_store("sqlite://:memory:", tables_of(SYSTEMS), clock=clock) as store:
        faults: Any = Faults(store)
        leases = Leases(faults, monotonic=clock)
        lease = await taken(leases, "p")

        async def unheard(transact: Any, *actions: Any) -> None:
            await transact(*actions)
            raise OutcomeUnknown("the answer was lost")

        faults.around["transact"] = unheard
        await lease.publish(Put(page("p", lease.fence), when=newer(lease.fence)))
        assert await store.get(PageMeta.key(partition("t", "p"))) is not None


async def test_a_publishing_that_failed_says_so(clock: ManualClock) -> None:
    async with await open_store("sqlite://:memory:", tables_of(SYSTEMS), clock=clock) as store:
        faults: Any = Faults(store)
        leases = Leases(faults, monotonic=clock)
        lease = await taken(leases, "p")
        faults.fail_once("transact", OutcomeUnknown("the answer was lost"))
        with pytest.raises(OutcomeUnknown):
            await lease.publish(Put(page("p", lease.fence), when=newer(lease.fence)))
        assert lease.held
        key = key_of(page("p", 1))
        assert await store.get(key) is None
