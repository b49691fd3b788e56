"""Change feeds: a watcher hears of everything, in order, in one process at a time."""

from __future__ import annotations

import asyncio
import math
import time
import uuid
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.site import site
from tests.toy.system import TOY
from tests.toy.tables import Letter, letters
from waystation.clock import ManualClock
from waystation.patterns import Leases
from waystation.seam import Running, System, Watcher
from waystation.server.feeds import FeedRunner
from waystation.store import FeedHolder, Item, Table, checkpoints, open_store
from waystation.systems import SYSTEMS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from waystation.store import Change, Store


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(float(int(time.time())))


@pytest.fixture(params=["sqlite", "dynamodb"])
async def store(request: pytest.FixtureRequest, clock: ManualClock) -> AsyncIterator[Store]:
    """A store whose tables no other test has touched."""
    url, endpoint = "sqlite://:memory:", None
    if request.param == "dynamodb":
        url, endpoint = "dynamodb://eu-west-1", request.getfixturevalue("dynamodb_url")
    env = f"t{uuid.uuid4().hex[:8]}"
    tables = [letters, checkpoints]
    async with await open_store(url, tables, env=env, clock=clock, endpoint_url=endpoint) as store:
        await store.ensure_tables()
        yield store


class Heard:
    """A watcher that remembers, and does what it is told to."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.error: Exception | None = None
        self.at: str | None = None
        self.go_on = asyncio.Event()
        self.waiting = asyncio.Event()

    async def handle(self, change: Change) -> None:
        assert isinstance(change.new, Letter)
        id_ = change.new.letter_id
        if id_ == self.at:
            if self.error is not None:
                raise self.error
            self.waiting.set()
            await self.go_on.wait()
        self.ids.append(id_)

    def runner(self, store: Any) -> FeedRunner:
        watcher = Watcher("test", letters, self.handle)
        leases = Leases(store, seconds=5, skew=0, longest=math.inf)
        return FeedRunner(store, watcher, leases=leases)


async def write(store: Store, *ids: str) -> None:
    for id_ in ids:
        await store.put(Letter(box="ann", letter_id=id_))


@asynccontextmanager
async def following(runner: FeedRunner) -> AsyncIterator[asyncio.Task[None]]:
    stopping = asyncio.Event()
    task = asyncio.create_task(runner.run(stopping))
    try:
        yield task
    finally:
        stopping.set()
        async with asyncio.timeout(20):
            await asyncio.gather(task, return_exceptions=True)


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not true():
            await asyncio.sleep(0.01)


async def test_changes_arrive_in_order(store: Store) -> None:
    heard = Heard()
    async with following(heard.runner(store)):
        await write(store, "1", "2", "3")
        await until(lambda: len(heard.ids) == 3)
    assert heard.ids == ["1", "2", "3"]


async def test_it_goes_on_where_it_was(store: Store) -> None:
    """Another process, later: what was dealt with does not come again."""
    await write(store, "1", "2")
    first, second = Heard(), Heard()
    async with following(first.runner(store)):
        await until(lambda: len(first.ids) == 2)
    await write(store, "3")
    async with following(second.runner(store)):
        await until(lambda: second.ids == ["3"])


async def test_one_process_at_a_time(store: Store) -> None:
    heard = [Heard(), Heard(), Heard()]
    async with (
        following(heard[0].runner(store)),
        following(heard[1].runner(store)),
        following(heard[2].runner(store)),
    ):
        for n in range(20):
            await write(store, str(n))
        await until(lambda: sum(len(one.ids) for one in heard) >= 20)
    assert sorted(len(one.ids) for one in heard) == [0, 0, 20]


async def test_whoever_dies_is_succeeded(store: Store, clock: ManualClock) -> None:
    dead = Leases(store, seconds=5, skew=0)
    assert await dead.acquire(FeedHolder.key("toy-letters", "test")) is not None
    heard = Heard()
    await write(store, "1")
    async with following(heard.runner(store)):
        await asyncio.sleep(0.05)
        assert heard.ids == []
        clock.advance(7)
        await until(lambda: heard.ids == ["1"])


async def test_what_a_watcher_failed_at_comes_again(store: Store) -> None:
    """And what came before it comes once more at the most, however often it is tried."""
    heard = Heard()
    heard.at, heard.error = "5", ValueError("not this one")
    await write(store, *map(str, range(8)))
    runner = heard.runner(store)
    for _ in range(4):
        async with following(runner) as task:
            with pytest.raises(ValueError, match="not this one"):
                await asyncio.wait_for(asyncio.shield(task), 20)
        assert runner.behind_since is not None
    heard.error = None
    heard.go_on.set()
    async with following(runner):
        await until(lambda: heard.ids[-3:] == ["5", "6", "7"])
    assert max(heard.ids.count(str(n)) for n in range(5)) <= 2
    assert runner.lag == 0


async def test_the_position_is_kept_after_the_watchers_own_work(store: Store) -> None:
    """Whoever took over while it works would be given the same change."""
    given: list[list[str]] = []

    async def handle(change: Change) -> None:
        others = await store.changes(letters, "test").read()
        given.append([other.id for other in others])
        assert change.id in given[-1]

    await write(store, "1", "2")
    async with following(FeedRunner(store, Watcher("test", letters, handle))):
        await until(lambda: len(given) == 2)


async def test_a_late_holder_does_not_move_the_position(store: Store, clock: ManualClock) -> None:
    """It was away for so long that another has gone on without it."""
    late, successor, third = Heard(), Heard(), Heard()
    late.at = "1"
    await write(store, "1")
    async with following(late.runner(store)):
        await asyncio.wait_for(late.waiting.wait(), 20)
        clock.advance(7)
        async with following(successor.runner(store)):
            await until(lambda: successor.ids == ["1"])
            await write(store, "2")
            await until(lambda: successor.ids == ["1", "2"])
        late.go_on.set()
        await until(lambda: late.ids == ["1"])
    await write(store, "3")
    async with following(third.runner(store)):
        await until(lambda: third.ids != [])
    assert third.ids == ["3"]


async def test_a_watcher_that_is_cancelled_by_what_it_awaits_has_failed(store: Store) -> None:
    async def handle(change: Change) -> None:
        gone = asyncio.get_running_loop().create_future()
        gone.cancel()
        await gone

    await write(store, "1")
    watcher = Watcher("test", letters, handle)
    async with following(FeedRunner(store, watcher)) as task:
        with pytest.raises(Exception, match="was cancelled"):
            await asyncio.wait_for(asyncio.shield(task), 20)


async def test_a_watcher_that_fails_shows(clock: ManualClock) -> None:
    """In /readyz, and as a lag that grows; other systems' work goes on."""

    async def handle(change: Change) -> None:
        raise ValueError("not this one")

    grumpy = System(
        name="grumpy",
        open=lambda parts: Running(watchers=[Watcher("grumpy", letters, handle)]),
    )
    async with site(clock, systems=[*SYSTEMS, TOY, grumpy], background=True) as server:
        server.runtime.supervisor.start()
        token = await server.api_key()
        letter = {"box": "ann", "letter_id": "1"}
        assert (await server.post("/v1/toy/letters", letter, token=token)).status == 201
        async with asyncio.timeout(20):
            while (ready := (await server.get("/readyz")).json)["status"] != "degraded":
                await asyncio.sleep(0.01)
        [state] = [job for job in ready["jobs"] if job["name"] == "watch grumpy"]
        assert state["last_error"] == "ValueError"
        async with asyncio.timeout(20):
            while not (await server.get("/v1/toy/boxes/ann", token=token)).json["letters"]:
                await asyncio.sleep(0.01)
        clock.advance(100)
        page = (await server.get("/metrics")).body.decode()
        await server.runtime.supervisor.stop()
    lag = [line for line in page.splitlines() if line.startswith("waystation_feed_lag_seconds{")]
    seconds = {line.split('"')[1]: float(line.split()[-1]) for line in lag}
    assert seconds["grumpy"] >= 100
    assert seconds["toy-notes"] == 0


async def test_changes_that_went_unread_for_too_long_are_reported(clock: ManualClock) -> None:
    """The feed keeps a day of them."""
    heard = Heard()
    async with await open_store("sqlite://:memory:", [letters, checkpoints], clock=clock) as store:
        await write(store, "1")
        runner = heard.runner(store)
        async with following(runner):
            await until(lambda: heard.ids == ["1"])
        await write(store, "2")
        clock.advance(25 * 3600)
        await store.sweep()
        async with following(runner):
            await write(store, "3")
            await until(lambda: heard.ids == ["1", "3"])
        assert runner.lost


async def test_a_slow_watcher_makes_progress_however_often_it_is_stopped(store: Store) -> None:
    heard: list[str] = []

    async def handle(change: Change) -> None:
        assert isinstance(change.new, Letter)
        heard.append(change.new.letter_id)
        await asyncio.sleep(0.03)

    await write(store, *map(str, range(40)))
    runner = FeedRunner(store, Watcher("test", letters, handle))
    for _ in range(4):
        async with following(runner) as task:
            await until(lambda: len(heard) % 10 == 7)
            task.cancel()  # as at the end of the grace period
        heard.append("stopped")
    assert len(set(heard)) > 20


async def test_rows_of_other_services_do_not_hold_up_the_feed(
    clock: ManualClock, tmp_path: Path
) -> None:
    """They are read past without a pause after each hundred."""
    foreign = Table("toy-letters", pk="pk", sk="sk", stream=True)

    class Theirs(Item, table=foreign, pk="THEIRS#{n}", sk="X"):
        n: int

    shared = tmp_path / "shared.db"
    async with await open_store(f"sqlite:///{shared}", [foreign], clock=clock) as store:
        await store.batch_write(puts=[Theirs(n) for n in range(3_000)])
    heard, begun = Heard(), time.monotonic()
    async with await open_store(
        f"sqlite:///{shared}", [letters, checkpoints], clock=clock
    ) as store:
        await write(store, "1")
        async with following(heard.runner(store)):
            await until(lambda: heard.ids == ["1"])
    assert time.monotonic() - begun < 2


async def test_what_came_before_a_watcher_is_not_its_loss(clock: ManualClock) -> None:
    async with await open_store("sqlite://:memory:", [letters, checkpoints], clock=clock) as store:
        await write(store, "1")
        clock.advance(25 * 3600)
        await store.sweep()
        await write(store, "2")
        heard = Heard()
        runner = heard.runner(store)
        async with following(runner):
            await until(lambda: heard.ids == ["2"])
            await write(store, "3")
            await until(lambda: heard.ids == ["2", "3"])
        assert not runner.lost
