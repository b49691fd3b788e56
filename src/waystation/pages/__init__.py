"""The incremental page cache: as a library, as ASGI middleware, and as a reverse proxy."""

from waystation.pages.library import Page, PageCache
from waystation.pages.serving.middleware import PageCacheMiddleware
from waystation.pages.tables import TABLES

__all__ = ["TABLES", "Page", "PageCache", "PageCacheMiddleware"]
