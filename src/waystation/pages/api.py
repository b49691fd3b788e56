"""Routes of the pages: sites, and what is kept of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from litestar import Controller, Request, Router, delete, get, post, put
from litestar.datastructures import State
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody, QueryParameter
from msgspec import Meta

from waystation.errors import InvalidInput, NotFound
from waystation.pages.keeping.places import MOST_URL, Place
from waystation.pages.site_pages import SitePages
from waystation.pages.sites import SiteInput, tenant_of, terms_of
from waystation.patterns import MAX_CURSOR, Cursors, Listing, listing
from waystation.seam import Principal
from waystation.times import iso

if TYPE_CHECKING:
    from waystation.pages.keeping.entries import Entry
    from waystation.pages.keeping.purges import Kind
    from waystation.pages.service import Inspected
    from waystation.pages.tables import Site

PagesService = NamedDependency[SitePages]
AnyRequest = Request[Principal, None, State]
PageUrl = Annotated[str, Meta(min_length=1, max_length=MOST_URL)]
Text = Annotated[str, Meta(min_length=1, max_length=200)]


class SiteView(msgspec.Struct, kw_only=True):
    site: str
    url: str
    origin: str
    revalidate_seconds: int
    swr_seconds: int | None
    sie_seconds: int | None
    negative_seconds: int
    vary: list[str] | None
    tags: list[str]
    cache_unmarked: bool
    cache_set_cookie: bool
    ignore_cookies: bool
    ignore_params: list[str]
    versions: int
    created_at: str
    updated_at: str


class EntryView(msgspec.Struct, kw_only=True):
    """A page that is kept. `state` is what it can be used for now."""

    url: str
    variant: str | None
    status: int
    state: Literal["fresh", "stale", "expired", "purged"]
    etag: str | None
    size: int | None
    encodings: list[str]
    tags: list[str]
    generated_at: str
    fresh_until: str
    stale_until: str
    pinned: bool
    versions: int


class Inspection(EntryView, kw_only=True):
    """A page with everything that decides how it is used. `reason` says why it is not fresh."""

    reason: str | None
    key: str
    blob: str
    fence: int
    lease_held: bool
    lease_expires_at: str | None
    strict: bool
    unmarked: bool
    foreign: bool
    headers: list[tuple[str, str]]


class Inspections(msgspec.Struct, kw_only=True):
    """The page of a URL, or its variants."""

    url: str
    pages: list[Inspection]


class RevalidateInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """One of `path`, `tag`, `prefix` and `all`. A path without a query stands for all its queries.

    A soft purge lets old pages be served while new ones are generated, a hard one does not.
    """

    path: PageUrl | None = None
    tag: Text | None = None
    prefix: PageUrl | None = None
    all: bool | None = None
    mode: Literal["soft", "hard"] = "soft"
    dry_run: bool = False


class Revalidated(msgspec.Struct, kw_only=True):
    """What was purged. `matched` and `urls` are there after a dry run only, when nothing was; if
    there are too many pages to look at, `complete` is false."""

    kind: Literal["path", "url", "tag", "prefix", "all"]
    target: str
    mode: Literal["soft", "hard"]
    dry_run: bool
    matched: int | None = None
    urls: list[str] | None = None
    complete: bool | None = None


class RollbackInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    path: PageUrl
    variant: Annotated[str, Meta(max_length=MOST_URL)] = ""


class WarmInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """One of `sitemap`, a path of the site, and `paths`."""

    sitemap: PageUrl | None = None
    paths: Annotated[list[PageUrl], Meta(min_length=1, max_length=1_000)] | None = None


class Failure(msgspec.Struct):
    path: str
    reason: str


class Warmed(msgspec.Struct, kw_only=True):
    """What was fetched. `remaining` is what there was no time for: ask again with it."""

    warmed: int
    failed: list[Failure]
    remaining: list[str]


class SiteController(Controller):
    """Sites whose pages are cached."""

    path = "/v1/pages/sites"
    tags = ("Pages",)

    @get("", summary="All sites")
    async def list_all(
        self,
        request: AnyRequest,
        pages: PagesService,
        cursors: NamedDependency[Cursors],
        limit: Annotated[int, QueryParameter(ge=1, le=200)] = 50,
        cursor: Annotated[str | None, QueryParameter(max_length=MAX_CURSOR)] = None,
    ) -> Listing[SiteView]:
        user_id = request.user.user_id
        found, more = cursors.cut(
            await pages.sites.of(user_id), limit, cursor, f"sites {user_id}", lambda s: s.site
        )
        return listing([site_view(site) for site in found], more)

    @put("/{site:str}", summary="Add or change a site")
    async def set(
        self,
        site: FromPath[str],
        data: JSONBody[SiteInput],
        request: AnyRequest,
        pages: PagesService,
    ) -> SiteView:
        return site_view(await pages.sites.put(request.user.user_id, site, data))

    @get("/{site:str}", summary="A site")
    async def show(self, site: FromPath[str], request: AnyRequest, pages: PagesService) -> SiteView:
        return site_view(await pages.sites.get(request.user.user_id, site))

    @delete("/{site:str}", summary="Remove a site, and all its pages")
    async def remove(self, site: FromPath[str], request: AnyRequest, pages: PagesService) -> None:
        await pages.sites.delete(request.user.user_id, site)

    @get("/{site:str}/entries", summary="Pages that are kept, by the beginning of their URLs")
    async def entries(
        self,
        site: FromPath[str],
        request: AnyRequest,
        pages: PagesService,
        prefix: Annotated[str, QueryParameter(max_length=500)] = "/",
        limit: Annotated[int, QueryParameter(ge=1, le=200)] = 50,
        cursor: Annotated[str | None, QueryParameter(max_length=MAX_CURSOR)] = None,
    ) -> Listing[EntryView]:
        found, after = await pages.entries(request.user.user_id, site, prefix, limit, cursor)
        now = pages.pages.store.clock()
        return listing([EntryView(**entry_fields(entry, now)) for entry in found], after)

    @get("/{site:str}/entry", summary="A page, with everything that decides how it is used")
    async def entry(
        self,
        site: FromPath[str],
        request: AnyRequest,
        pages: PagesService,
        path: Annotated[str, QueryParameter(min_length=1, max_length=MOST_URL)],
    ) -> Inspections:
        url = page_path(path, "path")
        found = await pages.inspect(request.user.user_id, site, url)
        if not found:
            raise NotFound("this page is not kept")
        now = pages.pages.store.clock()
        return Inspections(url=url, pages=[inspection(each, now) for each in found])

    @post("/{site:str}/revalidate", status_code=200, summary="Purge pages")
    async def revalidate(
        self,
        site: FromPath[str],
        data: JSONBody[RevalidateInput],
        request: AnyRequest,
        pages: PagesService,
    ) -> Revalidated:
        """It counts everywhere by the time of the answer."""
        kind, target = _purged(data)
        owned = await pages.sites.get(request.user.user_id, site)
        answer = Revalidated(kind=kind, target=target, mode=data.mode, dry_run=data.dry_run)
        if data.dry_run:
            found = await pages.pages.matches(tenant_of(owned), kind, target)
            answer.matched, answer.urls = found.count, found.urls
            answer.complete = found.complete
        else:
            await pages.pages.revalidate(tenant_of(owned), kind, target, data.mode)
        return answer

    @post("/{site:str}/rollback", status_code=200, summary="Make a page what it was before")
    async def rollback(
        self,
        site: FromPath[str],
        data: JSONBody[RollbackInput],
        request: AnyRequest,
        pages: PagesService,
    ) -> Inspection:
        """It stays so until it is purged."""
        url = page_path(data.path, "path")
        owned = await pages.sites.get(request.user.user_id, site)
        tenant, owner = tenant_of(owned), terms_of(owned).owner
        await pages.pages.rollback(tenant, url, data.variant, owner)
        found = await pages.pages.inspected(Place(tenant, url, data.variant))
        if found is None:
            raise NotFound("this page is not kept")
        return inspection(found, pages.pages.store.clock())

    @post("/{site:str}/warm", status_code=200, summary="Fetch pages before anybody asks for them")
    async def warm(
        self,
        site: FromPath[str],
        data: JSONBody[WarmInput],
        request: AnyRequest,
        pages: PagesService,
    ) -> Warmed:
        if (data.sitemap is None) == (data.paths is None):
            raise InvalidInput("paths", "give one of sitemap and paths")
        owned = await pages.sites.get(request.user.user_id, site)
        if data.sitemap is not None:
            paths = await pages.warmer.sitemap(owned, page_path(data.sitemap, "sitemap"))
        else:
            paths = [page_path(path, "paths") for path in data.paths or ()]
        done = await pages.warmer.warm(owned, paths)
        failed = [Failure(path, reason) for path, reason in done.failed]
        return Warmed(warmed=done.warmed, failed=failed, remaining=done.remaining)


def _purged(data: RevalidateInput) -> tuple[Kind, str]:
    named = (data.path, data.tag, data.prefix, data.all or None)
    given = [value for value in named if value is not None]
    if len(given) != 1:
        raise InvalidInput("path", "give one of path, tag, prefix and all")
    if data.path is not None:
        path = page_path(data.path, "path")
        return ("url" if "?" in path else "path"), path
    if data.tag is not None:
        return "tag", data.tag
    if data.prefix is not None:
        return "prefix", page_path(data.prefix, "prefix")
    return "all", ""


def page_path(path: str, field: str) -> str:
    """A path as it is in a URL."""
    if not path.startswith("/") or not path.isascii() or any(c <= " " or c == "#" for c in path):
        raise InvalidInput(
            field, "must begin with / and be encoded as in a URL, for example /caf%C3%A9?page=2"
        )
    return path


def site_view(site: Site) -> SiteView:
    ours = {"url", "created_at", "updated_at"}
    names = (name for name in SiteView.__struct_fields__ if name not in ours)
    return SiteView(
        url=f"/pages/{site.site}/",
        created_at=iso(site.created_at),
        updated_at=iso(site.updated_at),
        **{name: getattr(site, name) for name in names},
    )


def entry_fields(entry: Entry, now: float, *, purged: bool = False) -> dict[str, Any]:
    fresh_until = entry.generated_at + entry.revalidate_seconds
    stale_until = fresh_until + max(entry.swr, entry.sie)
    state = "fresh" if entry.fresh(now) else "stale" if now < stale_until else "expired"
    return {
        "url": entry.place.url,
        "variant": entry.place.variant or None,
        "status": entry.status,
        "state": "purged" if purged else state,
        "etag": entry.etag,
        "size": entry.size,
        "encodings": list(entry.encodings),
        "tags": list(entry.tags),
        "generated_at": iso(entry.generated_at),
        "fresh_until": iso(fresh_until),
        "stale_until": iso(stale_until),
        "pinned": entry.pinned,
        "versions": len(entry.versions) + 1,
    }


def inspection(found: Inspected, now: float) -> Inspection:
    entry, lock, verdict = found.held.entry, found.lock, found.held.verdict
    expires = None if lock is None else lock.lease_expires_at
    reason = None
    if verdict.hard:
        reason = "purged"
    elif verdict.soft_at is not None:
        reason = "purged softly"
    elif not entry.fresh(now):
        reason = "expired"
    return Inspection(
        **entry_fields(entry, now, purged=not verdict.clear),
        reason=reason,
        key=entry.place.pk,
        blob=entry.s3_key,
        fence=entry.fence,
        lease_held=expires is not None and expires > now,
        lease_expires_at=None if expires is None else iso(expires),
        strict=entry.strict,
        unmarked=entry.unmarked,
        foreign=entry.foreign,
        headers=[(n.decode("latin-1"), v.decode("latin-1")) for n, v in entry.headers],
    )


router = Router("/", route_handlers=[SiteController])
