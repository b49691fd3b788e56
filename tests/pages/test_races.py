"""Two things at the same time: each test holds one of them up, just where it hurts."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.pages.press import Made, Press, press_at
from tests.support.faults import Faults, system_on
from waystation.errors import StoreUnavailable
from waystation.pages.keeping.places import Place
from waystation.pages.tables import PageLock, PageMeta

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.pages.press import Origin
    from waystation.clock import ManualClock

PLACE = Place("shop", "/p")


@asynccontextmanager
async def two(
    clock: ManualClock, origin: Origin, folder: Path
) -> AsyncIterator[tuple[Press, Press]]:
    """Two processes, as it were."""
    where = {"store": f"sqlite:///{folder}/w.db", "blobs": f"file:{folder}/blobs"}
    async with press_at(clock, origin, **where) as one, press_at(clock, origin, **where) as other:
        yield one, other


def by_header(name: str) -> Any:
    def decide(request: Any) -> Made:
        return Made(f"{name} {request.headers.get(name)}".encode(), headers=[("Vary", name)])

    return decide


async def held_up(press: Press, **asked: str) -> asyncio.Task[Any]:
    """A request whose answer is not there before the gate opens."""
    press.origin.gate = asyncio.Event()
    press.origin.arrived.clear()
    task = asyncio.create_task(press.get(**asked))
    await press.origin.arrived.wait()
    return task


def let_go(press: Press) -> None:
    assert press.origin.gate is not None
    press.origin.gate.set()


async def test_a_page_that_turns_out_to_vary_is_as_old_as_its_first_request(press: Press) -> None:
    press.origin.decide = by_header("X-Thing")
    slow = await held_up(press, x_thing="1")
    await press.revalidate(all=True, mode="hard")
    let_go(press)
    await slow
    await press.get(x_thing="1")
    assert press.origin.count == 2


async def test_who_comes_after_a_purge_does_not_join_what_was_begun_before_it(
    press: Press,
) -> None:
    slow = await held_up(press)
    await press.revalidate(path="/p", mode="hard")
    press.service.pages.regeneration.wait_seconds = 0.05
    after = asyncio.create_task(press.get())
    while press.origin.count < 2:
        await asyncio.sleep(0.01)
    let_go(press)
    assert (await slow).body == b"page 1 of /p"
    assert (await after).body == b"page 2 of /p"


async def test_who_needs_a_page_now_is_not_put_off_with_an_old_one(
    clock: ManualClock, origin: Origin, tmp_path: Path
) -> None:
    """Somebody else generates it, and here it is only to be regenerated in the background."""
    async with two(clock, origin, tmp_path) as (one, other):
        await other.get()
        clock.advance(60)
        slow = await held_up(one, cache_control="no-cache")
        await other.get()  # stale, and the lease is taken
        await other.settle()
        waiting = asyncio.create_task(other.get(cache_control="no-cache"))
        await asyncio.sleep(0.1)
        let_go(one)
        assert (await slow).body == b"page 2 of /p"
        assert (await waiting).body in (b"page 2 of /p", b"page 3 of /p")


@pytest.mark.parametrize("versions", [2, 3])
async def test_going_back_does_not_undo_what_was_published_meanwhile(
    press: Press, versions: int
) -> None:
    """By one who has had the lease since before."""
    await press.put(versions=versions)
    for body in (b"one", b"two"):
        press.origin.say(body=body)
        await press.revalidate(all=True, mode="hard")
        await press.get()
    await press.revalidate(all=True, mode="hard")
    press.origin.say(body=b"three")
    slow = await held_up(press)
    store: Any = Faults(press.store)
    press.service.pages.publisher._store = store

    async def transact(call: Any, *actions: Any, **named: Any) -> Any:
        store.around.clear()
        let_go(press)
        await slow
        return await call(*actions, **named)

    store.around["transact"] = transact
    answer = await press.call("POST", f"{press.base}/rollback", {"path": "/p"})
    assert answer.status == 200
    assert await press.text() == "two"  # one step back from what is there now


async def test_a_lease_that_is_lost_on_the_way_costs_nobody_their_answer(local: Press) -> None:
    slow = await held_up(local)
    lock = await local.row(PLACE.lock)
    await local.store.put(
        PageLock(pk=PLACE.pk, lease_token="theirs", lease_expires_at=lock.lease_expires_at, fence=9)
    )
    let_go(local)
    answer = await slow
    assert (answer.status, answer.body) == (200, b"page 1 of /p")
    assert "detail=lost" in answer.headers["cache-status"]


async def test_what_was_published_under_a_later_lease_stays(press: Press) -> None:
    """Whoever wrote it, and whatever the lease's row says."""
    slow = await held_up(press)
    await press.service.pages.blobs.put("later.html", b"later")
    later = PageMeta(
        pk=PLACE.pk,
        s3_key="later.html",
        generated_at=press.store.now(),
        revalidate_seconds=60,
        fence=99,
    )
    await press.store.put(later)
    let_go(press)
    assert "detail=lost" in (await slow).headers["cache-status"]
    assert (await press.row(PLACE.meta)).fence == 99
    press.service.pages.memory.drop(PLACE)
    assert await press.text() == "later"


async def test_what_changes_a_page_counts_for_those_who_generate_it_elsewhere(
    clock: ManualClock, origin: Origin, tmp_path: Path
) -> None:
    async with two(clock, origin, tmp_path) as (one, other):
        slow = await held_up(one)
        origin.gate, gate = None, origin.gate
        await other.get("/p", "POST")
        assert gate is not None
        gate.set()
        await slow
        assert "; hit" not in await one.how()


async def test_a_cookies_owner_does_not_get_a_page_that_another_process_made_for_nobody(
    clock: ManualClock, origin: Origin, tmp_path: Path
) -> None:
    async with two(clock, origin, tmp_path) as (one, other):
        slow = await held_up(one)
        theirs = asyncio.create_task(other.get(cookie="session=1"))
        await asyncio.sleep(0.1)
        let_go(one)
        assert (await slow).body == b"page 1 of /p"
        assert (await theirs).body == b"page 2 of /p"


async def test_a_failure_counts_once_however_many_waited(local: Press) -> None:
    await local.put(swr_seconds=0, sie_seconds=3_600)
    await local.get()
    local.clock.advance(61)
    local.origin.fail()
    local.origin.gate = asyncio.Event()
    local.origin.arrived.clear()
    herd = [asyncio.create_task(local.get()) for _ in range(20)]
    await local.origin.arrived.wait()
    await asyncio.sleep(0.1)
    let_go(local)
    assert {(await each).body for each in herd} == {b"page 1 of /p"}
    local.clock.advance(1)
    assert not local.service.pages.regeneration.resting(PLACE)


async def test_a_fence_that_was_lost_is_found_again(press: Press) -> None:
    for _ in range(4):
        await press.revalidate(all=True, mode="hard")
        await press.get()
    before = (await press.row(PLACE.meta)).fence
    await press.store.put(PageLock(pk=PLACE.pk, fence=1))
    await press.revalidate(all=True, mode="hard")
    assert "stored" in await press.how()
    assert (await press.row(PLACE.meta)).fence > before


# Trouble with what is underneath


@pytest.fixture
async def troubled(clock: ManualClock, origin: Origin) -> AsyncIterator[tuple[Press, Any]]:
    from tests.pages.press import NEEDED

    async with press_at(clock, origin, systems=system_on("pages", NEEDED, store=Faults)) as press:
        yield press, press.service.pages.store


async def test_without_its_store_the_cache_passes_on(troubled: tuple[Press, Any]) -> None:
    press, store = troubled
    await press.get()

    async def broken(call: Any, *given: Any, **named: Any) -> Any:
        raise StoreUnavailable("the database is away")

    found = await press.service.sites.find("shop")
    assert found is not None
    press.service.pages.purges.state_seconds = 0.0
    store.around["get"] = broken
    answer = await press.get()
    assert (answer.status, answer.body) == (200, b"page 2 of /p")
    assert "detail=storage" in answer.headers["cache-status"]
    store.around.clear()
    assert await press.text() == "page 1 of /p"


async def test_what_was_done_does_not_seem_to_have_failed(troubled: tuple[Press, Any]) -> None:
    press, store = troubled
    await press.get()

    async def broken(call: Any, *given: Any, **named: Any) -> Any:
        raise StoreUnavailable("the database is away")

    press.origin.say(body=b"created", status=201)
    await press.service.sites.find("shop")
    store.around["transact"] = broken
    answer = await press.get("/p", "POST")
    assert (answer.status, answer.body) == (201, b"created")


async def test_a_page_that_cannot_be_stored_is_served_all_the_same(
    troubled: tuple[Press, Any],
) -> None:
    press, store = troubled

    async def broken(call: Any, *given: Any, **named: Any) -> Any:
        raise StoreUnavailable("the database is away")

    store.around["transact"] = broken
    answer = await press.get()
    assert (answer.status, answer.body) == (200, b"page 1 of /p")
    assert "stored" not in answer.headers["cache-status"]
