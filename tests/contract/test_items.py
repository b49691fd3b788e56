"""Reading and writing single items."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from tests.contract.model import Counter, Digest, Note, Reading, Thing, Visit
from waystation.errors import ConditionFailed, InvalidKey, InvalidRequest, ItemTooLarge
from waystation.store import Store, absent, add, attr, exists, key_of, set_to


async def test_a_put_item_comes_back_equal(store: Store) -> None:
    thing = Thing("ann", "1", "red", 7, "box", a="text", b=[1, {"k": b"\x00"}], c={"x", "y"})
    await store.put(thing)
    assert await store.get(Thing.key("ann", "1")) == thing


async def test_an_absent_item_is_none(store: Store) -> None:
    assert await store.get(Thing.key("ann", "none")) is None


async def test_a_read_may_be_inconsistent(store: Store) -> None:
    await store.put(Thing("ann", "1"))
    assert await store.get(Thing.key("ann", "1"), consistent=False) == Thing("ann", "1")


async def test_put_replaces_the_whole_item(store: Store) -> None:
    await store.put(Thing("ann", "1", a=1, b=2))
    await store.put(Thing("ann", "1", b=3))
    assert await store.get(Thing.key("ann", "1")) == Thing("ann", "1", b=3)


async def test_put_can_return_the_old_item(store: Store) -> None:
    assert await store.put(Thing("ann", "1", a=1), returning="old") is None
    assert await store.put(Thing("ann", "1", a=2), returning="old") == Thing("ann", "1", a=1)


async def test_delete_can_return_the_old_item(store: Store) -> None:
    await store.put(Thing("ann", "1", a=1))
    assert await store.delete(Thing.key("ann", "1"), returning="old") == Thing("ann", "1", a=1)
    assert await store.get(Thing.key("ann", "1")) is None


async def test_deleting_an_absent_item_succeeds(store: Store) -> None:
    assert await store.delete(Thing.key("ann", "none"), returning="old") is None


async def test_a_condition_that_fails_writes_nothing_and_shows_the_item(store: Store) -> None:
    await store.put(Thing("ann", "1", a=1))
    with pytest.raises(ConditionFailed) as failed:
        await store.put(Thing("ann", "1", a=2), when=absent())
    assert failed.value.item == Thing("ann", "1", a=1)
    assert await store.get(Thing.key("ann", "1")) == Thing("ann", "1", a=1)


async def test_a_condition_runs_on_a_missing_item(store: Store) -> None:
    with pytest.raises(ConditionFailed) as failed:
        await store.delete(Thing.key("ann", "1"), when=exists())
    assert failed.value.item is None


async def test_a_condition_that_holds_writes(store: Store) -> None:
    await store.put(Thing("ann", "1", a=1))
    await store.put(Thing("ann", "1", a=2), when=attr("a") == 1)
    assert await store.get(Thing.key("ann", "1")) == Thing("ann", "1", a=2)


async def test_types_in_one_partition_do_not_mix(store: Store) -> None:
    await store.put(Thing("ann", "1"))
    await store.put(Note("ann", 5, "1", "hello"))
    assert await store.get(Note.key("ann", 5, "1")) == Note("ann", 5, "1", "hello")
    assert [type(item) for item in (await store.query(Thing.query("ann"))).items] == [Thing]


async def test_fields_that_live_in_the_key_come_back(store: Store) -> None:
    await store.put(Visit("T1", "U1", seen=3))
    assert await store.get(Visit.key("T1", "U1")) == Visit("T1", "U1", seen=3)


async def test_a_stale_version_is_refused(store: Store) -> None:
    first = Counter("c", total=1)
    await store.put(first)
    mine = await store.get(Counter.key("c"))
    assert mine is not None
    first.total = 2
    await store.put(first)
    mine.total = 3
    with pytest.raises(ConditionFailed) as failed:
        await store.put(mine)
    assert failed.value.item == Counter("c", total=2, version=2)


async def test_creating_a_versioned_item_twice_is_refused(store: Store) -> None:
    await store.put(Counter("c"))
    with pytest.raises(ConditionFailed):
        await store.put(Counter("c"))


async def test_an_update_advances_the_version(store: Store) -> None:
    counter = Counter("c")
    await store.put(counter)
    await store.update(Counter.key("c"), add("total", 1))
    with pytest.raises(ConditionFailed):
        await store.put(counter)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (Decimal("1.0"), 1),
        (Decimal("1E+3"), 1000),
        (12345678901234567890123456789012345678, 12345678901234567890123456789012345678),
        (Decimal("0.1") + Decimal("0.2"), Decimal("0.3")),
        (Decimal("-1.2345678901234567890123456789012345678E-100"),) * 2,
        (Decimal("9.9999999999999999999999999999999999999E+125"),) * 2,
        (Decimal("1E-130"),) * 2,
        (0.1, Decimal("0.1")),
        (2**63, 2**63),
        (-(2**70), -(2**70)),
    ],
)
async def test_numbers_are_exact(store: Store, written: Any, read: Any) -> None:
    await store.put(Thing("ann", "1", a=written))
    found = await store.get(Thing.key("ann", "1"))
    assert found is not None
    assert found.a == read


@pytest.mark.parametrize(
    "number",
    [
        123456789012345678901234567890123456789,
        Decimal("1.23456789012345678901234567890123456789"),
        Decimal("1E+126"),
        Decimal("1E-131"),
        Decimal("NaN"),
        Decimal("Infinity"),
        float("inf"),
    ],
)
async def test_numbers_that_would_be_rounded_are_refused(store: Store, number: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await store.put(Thing("ann", "1", a=number))
    assert refused.value.field == "a"


async def test_one_and_one_point_zero_are_one_key(store: Store) -> None:
    await store.put(Reading("s", Decimal("1.0"), 2.5))
    assert await store.get(Reading.key("s", 1)) == Reading("s", Decimal(1), 2.5)


@pytest.mark.parametrize("value", ["", b"", [], {}, False, 0, [None], {"k": None}])
async def test_empty_values_are_kept(store: Store, value: Any) -> None:
    await store.put(Thing("ann", "1", a=value))
    found = await store.get(Thing.key("ann", "1"))
    assert found is not None
    assert found.a == value
    assert type(found.a) is type(value)


async def test_an_empty_set_is_refused(store: Store) -> None:
    with pytest.raises(InvalidRequest, match="set"):
        await store.put(Thing("ann", "1", a=set()))


@pytest.mark.parametrize("value", [{1, "a"}, {True}, object(), "\ud800", {1: 2}, 1j])
async def test_values_that_cannot_be_stored_are_refused(store: Store, value: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await store.put(Thing("ann", "1", a=value))
    assert refused.value.field == "a"


async def test_a_set_field_and_a_fraction_field_come_back_typed(store: Store) -> None:
    await store.put(Reading("s", Decimal("2.5"), 0.25))
    found = await store.get(Reading.key("s", Decimal("2.50")))
    assert found is not None
    assert (found.at, type(found.value)) == (Decimal("2.5"), float)


async def test_an_item_of_400_kb_is_kept_and_a_larger_one_refused(store: Store) -> None:
    room = 400 * 1024 - 50
    await store.put(Digest(b"d", b"p", 1))
    await store.put(Thing("ann", "1", a="x" * (room - 20)))
    with pytest.raises(ItemTooLarge):
        await store.put(Thing("ann", "1", a="x" * (room + 20)))


async def test_an_update_cannot_grow_an_item_past_400_kb(store: Store) -> None:
    await store.put(Thing("ann", "1", a="x" * 300_000))
    with pytest.raises(ItemTooLarge):
        await store.update(Thing.key("ann", "1"), set_to("b", "x" * 200_000))


async def test_an_item_of_33_levels_is_refused(store: Store) -> None:
    deep: Any = "bottom"
    for _ in range(33):
        deep = [deep]
    with pytest.raises(ItemTooLarge):
        await store.put(Thing("ann", "1", a=deep))


async def test_an_item_of_32_levels_is_kept(store: Store) -> None:
    deep: Any = "bottom"
    for _ in range(31):
        deep = [deep]
    await store.put(Thing("ann", "1", a=deep))
    assert await store.get(Thing.key("ann", "1")) == Thing("ann", "1", a=deep)


@pytest.mark.parametrize("owner", ["", "a#b", "x" * 2050, "\U0010ffff", "\ud800"])
async def test_a_key_part_that_would_break_the_key_is_refused(store: Store, owner: str) -> None:
    with pytest.raises(InvalidKey):
        await store.put(Thing(owner, "1"))


@pytest.mark.parametrize("part", ["x" * 1020, "a#b", ""])
async def test_a_sort_key_part_that_would_break_the_key_is_refused(store: Store, part: str) -> None:
    with pytest.raises(InvalidKey):
        await store.get(Thing.key("ann", part))


async def test_an_empty_binary_key_is_refused(store: Store) -> None:
    with pytest.raises(InvalidKey) as refused:
        await store.put(Digest(b"", b"p"))
    assert refused.value.field == "digest"


async def test_key_of_is_where_the_item_lives(store: Store) -> None:
    thing = Thing("ann", "1")
    await store.put(thing)
    assert await store.get(key_of(thing)) == thing
