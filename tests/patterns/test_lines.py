"""Lines of writes: how many transactions of a line are under way at the same time."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.faults import Faults
from tests.support.sharing import shared
from waystation.patterns import Record, WriteBatches
from waystation.seam import tables_of
from waystation.store import Put, Update, attr, open_store, set_to
from waystation.systems import SYSTEMS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from waystation.patterns import Tally
    from waystation.store import Action, Store


class Slow:
    """A store whose transactions wait to be let go on. `most` is how many waited at once, `both`
    are the items that were in two of them."""

    def __init__(self, store: Store) -> None:
        self.store: Any = Faults(store)
        self.store.around["write_together"] = self._transact
        self.go_on = asyncio.Event()
        self.waiting = self.most = 0
        self.places: list[set[Any]] = []
        self.both: set[Any] = set()

    async def _transact(self, call: Any, *writes: Any) -> None:
        self.waiting += 1
        self.most = max(self.most, self.waiting)
        places = {write.place for write in writes}
        self.both |= places.intersection(*self.places) if self.places else set()
        self.places.append(places)
        await self.go_on.wait()
        self.waiting -= 1
        await call(*writes)
        self.places.remove(places)

    async def until(self, number: int) -> None:
        """Until so many wait, and nothing else is about to happen."""
        async with asyncio.timeout(10):
            while self.waiting < number:
                await asyncio.sleep(0)
        for _ in range(20):
            await asyncio.sleep(0)


@asynccontextmanager
async def slow(folder: Path, *, alone: bool = False) -> AsyncIterator[Slow]:
    """A store that another one writes for, or that writes itself."""
    url, tables = f"sqlite:///{folder / 'store.db'}", tables_of(SYSTEMS)
    async with await open_store(url, tables) if alone else shared(url, tables) as store:
        yield Slow(store)


def record(n: int) -> Record:
    return Record(scope="lines", key_hash=f"x{n}", fence=1)


def put(batches: WriteBatches, numbers: range) -> list[asyncio.Future[None]]:
    return [batches.write("line", [Put(record(n))], []) for n in numbers]


async def stored(store: Store, count: int) -> int:
    keys = [Record.key("lines", f"x{n}") for n in range(count)]
    return len([found for found in await store.batch_get(keys) if found is not None])


@pytest.mark.parametrize(("alone", "expected"), [(True, 1), (False, 2)])
async def test_the_next_one_is_on_its_way_where_somebody_else_writes(
    tmp_path: Path, alone: bool, expected: int
) -> None:
    async with slow(tmp_path, alone=alone) as line:
        batches = WriteBatches(line.store)
        writes = put(batches, range(30))
        await line.until(1)
        writes += put(batches, range(30, 60))
        await line.until(expected)
        assert line.waiting == expected
        line.go_on.set()
        await asyncio.gather(*writes)
        assert line.most == expected
        assert await stored(line.store, 60) == 60


async def test_a_few_wait_for_the_one_that_is_under_way(tmp_path: Path) -> None:
    async with slow(tmp_path) as line:
        batches = WriteBatches(line.store)
        writes = put(batches, range(1))
        await line.until(1)
        writes += put(batches, range(1, 20))
        await line.until(1)
        assert line.waiting == 1
        writes += put(batches, range(20, 40))
        await line.until(2)
        line.go_on.set()
        await asyncio.gather(*writes)
        assert await stored(line.store, 40) == 40


class _Later:
    """A change of a record, put together when it is its turn from what was written before."""

    key = Record.key("lines", "x0")

    def __init__(self, *beside: Put[Any]) -> None:
        self.fence = 1
        self.built = 0
        self.beside = beside

    def build(self) -> tuple[Sequence[Action], Sequence[Tally]]:
        self.built += 1
        unchanged = attr("fence") == self.fence
        update = Update(self.key, set_to("fence", self.fence + 1), when=unchanged)
        return [update, *self.beside], []

    def written(self) -> None:
        self.fence += 1


async def test_an_item_is_in_one_of_them_at_a_time(tmp_path: Path) -> None:
    """What is put together of it relies on what was written before."""
    async with slow(tmp_path) as line:
        batches, later = WriteBatches(line.store), _Later()
        writes = put(batches, range(1))
        await line.until(1)
        writes += put(batches, range(1, 30))
        writes.append(batches.write_together("line", later))
        writes.append(batches.write_together("line", later))
        writes += put(batches, range(30, 60))
        await line.until(2)
        assert later.built == 0
        line.go_on.set()
        await asyncio.gather(*writes)
        found = await line.store.get(later.key)
        assert (found.fence, later.built) == (3, 2)
        assert await stored(line.store, 60) == 60


async def test_what_turns_out_to_be_written_waits_too(tmp_path: Path) -> None:
    """What is put together may be about more than its key says."""
    async with slow(tmp_path) as line:
        batches, later = WriteBatches(line.store), _Later(Put(record(1)))
        line.go_on.set()
        await asyncio.gather(*put(batches, range(1)))
        line.go_on.clear()
        writes = put(batches, range(1, 2))
        await line.until(1)
        writes.append(batches.write_together("line", later))
        writes += put(batches, range(2, 60))
        await line.until(1)
        line.go_on.set()
        await asyncio.gather(*writes)
        assert line.both == set()
        assert (await stored(line.store, 60), later.built) == (60, 1)


async def test_a_failure_of_one_is_not_the_other_ones(tmp_path: Path) -> None:
    async with slow(tmp_path) as line:
        batches, transact = WriteBatches(line.store), line.store.around["write_together"]

        async def one_fails(call: Any, *writes: Any) -> None:
            await transact(call, *writes)
            if any(write.key == Record.key("lines", "x0") for write in writes):
                raise RuntimeError("no disk")

        line.store.around["write_together"] = one_fails
        writes = put(batches, range(60))
        await line.until(2)
        line.go_on.set()
        outcomes = await asyncio.gather(*writes, return_exceptions=True)
        failed = [n for n, outcome in enumerate(outcomes) if outcome is not None]
        assert failed == list(range(len(failed)))
        assert 0 < len(failed) < 60
        await asyncio.gather(*put(batches, range(60, 70)))
