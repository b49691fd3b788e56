"""What is written in one turn of the loop leaves together, at its end."""

from __future__ import annotations

import asyncio
import gc
import logging
from functools import partial
from typing import TYPE_CHECKING
from weakref import ref

from waystation.departures import departures_of

if TYPE_CHECKING:
    import pytest


async def test_what_is_written_leaves_at_the_end_of_the_turn_in_its_order() -> None:
    departures = departures_of(asyncio.get_running_loop())
    left: list[int] = []
    for number in range(3):
        departures.add(partial(left.append, number))
    assert left == []
    await asyncio.sleep(0)
    assert left == [0, 1, 2]


async def test_all_of_a_loop_leave_together() -> None:
    loop = asyncio.get_running_loop()
    assert departures_of(loop) is departures_of(loop)
    left: list[str] = []
    departures_of(loop).add(lambda: left.append("one"))
    loop.call_soon(left.append, "later")
    departures_of(loop).add(lambda: left.append("another"))
    await asyncio.sleep(0)
    assert left == ["one", "another", "later"]


async def test_what_is_written_while_others_leave_is_not_lost() -> None:
    departures = departures_of(asyncio.get_running_loop())
    left: list[str] = []
    departures.add(lambda: departures.add(lambda: left.append("more")))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert left == ["more"]


def test_nothing_is_kept_of_a_loop_that_has_ended() -> None:
    loop = asyncio.new_event_loop()
    departures_of(loop)
    kept = ref(loop)
    loop.close()
    del loop
    gc.collect()
    assert kept() is None


async def test_one_that_cannot_leave_holds_up_nobody(caplog: pytest.LogCaptureFixture) -> None:
    departures = departures_of(asyncio.get_running_loop())
    left: list[str] = []

    def broken() -> None:
        raise RuntimeError("no way out")

    departures.add(broken)
    departures.add(lambda: left.append("next"))
    with caplog.at_level(logging.ERROR):
        await asyncio.sleep(0)
    assert left == ["next"]
    assert "could not leave" in caplog.text
