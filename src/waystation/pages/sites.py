"""Sites: an origin and how long its pages may be used, each the account's that has put it."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from waystation.errors import ConditionFailed, Conflict, InvalidInput, NotFound
from waystation.ids import new_id
from waystation.pages.http.policies import Windows
from waystation.pages.serving.limits import TENANTS
from waystation.pages.serving.terms import Terms
from waystation.pages.tables import Site
from waystation.patterns import Newest
from waystation.store import absent, attr, key_of

if TYPE_CHECKING:
    from waystation.outbound import Guard
    from waystation.pages.keeping.purges import PurgeBook
    from waystation.seam import Offer
    from waystation.store import Store

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,60}", re.ASCII)
_FRESH_SECONDS = 2.0
_MOST_KEPT = 10_000
_MOST_SITES = 100
_YEAR = 365 * 86_400

TRACKING = (
    *("utm_*", "gclid", "gclsrc", "dclid", "gbraid", "wbraid", "fbclid", "msclkid", "twclid"),
    *("ttclid", "li_fat_id", "mc_cid", "mc_eid", "igshid", "yclid", "_ga", "_gl", "srsltid"),
)
"""Query parameters that say where a visitor comes from, and nothing about the page."""

UNKEYED = frozenset(
    {
        *("host", "via", "forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto"),
        "x-forwarded-prefix",
    }
)
"""Request headers that the origin gets from us."""

_MEANING = (
    *("origin", "vary", "tags", "operator", "cache_unmarked", "cache_set_cookie"),
    *("ignore_cookies", "ignore_params"),
)
"""What decides which page is kept under which key."""

Seconds = Annotated[int, Meta(ge=0, le=_YEAR)]
Word = Annotated[str, Meta(min_length=1, max_length=200)]


class SiteInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What can be said about a site. Windows are in seconds.

    `swr_seconds` is for how long a stale page is served while it is regenerated, `sie_seconds` for
    how long one is served when that fails. Left out, they are what the origin says, and a day for
    pages of which it says nothing.
    """

    origin: Annotated[str, Meta(min_length=1, max_length=1_000)]
    revalidate_seconds: Seconds
    swr_seconds: Seconds | None = None
    sie_seconds: Seconds | None = None
    negative_seconds: Annotated[int, Meta(ge=0, le=3_600)] = 60
    vary: Annotated[list[Word], Meta(max_length=10)] | None = None
    tags: Annotated[list[Word], Meta(max_length=20)] = []
    cache_unmarked: bool = True
    cache_set_cookie: bool = False
    ignore_cookies: bool = False
    ignore_params: Annotated[list[Word], Meta(max_length=100)] = msgspec.field(
        default_factory=lambda: list(TRACKING)
    )
    versions: Annotated[int, Meta(ge=1, le=10)] = 3


class Sites:
    """`role` says what an account is."""

    def __init__(self, store: Store, guard: Guard, purges: PurgeBook, *, role: Offer) -> None:
        self._store = store
        self._guard = guard
        self._purges = purges
        self._role = role
        self._known: Newest[str, tuple[float, Site, Terms]] = Newest(_MOST_KEPT)
        self._unknown: Newest[str, float] = Newest(_MOST_KEPT)

    async def put(self, user_id: str, name: str, given: SiteInput) -> Site:
        """Create a site, or change one's own."""
        if not _NAME.fullmatch(name):
            raise InvalidInput("site", "must be 1 to 63 lower-case letters, digits and hyphens")
        self._check(given)
        known = await self._store.get(Site.key(name))
        if known is not None and known.user_id != user_id:
            raise Conflict("this name is taken")
        if known is None and len(await self.of(user_id)) >= _MOST_SITES:
            raise Conflict(f"an account has at most {_MOST_SITES} sites")
        site = await self._changed(user_id, name, known, given)
        if known is not None and _is_another(known, site):
            site.revision += 1
            await self._purges.purge(tenant_of(known), "all", "", hard=True)
        try:
            await self._store.put(site, when=absent() if known is None else None)
        except ConditionFailed:
            raise Conflict("this name is taken, or the site was just changed") from None
        finally:
            self._forget(name)
        return site

    async def _changed(self, user_id: str, name: str, known: Site | None, given: SiteInput) -> Site:
        now = self._store.now()
        values = msgspec.structs.asdict(given)
        values["origin"] = given.origin.rstrip("/")
        if given.vary is not None:
            values["vary"] = sorted({header.lower() for header in given.vary})
        return Site(
            site=name,
            site_id=new_id("site") if known is None else known.site_id,
            user_id=user_id,
            operator=await self._role(user_id) == "operator",
            created_at=now if known is None else known.created_at,
            updated_at=now,
            version=0 if known is None else known.version,
            revision=0 if known is None else known.revision,
            **values,
        )

    def _check(self, given: SiteInput) -> None:
        self._guard.check_url(given.origin, "origin")
        if "?" in given.origin or "#" in given.origin:
            raise InvalidInput("origin", "must have neither a query nor a fragment")
        for header in given.vary or ():
            if not _HEADER.fullmatch(header):
                raise InvalidInput("vary", f"{header!r} is not a header's name")
            if header.lower() == "accept-encoding" or header.lower() in UNKEYED:
                raise InvalidInput("vary", f"the origin gets {header} from us, not from visitors")
        for tag in given.tags:
            if "," in tag or not tag.isprintable():
                raise InvalidInput("tags", "must be printable and have no commas")

    async def get(self, user_id: str, name: str) -> Site:
        site = await self._store.get(Site.key(name)) if _NAME.fullmatch(name) else None
        if site is None or site.user_id != user_id:
            raise NotFound("there is no such site")
        return site

    async def of(self, user_id: str) -> list[Site]:
        page = await self._store.query(Site.query(user_id, index="GSI1"), limit=_MOST_SITES)
        return list(page.items)

    async def delete(self, user_id: str, name: str) -> None:
        """Remove a site. Its pages go first: who takes the name next shall have none of them."""
        site = await self.get(user_id, name)
        await self._purges.purge(tenant_of(site), "all", "", hard=True, last=True)
        try:
            await self._store.delete(key_of(site), when=attr("site_id") == site.site_id)
        except ConditionFailed:
            raise NotFound("there is no such site") from None
        self._forget(name)

    async def find(self, name: str) -> tuple[Site, Terms] | None:
        """A site for the door: what was changed elsewhere is seen within two seconds."""
        now = self._store.clock()
        known = self._known.get(name)
        if known is not None and 0 <= now - known[0] < _FRESH_SECONDS:
            return known[1], known[2]
        if 0 <= now - self._unknown.get(name, -math.inf) < _FRESH_SECONDS:
            return None
        site = await self._store.get(Site.key(name)) if _NAME.fullmatch(name) else None
        if site is None:  # kept apart: whoever makes up names pushes out no real ones
            self._known.pop(name, None)
            self._unknown[name[:64]] = now
            return None
        terms = terms_of(site)
        self._known[name] = (now, site, terms)
        return site, terms

    def _forget(self, name: str) -> None:
        self._known.pop(name, None)
        self._unknown.pop(name, None)


def tenant_of(site: Site) -> str:
    """What a site's pages are kept under. Those of an operator's may be shared with other services
    by the site's name; no other account gets at what is kept under a name of theirs."""
    return site.site if site.operator else f"@{site.site}"


def terms_of(site: Site) -> Terms:
    return Terms(
        tenant=tenant_of(site),
        windows=Windows(
            fresh=site.revalidate_seconds,
            swr=site.swr_seconds,
            sie=site.sie_seconds,
            negative=site.negative_seconds,
            unmarked=site.cache_unmarked,
            set_cookie=site.cache_set_cookie,
        ),
        vary=None if site.vary is None else tuple(site.vary),
        unkeyed=UNKEYED,
        owner=f"{site.site_id}.{site.revision}",
        foreign=site.operator,
        account=site.site_id if site.operator else f"{TENANTS}{site.user_id}",
        tags=tuple(site.tags),
        ignore_cookies=site.ignore_cookies,
        versions=site.versions,
    )


def _is_another(known: Site, site: Site) -> bool:
    """Whether the pages of a site are not what they were."""
    return any(getattr(known, name) != getattr(site, name) for name in _MEANING)
