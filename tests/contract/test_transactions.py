"""Transactions and batches."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.contract.model import Counter, Digest, Reading, Thing
from waystation.errors import InvalidRequest, TokenReused, TransactionCancelled
from waystation.store import (
    CancellationReason,
    Check,
    Delete,
    Put,
    Store,
    Update,
    absent,
    add,
    attr,
    exists,
    key_of,
    set_to,
)

if TYPE_CHECKING:
    from waystation.clock import ManualClock

ONE, TWO, THREE = Thing("ann", "1", a=1), Thing("ann", "2", a=2), Thing("ann", "3", a=3)


async def all_things(store: Store) -> list[Thing]:
    return list((await store.query(Thing.query("ann"))).items)


async def test_all_actions_happen(store: Store) -> None:
    await store.put(ONE)
    await store.put(TWO)
    await store.transact(
        Put(THREE),
        Update(key_of(ONE), add("a", 10)),
        Delete(key_of(TWO)),
        Check(Thing.key("ann", "4"), absent()),
    )
    assert await all_things(store) == [Thing("ann", "1", a=11), THREE]


async def test_a_transaction_spans_tables(store: Store) -> None:
    await store.transact(Put(ONE), Put(Counter("c")), Put(Digest(b"d", b"p")))
    assert await store.get(Counter.key("c")) == Counter("c", version=1)
    assert await store.get(Digest.key(b"d", b"p")) == Digest(b"d", b"p")


async def test_one_failed_condition_undoes_everything(store: Store) -> None:
    await store.put(TWO)
    with pytest.raises(TransactionCancelled):
        await store.transact(Put(ONE), Put(TWO, when=absent()), Put(THREE))
    assert await all_things(store) == [TWO]


async def test_reasons_stand_in_the_place_of_their_actions(store: Store) -> None:
    await store.put(TWO)
    with pytest.raises(TransactionCancelled) as cancelled:
        await store.transact(
            Put(ONE),
            Delete(key_of(TWO), when=attr("a") == 99),
            Check(key_of(THREE), exists()),
        )
    first, second, third = cancelled.value.reasons
    assert first is None
    assert second is not None
    assert third is not None
    assert second.code == third.code == CancellationReason.CONDITION
    assert second.item == TWO
    assert third.item is None


async def test_two_actions_on_one_item_are_refused(store: Store) -> None:
    with pytest.raises(InvalidRequest):
        await store.transact(Put(ONE), Check(key_of(ONE), absent()))


async def test_a_hundred_actions_are_the_most(store: Store) -> None:
    await store.transact(*(Put(Thing("ann", f"{n:03d}")) for n in range(100)))
    assert len(await all_things(store)) == 100
    with pytest.raises(InvalidRequest):
        await store.transact(*(Put(Thing("bob", f"{n:03d}")) for n in range(101)))


async def test_no_actions_are_refused(store: Store) -> None:
    with pytest.raises(InvalidRequest):
        await store.transact()


async def test_an_action_that_does_not_fit_its_item_undoes_everything(store: Store) -> None:
    await store.put(Thing("ann", "1", a="text"))
    with pytest.raises(InvalidRequest):
        await store.transact(Put(TWO), Update(Thing.key("ann", "1"), add("a", 1)))
    assert await store.get(key_of(TWO)) is None


async def test_a_token_makes_a_repetition_do_nothing(store: Store, token: str) -> None:
    for _ in range(2):
        await store.transact(Update(key_of(ONE), add("a", 1)), token=token)
    assert await all_things(store) == [Thing("ann", "1", a=1)]


async def test_a_token_may_not_be_used_for_something_else(store: Store, token: str) -> None:
    await store.transact(Put(Counter("c")), token=token)
    with pytest.raises(TokenReused):
        await store.transact(Put(Counter("d")), token=token)
    assert await store.get(Counter.key("d")) is None


@pytest.mark.parametrize("token", ["", "x" * 37])
async def test_a_token_has_1_to_36_characters(store: Store, token: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await store.transact(Put(ONE), token=token)
    assert refused.value.field == "token"


async def test_a_cancelled_transaction_leaves_its_token_free(store: Store, token: str) -> None:
    await store.put(ONE)
    with pytest.raises(TransactionCancelled):
        await store.transact(Put(TWO, when=exists()), token=token)
    await store.put(TWO)
    await store.transact(Put(TWO, when=exists()), token=token)


async def test_concurrent_transactions_count_exactly(store: Store) -> None:
    await asyncio.gather(
        *(
            store.transact(Update(key_of(ONE), add("a", 1)), Put(Thing("bob", str(n))))
            for n in range(20)
        )
    )
    assert await all_things(store) == [Thing("ann", "1", a=20)]


async def test_concurrent_puts_when_absent_have_one_winner(store: Store) -> None:
    outcomes = await asyncio.gather(
        *(store.put(Thing("ann", "1", a=n), when=absent()) for n in range(10)),
        return_exceptions=True,
    )
    assert sum(outcome is None for outcome in outcomes) == 1


async def test_a_remove_only_update_of_nothing_does_not_stop_the_rest(store: Store) -> None:
    from waystation.store import remove

    await store.transact(Put(ONE), Update(key_of(TWO), remove("a")))
    assert await all_things(store) == [ONE]


async def test_a_versioned_put_counts_in_a_transaction_too(store: Store) -> None:
    counter = Counter("c")
    await store.transact(Put(counter))
    assert counter.version == 1
    counter.total = 5
    await store.transact(Put(counter))
    assert await store.get(Counter.key("c")) == Counter("c", total=5, version=2)


async def test_batches_of_any_size(store: Store) -> None:
    things = [Thing("ann", f"{n:03d}", a=n) for n in range(230)]
    await store.batch_write(puts=things)
    found = await store.batch_get([key_of(thing) for thing in things])
    assert found == things


async def test_batch_get_keeps_the_order_and_the_gaps(store: Store) -> None:
    await store.batch_write(puts=[ONE, THREE])
    keys = [key_of(THREE), key_of(TWO), key_of(ONE), key_of(THREE)]
    assert await store.batch_get(keys) == [THREE, None, ONE, THREE]


async def test_batch_write_deletes(store: Store) -> None:
    await store.batch_write(puts=[ONE, TWO])
    await store.batch_write(puts=[THREE], deletes=[key_of(ONE), key_of(Thing("ann", "none"))])
    assert await all_things(store) == [TWO, THREE]


async def test_a_batch_that_names_an_item_twice_is_refused(store: Store) -> None:
    with pytest.raises(InvalidRequest):
        await store.batch_write(puts=[ONE], deletes=[key_of(ONE)])


async def test_an_empty_batch_is_nothing(store: Store) -> None:
    await store.batch_write()
    assert await store.batch_get([]) == []


async def test_batches_span_tables(store: Store) -> None:
    await store.batch_write(puts=[ONE, Reading("s", 1), Digest(b"d", b"p")])  # type: ignore[arg-type]
    assert await store.get(key_of(ONE)) == ONE
    assert await store.get(Digest.key(b"d", b"p")) == Digest(b"d", b"p")


async def test_a_large_batch_of_large_items(store: Store) -> None:
    things = [Thing("ann", f"{n:02d}", a="x" * 100_000) for n in range(60)]
    await store.batch_write(puts=things)
    assert await store.batch_get([key_of(thing) for thing in things]) == things
    await store.update(key_of(things[0]), set_to("a", 1))


async def test_a_token_of_a_cancelled_transaction_goes_by_the_time_of_its_next_use(
    store: Store, clock: ManualClock, token: str
) -> None:
    await store.put(Thing("ann", "1", expires_at=store.now() + 5))
    with pytest.raises(TransactionCancelled):
        await store.transact(Put(ONE, when=absent()), token=token)
    clock.advance(60)
    await store.transact(Put(ONE, when=absent()), token=token)
    assert await all_things(store) == [ONE]


async def test_a_batch_with_a_bad_item_writes_nothing(store: Store) -> None:
    good = [Thing("ann", f"{n:02d}") for n in range(30)]
    with pytest.raises(InvalidRequest):
        await store.batch_write(puts=[*good, Thing("ann", "99", a=object())])
    assert await all_things(store) == []
