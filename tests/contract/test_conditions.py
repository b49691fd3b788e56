"""Conditions, as they decide about writes."""

from __future__ import annotations

from decimal import Decimal

import pytest

from tests.contract.model import Thing
from waystation.errors import ConditionFailed, InvalidRequest
from waystation.store import Condition, Store, absent, attr, exists

ITEM = Thing(
    "ann",
    "1",
    label="box",
    a={"k": [1, {"m": "deep"}], "t": True},
    b={"red", "blue"},
    c=Decimal("2.50"),
)

HOLDING = {
    "exists": exists(),
    "field exists": attr("label").exists(),
    "field absent": attr("colour").absent(),
    "nested exists": attr("a.k[1].m").exists(),
    "nested absent": attr("a.k[2]").absent(),
    "equal": attr("label") == "box",
    "number equal whatever its form": attr("c") == 2.5,
    "map equal": attr("a.k[1]") == {"m": "deep"},
    "set equal whatever its order": attr("b") == {"blue", "red"},
    "not equal": attr("label") != "bag",
    "missing is not equal": attr("colour") != "red",
    "less": attr("c") < 3,
    "at most": attr("c") <= Decimal("2.5"),
    "greater text": attr("label") > "bow",
    "greater or equal": attr("label") >= "box",
    "between": attr("c").between(2, 3),
    "in": attr("label").is_in(["bag", "box"]),
    "begins with": attr("label").begins_with("bo"),
    "contains in text": attr("label").contains("ox"),
    "contains in set": attr("b").contains("red"),
    "contains in list": attr("a.k").contains(1),
    "size of text": attr("label").size() == 3,
    "size of set": attr("b").size() == 2,
    "size of list": attr("a.k").size() < 3,
    "type": attr("a").is_type("M"),
    "and": (attr("c") > 1) & (attr("label") == "box"),
    "or": (attr("c") > 9) | (attr("label") == "box"),
    "not": ~(attr("c") > 9),
    "nested logic": ~((attr("c") > 9) | (attr("label") == "bag")) & exists(),
    "attribute against attribute": attr("label") != attr("c"),
}
FAILING = {
    "absent": absent(),
    "text is not a number": attr("label") < 5,
    "true is not one": attr("a.t") == 1,
    "missing compares as false": attr("colour") < "z",
    "missing equals nothing": attr("colour") == "red",
    "size of a missing attribute": attr("colour").size() >= 0,
    "size of a number": attr("c").size() >= 0,
    "contains of another type": attr("b").contains(1),
    "begins with of another type": attr("c").begins_with("2"),
    "not of something true": ~exists(),
}


@pytest.mark.parametrize("condition", HOLDING.values(), ids=HOLDING)
async def test_a_condition_that_holds_lets_the_write_through(
    store: Store, condition: Condition
) -> None:
    await store.put(ITEM)
    await store.delete(Thing.key("ann", "1"), when=condition)
    assert await store.get(Thing.key("ann", "1")) is None


@pytest.mark.parametrize("condition", FAILING.values(), ids=FAILING)
async def test_a_condition_that_fails_stops_the_write(store: Store, condition: Condition) -> None:
    await store.put(ITEM)
    with pytest.raises(ConditionFailed):
        await store.delete(Thing.key("ann", "1"), when=condition)
    assert await store.get(Thing.key("ann", "1")) == ITEM


@pytest.mark.parametrize(
    "condition",
    [
        attr("a").between(3, 2),
        attr("a").between(3, "x"),
        attr("a") < [1],
        attr("a").is_in([]),
        attr("a").is_in(range(101)),
        attr("a").is_type("X"),
        attr("a") == attr("a"),
        attr("nonsense") == 1,
    ],
)
async def test_a_condition_that_makes_no_sense_is_refused(
    store: Store, condition: Condition
) -> None:
    with pytest.raises(InvalidRequest):
        await store.delete(Thing.key("ann", "1"), when=condition)


async def test_size_of_text_counts_utf16_units(store: Store) -> None:
    await store.put(Thing("ann", "1", a="𝄞é"))
    await store.delete(Thing.key("ann", "1"), when=attr("a").size() == 3)


async def test_text_compares_by_code_point(store: Store) -> None:
    await store.put(Thing("ann", "1", a="\uffff"))
    await store.delete(Thing.key("ann", "1"), when=attr("a") < "\U00010000")
