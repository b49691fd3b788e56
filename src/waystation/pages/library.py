"""The page cache for code of your own: generate a page once, and have it from then on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from waystation.errors import InvalidInput
from waystation.pages.http.policies import Windows
from waystation.pages.keeping.places import check_tenant
from waystation.pages.keeping.sweeping import Sweeper
from waystation.pages.service import MEMORY_BYTES, Pages
from waystation.pages.serving.terms import Ask, Fetched, Terms

if TYPE_CHECKING:
    from waystation.blobs import Blobs
    from waystation.pages.http.fields import Headers
    from waystation.pages.keeping.entries import Entry, Held
    from waystation.pages.keeping.purges import Kind
    from waystation.pages.service import Mode
    from waystation.pages.serving.terms import Fetch, Reply
    from waystation.store import Store


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """What a render function returns, and `PageCache.get` gives.

    `revalidate_seconds` makes this page last shorter than others. `cache_status` says where it came
    from, as RFC 9211 has it.
    """

    body: bytes | str
    status: int = 200
    content_type: str = "text/html; charset=utf-8"
    headers: Mapping[str, str] = {}
    tags: Sequence[str] = ()
    revalidate_seconds: int | None = None
    cache_status: str = ""


Render = Callable[[], Awaitable[Page | bytes | str]]


class PageCache:
    """Pages on any store and blobs.

        cache = PageCache(store, blobs, revalidate_seconds=60)
        page = await cache.get("/blog/42", render)

    A page is generated once, whoever asks and in however many processes. After
    `revalidate_seconds` it is stale: served at once for `swr_seconds` more while one process
    generates it anew, and for `sie_seconds` if that fails. With `tenants`, every call names one,
    and none sees another's pages.
    """

    def __init__(
        self,
        store: Store,
        blobs: Blobs,
        *,
        tenants: bool = False,
        revalidate_seconds: int = 60,
        swr_seconds: int | None = None,
        sie_seconds: int | None = None,
        negative_seconds: int = 60,
        vary: Sequence[str] | None = None,
        tags: Sequence[str] = (),
        cache_unmarked: bool = True,
        cache_set_cookie: bool = False,
        ignore_cookies: bool = False,
        versions: int = 3,
        memory_bytes: int = MEMORY_BYTES,
    ) -> None:
        self.pages = Pages(store, blobs, memory_bytes)
        self._tenants = tenants
        self._sweeper = Sweeper(store, blobs)
        self._terms = Terms(
            tenant=None,
            windows=Windows(
                fresh=revalidate_seconds,
                swr=swr_seconds,
                sie=sie_seconds,
                negative=negative_seconds,
                unmarked=cache_unmarked,
                set_cookie=cache_set_cookie,
            ),
            vary=None if vary is None else tuple(sorted(name.lower() for name in vary)),
            tags=tuple(tags),
            ignore_cookies=ignore_cookies,
            versions=versions,
        )

    @property
    def ignores_cookies(self) -> bool:
        return self._terms.ignore_cookies

    def terms(self, tenant: str | None) -> Terms:
        return msgspec.structs.replace(self._terms, tenant=self._tenant(tenant))

    def _tenant(self, tenant: str | None) -> str | None:
        if self._tenants:
            return check_tenant(tenant)
        if tenant is not None:
            raise InvalidInput("tenant", "this cache has no tenants: open it with tenants=True")
        return None

    async def get(self, key: str, render: Render, *, tenant: str | None = None) -> Page:
        """A page, from the cache or from `render`.

        If `render` fails and there is no old page to give instead, its error is raised.
        """
        return _page(await self.answer(Ask("GET", key, []), _as_origin(render), tenant=tenant))

    async def answer(self, ask: Ask, fetch: Fetch, *, tenant: str | None = None) -> Reply:
        """Answer an HTTP request; `fetch` asks the origin."""
        return await self.pages.answers.answer(ask, self.terms(tenant), fetch)

    async def revalidate(
        self,
        *,
        path: str | None = None,
        tag: str | None = None,
        prefix: str | None = None,
        all: bool = False,  # noqa: A002 - as the API has it
        mode: Mode = "soft",
        tenant: str | None = None,
    ) -> None:
        """Purge pages, in every process by the time this returns: one of `path`, `tag`, `prefix`
        and `all`. After a soft purge old pages are served while new ones are generated."""
        targets: dict[Kind, str | None] = {
            "url" if path is not None and "?" in path else "path": path,
            "tag": tag,
            "prefix": prefix,
            "all": "" if all else None,
        }
        given = {kind: target for kind, target in targets.items() if target is not None}
        if len(given) != 1:
            raise InvalidInput("path", "give one of path, tag, prefix and all")
        ((kind, target),) = given.items()
        await self.pages.revalidate(self._tenant(tenant), kind, target, mode)

    async def rollback(self, path: str, *, tenant: str | None = None) -> Held:
        """Make a page what it was before, until it is purged."""
        return await self.pages.rollback(self._tenant(tenant), path)

    async def inspect(self, path: str, *, tenant: str | None = None) -> list[Entry]:
        """The pages that are kept of a URL."""
        found = await self.pages.inspect(self._tenant(tenant), path)
        return [each.held.entry for each in found]

    async def sweep(self) -> int:
        """Remove bodies that nothing points to: every hour or so."""
        return await self._sweeper.sweep()

    async def close(self) -> None:
        """Finish what is being generated."""
        await self.pages.close()


def _as_origin(render: Render) -> Fetch:
    """A render function as an origin."""

    async def fetch(method: str, headers: Headers, body: bytes) -> Fetched:
        try:
            page = await render()
        except Exception as error:  # noqa: BLE001 - it is raised to the caller if nothing helps
            return Fetched(502, [], error="the page could not be generated", cause=error)
        if not isinstance(page, Page):
            page = Page(body=page)
        content = page.body.encode() if isinstance(page.body, str) else page.body
        return Fetched(page.status, _headers(page), content)

    return fetch


def _headers(page: Page) -> Headers:
    found = [(b"content-type", page.content_type.encode("latin-1"))]
    found += [(n.lower().encode("latin-1"), v.encode("latin-1")) for n, v in page.headers.items()]
    if page.tags:
        found.append((b"cache-tag", ",".join(page.tags).encode("utf-8")))
    if page.revalidate_seconds is not None:
        found.append((b"cdn-cache-control", b"max-age=%d" % page.revalidate_seconds))
    return found


def _page(reply: Reply) -> Page:
    headers = {n.decode("latin-1"): v.decode("latin-1") for n, v in reply.headers}
    return Page(
        body=reply.body,
        status=reply.status,
        content_type=headers.get("content-type", ""),
        headers=headers,
        cache_status=headers.get("cache-status", ""),
    )
