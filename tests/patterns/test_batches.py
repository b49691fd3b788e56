"""Write batches: many writers, one transaction, and each with its own outcome."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.faults import Faults
from waystation.errors import InvalidRequest, ItemTooLarge, Overloaded, TransactionCancelled
from waystation.patterns import Record, Tally, Timer, WriteBatches, tallies
from waystation.seam import tables_of
from waystation.store import Put, absent, attr, open_store
from waystation.systems import SYSTEMS

if TYPE_CHECKING:
    from waystation.store import Store


def item(space: str, n: int, due_at: int = 1) -> Timer:
    return Timer(space=space, name=f"x{n}", shard=0, due_at=due_at)


async def stored(store: Store, space: str, count: int) -> int:
    keys = [Timer.key(space, f"x{n}") for n in range(count)]
    return len([found for found in await store.batch_get(keys) if found is not None])


async def total(store: Store, name: str) -> int:
    found = await store.get(Record.key("tally", name))
    return 0 if found is None else found.fence


def counting(name: str) -> Tally:
    return Tally(key=Record.key("tally", name), adds={"fence": 1})


async def test_what_comes_at_once_is_counted_exactly(store: Store, name: str) -> None:
    batches, counters = WriteBatches(store), [counting(name)]
    await asyncio.gather(
        *(batches.write("line", [Put(item(name, n))], counters) for n in range(250))
    )
    assert await total(store, name) == 250
    assert await stored(store, name, 250) == 250


async def test_what_comes_at_once_takes_few_transactions(store: Store, name: str) -> None:
    faults: Any = Faults(store)
    sizes: list[int] = []

    async def transact(call: Any, *actions: Any, **named: Any) -> None:
        sizes.append(len(actions))
        await call(*actions, **named)

    faults.around["write_together"] = transact
    batches, counters = WriteBatches(faults), [counting(name)]
    await asyncio.gather(
        *(batches.write("line", [Put(item(name, n))], counters) for n in range(100))
    )
    assert len(sizes) <= 4
    assert max(sizes) <= store.most_together


def busy(milliseconds: float) -> None:
    """Something else that the loop has to do."""
    until = time.perf_counter() + milliseconds / 1000
    while time.perf_counter() < until:
        pass


async def test_what_comes_while_the_loop_is_busy_goes_together(name: str) -> None:
    """Where this process writes itself: the thread that does would be in the loop's way."""
    async with await open_store("sqlite://:memory:", tables_of(SYSTEMS)) as store:
        faults: Any = Faults(store)
        sizes: list[int] = []

        async def transact(call: Any, *actions: Any) -> None:
            sizes.append(len(actions))
            await call(*actions)

        faults.around["write_together"] = transact
        batches, writes = WriteBatches(faults), []
        for n in range(5):
            writes.append(batches.write("a line" if n % 2 else "another", [Put(item(name, n))], []))
            await asyncio.sleep(0)
            busy(0.2)
        await asyncio.gather(*writes)
        assert sorted(sizes) == [2, 3]


async def test_a_loop_that_is_always_busy_is_not_waited_for(name: str) -> None:
    async with await open_store("sqlite://:memory:", tables_of(SYSTEMS)) as store:
        written = WriteBatches(store).write("line", [Put(item(name, 0))], [])
        async with asyncio.timeout(10):
            while not written.done():
                busy(0.2)
                await asyncio.sleep(0)


async def test_one_refusal_does_not_harm_the_others_of_its_batch(store: Store, name: str) -> None:
    batches = WriteBatches(store)
    await store.put(item(name, 9))
    writes = [batches.write("line", [Put(item(name, n))], [counting(name)]) for n in range(5)]
    taken = Put(item(name, 9, due_at=2), when=absent())
    writes.insert(2, batches.write("line", [taken], [counting(name)]))
    outcomes = await asyncio.gather(*writes, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes].count(TransactionCancelled) == 1
    assert await stored(store, name, 10) == 6
    assert await total(store, name) == 5


async def test_one_entry_that_is_too_large_does_not_harm_the_others(
    store: Store, name: str
) -> None:
    batches = WriteBatches(store)
    huge = Record(scope="tally", key_hash=name, result=b"x" * 500_000)
    writes = [batches.write("line", [Put(item(name, n))], []) for n in range(5)]
    writes.insert(2, batches.write("line", [Put(huge)], []))
    outcomes = await asyncio.gather(*writes, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes].count(ItemTooLarge) == 1
    assert await stored(store, name, 5) == 5


async def test_a_counter_that_makes_no_sense_does_not_harm_the_others(
    store: Store, name: str
) -> None:
    nonsense = [Tally(key=Record.key("tally", name), adds={"fence": 1}, sets={"nothing": 1})]
    good = [counting(name)]
    batches = WriteBatches(store)
    writes = [
        batches.write("line", [Put(item(name, n))], nonsense if n < 2 else good) for n in range(5)
    ]
    outcomes = await asyncio.gather(*writes, return_exceptions=True)
    assert [isinstance(outcome, InvalidRequest) for outcome in outcomes] == [True] * 2 + [False] * 3
    assert await total(store, name) == 3


async def test_nothing_is_kept_of_moments_that_have_passed(store: Store, name: str) -> None:
    """What says when an item was last counted differs from second to second."""
    lines, kept = WriteBatches(store), len(tallies._templates)  # there is no other way to see it
    for at in range(20):
        last: dict[str, object] = {"expires_at": 4_000_000_000 + at}
        tally = Tally(key=Record.key("tally", name), adds={"fence": 1}, sets=last)
        puts = [Put(item(name, 2 * at + n)) for n in range(2)]
        await asyncio.gather(*(lines.write("line", [put], [tally]) for put in puts))
    assert await total(store, name) == 40
    assert len(tallies._templates) == kept


async def test_a_counter_with_a_limit_lets_in_exactly_so_many(store: Store, name: str) -> None:
    def within(adds: dict[str, int]) -> Any:
        return attr("fence") <= 7 - adds["fence"]

    await store.put(Record(scope="tally", key_hash=name))
    batches = WriteBatches(store)
    tallies = [Tally(key=Record.key("tally", name), adds={"fence": 1}, when=within)]
    writes = [batches.write("line", [Put(item(name, n))], tallies) for n in range(20)]
    outcomes = await asyncio.gather(*writes, return_exceptions=True)
    refused = [o for o in outcomes if isinstance(o, TransactionCancelled)]
    assert (await total(store, name), len(refused)) == (7, 13)
    assert all(error.reasons[1] is not None for error in refused)


async def test_lines_do_not_wait_for_each_other(store: Store, name: str) -> None:
    faults: Any = Faults(store)
    go_on = asyncio.Event()

    async def transact(call: Any, *actions: Any, **named: Any) -> None:
        if actions[0].source.name == "x0":
            await go_on.wait()
        await call(*actions, **named)

    faults.around["write_together"] = transact
    batches = WriteBatches(faults)
    stuck = batches.write("one", [Put(item(name, 0))], [])
    await batches.write("other", [Put(item(name, 1))], [])
    assert not stuck.done()
    go_on.set()
    await stuck


async def test_what_is_new_is_refused_when_too_much_waits(store: Store, name: str) -> None:
    """What was begun is written all the same."""
    batches = WriteBatches(store, most_waiting=0)
    with pytest.raises(Overloaded):
        await batches.write("line", [Put(item(name, 0))], [], new=True)
    await batches.write("line", [Put(item(name, 1))], [])
    assert await stored(store, name, 2) == 1


async def test_a_failure_of_the_store_is_told_to_all_that_wait(store: Store, name: str) -> None:
    faults: Any = Faults(store)
    faults.fail_once("write_together", RuntimeError("no disk"))
    batches = WriteBatches(faults)
    writes = [batches.write("line", [Put(item(name, n))], []) for n in range(3)]
    outcomes = await asyncio.gather(*writes, return_exceptions=True)
    assert all(isinstance(outcome, RuntimeError) for outcome in outcomes)
    await batches.write("line", [Put(item(name, 0))], [])
    assert await stored(store, name, 1) == 1
