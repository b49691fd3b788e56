"""The caching reverse proxy: `/pages/{site}/…` is what the site's origin has, through the cache."""

from __future__ import annotations

import re
import time
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from waystation.errors import InvalidInput, NotFound, Overloaded
from waystation.pages.http.fields import Headers, end_to_end, has, joined, members, values
from waystation.pages.keeping.places import MOST_URL
from waystation.pages.serving.limits import Busy, OnTheWay
from waystation.pages.serving.terms import NAME, Ask, Fetched
from waystation.pages.serving.urls import climbs, here, page_url, site_url
from waystation.pages.sites import UNKEYED
from waystation.seam import Request, Response

if TYPE_CHECKING:
    from collections.abc import Iterable

    from waystation.outbound import Outbound
    from waystation.pages.serving.answers import Answers
    from waystation.pages.serving.terms import Fetch
    from waystation.pages.sites import Sites
    from waystation.pages.tables import Site

PREFIX = "/pages"
MAX_BODY = 1024 * 1024
_LARGE = 256 * 1024
_ORIGIN_SECONDS = 30.0
_MOST_HOPS = 3
_REFUSED = ("CONNECT", "TRACE")
_OURS = frozenset(name.encode() for name in UNKEYED) | {b"content-length", b"expect"}
_MISLEADING = re.compile(
    rb"x-(?:forwarded|original|rewrite|host|http-method|method-override).*|.*_.*"
)
"""Headers by which some apps are told another address or method than the one that was asked for:
what a visitor says in them must not be in the pages of others."""

_OF_THE_HOST = frozenset(
    {
        *(b"clear-site-data", b"nel", b"report-to", b"reporting-endpoints", b"alt-svc"),
        *(b"strict-transport-security", b"service-worker-allowed", b"accept-ch"),
        *(b"public-key-pins", b"expect-ct", b"content-security-policy"),
    }
)
"""Headers that are about everything on a host, on which a tenant's site is not alone."""

SANDBOX = (b"content-security-policy", b"sandbox allow-scripts allow-forms allow-popups")
"""For pages of tenants: they are on the same host as everybody else's, and as the API."""


class Proxy:
    """Serves the pages of sites."""

    def __init__(
        self,
        sites: Sites,
        answers: Answers,
        outbound: Outbound,
        public_url: str | None,
        largest: int,
    ) -> None:
        self._sites = sites
        self._answers = answers
        self._outbound = outbound
        self._busy = Busy()
        self._coming = OnTheWay()
        self._going = OnTheWay()
        self._public = _public(public_url)
        self._largest = largest

    def at_once(self, request: Request) -> Response | None:
        """A page that is in memory and fresh, which most requests are for. Where reads are near,
        nothing is waited for on the way to it, and nothing changed: if it turns out otherwise, the
        whole way is gone."""
        if request.method not in ("GET", "HEAD"):
            return None
        looking = self._look(request)
        try:
            looking.send(None)
        except StopIteration as found:
            response: Response | None = found.value
            return response
        except Exception:  # noqa: BLE001 - it will show again on the whole way, which reports it
            return None
        looking.close()
        return None

    async def _look(self, request: Request) -> Response | None:
        raw = request.raw_path.decode("latin-1")
        name, slash, rest = raw[len(PREFIX) + 1 :].partition("/")
        found = await self._sites.find(name)
        if found is None or not slash or climbs(rest) or has(request.headers, b"via"):
            return None
        site, terms = found
        ask = _asked(request, site, f"/{rest}")
        reply = await self._answers.hit(ask, terms)
        if reply is None or len(reply.body) >= _LARGE:
            return None
        headers = reply.headers if site.operator else _sandboxed(reply.headers)
        return Response(reply.status, reply.body, headers)

    async def handle(self, request: Request) -> Response:
        raw = request.raw_path.decode("latin-1").removeprefix(PREFIX)
        name, slash, rest = raw[1:].partition("/")
        found = await self._sites.find(name)
        if found is None:
            raise NotFound("there is no such site")
        site, terms = found
        if not slash:
            query = b"?" + request.query if request.query else b""
            return Response(308, b"", [(b"location", request.raw_path + b"/" + query)])
        path = f"/{rest}"
        if request.method in _REFUSED:
            return Response(405, b"", [(b"allow", b"GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS")])
        if climbs(path):
            raise InvalidInput("path", "must not have parts that are . or ..")
        if _has_been_here(request.headers, site):
            return Response(508, b"", [(b"cache-control", b"no-store")])
        ask = _asked(request, site, path)
        reply = await self._answers.answer(ask, terms, self.fetch(site, ask.url, request))
        headers = reply.headers if site.operator else _sandboxed(reply.headers)
        return self._sending(site, reply.status, headers, reply.body)

    def _sending(self, site: Site, status: int, headers: Headers, body: bytes) -> Response:
        """An answer. Of large ones there are only so many at once: clients may read slowly."""
        size = len(body)
        if size < _LARGE:
            return Response(status, body, headers)
        if not self._going.take(site.user_id, size):
            raise Overloaded("too many large pages are being sent", retry_after=5.0)
        return Response(status, body, headers, lambda: self._going.give(site.user_id, size))

    def fetch(self, site: Site, url: str, request: Request | None = None) -> Fetch:
        """The way to a page at its origin."""
        added = [*_forwarded(site, request), *self._public]

        async def fetch(method: str, headers: Headers, body: bytes) -> Fetched:
            try:
                async with self._busy.turn(site.user_id):
                    return await self._sent(site, method, url, [*headers, *added], body)
            except Overloaded as error:
                return Fetched(503, [], error=str(error))

        return fetch

    async def _sent(
        self, site: Site, method: str, url: str, headers: Headers, body: bytes
    ) -> Fetched:
        taken = 0

        def grow(size: int) -> bool:
            nonlocal taken
            allowed = self._coming.take(site.user_id, size)
            taken += size if allowed else 0
            return allowed

        asked = site.origin + quote(url, safe="!#$%&'()*+,/:;=?@[]~", encoding="latin-1")
        begun = time.monotonic()
        try:
            reply = await self._outbound.request(
                method,
                asked,
                headers=_texts(headers),
                body=body or None,
                seconds=_ORIGIN_SECONDS,
                body_seconds=_ORIGIN_SECONDS,
                most=self._largest + 1,
                grow=grow,
            )
        finally:
            self._coming.give(site.user_id, taken)
        seconds = time.monotonic() - begun
        if reply.error is not None:
            slow = "within" in reply.error
            return Fetched(504 if slow else 502, [], error=f"the origin: {reply.error}")
        if not 200 <= reply.status <= 599:
            return Fetched(502, [], error="the origin's answer is not valid HTTP")
        if not reply.whole or len(reply.body) > self._largest:
            return Fetched(502, [], error="the origin's answer is too large, or not complete")
        got = _received(reply.headers.items(), method)
        related = _related(got, asked, site)
        return Fetched(
            reply.status, _as_here(got, site), reply.body, seconds, related=tuple(related)
        )


@lru_cache(maxsize=1024)
def _misleads(name: bytes) -> bool:
    return _MISLEADING.fullmatch(name) is not None


def _asked(request: Request, site: Site, path: str) -> Ask:
    headers = [pair for pair in end_to_end(request.headers) if pair[0] not in _OURS]
    query = request.query.decode("latin-1")
    url = f"{path}?{query}" if query else path
    if request.method in ("GET", "HEAD"):
        headers = [pair for pair in headers if not _misleads(pair[0])]
        if site.ignore_cookies:
            headers = [pair for pair in headers if pair[0] != b"cookie"]
        if len(url) <= MOST_URL:
            url = page_url(path, query, tuple(site.ignore_params))
    return Ask(request.method, url, headers, request.body)


def _received(items: Iterable[tuple[str, str]], method: str) -> Headers:
    found: Headers = []
    for name, value in items:
        lowered = name.lower().encode("latin-1", "replace")
        if lowered == b"content-length" and method != "HEAD":
            continue
        found.append((lowered, value.encode("utf-8", "surrogateescape")))
    return found


def _related(headers: Headers, asked: str, site: Site) -> list[str]:
    found = values(headers, b"location") + values(headers, b"content-location")
    urls = (site_url(each, asked, site.origin, f"{PREFIX}/{site.site}") for each in found)
    return [url for url in urls if url is not None]


def _as_here(headers: Headers, site: Site) -> Headers:
    """Headers in which the origin's own addresses are ours, and cookies are of this site only."""
    prefix = f"{PREFIX}/{site.site}"
    found: Headers = []
    for name, value in headers:
        if name == b"location":
            value = here(value.decode("latin-1"), site.origin, prefix).encode("latin-1")
        elif name == b"set-cookie":
            value = _cookie_here(value.decode("latin-1"), prefix).encode("latin-1")
        found.append((name, value))
    return found


def _cookie_here(cookie: str, prefix: str) -> str:
    parts: list[str] = []
    for part in cookie.split(";"):
        name, _, value = part.strip().partition("=")
        name = name.strip().lower()
        if name == "domain" and parts:
            continue
        path = value.strip()
        if name == "path" and parts and path != prefix and not path.startswith(f"{prefix}/"):
            part = f" Path={prefix}{path if path.startswith('/') else '/'}"
        parts.append(part)
    return ";".join(parts)


def _texts(headers: Headers) -> dict[str, str]:
    """Headers for sending, each name once."""
    found: dict[str, str] = {}
    for name, value in headers:
        key = name.decode("latin-1")
        try:
            text = value.decode()
        except UnicodeDecodeError:
            text = value.decode("latin-1")
        between = "; " if key == "cookie" else ", "
        found[key] = f"{found[key]}{between}{text}" if key in found else text
    return found


def _public(url: str | None) -> Headers:
    """Where the origin is told that its visitors have come. It is not theirs to say: pages for one
    are pages for all."""
    if url is None:
        return []
    parts = urlsplit(url)
    return [
        (b"x-forwarded-proto", parts.scheme.encode()),
        (b"x-forwarded-host", parts.netloc.encode()),
    ]


def _forwarded(site: Site, request: Request | None) -> Headers:
    via = _via(site)
    prefix = (b"x-forwarded-prefix", f"{PREFIX}/{site.site}".encode())
    if request is None:
        return [(b"via", via), prefix]
    earlier = joined(request.headers, b"via")
    return [
        (b"via", f"{earlier}, ".encode("latin-1") + via if earlier else via),
        (b"x-forwarded-for", request.client.encode()),
        prefix,
    ]


def _via(site: Site) -> bytes:
    return b"1.1 " + NAME + f" ({site.site})".encode()


def _has_been_here(headers: Headers, site: Site) -> bool:
    """Whether a request has come through this site already, or through too many."""
    if not has(headers, b"via"):
        return False
    via = members(joined(headers, b"via") or "")
    ours = [member for member in via if NAME.decode() in member]
    return len(ours) >= _MOST_HOPS or _via(site).decode() in ours


def _sandboxed(headers: Headers) -> Headers:
    return [*(pair for pair in headers if pair[0] not in _OF_THE_HOST), SANDBOX]
