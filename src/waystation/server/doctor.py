"""The doctor: tries every part that the settings name, and says what to fix."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec

from waystation.blobs import open_blobs
from waystation.errors import AccessRefused, BlobError, SettingsError, TableMissing
from waystation.ids import nanoid
from waystation.queues import open_queues
from waystation.server.secret import open_vault
from waystation.settings import load_settings
from waystation.store import open_store
from waystation.store.feed import Checkpoint
from waystation.tables import QUEUES, TABLES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from waystation.settings import Settings
    from waystation.store import Store

_SKEW_SECONDS = 5.0
_EARLIEST = 1_760_000_000
"""A clock that shows a time before this was never set."""


class Finding(msgspec.Struct, frozen=True):
    """What was found out about one part."""

    name: str
    ok: bool
    detail: str
    fix: str | None = None

    def shown(self) -> dict[str, Any]:
        return msgspec.structs.asdict(self)


async def examine(config: Path | None) -> list[Finding]:
    """Findings about everything, as far as it could be looked at."""
    try:
        settings = load_settings(config)
    except SettingsError as error:
        return [Finding("settings", False, str(error), "see docs/settings.md")]
    found = [Finding("settings", True, f"environment {settings.env!r}")]
    checks: list[tuple[str, Callable[[Settings], Awaitable[str]]]] = [
        ("store", _store),
        ("secret", _secret),
        ("queue", _queue),
        ("blobs", _blobs),
        ("clock", _clock),
    ]
    for name, check in checks:
        if name == "clock" and not found[-1].ok:
            break  # it is read off the blobs
        try:
            found.append(Finding(name, True, await check(settings)))
        except Exception as error:  # noqa: BLE001 - whatever it is, that is the finding
            detail = str(error) or type(error).__name__
            found.append(Finding(name, False, detail, _fix(name, error)))
    return found


def _fix(name: str, error: Exception) -> str:
    if isinstance(error, AccessRefused):
        return "give this process AWS credentials that may use the tables, queues and bucket"
    if isinstance(error, TableMissing):
        return "deploy `waystation tables --cloudformation`"
    return {
        "secret": "the key file belongs beside the database, readable by its owner alone; or set "
        "WAYSTATION_SECRET_KEY",
        "store": "is WAYSTATION_STORE right, its directory writable, its service reachable?",
        "queue": "is WAYSTATION_QUEUE right and its service reachable? The queues come with "
        "`waystation tables --cloudformation`",
        "blobs": "is WAYSTATION_BLOBS right, its directory writable, its bucket there?",
        "clock": "set the clock: signatures and expiry depend on it (timedatectl set-ntp true)",
    }[name]


async def _opened(settings: Settings) -> Store:
    return await open_store(
        settings.store, TABLES, env=settings.env, endpoint_url=settings.aws_endpoint_url
    )


async def _secret(settings: Settings) -> str:
    """The key, and that it is the one the database was written with."""
    async with await _opened(settings) as store:
        await open_vault(settings, store)
    return "set" if settings.secret_key else "in waystation.key"


async def _store(settings: Settings) -> str:
    """Writes and reads, through every table."""
    async with await _opened(settings) as store:
        for table in TABLES:
            spec = table.specs[0]
            await store.scan(spec.item, limit=1)
        probe = Checkpoint(
            table="doctor", consumer="doctor", shard=nanoid(), expires_at=store.now() + 60
        )
        await store.put(probe)
        await store.delete(Checkpoint.key(probe.table, probe.consumer, probe.shard))
    return f"{settings.store}: {len(TABLES)} tables, written and read"


async def _queue(settings: Settings) -> str:
    url = settings.aws_endpoint_url
    async with (
        await _opened(settings) as store,
        await open_queues(settings.queue, QUEUES, store, endpoint_url=url) as queues,
    ):
        depths = [await queue.depth() for queue in queues]
    waiting = sum(depth.ready + depth.delayed for depth in depths)
    return f"{settings.queue}: {len(depths)} queues, {waiting} messages waiting"


async def _blobs(settings: Settings) -> str:
    blobs = open_blobs(settings.blobs, endpoint_url=settings.aws_endpoint_url)
    key = f"doctor/{nanoid()}"
    await blobs.put(key, b"test")
    read = await blobs.get(key)
    await blobs.delete(key)
    if read != b"test":
        raise BlobError("what was written could not be read")
    return f"{settings.blobs}: written and read"


async def _clock(settings: Settings) -> str:
    """Our clock against that of whoever keeps the blobs."""
    if time.time() < _EARLIEST:
        raise SettingsError("the clock shows a time long past")
    blobs = open_blobs(settings.blobs, endpoint_url=settings.aws_endpoint_url)
    key = f"doctor/{nanoid()}"
    await blobs.put(key, b"test")
    stamps = [at async for name, at in blobs.walk("doctor") if name == key]
    await blobs.delete(key)
    off = time.time() - stamps[0] if stamps else 0.0
    if abs(off) > _SKEW_SECONDS:
        raise SettingsError(f"the clock is off by {off:.0f} seconds")
    return f"within {_SKEW_SECONDS:g} seconds of the object store's"
