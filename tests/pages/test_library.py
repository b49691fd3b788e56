"""The page cache in code of one's own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from waystation.blobs import open_blobs
from waystation.errors import InvalidInput
from waystation.pages import TABLES, Page, PageCache
from waystation.store import open_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from waystation.clock import ManualClock
    from waystation.store import Store


@pytest.fixture
async def store(clock: ManualClock) -> AsyncIterator[Store]:
    async with await open_store("sqlite://:memory:", TABLES, clock=clock) as opened:
        yield opened


@pytest.fixture
async def cache(store: Store) -> AsyncIterator[PageCache]:
    opened = PageCache(store, open_blobs("memory:///"), revalidate_seconds=60, swr_seconds=60)
    yield opened
    await opened.close()


class Template:
    """Renders pages with a number."""

    def __init__(self) -> None:
        self.count = 0
        self.error: Exception | None = None

    async def __call__(self) -> str:
        self.count += 1
        if self.error is not None:
            raise self.error
        return f"<p>{self.count}</p>"


async def test_a_page_is_rendered_once_and_served_from_then_on(cache: PageCache) -> None:
    template = Template()
    pages = [await cache.get("/p", template) for _ in range(3)]
    assert [page.body for page in pages] == [b"<p>1</p>"] * 3
    assert pages[0].content_type == "text/html; charset=utf-8"
    assert pages[2].cache_status == "waystation; hit; ttl=60"


async def test_a_stale_page_is_served_while_another_is_rendered(
    cache: PageCache, clock: ManualClock
) -> None:
    template = Template()
    await cache.get("/p", template)
    clock.advance(61)
    assert (await cache.get("/p", template)).body == b"<p>1</p>"
    await cache.close()
    assert (await cache.get("/p", template)).body == b"<p>2</p>"


async def test_an_error_is_raised_where_there_is_no_old_page(cache: PageCache) -> None:
    template = Template()
    template.error = ValueError("no such product")
    with pytest.raises(ValueError, match="no such product"):
        await cache.get("/p", template)


async def test_and_an_old_page_given_where_there_is_one(
    cache: PageCache, clock: ManualClock
) -> None:
    template = Template()
    await cache.get("/p", template)
    clock.advance(600)
    template.error = ValueError("no such product")
    page = await cache.get("/p", template)
    assert page.body == b"<p>1</p>"
    assert "origin-failed" in page.cache_status


async def test_a_page_may_last_shorter_than_others(cache: PageCache, clock: ManualClock) -> None:
    async def render() -> Page:
        return Page(body=b"soon old", revalidate_seconds=5, tags=["a"])

    await cache.get("/p", render)
    (entry,) = await cache.inspect("/p")
    assert (entry.revalidate_seconds, entry.tags) == (5, ("a",))


async def test_pages_are_purged_by_tag(cache: PageCache) -> None:
    template = Template()

    async def render() -> Page:
        return Page(body=await template(), tags=["blog"])

    await cache.get("/p", render)
    await cache.revalidate(tag="blog", mode="hard")
    assert (await cache.get("/p", render)).body == b"<p>2</p>"
    await cache.rollback("/p")
    assert (await cache.get("/p", render)).body == b"<p>1</p>"


async def test_a_missing_page_is_a_page(cache: PageCache) -> None:
    async def render() -> Page:
        return Page(body="not here", status=404)

    assert [(await cache.get("/p", render)).status for _ in range(2)] == [404, 404]


async def test_without_tenants_the_key_is_the_documents_for_one(
    cache: PageCache, store: Store
) -> None:
    await cache.get("/p", Template())
    (entry,) = await cache.inspect("/p")
    assert entry.place.pk == f"CACHE#{entry.place.key_hash}"


async def test_tenants_have_pages_of_their_own(store: Store) -> None:
    cache = PageCache(store, open_blobs("memory:///"), tenants=True)
    template = Template()
    for tenant in ("ann", "bob", "ann"):
        await cache.get("/p", template, tenant=tenant)
    assert template.count == 2
    await cache.revalidate(all=True, tenant="ann", mode="hard")
    await cache.get("/p", template, tenant="bob")
    assert template.count == 2


@pytest.mark.parametrize("tenant", [None, "", "a#b", "a/b", "=", "a" * 101])
async def test_pages_of_nobody_are_refused(store: Store, tenant: Any) -> None:
    cache = PageCache(store, open_blobs("memory:///"), tenants=True)
    with pytest.raises(InvalidInput) as refused:
        await cache.get("/p", Template(), tenant=tenant)
    assert refused.value.field == "tenant"


async def test_a_tenant_is_refused_where_there_are_none(cache: PageCache) -> None:
    with pytest.raises(InvalidInput, match="tenants=True"):
        await cache.get("/p", Template(), tenant="ann")


async def test_renders_are_shared_by_who_asks_at_the_same_time(cache: PageCache) -> None:
    template, gate = Template(), asyncio.Event()

    async def render() -> str:
        await gate.wait()
        return await template()

    asking = [asyncio.create_task(cache.get("/p", render)) for _ in range(100)]
    await asyncio.sleep(0)
    gate.set()
    assert {page.body for page in await asyncio.gather(*asking)} == {b"<p>1</p>"}
