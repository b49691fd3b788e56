"""The document's own model declarations beside ours, attribute for attribute."""

from __future__ import annotations

import dataclasses
from hashlib import sha256
from typing import Any

import msgspec
import pytest

from waystation.pages.keeping.places import Place, partition
from waystation.pages.tables import PageLock, PageMeta
from waystation.store import open_store


def theorydb_field(
    *, roles: list[str] | None = None, name: str, omitempty: bool = False, default: Any = ...
) -> Any:
    """Says what the document's library is told, without the library: it is not to be had."""
    metadata = {"roles": roles or [], "name": name, "omitempty": omitempty}
    if default is ...:
        return dataclasses.field(metadata=metadata)
    return dataclasses.field(metadata=metadata, default=default)


@dataclasses.dataclass
class FaceTheoryCacheMetadata:
    pk: str = theorydb_field(roles=["pk"], name="pk")
    sk: str = theorydb_field(roles=["sk"], name="sk")
    s3_key: str = theorydb_field(name="s3_key")
    generated_at: int = theorydb_field(name="generated_at")
    revalidate_seconds: int = theorydb_field(name="revalidate_seconds")
    etag: str | None = theorydb_field(name="etag", omitempty=True, default=None)
    ttl: int | None = theorydb_field(roles=["ttl"], name="ttl", omitempty=True, default=None)


@dataclasses.dataclass
class FaceTheoryCacheLease:
    pk: str = theorydb_field(roles=["pk"], name="pk")
    sk: str = theorydb_field(roles=["sk"], name="sk")
    lease_token: str = theorydb_field(name="lease_token")
    lease_expires_at: int = theorydb_field(name="lease_expires_at")
    ttl: int | None = theorydb_field(roles=["ttl"], name="ttl", omitempty=True, default=None)


PAIRS = [(FaceTheoryCacheMetadata, PageMeta, "META"), (FaceTheoryCacheLease, PageLock, "LOCK")]


@pytest.mark.parametrize(("theirs", "ours", "sort"), PAIRS)
def test_every_attribute_of_the_document_is_one_of_ours(theirs: Any, ours: Any, sort: str) -> None:
    table, own = ours.spec.table, {f.encode_name: f for f in msgspec.structs.fields(ours)}
    for field in dataclasses.fields(theirs):
        name, roles = field.metadata["name"], field.metadata["roles"]
        if roles == ["pk"]:
            assert name == table.pk.name
        elif roles == ["sk"]:
            assert (name, ours.key("x").sk) == (table.sk.name, sort)
        else:
            kind = {"str": str, "int": int}[field.type.partition(" ")[0]]
            assert isinstance(msgspec.convert(kind(7), own[name].type), kind), name
        if roles == ["ttl"]:
            assert name == table.ttl
        if field.metadata["omitempty"]:
            assert own[name].default is None


@pytest.mark.parametrize(("theirs", "ours", "sort"), PAIRS)
async def test_a_row_of_theirs_is_read_as_it_was_written(theirs: Any, ours: Any, sort: str) -> None:
    """One with the document's attributes and no others."""
    values = {
        "s3_key": "a/b.html",
        "generated_at": 1_700_000_000,
        "revalidate_seconds": 60,
        "lease_token": "t",
        "lease_expires_at": 1_700_000_030,
    }
    names = {f.metadata["name"] for f in dataclasses.fields(theirs)}
    given = {name: value for name, value in values.items() if name in names}
    async with await open_store("sqlite://:memory:", [ours.spec.table]) as store:
        await store.put(ours(pk="CACHE#x", **given))
        found = await store.get(ours.key("CACHE#x"))
        assert {name: getattr(found, name) for name in given} == given


def test_partitions_are_the_documents() -> None:
    assert partition(None, "abc") == "CACHE#abc"
    assert partition("acme", "abc") == "TENANT#acme#CACHE#abc"
    place = Place("acme", "/p")
    assert place.pk == f"TENANT#acme#CACHE#{sha256(b'/p').hexdigest()}"
