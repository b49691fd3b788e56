"""Change feeds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.contract.model import Note, Thing, counters, things
from waystation.errors import InvalidRequest
from waystation.store import ChangeFeed, Put, Store, Update, add, key_of, set_to

if TYPE_CHECKING:
    from waystation.clock import ManualClock


async def all_changes(feed: ChangeFeed) -> list[Any]:
    """Everything there is to read now."""
    found = []
    while batch := await feed.read():
        found += batch
    return found


async def test_changes_carry_the_item_before_and_after(new_tables: Store) -> None:
    store = new_tables
    await store.put(Thing("ann", "1", a=1))
    await store.update(Thing.key("ann", "1"), add("a", 1))
    await store.delete(Thing.key("ann", "1"))
    found = await all_changes(store.changes(things, "test"))
    one, two = Thing("ann", "1", a=1), Thing("ann", "1", a=2)
    assert [(c.kind, c.old, c.new, c.expired) for c in found] == [
        ("insert", None, one, False),
        ("modify", one, two, False),
        ("remove", two, None, False),
    ]


async def test_each_change_has_its_type(new_tables: Store) -> None:
    await new_tables.put(Thing("ann", "1"))
    await new_tables.put(Note("ann", 1, "n"))
    found = await all_changes(new_tables.changes(things, "test"))
    assert {type(change.new) for change in found} == {Thing, Note}


async def test_what_was_not_committed_comes_again(new_tables: Store) -> None:
    await new_tables.put(Thing("ann", "1"))
    assert len(await all_changes(new_tables.changes(things, "test"))) == 1
    again = new_tables.changes(things, "test")
    assert len(await all_changes(again)) == 1
    await again.commit()
    assert await all_changes(new_tables.changes(things, "test")) == []


async def test_reading_goes_on_after_what_was_committed(new_tables: Store) -> None:
    await new_tables.put(Thing("ann", "1"))
    feed = new_tables.changes(things, "test")
    await all_changes(feed)
    await feed.commit()
    await new_tables.put(Thing("ann", "2"))
    found = await all_changes(new_tables.changes(things, "test"))
    assert [change.new for change in found] == [Thing("ann", "2")]


async def test_a_feed_that_is_kept_open_sees_later_changes(new_tables: Store) -> None:
    feed = new_tables.changes(things, "test")
    assert await all_changes(feed) == []
    await new_tables.put(Thing("ann", "1"))
    assert [change.new for change in await all_changes(feed)] == [Thing("ann", "1")]


async def test_consumers_do_not_disturb_each_other(new_tables: Store) -> None:
    await new_tables.put(Thing("ann", "1"))
    one = new_tables.changes(things, "one")
    await all_changes(one)
    await one.commit()
    assert len(await all_changes(new_tables.changes(things, "two"))) == 1


async def test_limits_bound_a_read(new_tables: Store) -> None:
    await new_tables.batch_write(puts=[Thing("ann", str(n)) for n in range(30)])
    feed = new_tables.changes(things, "test")
    first = await feed.read(limit=10)
    assert 0 < len(first) <= 10
    assert len(first) + len(await all_changes(feed)) == 30


async def test_the_changes_of_one_item_come_in_order(new_tables: Store) -> None:
    for n in range(20):
        await new_tables.put(Thing("ann", "1", a=n))
        await new_tables.put(Thing("bob", "1", a=n))
    found = await all_changes(new_tables.changes(things, "test"))
    for owner in ("ann", "bob"):
        assert [c.new.a for c in found if c.new.owner == owner] == list(range(20))


async def test_transactions_and_batches_are_in_the_feed(new_tables: Store) -> None:
    await new_tables.transact(Put(Thing("ann", "1")), Update(Thing.key("ann", "2"), set_to("a", 1)))
    await new_tables.batch_write(deletes=[Thing.key("ann", "1")])
    found = await all_changes(new_tables.changes(things, "test"))
    assert sorted((c.kind, (c.new or c.old).thing_id) for c in found) == [
        ("insert", "1"),
        ("insert", "2"),
        ("remove", "1"),
    ]


async def test_a_refused_write_is_not_in_the_feed(new_tables: Store) -> None:
    from waystation.errors import ConditionFailed
    from waystation.store import exists

    with pytest.raises(ConditionFailed):
        await new_tables.put(Thing("ann", "1"), when=exists())
    assert await all_changes(new_tables.changes(things, "test")) == []


async def test_writing_over_an_expired_item_ends_the_old_one(
    new_tables: Store, clock: ManualClock
) -> None:
    store = new_tables
    # DynamoDB Local tells the time of a change to the minute only.
    old = Thing("ann", "1", a=1, expires_at=int(clock.now) - 120)
    await store.put(old)
    await store.update(key_of(old), add("a", 1))
    found = await all_changes(store.changes(things, "test"))
    assert [(c.kind, c.old, c.new, c.expired) for c in found] == [
        ("insert", None, old, False),
        ("remove", old, None, True),
        ("insert", None, Thing("ann", "1", a=1), False),
    ]


async def test_a_table_without_a_stream_has_no_feed(new_tables: Store) -> None:
    with pytest.raises(InvalidRequest):
        new_tables.changes(counters, "test")
