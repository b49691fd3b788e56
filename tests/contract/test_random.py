"""Random operations on both engines side by side: every answer and every error is the same."""

from __future__ import annotations

import asyncio
import os
import random
import time
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.contract.model import TABLES, Thing
from waystation.clock import ManualClock
from waystation.errors import ConditionFailed, StoreError, TransactionCancelled
from waystation.store import (
    Check,
    Condition,
    Delete,
    Put,
    Store,
    Update,
    absent,
    add,
    add_to_set,
    append,
    attr,
    exists,
    if_absent,
    open_store,
    prepend,
    remove,
    remove_from_set,
    set_if_absent,
    set_to,
)
from waystation.store.actions import Action, prepare
from waystation.store.compile import Expressions

if TYPE_CHECKING:
    from collections.abc import Callable

EXAMPLES = int(os.environ.get("RANDOM_EXAMPLES", "150"))
SEED = int(os.environ.get("RANDOM_SEED", "0")) or random.randrange(1, 2**32)
"""Another one every time; a failure names the one to set."""

texts = st.sampled_from(["", "a", "ab", "b", "é", "𝄞", "A", "a#b", "zz"])
numbers = st.one_of(
    st.integers(-3, 3),
    st.sampled_from(
        [
            Decimal("1.0"),
            Decimal("0.1"),
            Decimal("-2.5"),
            10**37,
            Decimal("1E+30"),
            Decimal("1E-30"),
            12345678901234567890123456789012345678,
        ]
    ),
)
binaries = st.sampled_from([b"", b"a", b"\x00", b"\xff", b"ab"])
sets = st.one_of(
    st.sets(st.sampled_from(["a", "b", "c"]), min_size=1),
    st.sets(st.integers(0, 3), min_size=1),
    st.sets(st.sampled_from([b"a", b"b"]), min_size=1),
)
scalars = st.one_of(texts, numbers, binaries, st.booleans(), st.none(), sets)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["k", "m", "x.y"]), inner, max_size=2),
    ),
    max_leaves=4,
)
paths = st.sampled_from(["a", "b", "c", "a.k", "a[0]", "b.k", "b[1]", "c.k.m", "c[0].k", "a.k[0]"])
ordered = st.one_of(texts, numbers, binaries)
owners = st.sampled_from(["o1", "o2"])
ids = st.sampled_from(["1", "2", "3"])
keys = st.tuples(owners, ids)


@st.composite
def items(draw: st.DrawFn) -> Callable[[int], Thing]:
    owner, thing_id = draw(keys)
    expires = draw(st.one_of(st.none(), st.integers(-2, 2)))
    colour = draw(st.sampled_from([None, "red", "blue"]))
    weight = draw(st.one_of(st.none(), st.integers(0, 3)))
    label = draw(st.sampled_from([None, "x"]))
    a, b, c = draw(values), draw(values), draw(values)

    def at(now: int) -> Thing:
        return Thing(
            owner,
            thing_id,
            colour,
            weight,
            label,
            a,
            b,
            c,
            None if expires is None else now + expires,
        )

    return at


def leaf_conditions() -> st.SearchStrategy[Condition]:
    def compare(op: str, left: Any, right: Any) -> Condition:
        built: Condition = getattr(attr(left), op)(right)
        return built

    return st.one_of(
        st.just(exists()),
        st.just(absent()),
        st.builds(lambda p: attr(p).exists(), paths),
        st.builds(lambda p: attr(p).absent(), paths),
        st.builds(compare, st.sampled_from(["__eq__", "__ne__"]), paths, values),
        st.builds(
            compare, st.sampled_from(["__lt__", "__le__", "__gt__", "__ge__"]), paths, ordered
        ),
        st.builds(lambda p, q: attr(p) == attr(q), paths, paths),
        st.builds(lambda p, q: attr(p) != attr(q), paths, paths),
        st.builds(lambda p, q: attr(p) < attr(q), paths, paths),
        st.builds(lambda p, n: attr(p).size() >= n, paths, st.integers(0, 3)),
        st.builds(lambda p, n: attr(p).size() == n, paths, st.integers(0, 3)),
        st.builds(lambda p, low, high: attr(p).between(low, high), paths, numbers, numbers),
        st.builds(lambda p, options: attr(p).is_in(options), paths, st.lists(values, max_size=3)),
        st.builds(lambda p, v: attr(p).contains(v), paths, scalars),
        st.builds(lambda p, v: attr(p).begins_with(v), paths, st.one_of(texts, binaries)),
        st.builds(
            lambda p, t: attr(p).is_type(t),
            paths,
            st.sampled_from(["S", "N", "B", "BOOL", "NULL", "L", "M", "SS"]),
        ),
    )


conditions = st.recursive(
    leaf_conditions(),
    lambda inner: st.one_of(
        st.builds(lambda x, y: x & y, inner, inner),
        st.builds(lambda x, y: x | y, inner, inner),
        st.builds(lambda x: ~x, inner),
    ),
    max_leaves=3,
)
maybe = st.one_of(st.none(), conditions)
changes = st.one_of(
    st.builds(set_to, paths, values),
    st.builds(set_to, st.just("label"), st.sampled_from(["x", "y"])),
    st.builds(set_if_absent, paths, values),
    st.builds(lambda p, q: set_to(p, attr(q)), paths, paths),
    st.builds(lambda p, q, n: set_to(p, attr(q) + n), paths, paths, numbers),
    st.builds(lambda p, q, n: set_to(p, if_absent(q, 0) - n), paths, paths, numbers),
    st.builds(add, paths, numbers),
    st.builds(add_to_set, paths, sets),
    st.builds(remove_from_set, paths, sets),
    st.builds(remove, st.one_of(paths, st.just("label"))),
    st.builds(append, paths, st.lists(scalars, max_size=2)),
    st.builds(prepend, paths, st.lists(scalars, max_size=2)),
)
change_lists = st.lists(changes, max_size=3)


@st.composite
def actions(draw: st.DrawFn) -> Callable[[int], Any]:
    kind = draw(st.sampled_from(["put", "update", "delete", "check"]))
    condition = draw(maybe)
    if kind == "put":
        item = draw(items())
        return lambda now: Put(item(now), when=condition)
    key = Thing.key(*draw(keys))
    if kind == "update":
        built = draw(change_lists)
        return lambda _: Update(key, *built, when=condition)
    if kind == "delete":
        return lambda _: Delete(key, when=condition)
    checked = condition if condition is not None else exists()
    return lambda _: Check(key, checked)


Step = Any
steps = st.one_of(
    st.tuples(st.just("put"), items(), maybe, st.sampled_from([None, "old"])),
    st.tuples(st.just("put"), items(), st.none(), st.none()),
    st.tuples(st.just("update"), keys, change_lists, maybe, st.sampled_from([None, "old", "new"])),
    st.tuples(st.just("update"), keys, change_lists, st.none(), st.just("new")),
    st.tuples(st.just("delete"), keys, maybe, st.sampled_from([None, "old"])),
    st.tuples(st.just("get"), keys, st.booleans()),
    st.tuples(st.just("query"), owners, st.booleans(), st.sampled_from([None, 1, 2]), maybe),
    st.tuples(
        st.just("index"),
        st.sampled_from(["GSI1", "GSI3"]),
        st.sampled_from(["red", "blue"]),
        st.one_of(st.none(), st.tuples(st.integers(0, 2), st.integers(0, 2))),
        st.booleans(),
        st.sampled_from([None, 1, 2]),
        maybe,
    ),
    st.tuples(st.just("label"), st.sampled_from([None, 1, 2]), maybe),
    st.tuples(st.just("count"), owners, maybe),
    st.tuples(st.just("transact"), st.lists(actions(), min_size=1, max_size=3)),
    st.tuples(st.just("advance"), st.integers(1, 2)),
)


def comparable(item: Any) -> Any:
    """An item or answer in a form in which True is not 1 and 1.0 is 1."""
    if isinstance(item, msgspec.Struct):
        return comparable(msgspec.structs.asdict(item))
    if isinstance(item, dict):
        return ("M", sorted((name, repr(comparable(value))) for name, value in item.items()))
    if isinstance(item, list | tuple):
        return ("L", [comparable(value) for value in item])
    if isinstance(item, set):
        return ("set", sorted(repr(comparable(value)) for value in item))
    return (type(item).__name__, item)


class Outcome(msgspec.Struct):
    answer: Any = None
    error: str | None = None


async def perform(store: Store, step: Step, now: int) -> Outcome:
    try:
        return Outcome(comparable(await _perform(store, step, now)))
    except ConditionFailed as error:
        return Outcome(comparable(error.item), "ConditionFailed")
    except TransactionCancelled as error:
        answers = [None if r is None else (r.code, comparable(r.item)) for r in error.reasons]
        return Outcome(answers, "TransactionCancelled")
    except StoreError as error:
        return Outcome(None, type(error).__name__)


async def _perform(store: Store, step: Step, now: int) -> Any:
    match step:
        case ("put", item, condition, returning):
            return await store.put(item(now), when=condition, returning=returning)
        case ("update", key, built, condition, returning):
            return await store.update(Thing.key(*key), *built, when=condition, returning=returning)
        case ("delete", key, condition, returning):
            return await store.delete(Thing.key(*key), when=condition, returning=returning)
        case ("get", key, expired):
            return await store.get(Thing.key(*key), expired=expired)
        case ("transact", built):
            return await store.transact(*(action(now) for action in built))
    return await _look(store, step)


async def _look(store: Store, step: Step) -> Any:
    match step:
        case ("query", owner, reverse, limit, condition):
            return await _all_pages(store, Thing.query(owner), reverse, limit, condition)
        case ("index", index, colour, bounds, reverse, limit, condition):
            query = Thing.query(colour, index=index)
            if bounds is not None:
                query = query.between(*bounds)
            found = await _flat(store, query, reverse, limit, condition)
            weights = [thing.weight for thing in found]
            assert weights == sorted(weights, reverse=reverse)
            # Items with equal index keys come in an order of the engine's choosing.
            return sorted(found, key=lambda t: (t.weight, t.owner, t.thing_id))
        case ("label", limit, condition):
            query = Thing.query("x", index="GSI2")
            found = await _flat(store, query, False, limit, condition)
            return sorted(found, key=lambda t: (t.owner, t.thing_id))
        case ("count", owner, condition):
            return await store.count(Thing.query(owner), where=condition)
    raise AssertionError(step)


async def _flat(store: Store, *asked: Any) -> list[Any]:
    return [item for page in await _all_pages(store, *asked) for item in page]


async def _all_pages(
    store: Store, query: Any, reverse: bool, limit: int | None, condition: Condition | None
) -> list[list[Any]]:
    pages = []
    cursor = None
    while True:
        page = await store.query(query, limit=limit, after=cursor, reverse=reverse, where=condition)
        pages.append(list(page.items))
        cursor = page.cursor
        if cursor is None:
            return pages


async def _compare(endpoint: str, wanted: list[Step], ensured: list[bool]) -> None:
    clock = ManualClock(float(int(time.time())))
    embedded = await open_store("sqlite://:memory:", TABLES, env="random", clock=clock)
    dynamodb = await open_store(
        "dynamodb://eu-west-1", TABLES, env="random", clock=clock, endpoint_url=endpoint
    )
    async with embedded, dynamodb:
        if not ensured:
            await dynamodb.ensure_tables()
            ensured.append(True)
        for owner in ("o1", "o2"):
            for n in ("1", "2", "3"):
                await dynamodb.delete(Thing.key(owner, n))
        for step in wanted:
            if step[0] == "advance":
                clock.advance(step[1])
                continue
            now = embedded.now()
            ours = await perform(embedded, step, now)
            theirs = await perform(dynamodb, step, now)
            assert ours == theirs, explain(step, now)


def explain(step: Step, now: int) -> str:
    """A step in DynamoDB's language."""
    built: list[Action]
    match step:
        case ("put", item, condition, _):
            built = [Put(item(now), when=condition)]
        case ("update", key, changed, condition, _):
            built = [Update(Thing.key(*key), *changed, when=condition)]
        case ("delete", key, condition, _):
            built = [Delete(Thing.key(*key), when=condition)]
        case ("transact", actions):
            built = [action(now) for action in actions]
        case _:
            built = []
    answers = [repr(step)]
    for write in map(prepare, built):
        expressions = Expressions()
        asked = write.condition
        condition = None if asked is None else expressions.condition(asked)
        answers.append(
            f"{write.kind} {write.key} {write.item} {expressions.update(write.changes)} "
            f"IF {condition} {expressions.names} {expressions.values}"
        )
    return "\n".join(answers)


def test_both_engines_give_the_same_answers(dynamodb_url: str) -> None:
    ensured: list[bool] = []

    @seed(SEED)
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )
    @given(st.lists(steps, min_size=20, max_size=40))
    def compare(wanted: list[Step]) -> None:
        asyncio.run(_compare(dynamodb_url, wanted, ensured))

    print(f"RANDOM_SEED={SEED}")  # noqa: T201 - pytest shows it when the test fails
    compare()
