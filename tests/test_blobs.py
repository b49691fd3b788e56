"""Blobs, on every object store that can be had here."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import boto3
import pytest

from waystation.blobs import Blobs, open_blobs
from waystation.errors import BlobError, InvalidRequest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(params=["file", "memory", "s3"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Blobs:
    if request.param == "file":
        return open_blobs(f"file://{tmp_path / 'blobs'}")
    if request.param == "memory":
        return open_blobs("memory:///")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    url = request.getfixturevalue("moto_url")
    bucket = f"b{uuid.uuid4().hex[:12]}"
    boto3.client("s3", endpoint_url=url).create_bucket(
        Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": "eu-west-1"}
    )
    return open_blobs(f"s3://{bucket}/below", endpoint_url=url)


async def test_what_was_put_is_got(blobs: Blobs) -> None:
    data = bytes(range(256)) * 100
    await blobs.put("tenant/page-1.html", data)
    assert await blobs.get("tenant/page-1.html") == data


async def test_an_absent_blob_is_none(blobs: Blobs) -> None:
    assert await blobs.get("nothing/here") is None


async def test_an_empty_blob_is_not_absent(blobs: Blobs) -> None:
    await blobs.put("empty", b"")
    assert await blobs.get("empty") == b""


async def test_a_blob_can_be_replaced(blobs: Blobs) -> None:
    await blobs.put("a", b"1")
    await blobs.put("a", b"2")
    assert await blobs.get("a") == b"2"


async def test_a_blob_can_be_left_alone(blobs: Blobs) -> None:
    assert await blobs.put("a", b"1", replace=False)
    assert not await blobs.put("a", b"2", replace=False)
    assert await blobs.get("a") == b"1"


async def test_a_deleted_blob_is_gone(blobs: Blobs) -> None:
    await blobs.put("a", b"1")
    await blobs.delete("a")
    await blobs.delete("a")
    assert await blobs.get("a") is None


async def test_keys_below_a_prefix(blobs: Blobs) -> None:
    for key in ("x/1", "x/y/2", "z/3"):
        await blobs.put(key, b"")
    assert sorted([key async for key, _ in blobs.walk("x")]) == ["x/1", "x/y/2"]
    assert len([key async for key, _ in blobs.walk()]) == 3


@pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", "../a", "a/./b", "a\n", "x" * 901])
async def test_a_bad_key_is_refused(blobs: Blobs, key: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await blobs.put(key, b"")
    assert refused.value.field == "key"


async def test_a_directory_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    await open_blobs("file:some/where").put("a", b"1")
    assert (tmp_path / "some" / "where" / "a").read_bytes() == b"1"


def test_another_url_is_refused() -> None:
    with pytest.raises(InvalidRequest) as refused:
        open_blobs("carrier-pigeon://coop")
    assert refused.value.field == "blobs"


async def test_a_store_that_refuses_is_an_error(
    moto_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    blobs = open_blobs("s3://no-such-bucket-here", endpoint_url=moto_url)
    for attempt in (blobs.put("a", b"1"), blobs.get("a"), blobs.delete("a")):
        with pytest.raises(BlobError, match=r"does not exist \(NoSuchBucket\)$"):
            await attempt
