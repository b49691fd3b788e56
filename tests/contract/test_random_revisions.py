"""Random revisions on both engines side by side: what SQLite does the quick way is right."""

from __future__ import annotations

import asyncio
import tempfile
import time
from typing import TYPE_CHECKING, Any

import msgspec
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.contract.model import Order, orders
from tests.contract.test_random import SEED
from tests.support.sharing import shared
from waystation.clock import ManualClock
from waystation.errors import InvalidRequest, TransactionCancelled
from waystation.store import Put, Revise, Store, attr, exists, open_store, remove, set_to

if TYPE_CHECKING:
    from waystation.store import Condition

EXAMPLES = 40
NUMBERS = (1, 2)

numbers = st.sampled_from(NUMBERS)
fields: dict[str, st.SearchStrategy[Any]] = {
    "status": st.sampled_from(["new", "paid", "sent", ""]),
    "placed": st.sampled_from([None, "2025", "2026"]),
    "total": st.integers(0, 2),
}
whole = st.fixed_dictionaries(fields)
some = st.fixed_dictionaries({}, optional=fields)
conditions: st.SearchStrategy[Condition | None] = st.one_of(
    st.none(),  # that the status is as it was read
    st.builds(lambda total: attr("total") >= total, st.integers(0, 2)),
    st.just(attr("placed").absent()),
    st.just(exists()),
    st.just(~(attr("status") == "sent") & (attr("total") < 2)),
)
steps = st.one_of(
    st.tuples(st.just("put"), numbers, whole),
    st.tuples(st.just("revise"), numbers, st.just({}), some, conditions),
    st.tuples(st.just("revise"), numbers, some, some, conditions),
    st.tuples(st.just("beside"), numbers, st.booleans()),
)


async def perform(store: Store, step: Any) -> Any:
    """What comes of a step, and what there is after it."""
    try:
        came = await _done(store, step)
    except TransactionCancelled as cancelled:
        came = [reason and reason.item for reason in cancelled.reasons]
    except InvalidRequest:
        came = "refused"
    there = [await store.get(Order.key("shop", n)) for n in NUMBERS]
    found = [
        list((await store.query(Order.query(status, index="by_status"))).items)
        for status in ("new", "paid", "sent")
    ]
    return came, there, [sorted(each, key=lambda o: o.number) for each in found]


async def _done(store: Store, step: Any) -> Any:
    match step:
        case ("put", number, given):
            await store.transact(Put(Order("shop", number, **given)))
        case ("revise", number, stale, changed, condition):
            read = await store.get(Order.key("shop", number)) or Order("shop", number)
            before = msgspec.structs.replace(read, **stale)  # it was read some time ago
            after = msgspec.structs.replace(before, **changed)
            when = attr("status") == before.status if condition is None else condition
            await store.transact(Revise(before, after, when=when))
        case ("beside", number, there):
            beside = set_to("tags", ["theirs"]) if there else remove("tags")
            await store.update(Order.key("shop", number), beside, when=exists())
    return None


async def _compare(endpoint: str, wanted: list[Any]) -> None:
    clock = ManualClock(float(int(time.time())))
    embedded = await open_store("sqlite://:memory:", [orders], env="revised", clock=clock)
    dynamodb = await open_store(
        "dynamodb://eu-west-1", [orders], env="revised", clock=clock, endpoint_url=endpoint
    )
    with tempfile.TemporaryDirectory() as home:
        file = f"sqlite:///{home}/store.db"
        async with embedded, dynamodb, shared(file, [orders], "revised", clock) as written:
            await dynamodb.ensure_tables()
            for number in NUMBERS:
                await dynamodb.delete(Order.key("shop", number))
            for step in wanted:
                ours = await perform(embedded, step)
                assert ours == await perform(dynamodb, step), step
                assert ours == await perform(written, step), step


def test_all_engines_revise_alike(dynamodb_url: str) -> None:
    """Also one whose transactions another process carries out."""

    @seed(SEED)
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )
    @given(st.lists(steps, min_size=10, max_size=20))
    def compare(wanted: list[Any]) -> None:
        asyncio.run(_compare(dynamodb_url, wanted))

    print(f"RANDOM_SEED={SEED}")  # noqa: T201 - pytest shows it when the test fails
    compare()
