"""Blobs: bodies too large for an item, in a directory or any object store."""

from __future__ import annotations

import asyncio
import os
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError
from obstore.store import LocalStore, S3Store, from_url

from waystation.errors import BlobError, InvalidRequest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from obstore.store import ObjectStore

MAX_KEY = 900
MAX_BYTES = 256 * 1024 * 1024
_MOST_KNOWN = 10_000
_ASK_AGAIN = timedelta(minutes=5)
_REFUSAL = re.compile(r"<Code>(\w+)</Code>(?:\s*<Message>([^<]*)</Message>)?")
_NO_BUCKET = "NoSuchBucket"


class Blobs:
    """Bytes by key. Keys are paths of plain parts: `tenant/2026/abc.html`."""

    def __init__(self, store: ObjectStore, directory: Path | None = None) -> None:
        """`directory` is where a local store keeps its files, which then are synced to the disk."""
        self._store = store
        self._directory = directory
        self._known: set[Path] = set()
        """Directories that outlast a power cut."""

    async def put(self, key: str, data: bytes, *, replace: bool = True) -> bool:
        """Write a blob; with `replace=False` say whether it was new, and leave an old one alone."""
        _check_key(key)
        if len(data) > MAX_BYTES:
            raise InvalidRequest(f"a blob has at most {MAX_BYTES} bytes", field="data")
        try:
            await obstore.put_async(
                self._store, key, data, mode="overwrite" if replace else "create"
            )
            if self._directory is not None:
                await asyncio.to_thread(self._synced, self._directory, self._directory / key)
        except AlreadyExistsError:
            return False
        except (BaseError, OSError) as error:
            raise BlobError(f"{key} could not be written: {_why(error)}") from error
        return True

    def _synced(self, top: Path, file: Path) -> None:
        """Make a file and the directories that lead to it outlast a power cut."""
        _sync(file)
        _sync(file.parent)
        place = file.parent
        while place != top and place not in self._known:
            _sync(place.parent)
            if len(self._known) < _MOST_KNOWN:
                self._known.add(place)
            place = place.parent

    async def get(self, key: str) -> bytes | None:
        _check_key(key)
        try:
            found = await obstore.get_async(self._store, key)
            return bytes(await found.bytes_async())
        except (BaseError, OSError) as error:
            if _is_absent(error):
                return None
            raise BlobError(f"{key} could not be read: {_why(error)}") from error

    async def delete(self, key: str) -> None:
        """Remove a blob, if it is there."""
        _check_key(key)
        try:
            await obstore.delete_async(self._store, key)
        except (BaseError, OSError) as error:
            if not _is_absent(error):
                raise BlobError(f"{key} could not be removed: {_why(error)}") from error

    async def walk(self, prefix: str = "") -> AsyncIterator[tuple[str, float]]:
        """Every key below a prefix that ends at a slash, and when it was last written."""
        try:
            async for chunk in obstore.list(self._store, prefix or None):
                for entry in chunk:
                    yield entry["path"], entry["last_modified"].timestamp()
        except (BaseError, OSError) as error:
            where = prefix or "the blobs"
            raise BlobError(f"{where} could not be listed: {_why(error)}") from error


def open_blobs(url: str, *, endpoint_url: str | None = None, region: str | None = None) -> Blobs:
    """Open `file:relative/path`, `file:///absolute/path`, `s3://bucket/prefix`, `memory:///`, …

    `region` is where a bucket is; by default, where AWS's own settings say.
    """
    try:
        if url.startswith("file:"):
            path = Path(url.removeprefix("file:").removeprefix("//"))
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            return Blobs(LocalStore(path.resolve()), path.resolve())
        if url.startswith("s3://"):
            return Blobs(_s3(url, endpoint_url, region))
        return Blobs(from_url(url))
    except (BaseError, OSError, ValueError) as error:
        raise InvalidRequest(f"{url!r} is not an object store: {error}", field="blobs") from error


def _sync(place: Path) -> None:
    handle = os.open(place, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


async def ensure_bucket(url: str, *, endpoint_url: str, region: str | None = None) -> None:
    """Create the bucket of `s3://bucket/prefix` at a stand-in for AWS, unless it is there."""
    if url.startswith("s3://"):
        await asyncio.to_thread(_create_bucket, url, endpoint_url, region)


def _create_bucket(url: str, endpoint_url: str, region: str | None) -> None:
    # Imported here so that only those who use a stand-in load the models of AWS's services.
    import botocore.config
    import botocore.exceptions
    import botocore.session

    from waystation.aws import AwsChain

    chain = AwsChain(region, endpoint_url)
    client: Any = botocore.session.get_session().create_client(
        "s3",
        region_name=chain.region,
        endpoint_url=chain.given_endpoint("s3"),
        config=botocore.config.Config(s3={"addressing_style": "path"}),
    )
    bucket = url.removeprefix("s3://").partition("/")[0]
    place = {} if chain.region == "us-east-1" else {"LocationConstraint": chain.region}
    more = {"CreateBucketConfiguration": place} if place else {}
    try:
        client.create_bucket(Bucket=bucket, **more)
    except botocore.exceptions.ClientError as error:
        code = error.response.get("Error", {}).get("Code")
        if code not in ("BucketAlreadyOwnedByYou", "BucketAlreadyExists"):
            raise BlobError(f"the bucket {bucket} could not be created: {error}") from error
    except botocore.exceptions.BotoCoreError as error:
        raise BlobError(f"the bucket {bucket} could not be created: {error}") from error
    finally:
        client.close()


def _is_absent(error: BaseException) -> bool:
    """Whether there is no such blob. Without a bucket, nobody knows."""
    return isinstance(error, FileNotFoundError | NotFoundError) and _NO_BUCKET not in str(error)


def _why(error: BaseException) -> str:
    """What the object store's client says, without what is only of interest to its authors."""
    text = str(error).partition("\n\nDebug source:")[0]
    if refusal := _REFUSAL.search(text):
        return f"{refusal[2] or 'it was refused'} ({refusal[1]})"
    if "AccessRefused: " in text:
        return text.partition("AccessRefused: ")[2]
    if "error sending request" in text and (host := re.search(r"https?://[^/\s]+", text)):
        return f"{host[0]} cannot be reached"
    return " ".join(text.split())[:300]


def _s3(url: str, endpoint_url: str | None, region: str | None) -> S3Store:
    """Credentials, region and endpoint by the same chain as DynamoDB's and SQS's."""
    # Imported here so that a local directory starts without the AWS client.
    from waystation.aws import AwsChain

    chain = AwsChain(region, endpoint_url)

    def provide() -> Any:
        held = chain.load_credentials().get_frozen_credentials()
        return {
            "access_key_id": held.access_key,
            "secret_access_key": held.secret_key,
            "token": held.token,
            "expires_at": datetime.now(UTC) + _ASK_AGAIN,  # the chain knows when to renew
        }

    more: dict[str, Any] = {}
    if endpoint := chain.given_endpoint("s3"):
        more = {"endpoint": endpoint, "client_options": {"allow_http": True}}
    return S3Store.from_url(url, region=chain.region, credential_provider=provide, **more)


def _check_key(key: str) -> None:
    parts = key.split("/")
    if not 0 < len(key.encode(errors="replace")) <= MAX_KEY or any(
        part in ("", ".", "..") or not part.isprintable() for part in parts
    ):
        raise InvalidRequest(f"{key[:80]!r} is not a blob's key", field="key")
