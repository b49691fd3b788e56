"""The pages of sites, as their accounts see them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from waystation.pages.keeping.sweeping import Sweeper
from waystation.pages.service import Pages
from waystation.pages.serving.proxy import Proxy
from waystation.pages.serving.warming import Warmer
from waystation.pages.sites import Sites, tenant_of

if TYPE_CHECKING:
    from waystation.pages.keeping.entries import Entry
    from waystation.pages.service import Inspected
    from waystation.pages.settings import PageSettings
    from waystation.seam import Parts

_MEGABYTE = 1024 * 1024


class SitePages:
    """Everything about pages that a server has open."""

    def __init__(self, parts: Parts, settings: PageSettings) -> None:
        self._cursors = parts.cursors
        self.pages = Pages(parts.store, parts.blobs, settings.pages_memory_mb * _MEGABYTE)
        self.sites = Sites(
            parts.store, parts.guard, self.pages.purges, role=parts.offer("accounts.role")
        )
        self.proxy = Proxy(
            self.sites,
            self.pages.answers,
            parts.outbound,
            parts.settings.public_url,
            settings.pages_max_mb * _MEGABYTE,
        )
        self.warmer = Warmer(self.pages.answers, self.proxy)
        self.sweeper = Sweeper(parts.store, parts.blobs)

    async def entries(
        self, user_id: str, name: str, prefix: str, limit: int, cursor: str | None
    ) -> tuple[list[Entry], str | None]:
        site = await self.sites.get(user_id, name)
        scope = f"pages {site.site_id} {prefix}"
        after = None if cursor is None else self._cursors.open(cursor, scope)
        found, position = await self.pages.entries(tenant_of(site), prefix, limit, after)
        return found, None if position is None else self._cursors.seal(position, scope)

    async def inspect(self, user_id: str, name: str, url: str) -> list[Inspected]:
        site = await self.sites.get(user_id, name)
        return await self.pages.inspect(tenant_of(site), url)

    async def close(self) -> None:
        await self.pages.close()
