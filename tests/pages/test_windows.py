"""Fresh, stale while it is regenerated, stale if that fails: what visitors get, and when."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.pages.press import Press


async def test_a_page_is_fetched_once_while_it_is_fresh(press: Press) -> None:
    first = await press.get()
    press.clock.advance(59)
    again = await press.get()
    assert first.body == again.body == b"page 1 of /p"
    assert press.origin.count == 1
    assert first.headers["cache-status"] == "waystation; fwd=uri-miss; fwd-status=200; stored"
    assert again.headers["cache-status"] == "waystation; hit; ttl=1"
    assert again.headers["age"] == "59"


async def test_a_stale_page_is_served_at_once_and_regenerated_behind_it(press: Press) -> None:
    await press.get()
    press.clock.advance(60)
    stale = await press.get()
    assert stale.body == b"page 1 of /p"
    assert stale.headers["cache-status"] == "waystation; hit; ttl=0; detail=expired"
    await press.settle()
    assert await press.text() == "page 2 of /p"
    assert press.origin.count == 2


async def test_after_the_stale_window_a_visitor_waits_for_a_new_page(press: Press) -> None:
    await press.put(swr_seconds=10)
    await press.get()
    press.clock.advance(70)
    answer = await press.get()
    assert answer.body == b"page 2 of /p"
    assert "fwd=stale" in answer.headers["cache-status"]


@pytest.mark.parametrize("trouble", ["fail", "cut"])
async def test_an_old_page_is_served_when_the_origin_fails(press: Press, trouble: str) -> None:
    await press.put(swr_seconds=0, sie_seconds=600)
    await press.get()
    press.clock.advance(100)
    getattr(press.origin, trouble)()
    answer = await press.get()
    assert (answer.status, answer.body) == (200, b"page 1 of /p")
    assert "detail=origin-failed" in answer.headers["cache-status"]


async def test_a_failing_origin_is_left_alone_for_a_while(local: Press) -> None:
    await local.put(swr_seconds=0, sie_seconds=3_600)
    await local.get()
    local.clock.advance(100)
    local.origin.fail()
    for _ in range(5):
        assert await local.text() == "page 1 of /p"
    assert local.origin.count == 2
    local.clock.advance(5)
    await local.get()
    assert local.origin.count == 3


async def test_an_origin_that_works_again_is_asked_again(local: Press) -> None:
    await local.put(swr_seconds=0, sie_seconds=3_600)
    await local.get()
    local.clock.advance(100)
    local.origin.fail()
    await local.get()
    local.origin.say()
    local.clock.advance(61)
    assert await local.text() == "page 3 of /p"


async def test_after_the_error_window_the_error_is_shown(local: Press) -> None:
    await local.put(swr_seconds=0, sie_seconds=30)
    await local.get()
    local.clock.advance(91)
    local.origin.fail()
    answer = await local.get()
    assert (answer.status, answer.body) == (503, b"out of order")


@pytest.mark.parametrize("status", [500, 501, 507])
async def test_an_error_never_takes_the_place_of_a_good_page(local: Press, status: int) -> None:
    await local.put(swr_seconds=0, sie_seconds=0)
    local.origin.say("Cache-Control: max-age=10")
    await local.get()
    local.clock.advance(11)
    local.origin.say("Cache-Control: max-age=600", body=b"broken", status=status)
    assert (await local.get()).status == status
    assert (await local.entry())["status"] == 200


async def test_errors_are_not_remembered_for_who_has_no_page(local: Press) -> None:
    local.origin.fail()
    assert [(await local.get()).status for _ in range(3)] == [503, 503, 503]
    local.origin.say()
    assert (await local.get()).status == 200


async def test_what_is_not_there_is_remembered_for_a_short_time_only(local: Press) -> None:
    await local.put(revalidate_seconds=3_600, negative_seconds=10)
    local.origin.say(body=b"nothing", status=404)
    assert (await local.get()).status == 404
    local.clock.advance(9)
    assert "hit" in await local.how()
    local.clock.advance(1)
    local.origin.say()
    answer = await local.get()
    assert (answer.status, answer.body) == (200, b"page 2 of /p")


async def test_the_origin_shortens_the_windows_and_never_lengthens_them(local: Press) -> None:
    local.origin.say("Cache-Control: max-age=5, stale-while-revalidate=3")
    await local.get("/short")
    local.origin.say("Cache-Control: max-age=9999")
    await local.get("/long")
    short, long = await local.entry("/short"), await local.entry("/long")
    assert short["fresh_until"] < long["fresh_until"]
    local.clock.advance(8)
    assert "fwd=stale" in await local.how("/short")
    local.clock.advance(51)
    assert "hit" in await local.how("/long")
    local.clock.advance(1)
    assert "fwd=stale" in await local.how("/long")


async def test_pages_are_regenerated_a_little_before_they_go_stale(local: Press) -> None:
    """Not all at the same moment: each at its own in the last twentieth."""
    await local.put(revalidate_seconds=1_000)
    for n in range(40):
        await local.get(f"/{n}")
    local.clock.advance(975)
    for n in range(40):
        assert "hit" in await local.how(f"/{n}")
    await local.settle()
    assert 40 < local.origin.count < 80


async def test_a_page_outlives_the_memory_of_a_process(press: Press) -> None:
    await press.get()
    memory = press.service.pages.memory
    for place in [each for held in memory._tenants.values() for each in held]:
        memory.drop(place)
    assert await press.text() == "page 1 of /p"
    assert press.origin.count == 1


async def test_the_table_says_what_was_generated_and_when(press: Press) -> None:
    from waystation.pages.keeping.places import Place

    await press.get("/p?a=1")
    meta = await press.row(Place("shop", "/p?a=1").meta)
    lock = await press.row(Place("shop", "/p?a=1").lock)
    assert meta.pk.startswith("TENANT#shop#CACHE#")
    assert (meta.generated_at, meta.revalidate_seconds) == (press.store.now(), 60)
    assert await press.service.pages.blobs.get(meta.s3_key) == b"page 1 of /p?a=1"
    assert (lock.lease_token, lock.lease_expires_at, lock.fence) == (None, None, 1)
