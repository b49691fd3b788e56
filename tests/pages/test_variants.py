"""Pages that depend on request headers, cookies, query parameters and what a client can decode."""

from __future__ import annotations

import gzip
import os
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
import zstandard

from tests.pages.press import Made

if TYPE_CHECKING:
    from tests.pages.press import Press


def by_header(name: str, *more: tuple[str, str]) -> Any:
    """An origin whose pages say what a request header was."""

    def decide(request: Any) -> Made:
        body = f"for {request.headers.get(name)}".encode()
        return Made(body, headers=[("Vary", name), *more])

    return decide


async def test_each_visitor_gets_the_page_for_their_header(press: Press) -> None:
    press.origin.decide = by_header("Accept-Language")
    for _ in range(2):
        assert await press.text(accept_language="de") == "for de"
        assert await press.text(accept_language="en") == "for en"
        assert await press.text() == "for None"
    assert press.origin.count == 3


SAME = [
    ("accept-language", "en, de", "de, en"),
    ("accept-language", "en, de", "EN,De"),
    ("accept-language", "en, de;q=0.5", " en ,  de;q=0.5"),
    ("x-thing", "1, 2", "1,2"),
]


@pytest.mark.parametrize(("name", "one", "other"), SAME)
async def test_spellings_of_one_header_are_one_page(
    local: Press, name: str, one: str, other: str
) -> None:
    local.origin.decide = by_header(name)
    await local.get(**{name: one})
    assert "; hit" in await local.how(**{name: other})


@pytest.mark.parametrize(("one", "other"), [("a", "b"), ("a", "A"), ("1, 2", "2, 1")])
async def test_headers_of_no_known_meaning_are_taken_as_they_are(
    local: Press, one: str, other: str
) -> None:
    local.origin.decide = by_header("X-Thing")
    await local.get(x_thing=one)
    assert "fwd=vary-miss" in await local.how(x_thing=other)


async def test_a_page_that_comes_to_depend_on_a_header_is_not_for_everyone_any_more(
    press: Press,
) -> None:
    await press.get()
    press.clock.advance(60)
    press.origin.decide = by_header("X-Thing")
    await press.get(x_thing="1")
    await press.settle()
    assert await press.text(x_thing="2") == "for 2"
    assert await press.text(x_thing="1") == "for 1"


async def test_pages_that_differ_in_what_they_depend_on_are_told_apart(local: Press) -> None:
    local.origin.decide = by_header("X-A")
    await local.get(x_a="1", x_b="1")
    local.origin.decide = by_header("X-B")
    assert await local.text(x_a="2", x_b="2") == "for 2"
    assert await local.text(x_a="2", x_b="3") == "for 3"


async def test_a_list_of_headers_keeps_pages_apart_although_the_origin_is_silent(
    press: Press,
) -> None:
    await press.put(vary=["X-Device"])
    one = await press.get(x_device="phone")
    other = await press.get(x_device="desk")
    assert one.body != other.body
    assert one.headers["vary"] == "x-device"
    assert "; hit" in await press.how(x_device="phone")


async def test_a_page_that_depends_on_an_unlisted_header_is_not_kept(local: Press) -> None:
    await local.put(vary=["X-Device"])
    local.origin.decide = by_header("X-Other")
    assert "detail=vary" in await local.how(x_other="1")
    assert await local.text(x_other="2") == "for 2"


async def test_a_purge_is_about_all_variants_of_a_path(local: Press) -> None:
    local.origin.decide = by_header("X-Thing")
    for thing in ("1", "2"):
        await local.get(x_thing=thing)
    await local.revalidate(path="/p", mode="hard")
    for thing in ("1", "2"):
        assert "detail=purged" in await local.how(x_thing=thing)


# Cookies


async def test_a_page_of_which_the_origin_says_nothing_is_not_kept_from_a_cookies_owner(
    local: Press,
) -> None:
    """It may be theirs alone."""
    assert "detail=cookie" in await local.how(cookie="session=1")
    assert await local.text() == "page 2 of /p"


async def test_and_not_given_to_one(local: Press) -> None:
    await local.get()
    answer = await local.get(cookie="session=1")
    assert answer.body == b"page 2 of /p"
    assert "fwd=bypass" in answer.headers["cache-status"]
    assert local.origin.last.headers["Cookie"] == "session=1"
    assert await local.text() == "page 1 of /p"


async def test_a_page_that_says_how_long_it_lasts_is_for_cookies_owners_too(local: Press) -> None:
    local.origin.say("Cache-Control: public, max-age=60")
    await local.get(cookie="session=1")
    assert "; hit" in await local.how(cookie="session=2")


async def test_pages_by_cookie_are_each_their_owners(local: Press) -> None:
    local.origin.decide = by_header("Cookie", ("Cache-Control", "max-age=60"))
    for _ in range(2):
        assert await local.text(cookie="a=1") == "for a=1"
        assert await local.text(cookie="a=2") == "for a=2"


async def test_a_site_may_ignore_cookies(local: Press) -> None:
    await local.put(ignore_cookies=True)
    await local.get(cookie="tracker=1")
    assert "Cookie" not in local.origin.last.headers
    assert "; hit" in await local.how(cookie="tracker=2")


async def test_a_page_that_sets_a_cookie_is_kept_where_the_site_says_so(local: Press) -> None:
    local.origin.say("Set-Cookie: a=b")
    assert "detail=set-cookie" in await local.how()
    await local.put(cache_set_cookie=True)
    await local.get("/q")
    assert (await local.get("/q")).headers["set-cookie"] == "a=b"


# Queries


async def test_a_query_is_part_of_a_page(local: Press) -> None:
    assert await local.text("/p?a=1") != await local.text("/p?a=2")


async def test_where_a_visitor_comes_from_is_not(local: Press) -> None:
    await local.get("/p?a=1&utm_source=x&fbclid=y")
    assert local.origin.last.path_qs == "/p?a=1"
    assert "; hit" in await local.how("/p?utm_campaign=z&a=1")
    assert "; hit" in await local.how("/p?a=1&%75tm_medium=z")


async def test_which_parameters_do_not_matter_is_the_sites_to_say(local: Press) -> None:
    await local.put(ignore_params=["ref", "x_*"])
    await local.get("/p?ref=1&x_a=2")
    assert "; hit" in await local.how("/p")
    assert "; hit" not in await local.how("/p?utm_source=1")


# Encodings

DECODE: dict[str | None, Any] = {
    "zstd": zstandard.decompress,
    "gzip": gzip.decompress,
    None: bytes,
}
TEXT = b"<p>the same words again and again</p>\n" * 200


@pytest.mark.parametrize(
    ("accepts", "encoding"),
    [
        ("zstd, gzip", "zstd"),
        ("gzip, deflate, br", "gzip"),
        ("gzip;q=0.5, zstd;q=0.4", "gzip"),
        ("*", "zstd"),
        ("identity", None),
        ("gzip;q=0", None),
        ("", None),
        ("identity;q=1, gzip;q=0.5", None),
    ],
)
async def test_a_page_is_sent_in_an_encoding_that_the_client_takes(
    local: Press, accepts: str, encoding: str | None
) -> None:
    local.origin.say('ETag: "x"', body=TEXT)
    async with aiohttp.ClientSession(local.server.url, auto_decompress=False) as http:
        sent = {"Accept-Encoding": accepts}
        async with http.get("/pages/shop/p", headers=sent) as answer:
            assert answer.headers.get("Content-Encoding") == encoding
            assert answer.headers["Vary"] == "accept-encoding"
            assert answer.headers["ETag"] == ('"x"' if encoding is None else 'W/"x"')
            assert DECODE[encoding](await answer.read()) == TEXT
    assert local.origin.last.headers["Accept-Encoding"] == "identity"


async def test_bodies_are_encoded_once_and_kept(press: Press) -> None:
    press.origin.say(body=TEXT)
    await press.get()
    blob = (await press.entry())["blob"]
    blobs = press.service.pages.blobs
    assert await blobs.get(blob) == TEXT
    assert gzip.decompress(await blobs.get(blob + ".gz") or b"") == TEXT
    assert zstandard.decompress(await blobs.get(blob + ".zst") or b"") == TEXT


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (["Content-Type: image/png"], TEXT),
        (["Cache-Control: max-age=60, no-transform"], TEXT),
        ([], b"short"),
        (["Content-Type: text/plain"], os.urandom(5_000)),
    ],
)
async def test_some_bodies_are_left_as_they_are(
    local: Press, headers: list[str], body: bytes
) -> None:
    local.origin.say(*headers, body=body)
    await local.get()
    assert (await local.entry())["encodings"] == []


async def test_a_part_is_of_the_plain_body(local: Press) -> None:
    local.origin.say('ETag: "x"', body=TEXT)
    await local.get()
    answer = await local.get(range="bytes=0-4", accept_encoding="gzip", if_range='"x"')
    assert (answer.status, answer.body) == (206, TEXT[:5])
    assert "content-encoding" not in answer.headers


async def test_the_tag_of_an_encoded_page_is_good_for_asking_again(local: Press) -> None:
    local.origin.say(body=TEXT)
    tag = (await local.get(accept_encoding="gzip")).headers["etag"]
    assert tag.startswith('W/"')
    for accepts in ("gzip", "identity"):
        assert (await local.get(if_none_match=tag, accept_encoding=accepts)).status == 304


async def test_a_page_that_the_origin_encoded_goes_to_those_who_take_it(local: Press) -> None:
    packed = gzip.compress(b"hello")
    local.origin.say(
        "Content-Encoding: gzip", "Vary: Accept-Encoding", "Cache-Control: max-age=60", body=packed
    )
    await local.get(accept_encoding="gzip")
    assert "; hit" in await local.how(accept_encoding="gzip")
    assert "fwd=bypass" in await local.how(accept_encoding="identity")
