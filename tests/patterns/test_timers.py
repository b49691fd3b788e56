"""Timers: whatever is open is looked at again, whoever wrote it and whatever became of them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.support.faults import Faults
from waystation.patterns import TimedWork, Timer, Timers

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Any

    import pytest

    from waystation.clock import ManualClock
    from waystation.patterns import Look
    from waystation.store import Store


async def timer(store: Store, space: str, name: str = "x") -> Timer | None:
    return await store.get(Timer.key(space, name))


async def looked(timers: Timers, next_at: int | None) -> None:
    """One look at the one timer that is due."""
    [due] = await timers.due(10, set())
    held = await timers.take(due)
    assert held is not None
    await timers.settle(held, next_at)


async def test_a_timer_that_others_rely_on_stays(
    store: Store, clock: ManualClock, name: str
) -> None:
    """One that is held by somebody who is about to let it go is not one to rely on."""
    timers = Timers(store, name)
    await timers.ensure("x", timers.now())
    [due] = await timers.due(10, set())
    held = await timers.take(due)
    assert held is not None
    held.idle = True
    clock.advance(35)
    await timers.ensure("x", timers.now() + 30_000)
    await timers.settle(held, None)
    kept = await timer(store, name)
    assert kept is not None
    assert kept.due_at <= timers.now() + 30_000


async def test_a_timer_moves_far_ahead_only_after_a_second_look(
    store: Store, clock: ManualClock, name: str
) -> None:
    """An index may not have shown everything at the first."""
    timers = Timers(store, name)
    await timers.ensure("x", timers.now())
    far = timers.now() + 12 * 3_600_000
    await looked(timers, far)
    clock.advance(61)
    await looked(timers, far)
    clock.advance(3600)
    assert await timers.due(10, set()) == []


async def test_a_timer_goes_after_two_looks_that_found_nothing(
    store: Store, clock: ManualClock, name: str
) -> None:
    timers = Timers(store, name)
    await timers.ensure("x", timers.now())
    await looked(timers, None)
    assert await timer(store, name) is not None
    clock.advance(61)
    await looked(timers, None)
    assert await timer(store, name) is None


async def test_many_at_once_need_one_timer(store: Store, name: str) -> None:
    """Each a little sooner than the last: they do not trip over each other."""
    timers = Timers(store, name)
    now = timers.now()
    await asyncio.gather(*(timers.ensure("x", now + 60_000 - n) for n in range(200)))
    kept = await timer(store, name)
    assert kept is not None
    assert kept.due_at <= now + 60_000 - 199


async def test_a_timer_is_written_once_however_many_rely_on_it(
    store: Store, clock: ManualClock, name: str
) -> None:
    """Also when it is nearly due, and when it is overdue because nobody has taken it yet."""
    timers = Timers(store, name)
    for _ in range(50):
        await timers.expect("x", timers.now() + 30_000)
        clock.advance(1)
    kept = await timer(store, name)
    assert kept is not None
    assert kept.version == 1


async def test_a_timer_that_is_about_to_go_is_not_relied_on(
    store: Store, clock: ManualClock, name: str
) -> None:
    """After the first look that found nothing, the second would delete it."""
    timers = Timers(store, name)
    await timers.expect("x", timers.now())
    await looked(timers, None)
    clock.advance(44)
    await timers.expect("x", timers.now() + 30_000)
    clock.advance(17)
    await looked(timers, None)
    assert await timer(store, name) is not None


async def test_what_is_known_of_a_timer_is_not_believed_for_long(
    store: Store, clock: ManualClock, name: str
) -> None:
    """Another process may have taken it sooner, and seen it go."""
    ours, theirs = Timers(store, name), Timers(store, name)
    start = ours.now()
    await ours.ensure("x", start + 3_600_000)
    await theirs.ensure("x", start)
    for _ in range(2):
        await looked(theirs, None)
        clock.advance(61)
    assert await timer(store, name) is None
    await ours.expect("x", start + 3_700_000)
    assert await timer(store, name) is not None


async def test_two_do_not_take_one_timer(store: Store, name: str) -> None:
    timers = Timers(store, name)
    await timers.ensure("x", timers.now())
    [due] = await timers.due(10, set())
    taken = await asyncio.gather(*(timers.take(due) for _ in range(5)))
    assert len([held for held in taken if held is not None]) == 1


async def test_systems_do_not_see_each_others_timers(store: Store, name: str) -> None:
    ours, theirs = Timers(store, f"{name}-a"), Timers(store, f"{name}-b")
    await ours.ensure("x", ours.now())
    assert await theirs.due(10, set()) == []
    assert len(await ours.due(10, set())) == 1


async def test_those_that_are_busy_do_not_hide_the_others(store: Store, name: str) -> None:
    timers = Timers(store, name)
    for n in range(12):
        await timers.ensure(f"x{n}", timers.now())
    due = {found.name for found in await timers.due(2, set())}
    rest = {found.name for found in await timers.due(100, due)}
    assert not due & rest
    assert len(due | rest) == 12


# Timed work


def counting(next_at: int | None = None) -> tuple[list[str], Callable[[str, Look], Awaitable[Any]]]:
    looks: list[str] = []

    async def work(name: str, look: Look) -> int | None:
        looks.append(name)
        return next_at

    return looks, work


async def test_what_is_due_is_looked_at_once(store: Store, name: str) -> None:
    looks, work = counting()
    timed = TimedWork(Timers(store, name), work)
    await timed.timers.ensure("x", timed.timers.now())
    for _ in range(3):
        await timed.tick()
        await timed.finish()
    assert looks == ["x"]


async def test_work_that_fails_is_found_again(store: Store, clock: ManualClock, name: str) -> None:
    looks = 0

    async def work(name: str, look: Look) -> int | None:
        nonlocal looks
        looks += 1
        if looks == 1:
            raise ValueError("not today")
        return None

    timed = TimedWork(Timers(store, name), work)
    await timed.timers.ensure("x", timed.timers.now())
    for _ in range(2):
        await timed.tick()
        await timed.finish()
        clock.advance(61)
    assert looks == 2


async def test_another_process_takes_over_from_one_that_died(
    store: Store, clock: ManualClock, name: str
) -> None:
    dead, (looks, work) = Timers(store, name), counting()
    await dead.ensure("x", dead.now())
    [due] = await dead.due(10, set())
    assert await dead.take(due) is not None  # and nothing more is heard of it
    alive = TimedWork(Timers(store, name), work)
    await alive.tick()
    await alive.finish()
    assert looks == []
    clock.advance(61)
    await alive.tick()
    await alive.finish()
    assert looks == ["x"]


async def test_a_kick_while_a_look_ends_is_not_lost(store: Store, name: str) -> None:
    looks, work = counting()
    faults: Any = Faults(store)
    timed = TimedWork(Timers(faults, name), work)
    await timed.timers.ensure("x", timed.timers.now())
    puts = 0

    async def put(call: Any, *given: Any, **named: Any) -> Any:
        nonlocal puts
        puts += 1
        if puts == 2:  # the first holds the timer, the second ends the look
            timed.kick("x")
        return await call(*given, **named)

    faults.around["put"] = put
    await timed.tick()
    await timed.finish()
    assert looks == ["x", "x"]


async def test_a_look_that_takes_long_keeps_others_away(
    store: Store, clock: ManualClock, name: str
) -> None:
    others = Timers(store, name)
    seen: list[int] = []

    async def work(name: str, look: Look) -> int | None:
        for _ in range(5):
            clock.advance(25)
            await look.keep()
            clock.advance(10)
            seen.append(len(await others.due(10, set())))
        return None

    timed = TimedWork(Timers(store, name), work)
    await timed.timers.ensure("x", timed.timers.now())
    await timed.tick()
    await timed.finish()
    assert seen == [0] * 5


async def test_draining_leaves_to_others_what_takes_too_long(
    store: Store, clock: ManualClock, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    looks, begun = 0, asyncio.Event()

    async def work(name: str, look: Look) -> int | None:
        nonlocal looks
        looks += 1
        begun.set()
        if looks == 1:
            await asyncio.Event().wait()
        return None

    timed = TimedWork(Timers(store, name), work)
    await timed.timers.ensure("x", timed.timers.now())
    await timed.tick()
    await begun.wait()
    await timed.drain(0.01)
    clock.advance(61)
    await timed.tick()
    await timed.drain(10)
    assert looks == 2


async def test_nothing_new_is_begun_once_it_is_to_stop(store: Store, name: str) -> None:
    looks, work = counting()
    stopping = asyncio.Event()
    timed = TimedWork(Timers(store, name), work, stopping)
    await timed.timers.ensure("x", timed.timers.now())
    stopping.set()
    timed.kick("x")
    await timed.tick()
    await timed.drain(1)
    timed.kick("x")
    await timed.drain(1)
    assert looks == []
