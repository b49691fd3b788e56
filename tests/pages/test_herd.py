"""Many who want one page: it is generated once, and nobody waits who need not."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import aiohttp

from tests.pages.press import Press, press_at
from tests.support.lives import process
from tests.support.site import SECRET

if TYPE_CHECKING:
    from pathlib import Path

    from tests.pages.press import Origin
    from waystation.clock import ManualClock

HERD = 1_000


async def together(press: Press, count: int = HERD) -> list[Any]:
    """The answers to many requests over as many connections."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(press.server.url, connector=connector) as http:

        async def one() -> tuple[int, bytes, str]:
            async with http.get("/pages/shop/p") as answer:
                return answer.status, await answer.read(), answer.headers["Cache-Status"]

        return await asyncio.gather(*(one() for _ in range(count)))


def gathering(press: Press, count: int) -> asyncio.Event:
    """Set when so many wait for a page to be generated."""
    regeneration: Any = press.service.pages.regeneration
    run, here, all_here = regeneration.run, 0, asyncio.Event()

    async def counted(*given: Any) -> Any:
        nonlocal here
        here += 1
        if here == count:
            all_here.set()
        return await run(*given)

    regeneration.run = counted
    return all_here


async def test_a_thousand_who_want_a_new_page_have_it_generated_once(press: Press) -> None:
    press.origin.gate = asyncio.Event()
    all_here = gathering(press, HERD)
    herd = asyncio.create_task(together(press))
    await all_here.wait()
    press.origin.gate.set()
    answers = await herd
    assert {(status, body) for status, body, _ in answers} == {(200, b"page 1 of /p")}
    assert press.origin.count == 1


async def test_a_thousand_who_want_a_stale_page_have_it_at_once(press: Press) -> None:
    await press.get()
    press.clock.advance(60)
    press.origin.gate = asyncio.Event()  # nothing new comes before they have their answers
    answers = await together(press)
    assert {(status, body) for status, body, _ in answers} == {(200, b"page 1 of /p")}
    press.origin.gate.set()
    await press.settle()
    assert press.origin.count == 2


async def test_two_processes_generate_a_page_once(
    clock: ManualClock, origin: Origin, tmp_path: Path
) -> None:
    where = {"store": f"sqlite:///{tmp_path}/w.db", "blobs": f"file:{tmp_path}/blobs"}
    async with press_at(clock, origin, **where) as one, press_at(clock, origin, **where) as other:
        origin.gate = asyncio.Event()
        all_here = [gathering(each, 50) for each in (one, other)]
        herd = asyncio.gather(together(one, 50), together(other, 50))
        for each in all_here:
            await each.wait()
        origin.gate.set()
        answers = [answer for part in await herd for answer in part]
        assert {body for _, body, _ in answers} == {b"page 1 of /p"}
        assert origin.count == 1


async def test_who_cannot_wait_for_the_lease_gets_a_page_that_is_not_kept(
    clock: ManualClock, origin: Origin, tmp_path: Path
) -> None:
    where = {"store": f"sqlite:///{tmp_path}/w.db", "blobs": f"file:{tmp_path}/blobs"}
    async with press_at(clock, origin, **where) as one, press_at(clock, origin, **where) as other:
        other.service.pages.regeneration.wait_seconds = 0.1
        origin.gate = asyncio.Event()
        first = asyncio.create_task(one.get())
        await origin.arrived.wait()
        second = asyncio.create_task(other.get())
        while origin.count < 2:
            await asyncio.sleep(0.01)
        origin.gate.set()
        assert "detail=busy" in (await second).headers["cache-status"]
        assert "stored" in (await first).headers["cache-status"]


async def test_what_is_not_for_everyone_is_not_shared_with_those_who_waited(local: Press) -> None:
    local.origin.say("Cache-Control: private")
    local.origin.gate = asyncio.Event()
    all_here = gathering(local, 20)
    herd = asyncio.create_task(together(local, 20))
    await all_here.wait()
    local.origin.gate.set()
    bodies = {body for _, body, _ in await herd}
    assert len(bodies) == 20


async def test_a_visitor_who_leaves_takes_nothing_from_those_who_wait(local: Press) -> None:
    local.origin.gate = asyncio.Event()
    async with aiohttp.ClientSession(local.server.url) as http:
        leaver = asyncio.create_task(http.get("/pages/shop/p"))
        await local.origin.arrived.wait()
        stayer = asyncio.create_task(local.get())
        await asyncio.sleep(0.1)
        leaver.cancel()
        await asyncio.sleep(0.1)
        local.origin.gate.set()
        assert (await stayer).body == b"page 1 of /p"
    assert local.origin.count == 1


async def test_a_page_whose_renderer_was_killed_is_generated_within_the_lease(
    origin: Origin, tmp_path: Path
) -> None:
    """Killed for good, in the middle of it; its successor's clock says that the lease is over."""
    origin.clock = time.time
    settings: dict[str, Any] = {
        "store": f"sqlite:///{tmp_path}/w.db",
        "blobs": f"file:{tmp_path}/blobs",
        "secret_key": SECRET,
    }
    key, body = None, {"origin": origin.url, "revalidate_seconds": 3_600}
    origin.gate = asyncio.Event()
    async with process(settings, "all", 0) as (started, url):
        from tests.support.site import settings_with
        from waystation.server.runtime import running

        async with running(settings_with(**settings)) as runtime:
            accounts = runtime.provided["accounts"]
            user = await accounts.find_or_open("ann@example.com")
            _, key = await accounts.keys.create(user.user_id, "test", "admin")
        headers = {"Authorization": f"Bearer {key}"}
        async with aiohttp.ClientSession(url, headers=headers) as http:
            async with http.put("/v1/pages/sites/shop", json=body) as answer:
                assert answer.status == 200
            waiting = asyncio.create_task(http.get("/pages/shop/p"))
            await origin.arrived.wait()
            started.kill()
            await asyncio.gather(waiting, return_exceptions=True)
    origin.gate.set()
    origin.say()
    async with process(settings, "all", 17) as (_, url), aiohttp.ClientSession(url) as http:
        for expected in ("stored", "; hit"):
            async with http.get("/pages/shop/p") as answer:
                assert await answer.read() == b"page 2 of /p"
                assert expected in answer.headers["Cache-Status"]
