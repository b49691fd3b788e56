"""What DynamoDB refuses, every engine refuses: deep nesting, long expressions, foreign cursors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.contract.model import Formal, Note, Thing
from waystation.errors import ConditionFailed, InvalidCursor, InvalidRequest, ItemTooLarge
from waystation.store import (
    Condition,
    Put,
    Revise,
    Update,
    append,
    attr,
    exists,
    if_absent,
    key_of,
    set_to,
)

if TYPE_CHECKING:
    from waystation.clock import ManualClock
    from waystation.store import Query, Store

DEEPEST = 31
"""Lists in each other, in an item that is the first of 32 levels."""


def nested(levels: int, leaf: Any = "x") -> Any:
    for _ in range(levels):
        leaf = [leaf]
    return leaf


async def test_an_item_of_32_levels_is_kept(store: Store) -> None:
    thing = Thing("o", "1", a=nested(DEEPEST), b=nested(DEEPEST - 1, []))
    await store.put(thing)
    assert await store.get(key_of(thing)) == thing


@pytest.mark.parametrize("value", [nested(DEEPEST + 1), nested(DEEPEST, []), nested(2_000)])
async def test_deeper_nesting_is_refused(store: Store, value: Any) -> None:
    with pytest.raises(ItemTooLarge):
        await store.put(Thing("o", "1", a=value))
    with pytest.raises(ItemTooLarge):
        await store.transact(Put(Thing("o", "1", a=value)))
    with pytest.raises(ItemTooLarge):
        await store.update(Thing.key("o", "1"), set_to("a", value))
    assert await store.get(Thing.key("o", "1")) is None


async def test_an_update_does_not_nest_deeper_either(store: Store) -> None:
    thing = Thing("o", "1", a={"k": "x"})
    await store.put(thing)
    await store.update(key_of(thing), set_to("a.k", nested(DEEPEST - 1)))
    for value in (nested(DEEPEST), nested(DEEPEST - 1, [])):
        with pytest.raises(ItemTooLarge):
            await store.update(key_of(thing), set_to("a.k", value))
        with pytest.raises(ItemTooLarge):
            await store.transact(Update(key_of(thing), set_to("a.k", value)))
    assert await store.get(key_of(thing)) == Thing("o", "1", a={"k": nested(DEEPEST - 1)})


@pytest.mark.parametrize("value", [{"": 1}, {"k": {"": 1}}, [{"": 1}]])
async def test_a_map_key_is_not_empty(store: Store, value: Any) -> None:
    with pytest.raises(InvalidRequest, match="map key"):
        await store.put(Thing("o", "1", a=value))
    with pytest.raises(InvalidRequest, match="map key"):
        await store.update(Thing.key("o", "1"), set_to("a", value))


def many(count: int) -> Condition:
    """So many operators: comparisons, and what joins them."""
    parts: list[Condition] = [attr("a") != number for number in range((count + 1) // 2)]
    condition = parts[0]
    for part in parts[1:]:
        condition = condition & part
    return condition


async def test_a_condition_of_many_operators(store: Store) -> None:
    thing = Thing("o", "1", a=-1)
    await store.put(thing, when=many(295))
    await store.put(thing, when=many(295))
    await store.update(key_of(thing), set_to("b", 1), when=many(295))
    assert len((await store.query(Thing.query("o"), where=many(295))).items) == 1
    await store.delete(key_of(thing), when=many(295))
    assert await store.get(key_of(thing)) is None


async def test_too_many_operators_are_refused(store: Store) -> None:
    thing = Thing("o", "1", a=-1)
    for attempt in (
        store.put(thing, when=many(297)),
        store.update(key_of(thing), set_to("b", 1), when=many(1_001)),
        store.query(Thing.query("o"), where=many(5_001)),
        store.scan(Thing, where=many(301)),
        store.transact(Put(thing, when=many(301))),
    ):
        with pytest.raises(InvalidRequest, match="295 operators"):
            await attempt
    assert await store.get(key_of(thing)) is None


def deep(levels: int) -> Condition:
    """A condition in which and, or and not take turns."""
    condition: Condition = attr("a") == 1
    for number in range(levels):
        condition = condition | exists() if number % 2 else ~condition & exists()
    return condition


async def test_deep_conditions_are_carried_out_or_refused(store: Store) -> None:
    thing = Thing("o", "1", a=1)
    await store.put(thing)
    await store.update(key_of(thing), set_to("b", 1), when=deep(80) | exists())
    with pytest.raises(InvalidRequest, match="operators"):
        await store.update(key_of(thing), set_to("b", 1), when=deep(100_000))


async def test_not_not_is_nothing(store: Store) -> None:
    thing = Thing("o", "1", a=1)
    await store.put(thing)
    condition: Condition = attr("a") == 1
    for _ in range(10_000):
        condition = ~condition
    await store.update(key_of(thing), set_to("b", 1), when=condition)
    with pytest.raises(ConditionFailed):
        await store.update(key_of(thing), set_to("b", 1), when=~condition)


async def test_expressions_that_are_too_long_are_refused(store: Store) -> None:
    place = Thing.key("o", "1")
    long = exists()
    for _ in range(147):
        long = long | attr("a").absent()
    with pytest.raises(InvalidRequest, match="4000 characters"):
        await store.update(place, set_to("b", 1), when=long)
    await store.put(Thing("o", "1", a={}))
    with pytest.raises(InvalidRequest, match="4000 characters"):
        await store.update(place, *(set_to(f"a.k{number}", 1) for number in range(400)))
    await store.update(place, *(set_to(f"a.k{number}", 1) for number in range(200)))


async def test_values_that_are_made_in_too_many_steps_are_refused(store: Store) -> None:
    place = Thing.key("o", "1")
    chosen, total = if_absent("a", 1), attr("a") + 1
    for _ in range(10_000):
        chosen, total = if_absent("a", chosen), total + 1
    for value in (chosen, total, attr("a") + 1 + 1, if_absent("a", attr("b") + 1)):
        with pytest.raises(InvalidRequest, match=r"functions|calculation"):
            await store.update(place, set_to("b", value))
    await store.update(place, set_to("b", if_absent("a", if_absent("c", 7))))
    found = await store.get(place)
    assert found is not None
    assert found.b == 7
    await store.update(place, append("c", [1]))


def note_queries() -> list[tuple[Query[Note], list[int], list[int]]]:
    """Queries, with positions in them and outside."""
    notes = Note.query("o")
    return [
        (notes.between(2, 4), [2, 3, 4], [1, 5]),
        (notes.at_least(2), [2, 5], [1]),
        (notes.after(2), [3, 5], [1, 2]),
        (notes.at_most(2), [1, 2], [3]),
        (notes.before(2), [1], [2, 3]),
        (Note.query("o", 2), [2], [1, 3]),
        (Note.query("o", 2, "n"), [2], [1, 3]),
    ]


@pytest.mark.parametrize("reverse", [False, True])
async def test_a_cursor_belongs_to_the_range_of_its_query(store: Store, reverse: bool) -> None:
    notes = {at: Note("o", at, "n") for at in range(1, 6)}
    await store.batch_write(notes.values())
    for query, inside, outside in note_queries():
        every = [note.at async for note in store.iterate(query, reverse=reverse)]
        for at in inside:
            cursor = store.cursor(Note.query("o"), notes[at])
            page = await store.query(query, after=cursor, reverse=reverse)
            rest = [n for n in every if (n < at if reverse else n > at)]
            assert [note.at for note in page.items] == rest
        for at in outside:
            cursor = store.cursor(Note.query("o"), notes[at])
            with pytest.raises(InvalidCursor):
                await store.query(query, after=cursor, reverse=reverse)


async def test_a_cursor_belongs_to_the_range_of_an_index_query(store: Store) -> None:
    things = {n: Thing("o", str(n), colour="red", weight=n) for n in range(1, 6)}
    await store.batch_write(things.values())
    red = Thing.query("red", index="GSI1")
    for weight in (2, 3, 4):
        cursor = store.cursor(red, things[weight])
        page = await store.query(red.between(2, 4), after=cursor)
        assert [thing.weight for thing in page.items] == list(range(weight + 1, 5))
    for weight in (1, 5):
        with pytest.raises(InvalidCursor):
            await store.query(red.between(2, 4), after=store.cursor(red, things[weight]))


@pytest.mark.parametrize("index", ["GSI1", "GSI3"])
async def test_an_index_finds_whole_items_whatever_it_projects(store: Store, index: str) -> None:
    things = [
        Thing("o", str(n), colour="red", weight=n, label="x", a=[n], b={"n": n}, c="c")
        for n in range(3)
    ]
    await store.batch_write(things)
    query = Thing.query("red", index=index)
    assert [thing async for thing in store.iterate(query)] == things
    wanted = attr("b.n") >= 1
    assert (await store.query(query, where=wanted, reverse=True)).items == things[:0:-1]
    assert await store.count(query) == 3
    assert await store.count(query, where=wanted) == 2
    labelled = await store.query(Thing.query("x", index="GSI2"), where=attr("c") == "c")
    assert sorted(thing.thing_id for thing in labelled.items) == ["0", "1", "2"]


async def test_an_index_that_projects_little_hides_what_has_expired(
    store: Store, clock: ManualClock
) -> None:
    await store.put(Thing("o", "1", label="x", expires_at=store.now() + 5))
    query = Thing.query("x", index="GSI2")
    assert await store.count(query) == 1
    clock.advance(10)
    assert await store.count(query) == 0
    assert (await store.query(query)).items == []
    assert len((await store.query(query, expired=True)).items) == 1


async def test_fields_that_are_null(store: Store) -> None:
    """What is declared so is there as NULL, and everything else that is None is not there."""
    letter = Formal("ann")
    await store.put(letter)
    assert await store.get(key_of(letter)) == letter
    await store.put(letter, when=attr("reply").is_type("NULL") & attr("text").absent())
    answered = Formal("ann", reply="yes")
    await store.transact(Revise(letter, answered, when=exists()))
    assert await store.get(key_of(letter)) == answered
    await store.transact(Revise(answered, letter, when=exists()))
    await store.put(letter, when=attr("reply").is_type("NULL"))
