"""Expired means gone, whatever the database still holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.contract.model import Parcel, Thing, Visit
from waystation.errors import ConditionFailed, TransactionCancelled
from waystation.store import (
    Check,
    Delete,
    Put,
    Store,
    Update,
    absent,
    add,
    attr,
    exists,
    remove,
    set_to,
)

if TYPE_CHECKING:
    from waystation.clock import ManualClock

KEY = Thing.key("ann", "1")


@pytest.fixture
async def expired(store: Store, clock: ManualClock) -> Thing:
    """An item that has just expired and is still in the database."""
    thing = Thing("ann", "1", "red", 1, "box", a=5, b="old", expires_at=store.now() + 10)
    await store.put(thing)
    clock.advance(10)
    assert await store.get(KEY, expired=True) == thing
    return thing


async def test_an_item_lives_until_its_second(store: Store, clock: ManualClock) -> None:
    await store.put(Thing("ann", "1", expires_at=store.now() + 10))
    clock.advance(9.9)
    assert await store.get(KEY) is not None
    clock.advance(0.1)
    assert await store.get(KEY) is None


@pytest.mark.usefixtures("expired")
async def test_reads_do_not_see_it(store: Store) -> None:
    assert await store.get(KEY) is None
    assert await store.batch_get([KEY]) == [None]
    assert not (await store.query(Thing.query("ann"))).items
    assert not (await store.query(Thing.query("red", index="GSI1"))).items
    assert not (await store.scan(Thing)).items
    assert await store.count(Thing.query("ann")) == 0


async def test_reads_that_ask_for_it_do(store: Store, expired: Thing) -> None:
    assert list((await store.query(Thing.query("ann"), expired=True)).items) == [expired]
    assert list((await store.scan(Thing, expired=True)).items) == [expired]


@pytest.mark.usefixtures("expired")
async def test_it_does_not_stand_in_the_way_of_a_new_item(store: Store) -> None:
    await store.put(Thing("ann", "1", a=1), when=absent())
    assert await store.get(KEY) == Thing("ann", "1", a=1)


@pytest.mark.usefixtures("expired")
@pytest.mark.parametrize("condition", [exists(), attr("a") == 5, attr("b").exists()])
async def test_conditions_do_not_see_it(store: Store, condition: Any) -> None:
    with pytest.raises(ConditionFailed) as failed:
        await store.put(Thing("ann", "1"), when=condition)
    assert failed.value.item is None
    with pytest.raises(ConditionFailed):
        await store.update(KEY, add("a", 1), when=condition)
    with pytest.raises(ConditionFailed):
        await store.delete(KEY, when=condition)


@pytest.mark.usefixtures("expired")
async def test_an_update_starts_from_nothing(store: Store) -> None:
    found = await store.update(KEY, add("a", 1), returning="new")
    assert found == Thing("ann", "1", a=1)
    assert await store.get(KEY) == Thing("ann", "1", a=1)


@pytest.mark.usefixtures("expired")
async def test_a_conditional_update_starts_from_nothing(store: Store) -> None:
    await store.update(KEY, set_to("b", "new"), when=attr("a").absent() | (attr("a") < 3))
    assert await store.get(KEY) == Thing("ann", "1", b="new")


@pytest.mark.usefixtures("expired")
async def test_a_remove_only_update_does_not_bring_it_back(store: Store) -> None:
    assert await store.update(KEY, remove("a"), returning="new") is None
    assert await store.get(KEY) is None


@pytest.mark.usefixtures("expired")
async def test_old_items_are_not_returned(store: Store) -> None:
    assert await store.update(KEY, add("a", 1), returning="old") is None


@pytest.mark.usefixtures("expired")
async def test_put_and_delete_do_not_return_it(store: Store) -> None:
    assert await store.delete(KEY, returning="old") is None
    await store.put(Thing("ann", "1", expires_at=store.now()))
    assert await store.put(Thing("ann", "1"), returning="old") is None


@pytest.mark.usefixtures("expired")
async def test_transactions_do_not_see_it(store: Store) -> None:
    with pytest.raises(TransactionCancelled) as cancelled:
        await store.transact(Put(Thing("bob", "1")), Check(KEY, exists()))
    reason = cancelled.value.reasons[1]
    assert reason is not None
    assert reason.item is None
    with pytest.raises(TransactionCancelled):
        await store.transact(Delete(KEY, when=attr("a") == 5))
    await store.transact(Check(KEY, absent()), Put(Thing("bob", "1")))


@pytest.mark.usefixtures("expired")
async def test_an_update_in_a_transaction_starts_from_nothing(store: Store) -> None:
    await store.transact(Update(KEY, add("a", 1)), Put(Thing("ann", "2")))
    assert await store.get(KEY) == Thing("ann", "1", a=1)
    assert await store.get(Thing.key("ann", "2")) is not None


@pytest.mark.usefixtures("expired")
async def test_a_repeated_transaction_over_it_counts_once(store: Store, token: str) -> None:
    for _ in range(2):
        await store.transact(Update(KEY, add("a", 1)), token=token)
    assert await store.get(KEY) == Thing("ann", "1", a=1)


async def test_a_repeated_transaction_counts_once_though_time_passes(
    store: Store, clock: ManualClock, token: str
) -> None:
    for _ in range(2):
        await store.transact(Update(KEY, add("a", 1)), token=token)
        clock.advance(5)
    assert await store.get(KEY) == Thing("ann", "1", a=1)


async def test_a_ttl_of_long_ago_is_no_ttl(store: Store) -> None:
    await store.put(Thing("ann", "1", expires_at=1))
    assert await store.get(KEY) is not None
    assert await store.count(Thing.query("ann")) == 1


async def test_expired_items_count_towards_a_pages_limit(store: Store, clock: ManualClock) -> None:
    await store.put(Thing("ann", "1", expires_at=store.now() + 1))
    await store.put(Thing("ann", "2"))
    clock.advance(1)
    page = await store.query(Thing.query("ann"), limit=1)
    assert not page.items
    rest = await store.query(Thing.query("ann"), after=page.cursor)
    assert list(rest.items) == [Thing("ann", "2")]


async def test_a_counter_in_an_expired_place_starts_again(store: Store, clock: ManualClock) -> None:
    await store.put(Visit("T", "U", seen=7, ttl=store.now() + 1))
    clock.advance(1)
    await store.update(Visit.key("T", "U"), add("seen", 1))
    assert await store.get(Visit.key("T", "U")) == Visit("T", "U", seen=1)


async def test_an_update_of_an_expired_item_brings_nothing_back(
    store: Store, clock: ManualClock
) -> None:
    """Not even what is apart."""
    await store.put(Parcel("a", text="old", expires_at=store.now() + 5))
    clock.advance(5)
    await store.transact(Update(Parcel.key("a"), set_to("state", "new")))
    assert await store.get(Parcel.key("a")) == Parcel("a", state="new")
