"""Django's admin behind the cache: its users notice nothing."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import aiohttp

from tests.pages.press import press_at

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.pages.press import Origin
    from waystation.clock import ManualClock

_TOKEN = re.compile(r'name="csrfmiddlewaretoken" value="(\w+)"')


@asynccontextmanager
async def django(kind: str, folder: Path, prefix: str = "") -> AsyncIterator[str]:
    folder.mkdir()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.pages.django_app", kind, str(folder), prefix),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        url = (await process.stdout.readline()).decode().strip()
        assert url.startswith("http"), "it did not start"
        yield url
    finally:
        process.kill()
        await process.wait()


class Visitor:
    """Goes through an app with a browser's cookies, and writes down what it sees."""

    def __init__(self, http: aiohttp.ClientSession, at: str, prefix: str) -> None:
        self._http = http
        self._at = at
        self._prefix = prefix
        self.seen: list[tuple[str, int, str, str]] = []
        self.how: list[str] = []
        self._token = ""

    async def get(self, path: str) -> str:
        return await self._note("GET", path)

    async def post(self, path: str, **fields: str) -> str:
        return await self._note("POST", path, fields | {"csrfmiddlewaretoken": self._token})

    async def _note(self, method: str, path: str, data: Any = None) -> str:
        async with self._http.request(
            method, self._at + path, data=data, allow_redirects=False
        ) as answer:
            text = await answer.text()
            self.how.append(answer.headers.get("Cache-Status", ""))
            location = answer.headers.get("Location", "")
            if found := _TOKEN.search(text):
                self._token = found.group(1)
            shown = _plain(text)
            if self._prefix:  # which an app that is at the top does not have
                shown = shown.replace(f'"{self._prefix}"', '"/"').replace(self._prefix, "")
            place = location.removeprefix(self._prefix)
            self.seen.append((f"{method} {path}", answer.status, place, shown))
            return text


def _plain(text: str) -> str:
    """A page without what is new in it each time."""
    text = re.sub(r'csrfmiddlewaretoken" value="\w+"', "", text)
    text = re.sub(r'data-utc-offset="[^"]*"', "", text)
    return re.sub(r"\d\d:\d\d(:\d\d)?|\d+ minutes?", "", text)


async def journey(url: str, at: str = "", prefix: str = "") -> tuple[Visitor, Visitor]:
    """Sign in, add, rename and remove something, sign out; somebody else looks on.

    The app is found at `at`, and believes that it is at `prefix`.
    """
    jar, other = (aiohttp.CookieJar(unsafe=True) for _ in range(2))
    async with (
        aiohttp.ClientSession(url, cookie_jar=jar) as http,
        aiohttp.ClientSession(url, cookie_jar=other) as onlooker_http,
    ):
        visitor, onlooker = (Visitor(each, at, prefix) for each in (http, onlooker_http))
        groups = "/admin/auth/group/"
        for path in ("/admin/", "/static/admin/css/base.css", "/nope", "/admin/login/"):
            await visitor.get(path)
            await onlooker.get(path)
        await visitor.post("/admin/login/?next=/admin/", username="ann", password="wrong")
        await visitor.post("/admin/login/?next=/admin/", username="ann", password="correct horse")
        assert "ann" in await visitor.get("/admin/")
        await onlooker.get("/admin/")
        await visitor.get(f"{groups}add/")
        await visitor.post(f"{groups}add/", name="editors", _save="Save")
        assert "editors" in await visitor.get(groups)
        await onlooker.get(groups)
        await visitor.get(f"{groups}1/change/")
        await visitor.post(f"{groups}1/change/", name="authors", _save="Save")
        assert "authors" in await visitor.get(groups)
        await visitor.get(f"{groups}1/delete/")
        await visitor.post(f"{groups}1/delete/", post="yes")
        assert "/admin/auth/group/1/" not in await visitor.get(groups)
        await visitor.get("/static/admin/css/base.css")
        await visitor.post("/admin/logout/")
        await visitor.get("/admin/")
        return visitor, onlooker


async def test_behind_the_middleware_nothing_changes(tmp_path: Path) -> None:
    async with django("bare", tmp_path / "a") as bare, django("fronted", tmp_path / "b") as fronted:
        expected, found = await journey(bare), await journey(fronted)
    for plain, cached in zip(expected, found, strict=True):
        assert cached.seen == plain.seen
    assert any("; hit" in how for how in found[1].how + found[0].how)


async def test_behind_the_proxy_nothing_changes(
    tmp_path: Path, clock: ManualClock, origin: Origin
) -> None:
    clock.advance(time.time() - clock())
    prefix = "/pages/shop"
    async with django("bare", tmp_path / "a", prefix) as url:
        expected = await journey(url, prefix=prefix)
    async with (
        django("bare", tmp_path / "b", prefix) as url,
        press_at(clock, origin, given={"origin": url, "revalidate_seconds": 3_600}) as press,
    ):
        found = await journey(press.server.url, prefix, prefix)
    for plain, cached in zip(expected, found, strict=True):
        assert cached.seen == plain.seen
    assert any("; hit" in how for how in found[1].how)
