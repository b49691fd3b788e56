"""Earlier versions of a page: going back to one, and clearing up after the others."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from waystation.pages.keeping.places import Place

if TYPE_CHECKING:
    from tests.pages.press import Press

PLACE = Place("shop", "/p")


async def publish(press: Press, *bodies: bytes) -> None:
    for body in bodies:
        press.origin.say(body=body)
        await press.revalidate(path="/p", mode="hard")
        await press.get()


async def rollback(press: Press, status: int = 200) -> Any:
    answer = await press.call("POST", f"{press.base}/rollback", {"path": "/p"})
    assert answer.status == status, answer
    return answer.json


async def test_a_page_goes_back_to_what_it_was_in_one_step(press: Press) -> None:
    await publish(press, b"good", b"bad")
    page = await rollback(press)
    assert (page["pinned"], page["state"]) == (True, "fresh")
    assert await press.text() == "good"


async def test_and_stays_so_until_it_is_purged(press: Press) -> None:
    await publish(press, b"good", b"bad")
    await rollback(press)
    press.clock.advance(10 * 86_400)
    assert await press.text() == "good"
    press.origin.say(body=b"better")
    await press.revalidate(path="/p", mode="hard")
    assert await press.text() == "better"


async def test_one_step_more_goes_back_further(press: Press) -> None:
    await publish(press, b"one", b"two", b"three")
    await rollback(press)
    await rollback(press)
    assert await press.text() == "one"
    await rollback(press, status=404)


async def test_who_generates_the_page_meanwhile_cannot_publish_it(press: Press) -> None:
    await publish(press, b"good", b"bad")
    press.clock.advance(60)
    press.origin.gate = asyncio.Event()
    press.origin.arrived.clear()
    await press.get()  # stale: regenerated in the background
    await press.origin.arrived.wait()
    await rollback(press)
    press.origin.gate.set()
    await press.settle()
    assert await press.text() == "good"


async def test_the_fence_goes_on_growing(press: Press) -> None:
    await publish(press, b"good", b"bad")
    before = (await press.row(PLACE.meta)).fence
    await rollback(press)
    meta, lock = await press.row(PLACE.meta), await press.row(PLACE.lock)
    assert meta.fence == lock.fence > before


async def test_a_page_without_a_past_stays_as_it_is(local: Press) -> None:
    await publish(local, b"only")
    await rollback(local, status=404)
    assert await local.text() == "only"


async def test_as_many_versions_are_kept_as_the_site_says(press: Press) -> None:
    await press.put(versions=2)
    await publish(press, b"one", b"two", b"three")
    assert (await press.entry())["versions"] == 2
    await press.service.pages.publisher.close()
    bodies: list[Any] = [await press.service.pages.blobs.get(key) async for key, _ in _blobs(press)]
    assert sorted(bodies) == [b"three", b"two"]


async def test_the_same_page_again_changes_only_its_times(press: Press) -> None:
    await publish(press, b"same")
    before = await press.row(PLACE.meta)
    press.clock.advance(30)
    await publish(press, b"same")
    after = await press.row(PLACE.meta)
    assert (after.s3_key, after.versions) == (before.s3_key, before.versions)
    assert after.generated_at == before.generated_at + 30
    assert len([key async for key, _ in _blobs(press)]) == 1


async def test_bodies_that_nothing_points_to_are_swept_after_an_hour(press: Press) -> None:
    await publish(press, b"kept", b"current")
    blobs = press.service.pages.blobs
    orphan = PLACE.new_blob()
    await blobs.put(orphan, b"of somebody who lost the lease")
    await blobs.put("elsewhere/x", b"not ours")
    await press.service.sweeper.sweep()
    assert await blobs.get(orphan) is not None
    press.clock.advance(3_700)
    assert await press.service.sweeper.sweep() == 1
    assert await blobs.get(orphan) is None
    assert await blobs.get("elsewhere/x") == b"not ours"
    await rollback(press)
    assert await press.text() == "kept"


async def test_pages_that_have_gone_leave_the_lists(press: Press) -> None:
    await press.get()
    await press.store.delete(PLACE.meta)
    await press.service.sweeper.sweep()
    from waystation.pages.tables import Listed

    assert await press.store.count(Listed.query("shop")) == 0


async def test_a_page_whose_body_is_gone_is_generated_anew(press: Press) -> None:
    await press.get()
    meta = await press.row(PLACE.meta)
    await press.service.pages.blobs.delete(meta.s3_key)
    press.service.pages.memory.drop(PLACE)
    answer = await press.get()
    assert answer.body == b"page 2 of /p"
    assert "detail=body-gone" in answer.headers["cache-status"]


def _blobs(press: Press) -> Any:
    return press.service.pages.blobs.walk("pages")
