"""FaceTheory's cache table: what was generated, and who is regenerating it.

Freshness is `generated_at + revalidate_seconds`, and a lease is held while `lease_expires_at` is
in the future; `ttl` is for clearing up only. The fields that other services do not write have
defaults, so that what they write can be read.
"""

from __future__ import annotations

from waystation.store import Item, Table

cache = Table("facetheory-isr-cache", pk="pk", sk="sk", ttl="ttl")


class PageMeta(
    Item,
    table=cache,
    pk="TENANT#{tenant}#CACHE#{key_hash}",
    sk="META",
    key_only=("tenant", "key_hash"),
    kw_only=True,
):
    """A generated page: where its body is, and since when."""

    tenant: str
    key_hash: str
    s3_key: str
    generated_at: int
    revalidate_seconds: int
    etag: str | None = None
    fence: int | None = None
    ttl: int | None = None


class PageLock(
    Item,
    table=cache,
    pk="TENANT#{tenant}#CACHE#{key_hash}",
    sk="LOCK",
    key_only=("tenant", "key_hash"),
    kw_only=True,
):
    """The lease to regenerate a page. `fence` grows with every holder and is never reset."""

    tenant: str
    key_hash: str
    lease_token: str | None = None
    lease_expires_at: int | None = None
    fence: int = 0
    ttl: int | None = None


TABLES = [cache]
