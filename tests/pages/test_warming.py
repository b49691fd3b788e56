"""Pages that are fetched before anybody asks for them."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING, Any

import pytest

from tests.pages.press import Made

if TYPE_CHECKING:
    from tests.pages.press import Press


async def warm(press: Press, status: int = 200, **given: Any) -> Any:
    answer = await press.call("POST", f"{press.base}/warm", given)
    assert answer.status == status, answer
    return answer.json


async def test_pages_are_there_before_anybody_asks(press: Press) -> None:
    done = await warm(press, paths=["/a", "/b?x=1"])
    assert done == {"warmed": 2, "failed": [], "remaining": []}
    assert "; hit" in await press.how("/a")
    assert "; hit" in await press.how("/b?x=1")


async def test_what_cannot_be_warmed_is_said_with_the_reason(local: Press) -> None:
    def decide(request: Any) -> Made:
        if request.path == "/private":
            return Made(b"x", headers=[("Cache-Control", "private")])
        return Made(b"x", 500 if request.path == "/broken" else 200)

    local.origin.decide = decide
    done = await warm(local, paths=["/fine", "/private", "/broken"])
    assert done["warmed"] == 1
    assert {each["path"]: each["reason"] for each in done["failed"]} == {
        "/private": "it is not kept: private",
        "/broken": "the origin said 500",
    }


def sitemap(press: Press, *paths: str, kind: str = "url") -> bytes:
    places = "".join(f"<{kind}><loc>{press.origin.url}{path}</loc></{kind}>" for path in paths)
    return f'<?xml version="1.0"?><{kind}set xmlns="x">{places}</{kind}set>'.encode()


@pytest.mark.parametrize("packed", [False, True])
async def test_the_paths_of_a_sitemap_and_of_those_that_it_names(
    local: Press, packed: bool
) -> None:
    maps = {
        "/sitemap.xml": sitemap(local, "/first.xml", "/second.xml", "/first.xml", kind="sitemap"),
        "/first.xml": sitemap(local, "/a", "/b?x=1"),
        "/second.xml": sitemap(local, "/c").replace(
            b"</urlset>", b"<url><loc>https://elsewhere.example/d</loc></url></urlset>"
        ),
    }

    def decide(request: Any) -> Made:
        found = maps.get(request.path)
        if found is not None and packed:
            found = gzip.compress(found)
        return Made(found)

    local.origin.decide = decide
    assert (await warm(local, sitemap="/sitemap.xml"))["warmed"] == 3
    for path in ("/a", "/b?x=1", "/c"):
        assert "; hit" in await local.how(path)


BOMB = b"""<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">]>
<urlset><url><loc>&b;</loc></url></urlset>"""


@pytest.mark.parametrize("body", [BOMB, b"<urlset><url>", b"not xml", b"\x1f\x8bnot gzip"])
async def test_what_is_no_sitemap_is_refused(local: Press, body: bytes) -> None:
    local.origin.say(body=body)
    answer = await warm(local, 400, sitemap="/sitemap.xml")
    assert answer["errors"][0]["field"] == "sitemap"


async def test_a_sitemap_that_unpacks_without_end_is_not_unpacked(local: Press) -> None:
    local.origin.say(body=gzip.compress(b"<urlset>" + b" " * 100_000_000))
    answer = await warm(local, 400, sitemap="/sitemap.xml")
    assert answer["errors"][0]["field"] == "sitemap"


async def test_a_sitemap_that_is_not_there(local: Press) -> None:
    local.origin.fail(404)
    answer = await warm(local, 400, sitemap="/sitemap.xml")
    assert "404" in answer["detail"]


@pytest.mark.parametrize(
    "given", [{}, {"paths": []}, {"paths": ["a"]}, {"paths": ["/a"], "sitemap": "/b"}]
)
async def test_what_to_warm_must_be_said(local: Press, given: dict[str, Any]) -> None:
    await warm(local, 400, **given)
