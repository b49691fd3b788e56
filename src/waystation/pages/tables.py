"""What pages keep: FaceTheory's cache table, shared with services in other languages, and a table
of our own for sites, purges and lists.

Freshness is `generated_at + revalidate_seconds`, and a lease is held while `lease_expires_at` is
in the future; `ttl` is for clearing up only. The fields that other services do not write have
defaults, so that what they write can be read.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from waystation.store import Index, Item, Table

cache = Table("facetheory-isr-cache", pk="pk", sk="sk", ttl="ttl")
pages = Table(
    "waystation-pages",
    pk="pk",
    sk="sk",
    indexes=[Index("GSI1", pk="gsi1pk", sk="gsi1sk")],
    ttl="ttl",
)

Pairs = list[tuple[str, str]]


def _as_near(raw: dict[str, Any], wrong: frozenset[str]) -> dict[str, Any]:
    """A row whose pointer makes no sense points nowhere, and one of no known time is old."""
    return {}


class PageMeta(
    Item, table=cache, pk="{pk}", sk="META", key_only=("pk",), mend=_as_near, kw_only=True
):
    """A generated page: where its body is, and since when.

    Everything after `etag` is ours alone. `seq` is how many purges there had been when it was begun
    to be generated, `versions` the numbers of those that can be rolled back to.
    """

    pk: str
    s3_key: str
    generated_at: int
    revalidate_seconds: int
    etag: str | None = None
    fence: int | None = None
    owner: str | None = None
    url: str | None = None
    variant: str | None = None
    status: int | None = None
    headers: Pairs | None = None
    size: int | None = None
    digest: str | None = None
    encodings: list[str] | None = None
    swr_seconds: int | None = None
    sie_seconds: int | None = None
    strict: bool | None = None
    unmarked: bool | None = None
    pinned: bool | None = None
    tags: list[str] | None = None
    seq: int | None = None
    versions: list[int] | None = None
    ttl: int | None = None


class PageLock(
    Item, table=cache, pk="{pk}", sk="LOCK", key_only=("pk",), mend=_as_near, kw_only=True
):
    """The lease to regenerate a page. `fence` grows with every holder and is never reset."""

    pk: str
    lease_token: str | None = None
    lease_expires_at: int | None = None
    fence: int = 0
    ttl: int | None = None


class PageVersion(
    Item,
    mend=_as_near,
    table=cache,
    pk="{pk}",
    sk="VERSION#{number:012d}",
    key_only=("pk", "number"),
    kw_only=True,
):
    """What a page was under an earlier lease: everything that is needed to make it that again."""

    pk: str
    number: int
    s3_key: str
    generated_at: int
    etag: str | None = None
    status: int
    headers: Pairs
    size: int
    digest: str
    encodings: list[str]
    tags: list[str]
    ttl: int | None = None


class PageVariants(
    Item, table=cache, pk="{pk}", sk="VARY", key_only=("pk",), mend=_as_near, kw_only=True
):
    """The request headers that pages of one URL depend on."""

    pk: str
    names: list[str]
    ttl: int | None = None


class Site(
    Item,
    table=pages,
    pk="SITE#{site}",
    sk="SITE",
    indexes={"GSI1": ("USER#{user_id}", "SITE#{site}")},
    version="version",
    kw_only=True,
):
    """A site: an origin, and how long its pages may be used. `revision` is counted up when its
    pages are not what they were."""

    site: str
    site_id: str
    user_id: str
    operator: bool = False
    origin: str
    revalidate_seconds: int
    swr_seconds: int | None = None
    sie_seconds: int | None = None
    negative_seconds: int = 60
    vary: list[str] | None = None
    tags: list[str] = msgspec.field(default_factory=list)
    cache_unmarked: bool = True
    cache_set_cookie: bool = False
    ignore_cookies: bool = False
    ignore_params: list[str] = msgspec.field(default_factory=list)
    versions: int = 3
    revision: int = 0
    created_at: int
    updated_at: int
    version: int = 0


Marks = tuple[int, float, int, float]
"""The number and time of the last soft purge, and those of the last hard one."""


class Purges(Item, table=pages, pk="CACHE#{scope}", sk="PURGES", version="version", kw_only=True):
    """How many purges a cache has had, and those that are not about one thing: everything, and
    prefixes of paths."""

    scope: str
    seq: int = 0
    everything: Marks = (0, 0.0, 0, 0.0)
    prefixes: dict[str, Marks] = msgspec.field(default_factory=dict)
    version: int = 0
    ttl: int | None = None


class Purge(Item, table=pages, pk="CACHE#{scope}", sk="PURGE#{kind}#{digest}", kw_only=True):
    """The last purges of one path, URL or tag."""

    scope: str
    kind: str
    digest: str
    target: str
    soft_seq: int = 0
    soft_at: float = 0.0
    hard_seq: int = 0
    hard_at: float = 0.0
    ttl: int

    @property
    def marks(self) -> Marks:
        return self.soft_seq, self.soft_at, self.hard_seq, self.hard_at


class Listed(Item, table=pages, pk="LIST#{scope}", sk="URL#{label}", kw_only=True):
    """That a page is kept: for lists by the beginning of their URLs. Not every one that is listed
    need still be there."""

    scope: str
    label: Annotated[str, Meta(max_length=1000)]
    pk_of: str
    url: str
    variant: str | None = None


class Sweep(Item, table=pages, pk="SWEEP", sk="SWEEP", kw_only=True):
    """The lease of the process that sweeps."""

    lease_token: str | None = None
    lease_expires_at: int | None = None
    fence: int = 0


TABLES = [cache, pages]
