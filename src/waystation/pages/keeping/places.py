"""Where a page is kept: a tenant and a key, and the row and blob names that follow from them."""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Any

import msgspec

from waystation.errors import InvalidInput
from waystation.ids import nanoid
from waystation.pages.tables import PageLock, PageMeta, PageVariants

SINGLE = "="
"""Stands for the tenant where there is only one."""

MOST_URL = 4_000
BLOBS = "pages"
"""Where bodies are kept, apart from the blobs of others."""

_TENANT = re.compile(r"\w[\w.@+-]{0,99}", re.ASCII)
_LABEL = 700


class Place(msgspec.Struct, frozen=True, dict=True):
    """One page's place. `url` is its path and query; `variant` tells it from other pages that have
    the same URL."""

    tenant: str | None
    url: str
    variant: str = ""

    @property
    def scope(self) -> str:
        return self.tenant or SINGLE

    @property
    def path(self) -> str:
        return self.url.partition("?")[0]

    @property
    def key_hash(self) -> str:
        key = f"{self.url}\n{self.variant}" if self.variant else self.url
        return sha256(key.encode("utf-8", "surrogateescape")).hexdigest()

    @property
    def pk(self) -> str:
        found: str | None = self.__dict__.get("pk")
        if found is None:
            found = self.__dict__["pk"] = partition(self.tenant, self.key_hash)
        return found

    @property
    def meta(self) -> Any:
        return PageMeta.key(self.pk)

    @property
    def lock(self) -> Any:
        return PageLock.key(self.pk)

    @property
    def variants(self) -> Any:
        return PageVariants.key(self.pk)

    def new_blob(self) -> str:
        """A key for a body, which nothing else will ever have."""
        return f"{blob_prefix(self.scope)}{self.key_hash}-{nanoid(12)}"

    @property
    def label(self) -> str:
        """The URL, as it is in lists of them."""
        whole = f"{self.url}\n{self.variant}" if self.variant else self.url
        short = self.listed_url
        return short if short == whole else f"{short}~{self.key_hash[:16]}"

    @property
    def listed_url(self) -> str:
        """What the labels of all pages of a URL begin with."""
        return self.url.replace("#", "%23")[:_LABEL]

    def of(self, variant: str) -> Place:
        """The page of the same URL for what a request says."""
        own = f"{self.variant}\n{variant}" if self.variant else variant
        return Place(self.tenant, self.url, own)


def partition(tenant: str | None, key_hash: str) -> str:
    """A page's partition, as the seed has it for one tenant and for many."""
    return f"CACHE#{key_hash}" if tenant is None else f"TENANT#{tenant}#CACHE#{key_hash}"


def blob_prefix(scope: str) -> str:
    return f"{BLOBS}/{scope}/"


def check_tenant(tenant: str | None) -> str:
    """A tenant's name, or a refusal: pages of nobody are nobody's to see."""
    if tenant is None or not _TENANT.fullmatch(tenant):
        raise InvalidInput("tenant", "must be a letter or digit, then up to 99 more or . @ + - _")
    return tenant
