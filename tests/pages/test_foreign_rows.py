"""Rows that other services have written: odd ones are read on the safe side, and break nothing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from waystation.pages.keeping.places import Place
from waystation.pages.tables import PageLock, PageMeta, PageVariants, PageVersion
from waystation.store import exists, remove, set_to

if TYPE_CHECKING:
    from tests.pages.press import Press

PLACE = Place("shop", "/p")


async def write(press: Press, sort: str = "META", **values: Any) -> None:
    """Write attributes of any kind into one of the page's rows, past our types."""
    kinds = {"META": PageMeta, "LOCK": PageLock, "VARY": PageVariants}
    item: Any = kinds[sort]
    spec, types = item.spec, dict(item.spec.field_types)
    try:
        for name in values:
            spec.field_types[name] = Any
        edits = [remove(n) if v is None else set_to(n, v) for n, v in values.items()]
        await press.store.update(item.key(PLACE.pk), *edits)
    finally:
        spec.field_types.update(types)


async def foreign(press: Press, **more: Any) -> None:
    """A page as another service keeps it."""
    await press.service.pages.blobs.put("theirs.html", b"theirs")
    given: dict[str, Any] = {
        "s3_key": "theirs.html",
        "generated_at": press.store.now(),
        "revalidate_seconds": 60,
    }
    await write(press, **given | more)


async def test_a_page_of_another_service_is_served_as_long_as_it_says(press: Press) -> None:
    await foreign(press)
    press.clock.advance(59)
    assert await press.text() == "theirs"
    press.clock.advance(1)
    assert "detail=expired" in await press.how()


async def test_a_ttl_that_has_passed_does_not_make_a_page_stale(press: Press) -> None:
    """It is for clearing up."""
    await foreign(press, ttl=press.store.now() + 5)
    press.clock.advance(30)
    assert await press.text() == "theirs"


@pytest.mark.parametrize("etag", ["plain", '"quoted"', 'W/"weak"'])
async def test_their_tags_are_understood_with_and_without_quotes(local: Press, etag: str) -> None:
    await foreign(local, etag=etag)
    tag = (await local.get()).headers["etag"]
    assert tag in ('"plain"', '"quoted"', 'W/"weak"')
    assert (await local.get(if_none_match=tag)).status == 304


ODD_META: list[dict[str, Any]] = [
    {"generated_at": "yesterday"},
    {"generated_at": 1_700_000_000_000},
    {"generated_at": -5},
    {"revalidate_seconds": "often"},
    {"revalidate_seconds": 10**15},
    {"revalidate_seconds": -1},
    {"s3_key": 7},
    {"s3_key": ""},
    {"s3_key": "../../etc/passwd"},
    {"s3_key": "not there"},
    {"etag": 7},
    {"etag": 'a"b\r\nSet-Cookie: x=y'},
    {"fence": "seven"},
    {"fence": -1},
    {"fence": 10**20},
    {"status": 42},
    {"status": 1000},
    {"status": 304},
    {"status": 204},
    {"headers": [["content-type", "a\r\nset-cookie: x=y"]]},
    {"headers": [["x\r\nset-cookie: x=y", "b"]]},
    {"headers": [["content-length", "3"], ["transfer-encoding", "chunked"]]},
    {"headers": [["na\u20acme", "b"], ["x", "\u20ac"]]},
    {"headers": "none"},
    {"encodings": ["rot13", 7]},
    {"tags": "a"},
    {"versions": ["a"]},
    {"swr_seconds": 10**15},
    {"ttl": "never"},
]


@pytest.mark.parametrize("given", ODD_META, ids=[str(each)[:40] for each in ODD_META])
async def test_an_odd_row_is_an_answer_and_then_a_page(press: Press, given: dict[str, Any]) -> None:
    await foreign(press, **given)
    host, port = press.server.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /pages/shop/p HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    raw = await reader.read()
    writer.close()
    head, _, body = raw.partition(b"\r\n\r\n")
    assert raw.startswith((b"HTTP/1.1 200 ", b"HTTP/1.1 204 "))
    assert b"set-cookie" not in head.lower()
    assert b"transfer-encoding" not in head.lower()
    assert head.lower().count(b"content-length") <= 1
    assert body in (b"theirs", b"page 1 of /p", b"")
    assert (await press.call("GET", f"{press.base}/entry?path=/p")).status in (200, 404)
    await press.revalidate(all=True, mode="hard")
    assert "stored" in await press.how()
    assert "; hit" in await press.how()


ODD_LOCKS: list[dict[str, Any]] = [
    {"lease_expires_at": 1_700_000_000_000, "lease_token": "t"},
    {"lease_expires_at": "tomorrow", "lease_token": "t"},
    {"lease_token": "t"},
    {"fence": "seven"},
]


@pytest.mark.parametrize("given", ODD_LOCKS, ids=[str(each)[:40] for each in ODD_LOCKS])
async def test_an_odd_lock_is_no_lease(press: Press, given: dict[str, Any]) -> None:
    await write(press, "LOCK", **given)
    async with asyncio.timeout(3):
        assert "stored" in await press.how()


@pytest.mark.parametrize("names", [["\u20ac"], [7], "accept", ["a\r\nb"], []])
async def test_odd_variants_break_nothing(local: Press, names: Any) -> None:
    await write(local, "VARY", names=names)
    for _ in range(2):
        assert (await local.get()).status == 200


async def test_an_odd_version_holds_up_neither_sweeping_nor_going_back(press: Press) -> None:
    for _ in range(2):
        await press.revalidate(all=True, mode="hard")
        await press.get()
    version = PageVersion.key(PLACE.pk, 1)
    await press.store.update(version, set_to("digest", "x"), remove("etag"), when=exists())
    press.clock.advance(4_000)
    await press.service.sweeper.sweep()
    answer = await press.call("POST", f"{press.base}/rollback", {"path": "/p"})
    assert answer.status == 200
    assert await press.text() == "page 1 of /p"
