"""Queries, pages, cursors, scans and counts."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import Any

import pytest

from tests.contract.conftest import everything
from tests.contract.model import Colour, Digest, Line, Note, Order, Palette, Reading, Thing
from waystation.errors import InvalidCursor, InvalidRequest
from waystation.store import Query, Store, add, attr, exists, partition


def ids(items: Any) -> list[str]:
    return [item.thing_id for item in items]


async def fill(store: Store, count: int, owner: str = "ann") -> None:
    things = [Thing(owner, f"{n:03d}", "red", n, a=n) for n in range(count)]
    await store.batch_write(puts=things)


async def notes(store: Store) -> None:
    await store.batch_write(puts=[Note("ann", at, f"n{at}") for at in (5, 10, 15, 20)])
    await store.put(Thing("ann", "1"))


async def test_items_come_in_the_order_of_their_sort_keys(store: Store) -> None:
    for thing_id in ("b", "a", "é", "Z", "𝄞", "c"):
        await store.put(Thing("ann", thing_id))
    found = await store.query(Thing.query("ann"))
    assert ids(found.items) == ["Z", "a", "b", "c", "é", "𝄞"]


async def test_reverse_gives_the_opposite_order(store: Store) -> None:
    await fill(store, 3)
    assert ids((await store.query(Thing.query("ann"), reverse=True)).items) == ["002", "001", "000"]


async def test_a_query_sees_one_partition_only(store: Store) -> None:
    await fill(store, 2, "ann")
    await fill(store, 2, "bob")
    assert {item.owner for item in (await store.query(Thing.query("ann"))).items} == {"ann"}


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("limit", [1, 2, 3, 7])
async def test_pages_repeat_and_skip_nothing(store: Store, limit: int, reverse: bool) -> None:
    await fill(store, 7)
    found = await everything(
        lambda after: store.query(Thing.query("ann"), limit=limit, after=after, reverse=reverse)
    )
    assert ids(found) == sorted((f"{n:03d}" for n in range(7)), reverse=reverse)


async def test_limit_counts_before_the_filter(store: Store) -> None:
    await fill(store, 4)
    page = await store.query(Thing.query("ann"), limit=3, where=attr("a") >= 2)
    assert ids(page.items) == ["002"]
    assert page.cursor is not None


async def test_a_page_may_be_empty_and_not_the_last(store: Store) -> None:
    await fill(store, 4)
    page = await store.query(Thing.query("ann"), limit=2, where=attr("a") == 3)
    assert not page.items
    assert page.cursor is not None


async def test_items_that_arrive_while_paging_do_not_disturb(store: Store) -> None:
    await fill(store, 4)
    first = await store.query(Thing.query("ann"), limit=2)
    await store.put(Thing("ann", "0005"))
    rest = await store.query(Thing.query("ann"), after=first.cursor)
    assert ids(rest.items) == ["002", "003"]


async def test_the_item_under_the_cursor_may_go(store: Store) -> None:
    await fill(store, 4)
    first = await store.query(Thing.query("ann"), limit=2)
    await store.delete(Thing.key("ann", "001"))
    assert ids((await store.query(Thing.query("ann"), after=first.cursor)).items) == ["002", "003"]


async def test_a_cursor_can_be_made_from_any_item(store: Store) -> None:
    await fill(store, 4)
    page = await store.query(Thing.query("ann"))
    cursor = store.cursor(Thing.query("ann"), page.items[1])
    assert ids((await store.query(Thing.query("ann"), after=cursor)).items) == ["002", "003"]


async def test_pages_end_at_a_megabyte(store: Store) -> None:
    await store.batch_write(puts=[Thing("ann", str(n), a="x" * 300_000) for n in range(5)])
    first = await store.query(Thing.query("ann"))
    assert 0 < len(first.items) < 5
    found = await everything(lambda after: store.query(Thing.query("ann"), after=after))
    assert ids(found) == ["0", "1", "2", "3", "4"]


async def test_a_query_can_be_iterated_across_pages(store: Store) -> None:
    await store.batch_write(puts=[Thing("ann", str(n), a="x" * 300_000) for n in range(5)])
    found = [item async for item in store.iterate(Thing.query("ann"), reverse=True)]
    assert ids(found) == ["4", "3", "2", "1", "0"]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (Note.query("ann"), [5, 10, 15, 20]),
        (Note.query("ann", 10), [10]),
        (Note.query("ann", 10, "n10"), [10]),
        (Note.query("ann").between(10, 15), [10, 15]),
        (Note.query("ann").at_least(10), [10, 15, 20]),
        (Note.query("ann").after(10), [15, 20]),
        (Note.query("ann").at_most(10), [5, 10]),
        (Note.query("ann").before(10), [5]),
        (Note.query("ann").begins_with("00000000000"), [5, 10, 15, 20]),
        (Note.query("ann").begins_with("000000000001"), [10, 15]),
        (Note.query("ann", 10).begins_with("n"), [10]),
        (Note.query("ann", 10).after("n1"), [10]),
        (Note.query("ann", 10).after("n10"), []),
        (Note.query("ann", 10).before("n10"), []),
        (Note.query("ann", 10).at_most("n10"), [10]),
    ],
)
async def test_ranges_of_a_templated_sort_key(
    store: Store, query: Query[Note], expected: list[int]
) -> None:
    await notes(store)
    assert [note.at for note in (await store.query(query)).items] == expected


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (Reading.query("s"), ["-1E+20", "-2", "-0.5", "0", "1E-30", "9", "10", "1E+20"]),
        (Reading.query("s", 9), ["9"]),
        (Reading.query("s").between(-2, 0), ["-2", "-0.5", "0"]),
        (Reading.query("s").after(9), ["10", "1E+20"]),
        (Reading.query("s").at_least(9), ["9", "10", "1E+20"]),
        (Reading.query("s").before(-2), ["-1E+20"]),
        (Reading.query("s").at_most(-2), ["-1E+20", "-2"]),
    ],
)
async def test_number_keys_sort_as_numbers(
    store: Store, query: Query[Reading], expected: list[str]
) -> None:
    numbers = ["9", "10", "-2", "0", "1E+20", "-1E+20", "-0.5", "1E-30"]
    await store.batch_write(puts=[Reading("s", Decimal(n)) for n in numbers])
    found = (await store.query(query)).items
    assert [reading.at for reading in found] == [Decimal(n) for n in expected]


async def test_number_keys_page_in_both_directions(store: Store) -> None:
    await store.batch_write(puts=[Reading("s", Decimal(n) / 2) for n in range(-3, 4)])
    for reverse in (False, True):
        found: list[Any] = await everything(
            lambda after, reverse=reverse: store.query(  # type: ignore[misc]
                Reading.query("s"), limit=2, after=after, reverse=reverse
            )
        )
        assert [r.at for r in found] == sorted(
            (Decimal(n) / 2 for n in range(-3, 4)), reverse=reverse
        )


async def test_binary_keys_sort_as_unsigned_bytes(store: Store) -> None:
    parts = [b"\x80", b"\x00", b"\xff\xff", b"a", b"\xff"]
    await store.batch_write(puts=[Digest(b"d", part) for part in parts])
    found = (await store.query(Digest.query(b"d"))).items
    assert [digest.part for digest in found] == [b"\x00", b"a", b"\x80", b"\xff", b"\xff\xff"]


async def test_an_index_finds_items_by_its_key(store: Store) -> None:
    await fill(store, 3)
    await store.put(Thing("bob", "x", "red", 1))
    await store.put(Thing("bob", "y", "blue", 1))
    found = (await store.query(Thing.query("red", index="GSI1"))).items
    assert sorted(ids(found)) == ["000", "001", "002", "x"]


async def test_an_index_is_sparse(store: Store) -> None:
    await store.put(Thing("ann", "1", colour="red"))
    await store.put(Thing("ann", "2", colour="red", weight=5))
    assert ids((await store.query(Thing.query("red", index="GSI1"))).items) == ["2"]


async def test_an_index_has_ranges_of_its_own(store: Store) -> None:
    await fill(store, 5)
    found = (await store.query(Thing.query("red", index="GSI1").between(1, 3))).items
    assert ids(found) == ["001", "002", "003"]


@pytest.mark.parametrize("reverse", [False, True])
async def test_index_pages_go_on_among_equal_keys(store: Store, reverse: bool) -> None:
    await store.batch_write(puts=[Thing("ann", f"{n}", "red", n // 3) for n in range(7)])
    found: list[Any] = await everything(
        lambda after: store.query(
            Thing.query("red", index="GSI1"), limit=2, after=after, reverse=reverse
        )
    )
    assert sorted(ids(found)) == [str(n) for n in range(7)]
    weights = [thing.weight for thing in found]
    assert weights == sorted(weights, reverse=reverse)


async def test_an_index_without_a_sort_key_pages_too(store: Store) -> None:
    await store.batch_write(puts=[Thing("ann", f"{n}", label="x") for n in range(5)])
    found = await everything(
        lambda after: store.query(Thing.query("x", index="GSI2"), limit=2, after=after)
    )
    assert sorted(ids(found)) == ["0", "1", "2", "3", "4"]


async def test_an_index_refuses_consistent_reads(store: Store) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await store.query(Thing.query("red", index="GSI1"), consistent=True)
    assert refused.value.field == "consistent"


async def test_a_partition_can_be_read_whole(store: Store) -> None:
    await notes(store)
    found = (await store.query(partition([Thing, Note], "ann"))).items
    assert [type(item) for item in found] == [Note, Note, Note, Note, Thing]


async def test_types_not_asked_for_are_passed_over(store: Store) -> None:
    await notes(store)
    found = (await store.query(partition([Thing], "ann"))).items
    assert found == [Thing("ann", "1")]


@pytest.mark.parametrize(
    "cursor", ["", "nonsense", "é", "gqJQS6NUI28", "AAAA", "//8", "AQ", "kA", "xwEBYQ"]
)
async def test_a_damaged_cursor_is_refused(store: Store, cursor: str) -> None:
    with pytest.raises(InvalidCursor) as refused:
        await store.query(Thing.query("ann"), after=cursor)
    assert refused.value.field == "cursor"


async def test_a_cursor_of_another_query_is_refused(store: Store) -> None:
    await fill(store, 2)
    page = await store.query(Thing.query("ann"), limit=1)
    with pytest.raises(InvalidCursor):
        await store.query(Thing.query("bob"), after=page.cursor)
    with pytest.raises(InvalidCursor):
        await store.query(Thing.query("red", index="GSI1"), after=page.cursor)


@pytest.mark.parametrize("limit", [0, -1, 10**20])
async def test_a_limit_that_no_page_can_have_is_refused(store: Store, limit: int) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await store.query(Thing.query("ann"), limit=limit)
    assert refused.value.field == "limit"


async def test_a_filter_cannot_look_at_the_key(store: Store) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await store.query(Thing.query("ann"), where=exists())
    assert refused.value.field == "where"


async def test_reversed_bounds_are_refused(store: Store) -> None:
    with pytest.raises(InvalidRequest):
        await store.query(Note.query("ann").between(20, 10))


async def test_count_counts_all_pages(store: Store) -> None:
    await store.batch_write(puts=[Thing("ann", str(n), a="x" * 300_000) for n in range(5)])
    assert await store.count(Thing.query("ann")) == 5


async def test_count_takes_a_filter(store: Store) -> None:
    await fill(store, 5)
    assert await store.count(Thing.query("ann"), where=attr("a") > 2) == 2


async def test_count_by_index(store: Store) -> None:
    await fill(store, 3)
    assert await store.count(Thing.query("red", index="GSI1").at_least(1)) == 2


async def test_count_across_types(store: Store) -> None:
    await notes(store)
    assert await store.count(partition([Thing, Note], "ann")) == 5


async def test_a_scan_finds_every_item_of_a_type(store: Store) -> None:
    await fill(store, 5, "ann")
    await fill(store, 5, "bob")
    await store.put(Note("ann", 1, "n"))
    found: list[Any] = await everything(lambda after: store.scan(Thing, limit=3, after=after))
    assert sorted((t.owner, t.thing_id) for t in found) == [
        (owner, f"{n:03d}") for owner in ("ann", "bob") for n in range(5)
    ]


async def test_a_scan_takes_a_filter(store: Store) -> None:
    await fill(store, 5)
    found: list[Any] = await everything(
        lambda after: store.scan(Thing, after=after, where=attr("a") >= 3)
    )
    assert sorted(ids(found)) == ["003", "004"]


async def test_a_scan_of_a_table_without_sort_keys_pages(store: Store) -> None:
    from tests.contract.model import Visit

    await store.batch_write(puts=[Visit("T", f"U{n}") for n in range(5)])
    found: list[Any] = await everything(lambda after: store.scan(Visit, limit=2, after=after))
    assert sorted(visit.user_id for visit in found) == ["U0", "U1", "U2", "U3", "U4"]


async def test_types_whose_sort_keys_begin_alike_are_told_apart(store: Store) -> None:
    await store.put(Order("s", 1, total=5))
    await store.put(Line("s", 1, 1))
    assert list((await store.query(Order.query("s"))).items) == [Order("s", 1, total=5)]
    assert await store.count(Order.query("s")) == 1
    assert list((await store.query(Line.query("s"))).items) == [Line("s", 1, 1)]


async def test_numbers_in_a_text_key_come_back_as_numbers(store: Store) -> None:
    await store.update(Order.key("s", 7), add("total", 1))
    assert await store.get(Order.key("s", 7)) == Order("s", 7, total=1)


async def test_an_enum_can_be_a_key(store: Store) -> None:
    palette = Palette(Colour.RED, "1", "warm")
    await store.put(palette)
    assert await store.get(Palette.key("red", "1")) == palette


async def test_a_cursor_cannot_be_made_from_an_item_outside_the_index(store: Store) -> None:
    with pytest.raises(InvalidRequest):
        store.cursor(Thing.query("red", index="GSI1"), Thing("ann", "1"))


async def test_a_binary_key_can_be_narrowed_by_a_prefix(store: Store) -> None:
    await store.batch_write(puts=[Digest(b"d", part) for part in (b"a1", b"a2", b"\xff\xff")])
    assert len((await store.query(Digest.query(b"d").begins_with(b"a"))).items) == 2
    assert len((await store.query(Digest.query(b"d").begins_with(b"\xff"))).items) == 1


async def test_other_work_goes_on_while_a_query_is_iterated(store: Store) -> None:
    await store.batch_write(puts=[Thing("ann", str(n), a="x" * 300_000) for n in range(8)])
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.ensure_future(other())
    try:
        assert len([item async for item in store.iterate(Thing.query("ann"))]) == 8
    finally:
        task.cancel()
    assert turns >= 2
