"""Messages that wait in the store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from waystation.errors import QueueUnavailable
from waystation.queues.parked import Lot, Parked, parked
from waystation.store import open_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from waystation.clock import ManualClock


@pytest.fixture
async def lot(clock: ManualClock) -> AsyncIterator[Lot]:
    async with await open_store("sqlite://:memory:", [parked], clock=clock) as store:
        yield Lot(store, "jobs")


class Sender:
    """Sends, but for those that cannot be."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.refused: set[str] = set()

    async def __call__(self, item: Parked) -> None:
        if item.id in self.refused:
            raise QueueUnavailable("not now")
        self.sent.append(item.id)


async def test_a_group_waits_for_its_message_that_could_not_be_sent(
    lot: Lot, clock: ManualClock
) -> None:
    for n in range(3):
        await lot.park(f"a{n}", b"1", "a", None, delay=10 + n)
    await lot.park("b0", b"1", "b", None, delay=10)
    send = Sender()
    send.refused = {"a0"}
    clock.advance(20)
    assert await lot.send_due(send) == 1
    assert send.sent == ["b0"]
    send.refused = set()
    clock.advance(61)
    assert await lot.send_due(send) == 3
    assert send.sent == ["b0", "a0", "a1", "a2"]


async def test_a_group_that_is_stuck_does_not_hold_up_the_others(
    lot: Lot, clock: ManualClock
) -> None:
    for n in range(120):
        await lot.park(f"a{n:03d}", b"1", "a", None, delay=10)
    for n in range(40):
        await lot.park(f"b{n}", b"1", f"g{n}", None, delay=11)
    send = Sender()
    send.refused = {"a000"}
    clock.advance(20)
    assert await lot.send_due(send) == 40
    assert await lot.count() == 120


async def test_more_than_a_page_is_sent_at_once(lot: Lot, clock: ManualClock) -> None:
    for n in range(500):
        await lot.park(f"m{n:03d}", b"1", None, None, delay=10)
    clock.advance(20)
    assert await lot.send_due(Sender()) == 500
    assert await lot.count() == 0
