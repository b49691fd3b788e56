"""Sites: whose they are, what can be said about them, and what becomes of their pages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.pages.press import Press

SITE = "/v1/pages/sites/shop"


async def test_a_site_is_shown_as_it_was_put(press: Press) -> None:
    shown = await press.put(vary=["Accept-Language"], tags=["a"], swr_seconds=5, sie_seconds=7)
    assert shown["url"] == "/pages/shop/"
    assert (shown["origin"], shown["revalidate_seconds"]) == (press.origin.url, 60)
    assert (shown["vary"], shown["tags"]) == (["accept-language"], ["a"])
    assert (shown["swr_seconds"], shown["sie_seconds"]) == (5, 7)
    answer = await press.call("GET", SITE)
    assert answer.json == shown
    listed = await press.call("GET", "/v1/pages/sites")
    assert listed.json["data"] == [shown]


ROUTES: list[tuple[str, str, object]] = [
    ("GET", "", None),
    ("DELETE", "", None),
    ("GET", "/entries", None),
    ("GET", "/entry?path=/p", None),
    ("POST", "/revalidate", {"all": True}),
    ("POST", "/rollback", {"path": "/p"}),
    ("POST", "/warm", {"paths": ["/p"]}),
]


@pytest.mark.parametrize(("method", "path", "body"), ROUTES)
async def test_a_site_of_another_account_is_not_there(
    local: Press, method: str, path: str, body: object
) -> None:
    await local.get()
    other = await local.server.api_key(email="bob@example.com")
    answer = await local.call(method, SITE + path, body, token=other)
    assert answer.status == 404
    missing = await local.call(method, "/v1/pages/sites/none" + path, body, token=other)
    assert missing.json["detail"] == answer.json["detail"]
    assert "; hit" in await local.how()


async def test_a_name_belongs_to_who_put_it_first(local: Press) -> None:
    other = await local.server.api_key(email="bob@example.com")
    given = {"origin": local.origin.url, "revalidate_seconds": 1}
    answer = await local.call("PUT", SITE, given, token=other)
    assert answer.status == 409
    assert (await local.call("GET", SITE)).json["revalidate_seconds"] == 60


async def test_who_takes_over_a_name_gets_none_of_its_pages(press: Press) -> None:
    await press.get()
    assert (await press.call("DELETE", SITE)).status == 204
    assert (await press.get()).status == 404
    other = await press.server.api_key(email="bob@example.com")
    given = {"origin": press.origin.url, "revalidate_seconds": 60}
    assert (await press.call("PUT", SITE, given, token=other)).status == 200
    assert await press.text() == "page 2 of /p"


async def test_pages_that_a_former_owner_publishes_late_are_not_the_new_owners(
    local: Press,
) -> None:
    """Another process goes by what it knew of the site for up to two seconds."""
    found = await local.service.sites.find("shop")
    assert found is not None
    old, terms = found
    await local.call("DELETE", SITE)
    await local.put()
    from waystation.pages.serving.terms import Ask

    ask = Ask("GET", "/p", [])
    fetch = local.service.proxy.fetch(old, "/p")
    late = await local.service.pages.answers.answer(ask, terms, fetch)
    assert late.body == b"page 1 of /p"
    assert await local.text() == "page 2 of /p"


async def test_a_site_that_moves_to_another_origin_shows_its_pages(local: Press) -> None:
    await local.get()
    await local.put(origin=local.origin.url + "/elsewhere")
    assert await local.text() == "page 2 of /elsewhere/p"


async def test_pages_of_one_site_are_not_anothers(press: Press) -> None:
    await press.put("other")
    assert await press.text("/p") == "page 1 of /p"
    assert (await press.get("/p", site="other")).body == b"page 2 of /p"
    await press.revalidate(all=True, mode="hard")
    assert "; hit" in (await press.get("/p", site="other")).headers["cache-status"]


BAD: list[tuple[dict[str, Any], str]] = [
    ({"origin": "ftp://example.com"}, "origin"),
    ({"origin": "http://10.0.0.1"}, "origin"),
    ({"origin": "http://169.254.169.254/"}, "origin"),
    ({"origin": "http://example.com/?a=b"}, "origin"),
    ({"origin": "http://user:pass@example.com"}, "origin"),
    ({"origin": ""}, "origin"),
    ({"revalidate_seconds": -1}, "revalidate_seconds"),
    ({"revalidate_seconds": 10**12}, "revalidate_seconds"),
    ({"revalidate_seconds": "soon"}, "revalidate_seconds"),
    ({"swr_seconds": -1}, "swr_seconds"),
    ({"sie_seconds": 1.5}, "sie_seconds"),
    ({"vary": ["a b"]}, "vary"),
    ({"vary": ["Accept-Encoding"]}, "vary"),
    ({"vary": [f"h{n}" for n in range(11)]}, "vary"),
    ({"tags": ["a,b"]}, "tags"),
    ({"tags": [""]}, "tags"),
    ({"versions": 0}, "versions"),
    ({"unknown": 1}, "unknown"),
]


@pytest.mark.parametrize(("given", "field"), BAD)
async def test_what_makes_no_sense_is_refused_by_name(
    local: Press, given: dict[str, Any], field: str
) -> None:
    body = {"origin": local.origin.url, "revalidate_seconds": 60} | given
    answer = await local.call("PUT", "/v1/pages/sites/new", body)
    assert answer.status == 400
    assert field in answer.body.decode()
    assert (await local.call("GET", "/v1/pages/sites/new")).status == 404


@pytest.mark.parametrize("name", ["Shop", "a_b", "-a", "a" * 64, "a%23b", "a.b"])
async def test_names_that_are_none(local: Press, name: str) -> None:
    given = {"origin": local.origin.url, "revalidate_seconds": 1}
    answer = await local.call("PUT", f"/v1/pages/sites/{name}", given)
    assert (answer.status, answer.fields) == (400, ["site"])
    assert (await local.get("/p", site=name)).status == 404


async def test_pages_are_listed_by_the_beginning_of_their_urls(press: Press) -> None:
    for n in range(5):
        await press.get(f"/blog/{n}")
    await press.get("/about")
    found, cursor = [], ""
    while True:
        page = (await press.call("GET", f"{SITE}/entries?prefix=/blog/&limit=2{cursor}")).json
        found += [entry["url"] for entry in page["data"]]
        if not page["has_more"]:
            break
        cursor = f"&cursor={page['cursor']}"
    assert found == [f"/blog/{n}" for n in range(5)]


async def test_a_cursor_of_another_list_is_refused(local: Press) -> None:
    for n in range(3):
        await local.get(f"/{n}")
    page = (await local.call("GET", f"{SITE}/entries?limit=1")).json
    answer = await local.call("GET", f"{SITE}/entries?prefix=/x&cursor={page['cursor']}")
    assert (answer.status, answer.fields) == (400, ["cursor"])


async def test_a_page_is_shown_with_what_decides_how_it_is_used(press: Press) -> None:
    press.origin.say("Cache-Tag: a", 'ETag: "x"', "Cache-Control: max-age=10, must-revalidate")
    await press.get()
    page = await press.entry()
    assert (page["state"], page["reason"], page["etag"]) == ("fresh", None, '"x"')
    assert (page["tags"], page["strict"], page["lease_held"]) == (["a"], True, False)
    press.clock.advance(10)
    page = await press.entry()
    assert (page["state"], page["reason"]) == ("expired", "expired")
    await press.revalidate(tag="a")
    assert (await press.entry())["reason"] == "purged softly"


async def test_a_page_that_is_not_kept_is_not_shown(local: Press) -> None:
    answer = await local.call("GET", f"{SITE}/entry?path=/none")
    assert answer.status == 404
