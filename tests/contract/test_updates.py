"""Changing parts of an item."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from tests.contract.model import Colour, Counter, Line, Noted, Order, Palette, Thing, Visit
from waystation.errors import ConditionFailed, InvalidKey, InvalidRequest, TransactionCancelled
from waystation.store import (
    Put,
    Revise,
    Store,
    Update,
    add,
    add_to_set,
    append,
    attr,
    exists,
    if_absent,
    prepend,
    remove,
    remove_from_set,
    set_if_absent,
    set_to,
)

if TYPE_CHECKING:
    from waystation.store import Condition
    from waystation.store.updates import Edit

KEY = Thing.key("ann", "1")


async def updated(store: Store, before: Thing | None, *changes: Edit) -> Any:
    if before is not None:
        await store.put(before)
    return await store.update(KEY, *changes, returning="new")


async def test_an_update_creates_an_absent_item_with_its_key_fields(store: Store) -> None:
    assert await updated(store, None, add("a", 1)) == Thing("ann", "1", a=1)
    assert await store.get(KEY) == Thing("ann", "1", a=1)


async def test_an_update_without_changes_creates_the_item(store: Store) -> None:
    assert await updated(store, None) == Thing("ann", "1")


async def test_an_update_of_a_type_whose_key_attribute_is_a_field(store: Store) -> None:
    await store.update(Counter.key("c"), add("total", 2))
    assert await store.get(Counter.key("c")) == Counter("c", total=2, version=1)


async def test_an_update_of_a_type_whose_fields_live_in_the_key(store: Store) -> None:
    await store.update(Visit.key("T", "U"), add("seen", 2))
    assert await store.get(Visit.key("T", "U")) == Visit("T", "U", seen=2)


async def test_remove_only_never_creates(store: Store) -> None:
    assert await updated(store, None, remove("a")) is None
    assert await store.get(KEY) is None


async def test_update_can_return_the_old_item(store: Store) -> None:
    await store.put(Thing("ann", "1", a=1))
    assert await store.update(KEY, add("a", 1), returning="old") == Thing("ann", "1", a=1)


async def test_update_of_an_absent_item_returns_no_old_item(store: Store) -> None:
    assert await store.update(KEY, add("a", 1), returning="old") is None


async def test_a_conditional_update_does_not_create(store: Store) -> None:
    with pytest.raises(ConditionFailed):
        await store.update(KEY, add("a", 1), when=exists())
    assert await store.get(KEY) is None


async def test_all_right_hand_sides_read_the_item_as_it_was(store: Store) -> None:
    before = Thing("ann", "1", a=1, b=2)
    after = await updated(store, before, set_to("a", attr("b")), set_to("b", attr("a")))
    assert (after.a, after.b) == (2, 1)


async def test_set_if_absent_keeps_what_is_there(store: Store) -> None:
    before = Thing("ann", "1", a=1)
    after = await updated(store, before, set_if_absent("a", 9), set_if_absent("b", 9))
    assert (after.a, after.b) == (1, 9)


async def test_calculations_are_exact(store: Store) -> None:
    before = Thing("ann", "1", a=Decimal("0.1"), b=10**37)
    after = await updated(store, before, set_to("a", attr("a") + Decimal("0.2")), add("b", -1))
    assert (after.a, after.b) == (Decimal("0.3"), 10**37 - 1)


async def test_a_calculation_can_start_from_a_default(store: Store) -> None:
    after = await updated(store, None, set_to("a", if_absent("a", 10) - 3))
    assert after.a == 7


async def test_a_sum_that_would_be_rounded_is_refused(store: Store) -> None:
    await store.put(Thing("ann", "1", a=Decimal("1E+100")))
    with pytest.raises(InvalidRequest):
        await store.update(KEY, add("a", Decimal("1E-100")))


async def test_nested_places_can_be_set_and_removed(store: Store) -> None:
    before = Thing("ann", "1", a={"k": [1, 2, 3], "m": 1})
    after = await updated(store, before, set_to("a.k[1]", "two"), remove("a.m"))
    assert after.a == {"k": [1, "two", 3]}


async def test_map_keys_may_contain_dots(store: Store) -> None:
    await store.put(Thing("ann", "1", a={"x.y": 1}))
    found = await store.query(Thing.query("ann"), where=attr("a", "x.y") == 1)
    assert len(found.items) == 1


async def test_setting_beyond_a_lists_end_appends(store: Store) -> None:
    after = await updated(store, Thing("ann", "1", a=[1]), set_to("a[7]", 3), set_to("a[5]", 2))
    assert after.a == [1, 2, 3]


async def test_removing_several_list_elements_goes_by_the_old_positions(store: Store) -> None:
    after = await updated(store, Thing("ann", "1", a=[0, 1, 2, 3]), remove("a[0]"), remove("a[2]"))
    assert after.a == [1, 3]


async def test_append_and_prepend_work_on_a_missing_list(store: Store) -> None:
    after = await updated(store, None, append("a", [1, 2]), prepend("b", [3]))
    assert (after.a, after.b) == ([1, 2], [3])


async def test_append_and_prepend_keep_the_order(store: Store) -> None:
    before = Thing("ann", "1", a=[1], b=[1])
    after = await updated(store, before, append("a", [2, 3]), prepend("b", [2, 3]))
    assert (after.a, after.b) == ([1, 2, 3], [2, 3, 1])


async def test_set_members_can_be_added_and_removed(store: Store) -> None:
    before = Thing("ann", "1", a={"x", "y"})
    after = await updated(store, before, add_to_set("b", {1}), remove_from_set("a", {"x", "z"}))
    assert (after.a, after.b) == ({"y"}, {1})


async def test_removing_the_last_member_removes_the_set(store: Store) -> None:
    after = await updated(store, Thing("ann", "1", a={"x"}), remove_from_set("a", {"x"}))
    assert after.a is None


@pytest.mark.parametrize(
    "change",
    [
        add("a", 1),
        add_to_set("a", {1}),
        append("a", [1]),
        set_to("a.k", 1),
        set_to("a[0]", 1),
        remove("c.k"),
        set_to("b", attr("c")),
        set_to("b", attr("a") + 1),
        remove_from_set("a", {1}),
    ],
)
async def test_a_change_that_does_not_fit_the_item_is_refused(store: Store, change: Edit) -> None:
    await store.put(Thing("ann", "1", a="text"))
    with pytest.raises(InvalidRequest):
        await store.update(KEY, change)
    assert await store.get(KEY) == Thing("ann", "1", a="text")


@pytest.mark.parametrize(
    "changes",
    [
        [set_to("a", 1), remove("a")],
        [set_to("a", {}), set_to("a.k", 1)],
        [remove("a[0]"), remove("a.k")],
    ],
)
async def test_overlapping_changes_are_refused(store: Store, changes: list[Edit]) -> None:
    with pytest.raises(InvalidRequest):
        await store.update(KEY, *changes)


@pytest.mark.parametrize("field", ["owner", "thing_id"])
async def test_key_fields_cannot_change(store: Store, field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await store.update(KEY, set_to(field, "x"))
    assert refused.value.field == field


async def test_a_field_that_does_not_exist_is_refused_by_name(store: Store) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await store.update(KEY, set_to("nonsense", 1))
    assert refused.value.field == "nonsense"


async def test_a_value_that_could_not_be_read_back_is_refused(store: Store) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await store.update(KEY, set_to("weight", "heavy"))
    assert refused.value.field == "weight"


async def test_an_update_moves_the_item_in_its_indexes(store: Store) -> None:
    await store.put(Thing("ann", "1", label="old"))
    await store.update(KEY, set_to("label", "new"))
    assert not (await store.query(Thing.query("old", index="GSI2"))).items
    assert len((await store.query(Thing.query("new", index="GSI2"))).items) == 1


async def test_removing_an_index_field_takes_the_item_out_of_the_index(store: Store) -> None:
    await store.put(Thing("ann", "1", label="old"))
    await store.update(KEY, remove("label"))
    assert not (await store.query(Thing.query("old", index="GSI2"))).items


async def test_an_update_of_half_an_index_key_is_refused_by_name(store: Store) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await store.update(KEY, set_to("colour", "red"))
    assert refused.value.field == "weight"


async def test_an_index_key_part_with_a_separator_is_refused(store: Store) -> None:
    with pytest.raises(InvalidKey) as refused:
        await store.update(KEY, set_to("label", "a#b"))
    assert refused.value.field == "label"


async def test_subtraction_is_exact(store: Store) -> None:
    many = Decimal("0.12345678901234567890123456789012345678")
    after = await updated(store, Thing("ann", "1", a=1), set_to("b", attr("a") - many))
    assert after.b == Decimal("0.87654321098765432109876543210987654322")


async def test_an_index_key_that_is_a_field_goes_by_itself(store: Store) -> None:
    await store.put(Order("s", 1, "new", "monday"))
    await store.update(Order.key("s", 1), remove("placed"))
    assert await store.get(Order.key("s", 1)) == Order("s", 1, "new")
    assert not (await store.query(Order.query("new", index="by_status"))).items


async def test_an_index_over_the_tables_own_key_survives_updates(store: Store) -> None:
    await store.update(Order.key("s", 1), add("total", 1))
    await store.update(Order.key("s", 1), add("total", 1))
    found = await store.query(Order.query(1, index="by_sort"))
    assert list(found.items) == [Order("s", 1, total=2)]


async def test_an_update_that_could_create_half_an_item_is_refused_by_name(store: Store) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await store.update(Palette.key("red", "1"), set_to("colour", "red"))
    assert refused.value.field == "colour"
    with pytest.raises(InvalidRequest) as refused:
        await store.update(Palette.key("red", "1"))
    assert refused.value.field == "name"
    await store.put(Palette(Colour.RED, "1", "warm"))
    await store.update(Palette.key("red", "1"), set_to("name", "hot"), when=exists())


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (add("total", 0.5), "total"),
        (set_to("total", attr("status")), "total"),
        (set_to("total", if_absent("total", "none")), "total"),
        (set_to("total", attr("total") + 0.5), "total"),
    ],
)
async def test_a_change_that_the_type_could_not_hold_is_refused(
    store: Store, change: Edit, field: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await store.update(Order.key("s", 1), change)
    assert refused.value.field == field


async def test_set_members_of_another_type_are_refused(store: Store) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await store.update(Line.key("s", 1, 1), add_to_set("tags", {1}))
    assert refused.value.field == "tags"


async def test_a_remove_only_update_of_a_versioned_item_never_creates(store: Store) -> None:
    await store.update(Noted.key("n"), remove("text"))
    assert await store.get(Noted.key("n")) is None
    await store.put(Noted("n", "x"))
    await store.update(Noted.key("n"), remove("text"))
    assert await store.get(Noted.key("n")) == Noted("n", None, version=2)


async def test_an_update_cannot_nest_an_item_past_32_levels(store: Store) -> None:
    deep: Any = []
    for _ in range(30):
        deep = [deep]
    await store.put(Thing("ann", "1", a=deep))
    with pytest.raises(InvalidRequest):
        await store.update(KEY, append("a" + "[0]" * 30, [[[[]]]]))


async def test_a_revision_writes_what_differs_and_nothing_else(store: Store) -> None:
    before = Thing("ann", "1", colour="red", weight=5, label="x", a=[1], b="kept")
    await store.put(before)
    await store.update(KEY, set_to("c", "another's"))
    after = Thing("ann", "1", colour="blue", weight=5, a=[1, 2], b="kept")
    await store.transact(Revise(before, after, when=attr("colour") == "red"))
    after.c = "another's"
    assert await store.get(KEY) == after
    for index, parts, found in (
        ("GSI1", ["blue"], [after]),
        ("GSI1", ["red"], []),
        ("GSI2", ["x"], []),
    ):
        page = await store.query(Thing.query(*parts, index=index))
        assert list(page.items) == found


async def test_a_revision_of_what_has_changed_or_gone_is_refused(store: Store) -> None:
    before, after = Thing("ann", "1", a=1), Thing("ann", "1", a=2)
    with pytest.raises(TransactionCancelled):
        await store.transact(Revise(before, after, when=exists()))
    assert await store.get(KEY) is None
    await store.put(Thing("ann", "1", a=3))
    with pytest.raises(TransactionCancelled) as refused:
        await store.transact(Revise(before, after, when=attr("a") == 1))
    [reason] = refused.value.reasons
    assert reason is not None
    assert reason.item == Thing("ann", "1", a=3)


async def test_an_item_is_revised_again_and_again(store: Store) -> None:
    order = Order("shop", 1, "new", "2026", 7)
    await store.put(order)
    for status, total in (("paid", 7), ("paid", 8), ("sent", 8), ("new", 9)):
        after = Order("shop", 1, status, "2026", total)
        await store.transact(Revise(order, after, when=attr("status") == order.status))
        order = after
        assert await store.get(Order.key("shop", 1)) == order
        for each in ("new", "paid", "sent"):
            found = await store.query(Order.query(each, index="by_status"))
            assert list(found.items) == ([order] if each == status else [])


async def test_a_revision_leaves_what_another_has_changed(store: Store) -> None:
    before = Order("shop", 1, "new", "2026", 7)
    await store.put(before)
    theirs = [set_to("status", "new"), set_to("placed", "2025")]
    await store.update(Order.key("shop", 1), *theirs)
    after = Order("shop", 1, "paid", "2026", 7)
    await store.transact(Revise(before, after, when=attr("status") == "new"))
    assert await store.get(Order.key("shop", 1)) == Order("shop", 1, "paid", "2025", 7)


@pytest.mark.parametrize(
    "when", [attr("status") == "sent", attr("total") > 7, ~exists(), attr("number") != 1]
)
async def test_a_condition_that_what_was_read_does_not_meet_refuses_a_revision(
    store: Store, when: Condition
) -> None:
    before = Order("shop", 1, "new", "2026", 7)
    await store.put(before)
    with pytest.raises(TransactionCancelled):
        await store.transact(Revise(before, Order("shop", 1, "paid", "2026", 7), when=when))
    assert await store.get(Order.key("shop", 1)) == before


async def test_the_condition_of_a_revision_may_be_about_what_is_apart(store: Store) -> None:
    before = Order("shop", 1, "new", "2026", 7)
    await store.put(Order("shop", 1, "new", "2026", 8))
    after = Order("shop", 1, "paid", "2026", 7)
    with pytest.raises(TransactionCancelled):
        await store.transact(Revise(before, after, when=attr("total") == 7))
    assert await store.get(Order.key("shop", 1)) == Order("shop", 1, "new", "2026", 8)


@pytest.mark.parametrize("status", ["", "x" * 3000])
async def test_a_revision_to_what_cannot_be_an_index_key_is_refused(
    store: Store, status: str
) -> None:
    before = Order("shop", 1, "new")
    await store.put(before)
    with pytest.raises(InvalidRequest):
        await store.transact(Revise(before, Order("shop", 1, status), when=attr("status") == "new"))
    assert await store.get(Order.key("shop", 1)) == before


async def test_a_revision_is_all_or_nothing_with_the_rest(store: Store) -> None:
    before, after = Order("shop", 1), Order("shop", 1, "paid")
    await store.put(before)
    with pytest.raises(TransactionCancelled) as refused:
        await store.transact(
            Revise(before, after, when=exists()), Put(Order("shop", 2), when=exists())
        )
    assert [reason is None for reason in refused.value.reasons] == [True, False]
    assert await store.get(Order.key("shop", 1)) == before


async def test_a_revision_must_make_sense(store: Store) -> None:
    before = Order("shop", 1)
    with pytest.raises(InvalidRequest):
        await store.transact(Revise(before, Order("shop", 2), when=exists()))
    wrong: Any = "many"
    with pytest.raises(InvalidRequest) as refused:
        await store.transact(Revise(before, Order("shop", 1, total=wrong), when=exists()))
    assert refused.value.field == "total"


async def test_what_is_apart_is_part_of_the_item(store: Store) -> None:
    key = Order.key("shop", 1)
    await store.put(Order("shop", 1, total=7, placed="2026"))
    paid = [set_to("status", "paid"), set_to("placed", "2026")]
    await store.transact(Update(key, *paid, when=exists()))
    assert await store.get(key) == Order("shop", 1, "paid", "2026", 7)
    await store.transact(Update(key, add("total", 1), when=attr("total") == 7))
    await store.transact(
        Revise(
            Order("shop", 1, "paid", "2026", 8),
            Order("shop", 1, "sent", "2026", 8),
            when=attr("status") == "paid",
        )
    )
    assert await store.get(key) == Order("shop", 1, "sent", "2026", 8)
    with pytest.raises(TransactionCancelled) as refused:
        await store.transact(Update(key, *paid, when=attr("status") == "paid"))
    assert refused.value.reasons[0] is not None
    assert refused.value.reasons[0].item == Order("shop", 1, "sent", "2026", 8)
    found = await store.query(Order.query("sent", index="by_status"), where=attr("total") > 7)
    assert list(found.items) == [Order("shop", 1, "sent", "2026", 8)]
    assert await store.put(Order("shop", 1), returning="old") == found.items[0]
    assert await store.delete(key, returning="old") == Order("shop", 1)
