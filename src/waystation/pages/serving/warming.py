"""Warming: pages are fetched before anybody asks for them."""

from __future__ import annotations

import asyncio
import zlib
from typing import TYPE_CHECKING
from xml.parsers import expat

import msgspec

from waystation.errors import InvalidInput
from waystation.pages.serving.terms import Ask
from waystation.pages.serving.urls import page_url, site_url
from waystation.pages.sites import terms_of

if TYPE_CHECKING:
    from waystation.pages.serving.answers import Answers
    from waystation.pages.serving.proxy import Proxy
    from waystation.pages.tables import Site

AT_ONCE = 8
SECONDS = 20.0
MOST_PATHS = 1_000
_MOST_SITEMAPS = 20
_MOST_XML = 10 * 1024 * 1024
_MOST_ELEMENTS = 250_000
_GZIP = b"\x1f\x8b"


class Done(msgspec.Struct):
    """What came of it."""

    warmed: int
    failed: list[tuple[str, str]]
    remaining: list[str]


class Warmer:
    """Fetches the pages of sites."""

    def __init__(self, answers: Answers, proxy: Proxy) -> None:
        self._answers = answers
        self._proxy = proxy

    async def warm(self, site: Site, paths: list[str]) -> Done:
        """Fetch pages, as many as there is time for."""
        until = asyncio.get_running_loop().time() + SECONDS
        waiting = list(dict.fromkeys(paths))[::-1]
        done = Done(0, [], [])

        async def work() -> None:
            while waiting and asyncio.get_running_loop().time() < until:
                path = waiting.pop()
                reason = await self._warmed(site, path)
                if reason is None:
                    done.warmed += 1
                else:
                    done.failed.append((path, reason))

        await asyncio.gather(*(work() for _ in range(AT_ONCE)))
        done.remaining = waiting[::-1]
        return done

    async def _warmed(self, site: Site, path: str) -> str | None:
        """Why a page is not warm; None if it is."""
        plain, _, query = path.partition("?")
        ask = Ask("GET", page_url(plain, query, tuple(site.ignore_params)), [])
        reply = await self._answers.answer(ask, terms_of(site), self._proxy.fetch(site, ask.url))
        if reply.status >= 400:
            return f"the origin said {reply.status}"
        status = next((v.decode() for n, v in reply.headers if n == b"cache-status"), "")
        if "; hit" in status or "; stored" in status:
            return None
        return f"it is not kept: {status.partition('detail=')[2] or 'no reason given'}"

    async def sitemap(self, site: Site, path: str) -> list[str]:
        """The paths that a site's map names, and those of the maps that it names."""
        try:
            async with asyncio.timeout(SECONDS):
                return await self._read_maps(site, path)
        except TimeoutError:
            raise InvalidInput("sitemap", f"took longer than {SECONDS:g} seconds") from None

    async def _read_maps(self, site: Site, path: str) -> list[str]:
        maps, seen = [path], {path}
        found: dict[str, None] = {}
        read = 0
        while maps and read < _MOST_SITEMAPS and len(found) < MOST_PATHS:
            current = maps.pop(0)
            read += 1
            text = await self._fetched(site, current)
            pages, more = await asyncio.to_thread(_read, text)
            asked = site.origin + current
            prefix = f"/pages/{site.site}"
            for location in pages:
                url = site_url(location, asked, site.origin, prefix)
                if url is not None and url.isascii():
                    found[url] = None
            for location in more:
                url = site_url(location, asked, site.origin, prefix)
                if url is not None and url not in seen:
                    seen.add(url)
                    maps.append(url)
        return list(found)[:MOST_PATHS]

    async def _fetched(self, site: Site, path: str) -> bytes:
        fetched = await self._proxy.fetch(site, path)("GET", [(b"accept", b"*/*")], b"")
        if fetched.error is not None or fetched.status != 200:
            reason = fetched.error or f"the origin said {fetched.status}"
            raise InvalidInput("sitemap", f"{path} cannot be read: {reason}")
        if not fetched.body.startswith(_GZIP):
            return fetched.body
        try:
            return zlib.decompressobj(wbits=31).decompress(fetched.body, _MOST_XML)
        except zlib.error:
            raise InvalidInput("sitemap", f"{path} is not a sitemap") from None


def _read(text: bytes) -> tuple[list[str], list[str]]:
    """The pages and the further maps that a map names. A map that declares entities is refused."""
    pages: list[str] = []
    maps: list[str] = []
    above: list[str] = []
    elements = 0
    letters: list[str] = []

    def start(name: str, _: object) -> None:
        nonlocal elements
        elements += 1
        if elements > _MOST_ELEMENTS:
            raise ValueError("it has too many elements")
        above.append(name.rpartition(":")[2].lower())
        letters.clear()

    def end(_: str) -> None:
        name = above.pop()
        if name == "loc" and above and len(pages) + len(maps) < 10 * MOST_PATHS:
            target = maps if above[-1] == "sitemap" else pages if above[-1] == "url" else None
            if target is not None:
                target.append("".join(letters).strip()[:4_000])
        letters.clear()

    def entity(*_: object) -> None:
        raise ValueError("it declares entities")

    parser = expat.ParserCreate()
    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = letters.append
    parser.EntityDeclHandler = entity
    try:
        parser.Parse(text[:_MOST_XML], True)
    except (expat.ExpatError, ValueError) as error:
        raise InvalidInput("sitemap", f"this is not a sitemap: {error}") from None
    return pages, maps
