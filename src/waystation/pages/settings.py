"""The settings of the pages."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from waystation.settings import SystemSettings


class PageSettings(SystemSettings, frozen=True, kw_only=True):
    pages_table: Annotated[
        str | None,
        Meta(
            min_length=3,
            max_length=255,
            pattern=r"^[A-Za-z0-9_.-]+$",
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
