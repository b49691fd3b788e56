"""The settings of the pages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from waystation.pages.tables import cache
from waystation.settings import SystemSettings

if TYPE_CHECKING:
    from collections.abc import Mapping


class PageSettings(SystemSettings, frozen=True, kw_only=True):
    pages_table: Annotated[
        Annotated[str, Meta(min_length=3, max_length=255, pattern=r"^[A-Za-z0-9_.-]+$")] | None,
        Meta(
            extra={"also": "FACETHEORY_CACHE_TABLE_NAME"},
            description="the whole name of FaceTheory's cache table, for sharing it with other "
            "services; `FACETHEORY_CACHE_TABLE_NAME` sets it, too",
        ),
    ] = None
    pages_memory_mb: Annotated[
        int, Meta(ge=1, le=1_000_000, description="how much memory pages may take, in megabytes")
    ] = 64
    pages_max_mb: Annotated[
        int, Meta(ge=1, le=200, description="the largest page that is served, in megabytes")
    ] = 16

    @property
    def table_names(self) -> Mapping[str, str]:
        return {} if self.pages_table is None else {cache.name: self.pages_table}
