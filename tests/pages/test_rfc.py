"""A table of what HTTP's documents say about caches, each row tried over sockets.

A row is what the origin says, how much later the page is asked for again, with which headers, and
whether it may come from the cache then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from waystation.pages.http.fields import format_date

if TYPE_CHECKING:
    from tests.pages.press import Press

HIT, MISS = True, False
DAY = 86_400

FRESHNESS: list[tuple[str, list[str], int, bool]] = [
    ("max-age", ["Cache-Control: max-age=60"], 59, HIT),
    ("max-age over", ["Cache-Control: max-age=60"], 60, MISS),
    ("s-maxage before max-age", ["Cache-Control: max-age=1, s-maxage=60"], 30, HIT),
    ("s-maxage shorter", ["Cache-Control: max-age=60, s-maxage=1"], 30, MISS),
    ("names in any case", ["cache-control: MAX-AGE=60"], 30, HIT),
    ("quoted", ['Cache-Control: max-age="60"'], 30, HIT),
    ("in someone else's quotes", ['Cache-Control: x="max-age=60", max-age=1'], 30, MISS),
    ("single quotes", ["Cache-Control: max-age='60'"], 0, MISS),
    ("negative", ["Cache-Control: max-age=-60"], 0, MISS),
    ("fraction", ["Cache-Control: max-age=60.0"], 0, MISS),
    ("space before the sign", ["Cache-Control: max-age =60"], 0, MISS),
    ("two of them", ["Cache-Control: max-age=60, max-age=61"], 0, MISS),
    ("on two lines", ["Cache-Control: max-age=60", "Cache-Control: max-age=1"], 0, MISS),
    ("leading zeros", ["Cache-Control: max-age=0060"], 30, HIT),
    ("more than 32 bits", ["Cache-Control: max-age=99999999999"], DAY, HIT),
    ("an age of its own", ["Cache-Control: max-age=60", "Age: 30"], 29, HIT),
    ("older than it lasts", ["Cache-Control: max-age=60", "Age: 30"], 30, MISS),
    ("an age that is none", ["Cache-Control: max-age=60", "Age: old"], 59, HIT),
    ("the first of two ages", ["Cache-Control: max-age=60", "Age: 30, 0"], 30, MISS),
    ("an expiry", ["Expires: +60"], 59, HIT),
    ("an expiry that has come", ["Expires: +60"], 60, MISS),
    ("an expiry that is no date", ["Expires: 0"], 0, MISS),
    ("two expiries", ["Expires: +60", "Expires: +61"], 0, MISS),
    ("max-age before an expiry", ["Cache-Control: max-age=1", "Expires: +60"], 2, MISS),
    ("an expiry counts from the date", ["Expires: +60", "Date: +50"], 11, MISS),
    ("a date long past", ["Cache-Control: max-age=60", "Date: -100"], 0, MISS),
    (
        "for caches like this one",
        ["Cache-Control: no-store", "CDN-Cache-Control: max-age=9"],
        8,
        HIT,
    ),
    ("not even there", ["Cache-Control: max-age=9", "CDN-Cache-Control: no-store"], 0, MISS),
    ("malformed there", ["Cache-Control: no-store", "CDN-Cache-Control: max-age=9, &"], 0, MISS),
    ("no-store", ["Cache-Control: no-store"], 0, MISS),
    ("no-store in any case", ["Cache-Control: max-age=60, No-StOrE"], 0, MISS),
    ("private", ["Cache-Control: private, max-age=60"], 0, MISS),
    ("private fields only", ['Cache-Control: private="x", max-age=60'], 30, HIT),
    ("a quote that never ends", ['Cache-Control: max-age=60, private="x'], 0, MISS),
    ("no-cache", ["Cache-Control: no-cache, max-age=60"], 0, MISS),
    ("no-cache for fields only", ['Cache-Control: no-cache="x", max-age=60'], 30, HIT),
    ("vary on everything", ["Cache-Control: max-age=60", "Vary: *"], 0, MISS),
    ("vary on everything among others", ["Cache-Control: max-age=60", "Vary: a, *"], 0, MISS),
    ("a cookie is set", ["Cache-Control: max-age=60", "Set-Cookie: a=b"], 0, MISS),
    ("must-understand", ["Cache-Control: max-age=60, no-store, must-understand"], 59, HIT),
]


def dated(lines: list[str], now: float) -> list[str]:
    """Lines in which `+60` is a minute from now."""
    found = []
    for line in lines:
        name, value = line.split(": ", 1)
        if name in ("Expires", "Date") and value[0] in "+-":
            value = format_date(now + int(value)).decode()
        found.append(f"{name}: {value}")
    return found


@pytest.mark.parametrize(
    ("said", "later", "expected"), [row[1:] for row in FRESHNESS], ids=[row[0] for row in FRESHNESS]
)
async def test_how_long_a_response_lasts(
    local: Press, said: list[str], later: int, expected: bool
) -> None:
    await local.put(revalidate_seconds=365 * DAY, swr_seconds=0, sie_seconds=0)
    local.origin.say(*dated(said, local.clock()))
    await local.get()
    local.clock.advance(later)
    local.origin.say()
    assert ("; hit" in await local.how()) is expected
    assert local.origin.count == (1 if expected else 2)


STATUSES = [
    *((status, HIT) for status in (200, 203, 204, 300, 301, 308, 404, 410)),
    *((status, MISS) for status in (201, 202, 302, 303, 307, 400, 403, 500, 502, 503, 504)),
]


@pytest.mark.parametrize(("status", "expected"), STATUSES)
async def test_which_statuses_are_kept_without_being_told(
    local: Press, status: int, expected: bool
) -> None:
    local.origin.say(status=status)
    assert (await local.get()).status == status
    assert ("; hit" in await local.how()) is expected


@pytest.mark.parametrize("status", [200, 299, 302, 404, 451, 503])
async def test_any_final_status_is_kept_if_it_says_so(local: Press, status: int) -> None:
    local.origin.say("Cache-Control: max-age=60", status=status)
    assert (await local.get()).status == status
    again = await local.get()
    assert again.status == status
    assert "; hit" in again.headers["cache-status"]


async def test_a_part_is_never_kept_as_the_whole(local: Press) -> None:
    local.origin.say(
        "Cache-Control: max-age=60", "Content-Range: bytes 0-1/9", body=b"ab", status=206
    )
    assert (await local.get()).status == 206
    local.origin.say(body=b"abcdefghi")
    assert await local.text() == "abcdefghi"


ASKED: list[tuple[str, str, dict[str, str], int, bool]] = [
    ("no-cache", "max-age=60", {"cache_control": "no-cache"}, 0, MISS),
    ("pragma", "max-age=60", {"pragma": "no-cache"}, 0, MISS),
    ("pragma beside cache-control", "max-age=60",
     {"pragma": "no-cache", "cache_control": "max-age=30"}, 0, HIT),
    ("max-age", "max-age=60", {"cache_control": "max-age=10"}, 10, HIT),
    ("max-age over", "max-age=60", {"cache_control": "max-age=10"}, 11, MISS),
    ("max-age=0 at once", "max-age=60", {"cache_control": "max-age=0"}, 1, MISS),
    ("min-fresh", "max-age=60", {"cache_control": "min-fresh=10"}, 49, HIT),
    ("min-fresh over", "max-age=60", {"cache_control": "min-fresh=10"}, 50, MISS),
    ("max-stale", "max-age=60", {"cache_control": "max-stale=10"}, 70, HIT),
    ("max-stale over", "max-age=60", {"cache_control": "max-stale=10"}, 71, MISS),
    ("max-stale without a number", "max-age=60", {"cache_control": "max-stale"}, 999, HIT),
    ("max-stale against must-revalidate", "max-age=60, must-revalidate",
     {"cache_control": "max-stale"}, 61, MISS),
    ("max-stale against s-maxage", "s-maxage=60", {"cache_control": "max-stale"}, 61, MISS),
    ("no-store", "max-age=60", {"cache_control": "no-store"}, 0, HIT),
    ("authorization", "max-age=60", {"authorization": "Basic eDp5"}, 0, HIT),
    ("cookie", "max-age=60", {"cookie": "a=b"}, 0, HIT),
]  # fmt: skip


@pytest.mark.parametrize(
    ("said", "asked", "later", "expected"), [row[1:] for row in ASKED], ids=[r[0] for r in ASKED]
)
async def test_what_a_request_may_ask_for(
    local: Press, said: str, asked: dict[str, str], later: int, expected: bool
) -> None:
    await local.put(revalidate_seconds=DAY, swr_seconds=0, sie_seconds=0)
    local.origin.say(f"Cache-Control: {said}")
    await local.get()
    local.clock.advance(later)
    assert ("; hit" in await local.how(**asked)) is expected


async def test_only_if_cached_never_reaches_the_origin(local: Press) -> None:
    answer = await local.get(cache_control="only-if-cached")
    assert answer.status == 504
    assert local.origin.count == 0
    await local.get()
    assert (await local.get(cache_control="only-if-cached")).status == 200


async def test_what_was_asked_for_with_no_store_is_not_kept(local: Press) -> None:
    await local.get(cache_control="no-store")
    assert "fwd=uri-miss" in await local.how()


@pytest.mark.parametrize("stale", ["must-revalidate", "proxy-revalidate", "no-cache", "s-maxage=2"])
async def test_a_stale_window_yields_to_what_the_origin_forbids(local: Press, stale: str) -> None:
    await local.put(swr_seconds=DAY, sie_seconds=DAY)
    local.origin.say(f"Cache-Control: max-age=2, {stale}")
    await local.get()
    local.clock.advance(3)
    local.origin.fail()
    assert (await local.get(cache_control="max-stale")).status == 503


AUTHORIZED = [
    ("max-age=60", MISS),
    ("public, max-age=60", HIT),
    ("must-revalidate, max-age=60", HIT),
    ("s-maxage=60", HIT),
]


@pytest.mark.parametrize(("said", "expected"), AUTHORIZED)
async def test_answers_to_those_who_signed_in_are_kept_only_if_they_say_so(
    local: Press, said: str, expected: bool
) -> None:
    local.origin.say(f"Cache-Control: {said}")
    await local.get(authorization="Basic eDp5")
    assert local.origin.last.headers["Authorization"] == "Basic eDp5"
    assert ("; hit" in await local.how()) is expected


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "M-SEARCH"])
async def test_what_may_change_a_page_purges_it(local: Press, method: str) -> None:
    for path in ("/p", "/other", "/new", "/also"):
        await local.get(path)
    local.origin.say("Location: /new", "Content-Location: /also", body=b"done", status=201)
    answer = await local.get("/p", method)
    assert (answer.status, answer.body) == (201, b"done")
    assert "fwd=method" in answer.headers["cache-status"]
    local.origin.say()
    for path in ("/p", "/new", "/also"):
        assert "fwd=stale" in await local.how(path), path
    assert "; hit" in await local.how("/other")


async def test_what_failed_to_change_a_page_purges_nothing(local: Press) -> None:
    await local.get()
    local.origin.fail(500)
    await local.get("/p", "POST")
    assert "; hit" in await local.how()


async def test_options_is_passed_on_and_purges_nothing(local: Press) -> None:
    await local.get()
    await local.get("/p", "OPTIONS")
    assert local.origin.last.method == "OPTIONS"
    assert "; hit" in await local.how()


async def test_headers_of_a_connection_are_not_passed_on(local: Press) -> None:
    local.origin.say("Connection: x-hop", "X-Hop: 1", "Keep-Alive: timeout=5", "X-End: 2")
    for answer in (await local.get(), await local.get()):
        assert answer.headers["x-end"] == "2"
        assert "x-hop" not in answer.headers
        assert "keep-alive" not in answer.headers
    await local.get("/q", connection="x-mine", x_mine="1", x_theirs="2", te="trailers")
    sent = local.origin.last.headers
    assert sent["x-theirs"] == "2"
    assert "x-mine" not in sent
    assert "te" not in sent


async def test_the_date_is_the_origins(local: Press) -> None:
    date = format_date(local.clock() - 5).decode()
    local.origin.say(f"Date: {date}", "Cache-Control: max-age=60")
    await local.get()
    local.clock.advance(10)
    answer = await local.get()
    assert (answer.headers["date"], answer.headers["age"]) == (date, "15")


def row_of(answer: Any) -> tuple[int, bytes]:
    return answer.status, answer.body


VALIDATORS = [
    ({"if_none_match": '"x"'}, 304),
    ({"if_none_match": 'W/"x"'}, 304),
    ({"if_none_match": '"a", "x"'}, 304),
    ({"if_none_match": "*"}, 304),
    ({"if_none_match": '"y"'}, 200),
    ({"if_none_match": "x"}, 200),
    ({"if_none_match": '"y"', "if_modified_since": "Tue, 01 Jan 2030 00:00:00 GMT"}, 200),
    ({"if_modified_since": "Wed, 01 Jan 2020 00:00:00 GMT"}, 304),
    ({"if_modified_since": "Wednesday, 01-Jan-20 00:00:00 GMT"}, 304),
    ({"if_modified_since": "Wed Jan  1 00:00:00 2020"}, 304),
    ({"if_modified_since": "Tue, 31 Dec 2019 23:59:59 GMT"}, 200),
    ({"if_modified_since": "yesterday"}, 200),
]


@pytest.mark.parametrize(("asked", "status"), VALIDATORS)
async def test_who_has_a_page_is_told_so(local: Press, asked: dict[str, str], status: int) -> None:
    local.origin.say('ETag: "x"', "Last-Modified: Wed, 01 Jan 2020 00:00:00 GMT", "Vary: accept")
    await local.get(accept="a")
    answer = await local.get(accept="a", **asked)
    assert answer.status == status
    assert "; hit" in answer.headers["cache-status"]
    if status == 304:
        assert answer.body == b""
        assert answer.headers["etag"] == '"x"'
        assert answer.headers["vary"] == "accept"
        assert "content-length" not in answer.headers
        assert "content-type" not in answer.headers


async def test_the_origin_is_asked_whether_a_stale_page_has_changed(local: Press) -> None:
    local.origin.say(
        'ETag: "x"', "Cache-Control: max-age=10, must-revalidate", "X-A: 1", "X-B: 1", body=b"one"
    )
    await local.get()
    local.clock.advance(11)
    local.origin.say('ETag: "x"', "Cache-Control: max-age=20", "X-A: 2", status=304)
    answer = await local.get()
    assert local.origin.last.headers["If-None-Match"] == '"x"'
    assert row_of(answer) == (200, b"one")
    assert (answer.headers["x-a"], answer.headers["x-b"]) == ("2", "1")
    assert answer.headers["age"] == "0"
    local.clock.advance(19)
    assert "; hit" in await local.how()


async def test_a_page_that_has_changed_takes_the_old_ones_place(local: Press) -> None:
    local.origin.say('ETag: "x"', "Cache-Control: max-age=10, must-revalidate", body=b"one")
    await local.get()
    local.clock.advance(11)
    local.origin.say('ETag: "y"', "Cache-Control: max-age=10", body=b"two")
    assert await local.text() == "two"
    assert (await local.get(if_none_match='"y"')).status == 304


async def test_a_304_about_another_page_is_not_believed(local: Press) -> None:
    local.origin.say('ETag: "x"', "Cache-Control: max-age=10, must-revalidate", body=b"one")
    await local.get()
    local.clock.advance(11)

    def decide(request: Any) -> Any:
        from tests.pages.press import Made

        if "If-None-Match" in request.headers:
            return Made(status=304, headers=[("ETag", '"z"')])
        return Made(b"two", headers=[("ETag", '"y"')])

    local.origin.decide = decide
    assert await local.text() == "two"


RANGES = [
    ("bytes=0-1", 206, b"ab", "bytes 0-1/6"),
    ("bytes=4-", 206, b"ef", "bytes 4-5/6"),
    ("bytes=-2", 206, b"ef", "bytes 4-5/6"),
    ("bytes=-99", 206, b"abcdef", "bytes 0-5/6"),
    ("bytes=2-99", 206, b"cdef", "bytes 2-5/6"),
    ("bytes=6-", 416, b"", "bytes */6"),
    ("bytes=-0", 416, b"", "bytes */6"),
    ("bytes=3-2", 200, b"abcdef", None),
    ("bytes=0-1,3-4", 200, b"abcdef", None),
    ("lines=0-1", 200, b"abcdef", None),
]


@pytest.mark.parametrize(("asked", "status", "body", "shown"), RANGES)
async def test_parts_of_a_page(
    local: Press, asked: str, status: int, body: bytes, shown: str | None
) -> None:
    local.origin.say('ETag: "x"', body=b"abcdef")
    await local.get()
    answer = await local.get(range=asked)
    assert row_of(answer) == (status, body)
    assert answer.headers.get("content-range") == shown


@pytest.mark.parametrize(("tag", "status"), [('"x"', 206), ('"y"', 200), ('W/"x"', 200)])
async def test_a_part_only_of_what_the_client_has(local: Press, tag: str, status: int) -> None:
    local.origin.say('ETag: "x"', body=b"abcdef")
    await local.get()
    assert (await local.get(range="bytes=0-1", if_range=tag)).status == status


async def test_head_is_answered_from_the_page(local: Press) -> None:
    local.origin.say(body=b"abcdef")
    await local.get()
    answer = await local.get(method="HEAD")
    assert row_of(answer) == (200, b"")
    assert answer.headers["content-length"] == "6"
    assert local.origin.count == 1


async def test_head_goes_to_the_origin_as_head_and_keeps_nothing(local: Press) -> None:
    local.origin.say(body=b"abcdef")
    answer = await local.get(method="HEAD")
    assert answer.headers["content-length"] == "6"
    assert local.origin.last.method == "HEAD"
    assert await local.text() == "abcdef"


async def test_head_that_contradicts_a_stale_page_purges_it(local: Press) -> None:
    await local.put(swr_seconds=0)
    local.origin.say('ETag: "x"', "Cache-Control: max-age=60, stale-if-error=600")
    await local.get()
    local.clock.advance(61)
    local.origin.say('ETag: "y"')
    await local.get(method="HEAD")
    assert (await local.entry())["state"] == "purged"


async def test_the_status_of_caches_behind_us_is_kept(local: Press) -> None:
    local.origin.say("Cache-Status: inner; hit")
    await local.get()
    assert (await local.how()).startswith("inner; hit, waystation; hit; ttl=")


async def test_a_page_that_is_confirmed_without_a_date_is_as_new_as_the_answer(
    local: Press,
) -> None:
    from tests.pages.press import Made

    local.origin.say('ETag: "x"', "Cache-Control: max-age=10, must-revalidate")
    await local.get()
    local.clock.advance(100)
    date = format_date(local.clock()).decode()
    local.origin.made = Made(status=304, headers=[("ETag", '"x"'), ("Date", date)])
    assert (await local.get()).headers["age"] == "0"
    local.clock.advance(9)
    assert "; hit" in await local.how()


async def test_a_304_that_makes_a_page_vary_is_not_for_everyone(local: Press) -> None:
    local.origin.say('ETag: "x"', "Cache-Control: max-age=10, must-revalidate")
    await local.get(accept_language="en")
    local.clock.advance(11)

    def decide(request: Any) -> Any:
        from tests.pages.press import Made

        language = request.headers.get("Accept-Language")
        lines = [("ETag", '"x"'), ("Vary", "Accept-Language"), ("Cache-Control", "max-age=10")]
        if "If-None-Match" in request.headers:
            return Made(status=304, headers=lines)
        return Made(f"in {language}".encode(), headers=lines)

    local.origin.decide = decide
    await local.get(accept_language="en")
    assert await local.text(accept_language="fr") == "in fr"


async def test_an_answer_that_is_not_kept_has_the_age_that_it_came_with(local: Press) -> None:
    local.origin.say("Cache-Control: no-store", "Age: 3000")
    assert (await local.get()).headers["age"] == "3000"


async def test_a_page_older_than_the_sites_window_is_used_for_as_long_as_that(
    local: Press,
) -> None:
    await local.put(revalidate_seconds=60)
    local.origin.say("Cache-Control: max-age=9999", "Age: 3000")
    await local.get()
    local.clock.advance(59)
    answer = await local.get()
    assert "; hit" in answer.headers["cache-status"]
    assert answer.headers["age"] == "3059"
    local.clock.advance(2)
    assert "; hit" not in await local.how(cache_control="max-age=9999, no-cache")


@pytest.mark.parametrize("asked", [{"method": "HEAD"}, {"range": "bytes=0-1"}])
async def test_an_old_page_is_a_spare_for_parts_and_heads_too(
    local: Press, asked: dict[str, str]
) -> None:
    await local.put(swr_seconds=0, sie_seconds=600)
    await local.get()
    local.clock.advance(61)
    local.origin.fail()
    assert (await local.get(**asked)).status in (200, 206)


async def test_if_range_with_a_date_needs_a_date_of_change(local: Press) -> None:
    await local.get()
    date = (await local.get()).headers["date"]
    assert (await local.get(range="bytes=0-1", if_range=date)).status == 200


async def test_empty_members_of_a_list_of_tags_do_not_count(local: Press) -> None:
    local.origin.say('ETag: "x"')
    await local.get()
    assert (await local.get(if_none_match=', "a",, "x" ,')).status == 304


async def test_a_soft_purge_counts_whatever_the_clocks_say(local: Press) -> None:
    await local.get()
    local.clock.advance(30)
    await local.revalidate(all=True)
    local.clock.advance(-30)
    assert "detail=purged" in await local.how()
