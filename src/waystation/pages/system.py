"""What pages bring to the house."""

from __future__ import annotations

from typing import TYPE_CHECKING

from waystation.pages.commands import add_commands
from waystation.pages.settings import PageSettings
from waystation.pages.tables import TABLES
from waystation.seam import Door, Parts, Running, System, every

if TYPE_CHECKING:
    from collections.abc import Sequence

    from litestar import Router

_SWEEP_SECONDS = 3_600.0


def open_pages(parts: Parts) -> Running:
    from waystation.pages.serving.proxy import MAX_BODY, PREFIX
    from waystation.pages.site_pages import SitePages

    pages = SitePages(parts, parts.settings.of(PageSettings))
    proxy = pages.proxy
    at_once = proxy.at_once if parts.store.near else None
    return Running(
        routers=_routers,
        provide={"pages": pages},
        doors=[Door(PREFIX, proxy.handle, MAX_BODY, pages=True, at_once=at_once)],
        jobs={"pages sweep": every(_SWEEP_SECONDS, pages.sweeper.sweep)},
        tend=pages.sweeper.sweep,
        close=pages.close,
        metrics=pages.pages.metrics.collectors(),
    )


def _routers() -> Sequence[Router]:
    from waystation.pages.api import router

    return [router]


SYSTEM = System(
    name="pages", tables=TABLES, settings=PageSettings, commands=add_commands, open=open_pages
)
