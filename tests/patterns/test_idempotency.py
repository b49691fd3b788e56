"""Doing work once."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import pydantic
import pytest

from tests.support.faults import Faults
from waystation.errors import (
    DeclarationError,
    InProgress,
    InvalidRequest,
    KeyMissing,
    KeyReused,
    LeaseLost,
    OutcomeUnknown,
    RecordedFailure,
    ResultUnavailable,
    StoreUnavailable,
)
from waystation.pages.keeping.places import partition
from waystation.pages.tables import PageMeta
from waystation.patterns import Idempotency, Leases, Run, fingerprint, idempotency
from waystation.store import Put, Store, absent, key_of, open_store

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from waystation.clock import ManualClock


@pytest.fixture
def once(store: Store, clock: ManualClock) -> Idempotency:
    leases = Leases(store, seconds=60, longest=3600, skew=0, monotonic=clock)
    return Idempotency(store, ttl=3600, leases=leases)


class Work:
    """Counts how often it was done."""

    def __init__(self, result: Any = "done") -> None:
        self.result = result
        self.times = 0

    async def __call__(self, run: Run) -> Any:
        self.times += 1
        if isinstance(self.result, BaseException):
            raise self.result
        return self.result


async def test_work_is_done_once(once: Idempotency, name: str) -> None:
    work = Work({"charge": 12})
    assert await once.run("test", name, work) == {"charge": 12}
    assert await once.run("test", name, work) == {"charge": 12}
    assert work.times == 1


async def test_of_many_at_once_one_works_and_all_get_its_result(store: Store, name: str) -> None:
    once = Idempotency(store)
    times = 0

    async def slow(run: Run) -> str:
        nonlocal times
        times += 1
        await asyncio.sleep(0.02)
        return "done"

    results = await asyncio.gather(*(once.run("test", name, slow, wait=10) for _ in range(10)))
    assert (times, set(results)) == (1, {"done"})


async def test_other_keys_and_scopes_are_other_work(once: Idempotency, name: str) -> None:
    work = Work()
    await once.run("test", name, work)
    await once.run("test", name + "2", work)
    await once.run("other", name, work)
    assert work.times == 3


async def test_a_key_is_forgotten_after_its_time(
    once: Idempotency, name: str, clock: ManualClock
) -> None:
    work = Work()
    await once.run("test", name, work)
    clock.advance(3601)
    await once.run("test", name, work)
    assert work.times == 2


@pytest.mark.parametrize("result", [None, 0, False, "", [], {}, 0.0])
async def test_any_result_is_kept(once: Idempotency, name: str, result: object) -> None:
    work = Work(result)
    await once.run("test", name, work)
    replayed = await once.run("test", name, work)
    assert (replayed, type(replayed)) == (result, type(result))
    assert work.times == 1


class Receipt(msgspec.Struct):
    total: Decimal
    at: datetime


async def test_a_result_is_rebuilt_as_its_type(once: Idempotency, name: str) -> None:
    receipt = Receipt(Decimal("1.10"), datetime(2026, 1, 1, tzinfo=UTC))
    await once.run("test", name, Work(receipt), result=Receipt)
    assert await once.run("test", name, Work(), result=Receipt) == receipt


@dataclass
class Line:
    sku: str
    price: Decimal


@dataclass
class Order:
    lines: list[Line]
    at: datetime


class Customer(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)

    customer_id: int = pydantic.Field(alias="customerId")
    since: datetime
    spent: Decimal


async def test_dataclasses_come_back_as_what_they_were(once: Idempotency, name: str) -> None:
    @once.once("orders", key=lambda key: key)
    async def order(key: str) -> list[Order]:
        return [Order([Line("a", Decimal("1.10"))], datetime(2026, 1, 1, tzinfo=UTC))]

    first = await order(name)
    again = await order(name)
    assert again == first
    assert isinstance(again[0].lines[0], Line)


async def test_models_of_pydantic_come_back_as_what_they_were(once: Idempotency, name: str) -> None:
    @once.once("customers", key=lambda key: key)
    async def customers(key: str) -> dict[str, Customer | None]:
        since = datetime(2026, 1, 1, tzinfo=UTC)
        return {"ann": Customer(customerId=1, since=since, spent=Decimal("9.90")), "bob": None}

    first = await customers(name)
    again = await customers(name)
    assert again == first
    assert isinstance(again["ann"], Customer)


async def test_a_result_that_is_not_what_was_declared_says_so_from_the_first_call_on(
    once: Idempotency, name: str
) -> None:
    calls = 0

    @once.once("misfit", key=lambda key: key)
    async def count(key: str) -> int:
        nonlocal calls
        calls += 1
        return "three"  # type: ignore[return-value]

    for _ in range(2):
        with pytest.raises(ResultUnavailable, match="not the int that was declared"):
            await count(name)
    assert calls == 1


async def test_a_commit_with_a_result_that_is_not_what_was_declared_writes_nothing(
    once: Idempotency, store: Store, name: str
) -> None:
    async def work(run: Run) -> int:
        await run.commit(Put(page(name)), result="three")
        return 3

    with pytest.raises(InvalidRequest, match="not the int that was declared"):
        await once.run("misfit", name, work, result=int)
    assert await store.get(key_of(page(name))) is None


def test_a_function_that_is_not_async_is_refused_when_it_is_decorated(once: Idempotency) -> None:
    def charge(order: str) -> int:
        return 1

    with pytest.raises(DeclarationError, match="charge must be async"):
        once.once("charge", key=lambda order: order)(charge)  # type: ignore[arg-type]


async def test_whatever_is_called_asynchronously_can_be_decorated(
    once: Idempotency, name: str
) -> None:
    class Charge:
        async def __call__(self, order: str) -> Line:
            return Line(order, Decimal(1))

    async def charge(factor: int, order: str) -> Line:
        return Line(order, Decimal(factor))

    functions: list[Any] = [Charge(), partial(charge, 1)]
    for n, function in enumerate(functions):
        decorated = once.once(f"charge {n}", key=lambda order: order)(function)
        assert [await decorated(name), await decorated(name)] == [Line(name, Decimal(1))] * 2


@pytest.mark.parametrize("result", ["x" * 300_000, object()])
async def test_a_result_that_cannot_be_kept_does_not_undo_the_work(
    once: Idempotency, name: str, result: object
) -> None:
    work = Work(result)
    assert await once.run("test", name, work) == result
    with pytest.raises(ResultUnavailable):
        await once.run("test", name, work)
    assert work.times == 1


@pytest.mark.parametrize("key", [None, "", "x" * 1025])
async def test_no_key_no_work(once: Idempotency, key: str | None) -> None:
    work = Work()
    with pytest.raises(KeyMissing):
        await once.run("test", key, work)
    assert work.times == 0


async def test_a_key_goes_with_its_payload(once: Idempotency, name: str) -> None:
    work = Work()
    await once.run("test", name, work, payload={"amount": 1, "to": "ann"})
    await once.run("test", name, work, payload={"to": "ann", "amount": 1})
    with pytest.raises(KeyReused):
        await once.run("test", name, work, payload={"amount": 2, "to": "ann"})
    assert work.times == 1


async def test_after_an_error_the_next_call_tries_again(once: Idempotency, name: str) -> None:
    with pytest.raises(OSError, match="down"):
        await once.run("test", name, Work(OSError("down")))
    assert await once.run("test", name, Work("up")) == "up"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1), asyncio.CancelledError()])
async def test_after_an_interruption_the_next_call_tries_again(
    once: Idempotency, name: str, error: BaseException
) -> None:
    with pytest.raises(type(error)):
        await once.run("test", name, Work(error))
    assert await once.run("test", name, Work("up")) == "up"


async def test_an_error_for_good_is_remembered(once: Idempotency, name: str) -> None:
    work = Work(ValueError("no such account", 7))
    for _ in range(2):
        with pytest.raises(ValueError, match="no such account") as raised:
            await once.run("test", name, work, terminal=(ValueError,))
        assert raised.value.args == ("no such account", 7)
    assert work.times == 1


async def test_an_error_that_cannot_be_rebuilt_is_still_an_error(
    once: Idempotency, name: str
) -> None:
    class Odd(Exception):
        def __init__(self) -> None:
            super().__init__(object())

        def __str__(self) -> str:
            return "odd"

    for expected in (Odd, RecordedFailure):
        with pytest.raises(expected, match="odd"):
            await once.run("test", name, Work(Odd()), terminal=(Odd,))


async def test_while_it_is_done_elsewhere(once: Idempotency, name: str, clock: ManualClock) -> None:
    async def outer(run: Run) -> str:
        with pytest.raises(InProgress) as refused:
            await once.run("test", name, Work())
        assert refused.value.retry_after == 1.0
        clock.advance(20)
        with pytest.raises(InProgress) as refused:
            await once.run("test", name, Work())
        assert refused.value.retry_after == pytest.approx(20, abs=1)
        clock.advance(30)
        with pytest.raises(InProgress) as refused:
            await once.run("test", name, Work())
        assert refused.value.retry_after == pytest.approx(10, abs=1)  # then the lease is over
        return "outer"

    assert await once.run("test", name, outer) == "outer"


async def test_work_that_died_is_done_again_when_its_lease_runs_out(
    once: Idempotency, name: str, clock: ManualClock
) -> None:
    async def dies(run: Run) -> str:
        clock.advance(61)
        assert await once.run("test", name, Work("successor")) == "successor"
        return "late"

    # The late attempt is told what its successor made of the key.
    assert await once.run("test", name, dies) == "successor"
    assert await once.run("test", name, Work()) == "successor"


async def test_a_late_failure_does_not_disturb_its_successor(
    once: Idempotency, name: str, clock: ManualClock
) -> None:
    async def dies(run: Run) -> None:
        clock.advance(61)
        await once.run("test", name, Work("successor"))
        raise OSError("late")

    with pytest.raises(OSError, match="late"):
        await once.run("test", name, dies)
    assert await once.run("test", name, Work()) == "successor"


async def test_a_late_attempt_with_a_successor_at_work_is_told(
    once: Idempotency, name: str, clock: ManualClock
) -> None:
    async def late(run: Run) -> None:
        clock.advance(61)
        task = asyncio.create_task(once.run("test", name, hold))
        await holding.wait()
        tasks.append(task)

    async def hold(run: Run) -> str:
        holding.set()
        await go_on.wait()
        return "successor"

    tasks: list[asyncio.Task[str]] = []
    holding, go_on = asyncio.Event(), asyncio.Event()
    with pytest.raises(LeaseLost):
        await once.run("test", name, late)
    go_on.set()
    assert await tasks[0] == "successor"


async def test_work_may_take_longer_than_it_is_remembered(
    store: Store, name: str, clock: ManualClock
) -> None:
    leases = Leases(store, seconds=60, longest=3600, skew=0, monotonic=clock)
    once = Idempotency(store, ttl=5, leases=leases)

    async def slow(run: Run) -> str:
        clock.advance(59)
        return "done"

    assert await once.run("test", name, slow) == "done"
    assert await once.run("test", name, Work()) == "done"


async def test_steps_are_done_once(once: Idempotency, name: str) -> None:
    charged = 0

    async def charge() -> int:
        nonlocal charged
        charged += 1
        return 42

    async def work(run: Run) -> int:
        amount = await run.step("charge", charge)
        if run.attempt == 1:
            raise OSError("the second step failed")
        return amount + 1

    with pytest.raises(OSError, match="second"):
        await once.run("test", name, work)
    assert await once.run("test", name, work) == 43
    assert charged == 1


async def test_a_late_attempt_cannot_record_a_step(
    once: Idempotency, name: str, clock: ManualClock
) -> None:
    async def nothing() -> None: ...

    async def late(run: Run) -> None:
        clock.advance(61)
        await once.run("test", name, Work("successor"))
        await run.step("late", nothing)

    with pytest.raises(LeaseLost):
        await once.run("test", name, late)


def page(name: str) -> PageMeta:
    return PageMeta(pk=partition("t", name), s3_key="x", generated_at=0, revalidate_seconds=60)


async def test_writes_and_completion_are_one(once: Idempotency, store: Store, name: str) -> None:
    async def work(run: Run) -> str:
        await run.commit(Put(page(name), when=absent()), result="written")
        return "written"

    assert await once.run("test", name, work) == "written"
    assert await store.get(PageMeta.key(partition("t", name))) == page(name)
    assert await once.run("test", name, Work()) == "written"


async def test_a_late_attempt_writes_nothing(
    once: Idempotency, store: Store, name: str, clock: ManualClock
) -> None:
    async def late(run: Run) -> None:
        clock.advance(61)
        await once.run("test", name, Work("successor"))
        await run.commit(Put(page(name)))

    with pytest.raises(LeaseLost):
        await once.run("test", name, late)
    assert await store.get(PageMeta.key(partition("t", name))) is None


async def test_a_crash_after_the_commit_is_not_a_failure(once: Idempotency, name: str) -> None:
    async def work(run: Run) -> None:
        await run.commit(Put(page(name)), result="written")
        raise OSError("after the fact")

    with pytest.raises(OSError, match="after"):
        await once.run("test", name, work)
    assert await once.run("test", name, Work()) == "written"


async def test_a_store_that_is_away_for_a_moment_does_not_undo_the_work(
    clock: ManualClock,
) -> None:
    """Once it says nothing, once it did it and could not say so."""
    async with await open_store("sqlite://:memory:", [idempotency], clock=clock) as store:
        faults: Any = Faults(store)
        once = Idempotency(faults)
        troubles = ["away", "unheard"]

        async def troubled(update: Any, *arguments: Any, **named: Any) -> Any:
            trouble = troubles.pop() if troubles else None
            if trouble == "away":
                raise StoreUnavailable("gone")
            done = await update(*arguments, **named)
            if trouble == "unheard":
                raise OutcomeUnknown("the answer was lost")
            return done

        faults.around["update"] = troubled
        work = Work("done")
        for key in ("first", "second"):
            assert await once.run("test", key, work) == "done"
            assert await once.run("test", key, work) == "done"
        assert work.times == 2
        assert troubles == []


async def test_leaving_while_the_result_is_recorded_does_not_undo_the_work(
    clock: ManualClock,
) -> None:
    async with await open_store("sqlite://:memory:", [idempotency], clock=clock) as store:
        faults: Any = Faults(store)
        once = Idempotency(faults)
        work = Work()
        recording, go_on = asyncio.Event(), asyncio.Event()

        async def slow(update: Any, *arguments: Any, **named: Any) -> Any:
            recording.set()
            await go_on.wait()
            return await update(*arguments, **named)

        faults.around["update"] = slow
        task = asyncio.create_task(once.run("test", "key", work))
        await recording.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go_on.set()
        assert await once.run("test", "key", work, wait=5) == "done"
        assert work.times == 1


async def test_leaving_while_the_key_is_claimed_locks_nobody_out(tmp_path: Path) -> None:
    async with await open_store(f"sqlite:///{tmp_path / 'w.db'}", [idempotency]) as store:
        once = Idempotency(store)
        for n in range(10):
            task = asyncio.create_task(once.run("test", f"key-{n}", Work()))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await once.run("test", f"key-{n}", Work()) == "done"


async def test_work_stops_when_its_lease_is_lost(
    store: Store, name: str, clock: ManualClock
) -> None:
    slept = asyncio.Event()

    async def sleep(seconds: float) -> None:
        await slept.wait()
        slept.clear()

    leases = Leases(store, seconds=60, longest=3600, skew=0, monotonic=clock, sleep=sleep)
    once = Idempotency(store, leases=leases)
    begun = asyncio.Event()

    async def stuck(run: Run) -> None:
        begun.set()
        await asyncio.Event().wait()

    late = asyncio.create_task(once.run("test", name, stuck))
    await begun.wait()
    clock.advance(61)
    assert await once.run("test", name, Work("successor")) == "successor"
    slept.set()
    with pytest.raises(LeaseLost):
        await asyncio.wait_for(late, 5)


async def test_an_error_for_good_is_forgotten_like_a_result(
    once: Idempotency, name: str, clock: ManualClock
) -> None:
    work = Work(ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        await once.run("test", name, work, terminal=(ValueError,))
    clock.advance(3601)
    with pytest.raises(ValueError, match="no"):
        await once.run("test", name, work, terminal=(ValueError,))
    assert work.times == 2


@pytest.mark.parametrize("argument", ["x" * 500_000, float("nan")])
async def test_an_error_with_odd_arguments_is_remembered(
    once: Idempotency, name: str, argument: object
) -> None:
    work = Work(ValueError(argument))
    with pytest.raises(ValueError):  # noqa: PT011 - the text is half a megabyte
        await once.run("test", name, work, terminal=(ValueError,))
    with pytest.raises(RecordedFailure):
        await once.run("test", name, work, terminal=(ValueError,))
    assert work.times == 1


async def test_an_error_without_arguments_is_raised_again(once: Idempotency, name: str) -> None:
    for _ in range(2):
        with pytest.raises(PermissionError):
            await once.run("test", name, Work(PermissionError()), terminal=(PermissionError,))


async def test_a_result_that_holds_itself_does_not_undo_the_work(
    once: Idempotency, name: str
) -> None:
    endless: list[Any] = []
    endless.append(endless)
    work = Work(endless)
    await once.run("test", name, work)
    with pytest.raises(ResultUnavailable):
        await once.run("test", name, work)
    assert work.times == 1


async def test_steps_that_would_not_fit_are_refused_before_they_are_done(
    once: Idempotency, name: str
) -> None:
    done = 0

    async def large() -> str:
        nonlocal done
        done += 1
        return "x" * 150_000

    async def work(run: Run) -> None:
        await run.step("one", large)
        await run.step("two", large)

    for _ in range(2):
        with pytest.raises(ValueError, match="too many steps"):
            await once.run("test", name, work)
    assert done == 1


@pytest.mark.parametrize("way", ["return", "commit"])
async def test_a_refresh_at_the_moment_of_completion_is_no_loss(
    clock: ManualClock, way: str
) -> None:
    """The keeper finds the lease given up, because it was given up on purpose."""
    refresh = asyncio.Event()

    async def sleep(seconds: float) -> None:
        await refresh.wait()
        refresh.clear()

    async with await open_store(
        "sqlite://:memory:", [idempotency, PageMeta.spec.table], clock=clock
    ) as store:
        faults: Any = Faults(store)
        leases = Leases(faults, longest=3600, skew=0, monotonic=clock, sleep=sleep)
        once = Idempotency(faults, leases=leases)
        for name in ("update", "transact"):
            faults.around[name] = _followed_by(refresh)

        async def work(run: Run) -> str:
            await asyncio.sleep(0)
            if way == "commit":
                await run.commit(Put(page("p")), result="done")
            return "done"

        assert await once.run("test", "key", work) == "done"
        assert await once.run("test", "key", Work()) == "done"


def _followed_by(refresh: asyncio.Event) -> Any:
    """A write after which the keeper has its turn before the caller hears of it."""

    async def written(write: Any, *arguments: Any, **named: Any) -> Any:
        done = await write(*arguments, **named)
        refresh.set()
        for _ in range(10):
            await asyncio.sleep(0)
        return done

    return written


async def test_calls_nest(once: Idempotency, name: str) -> None:
    async def outer(run: Run) -> list[str]:
        inner = await once.run("inner", name, Work("inner"))
        return [inner, "outer"]

    for _ in range(2):
        assert await once.run("outer", name, outer) == ["inner", "outer"]
    assert await once.run("inner", name, Work()) == "inner"


async def test_two_configurations_on_one_store(store: Store, name: str, clock: ManualClock) -> None:
    short, long = Idempotency(store, ttl=60), Idempotency(store, ttl=6000)
    work = Work()
    await short.run("short", name, work)
    await long.run("long", name, work)
    clock.advance(61)
    await short.run("short", name, work)
    await long.run("long", name, work)
    assert work.times == 3


async def test_a_decorated_function_runs_once_per_key(once: Idempotency, name: str) -> None:
    charged = []

    @once.once("charge", key=lambda order, amount: order)
    async def charge(order: str, amount: Decimal) -> Receipt:
        charged.append(order)
        return Receipt(amount, datetime(2026, 1, 1, tzinfo=UTC))

    first = await charge(name, Decimal(1))
    assert await charge(name, amount=Decimal(1)) == first
    assert isinstance(first, Receipt)
    assert charged == [name]
    with pytest.raises(KeyReused):
        await charge(name, Decimal(2))


async def test_a_decorated_function_may_choose_its_payload(once: Idempotency, name: str) -> None:
    @once.once("log", key=lambda order, at: order, payload=lambda order, at: order)
    async def log(order: str, at: float) -> int:
        return 1

    await log(name, 1.0)
    assert await log(name, 2.0) == 1


async def test_a_record_can_be_inspected_and_evicted(once: Idempotency, name: str) -> None:
    async def work(run: Run) -> str:
        assert not await once.evict("test", name)
        return "done"

    assert await once.inspect("test", name) is None
    await once.run("test", name, work)
    record = await once.inspect("test", name)
    assert record is not None
    assert (record.status, record.fence) == ("completed", 1)
    assert await once.evict("test", name)
    assert await once.run("test", name, Work("again")) == "again"


async def test_hooks_hear_of_every_outcome(store: Store, name: str, clock: ManualClock) -> None:
    heard: list[str] = []
    leases = Leases(store, seconds=60, longest=3600, skew=0, monotonic=clock)
    once = Idempotency(store, leases=leases, hook=lambda outcome, *_: heard.append(outcome))

    async def busy(run: Run) -> None:
        with pytest.raises(InProgress):
            await once.run("test", name, Work())
        clock.advance(61)
        await once.run("test", name, Work())

    await once.run("test", name, busy)
    await once.run("test", name, Work())
    assert heard == [
        *("acquired", "conflicted", "acquired", "completed", "lapsed", "replayed"),
    ]


@dataclass
class Point:
    x: int


class Colour(Enum):
    RED = "red"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Decimal(1), "1"),
        (1, True),
        (1, 1.0),
        (None, "None"),
        (b"a", "a"),
        ([1, 2], [2, 1]),
        ([1, [2]], [[1], 2]),
        (["ab"], ["a", "b"]),
        ({"a": 1}, {"a": "1"}),
        (Point(1), {"x": 1}),
        (Colour.RED, "red"),
        (datetime(2026, 1, 1, tzinfo=UTC), "2026-01-01T00:00:00+00:00"),
    ],
)
def test_fingerprints_tell_apart(one: object, other: object) -> None:
    assert fingerprint(one) != fingerprint(other)


@pytest.mark.parametrize(
    "make",
    [
        lambda: {"a": 1, "b": [Decimal("1.0"), None]},
        lambda: {3, 1, 2},
        lambda: Point(4),
        lambda: "ünïcödé \ud800",
    ],
)
def test_fingerprints_of_equals_are_equal(make: Callable[[], object]) -> None:
    assert fingerprint(make()) == fingerprint(make())


def test_the_order_of_keys_does_not_matter() -> None:
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})


def test_what_has_no_fingerprint_is_refused() -> None:
    deep: list[Any] = []
    for _ in range(100):
        deep = [deep]
    for value in (object(), deep):
        with pytest.raises(InvalidRequest) as refused:
            fingerprint(value)
        assert refused.value.field == "payload"


async def test_a_step_has_a_plain_name(once: Idempotency, name: str) -> None:
    async def nothing() -> None: ...

    async def work(run: Run) -> None:
        await run.step("not a name", nothing)

    with pytest.raises(ValueError, match="not a name"):
        await once.run("test", name, work)
