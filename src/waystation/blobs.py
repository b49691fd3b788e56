"""Blobs: bodies too large for an item, in a directory or any object store."""

from __future__ import annotations

import asyncio
import os
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
            raise BlobError(f"{key} could not be written: {error}") from error
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
        except (FileNotFoundError, NotFoundError):
            return None
        except (BaseError, OSError) as error:
            raise BlobError(f"{key} could not be read: {error}") from error

    async def delete(self, key: str) -> None:
        """Remove a blob, if it is there."""
        _check_key(key)
        try:
            await obstore.delete_async(self._store, key)
        except (FileNotFoundError, NotFoundError):
            return
        except (BaseError, OSError) as error:
            raise BlobError(f"{key} could not be removed: {error}") from error

    async def walk(self, prefix: str = "") -> AsyncIterator[tuple[str, float]]:
        """Every key below a prefix that ends at a slash, and when it was last written."""
        try:
            async for chunk in obstore.list(self._store, prefix or None):
                for entry in chunk:
                    yield entry["path"], entry["last_modified"].timestamp()
        except (BaseError, OSError) as error:
            raise BlobError(f"{prefix or 'the blobs'} could not be listed: {error}") from error


def open_blobs(url: str, *, endpoint_url: str | None = None) -> Blobs:
    """Open `file:relative/path`, `file:///absolute/path`, `s3://bucket/prefix`, `memory:///`, …"""
    try:
        if url.startswith("file:"):
            path = Path(url.removeprefix("file:").removeprefix("//"))
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            return Blobs(LocalStore(path.resolve()), path.resolve())
        if url.startswith("s3://"):
            return Blobs(_s3(url, endpoint_url))
        return Blobs(from_url(url))
    except (BaseError, OSError, ValueError) as error:
        raise InvalidRequest(f"{url!r} is not an object store: {error}", field="blobs") from error


def _sync(place: Path) -> None:
    handle = os.open(place, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _s3(url: str, endpoint_url: str | None) -> S3Store:
    """Credentials, region and endpoint by the same chain as DynamoDB's and SQS's."""
    # Imported here so that a local directory starts without the AWS client.
    from waystation.aws import AwsChain

    chain = AwsChain(None, endpoint_url)

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
