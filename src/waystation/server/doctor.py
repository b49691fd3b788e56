"""The doctor: tries every part that the settings name, and says what to fix."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from waystation.blobs import open_blobs
from waystation.errors import AccessRefused, BlobError, SettingsError, TableMissing
from waystation.ids import nanoid
from waystation.queues import open_queues
from waystation.seam import queues_of, settings_of, tables_of
from waystation.server.runtime import running
from waystation.server.secret import open_vault
from waystation.settings import load_settings
from waystation.store import Checkpoint, open_store
from waystation.systems import SYSTEMS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from waystation.blobs import Blobs
    from waystation.seam import Check, System
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

    def as_dict(self) -> dict[str, Any]:
        return msgspec.structs.asdict(self)


async def examine(config: Path | None, systems: Sequence[System] = SYSTEMS) -> list[Finding]:
    """Findings about everything, as far as it could be looked at."""
    try:
        settings = load_settings(settings_of(systems), config)
    except SettingsError as error:
        return [Finding("settings", False, str(error), "see docs/settings.md")]
    found = [Finding("settings", True, f"environment {settings.env!r}")]
    doctor = _Doctor(settings, systems)
    checks = {
        "store": doctor.store,
        "secret": doctor.secret,
        "queue": doctor.queue,
        "blobs": doctor.blobs,
        "clock": doctor.clock,
    }
    for name, check in checks.items():
        if name == "clock" and not found[-1].ok:
            break  # it is read off the blobs
        found.append(await _run_check(name, check, lambda error, name=name: _fix(name, error)))  # type: ignore[misc]
    if all(finding.ok for finding in found):
        found += await _of_systems(settings, systems)
    return found


async def _of_systems(settings: Settings, systems: Sequence[System]) -> list[Finding]:
    """What the systems themselves want to have checked."""
    try:
        return await _checks(settings, systems)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
        detail = str(error) or type(error).__name__
        return [
            Finding("systems", False, detail, "one of the systems cannot be opened as it is set")
        ]


async def _checks(settings: Settings, systems: Sequence[System]) -> list[Finding]:
    async with running(settings, systems) as runtime:
        return [
            await _run_check(check.name, check.run, partial(_remedy, check))
            for part in runtime.running
            for check in part.checks
        ]


async def _run_check(
    name: str, check: Callable[[], Awaitable[str]], fix: Callable[[Exception], str]
) -> Finding:
    try:
        return Finding(name, True, await check())
    except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
        return Finding(name, False, str(error) or type(error).__name__, fix(error))


def _remedy(check: Check, error: Exception) -> str:
    return check.fix


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
        "blobs": "is WAYSTATION_BLOBS right, its directory writable, its bucket there? A bucket "
        "comes with `waystation tables --cloudformation`, which says what it is called",
        "clock": "set the clock: signatures and expiry depend on it (timedatectl set-ntp true)",
    }[name]


class _Doctor:
    """Tries one part after the other, each opened for itself."""

    def __init__(self, settings: Settings, systems: Sequence[System]) -> None:
        self._settings = settings
        self._tables = tables_of(systems)
        self._queues = queues_of(systems)

    async def _opened(self) -> Store:
        settings = self._settings
        return await open_store(
            settings.store,
            self._tables,
            env=settings.env,
            endpoint_url=settings.aws_endpoint_url,
            names=settings.table_names,
        )

    async def secret(self) -> str:
        """The key, and that it is the one the database was written with."""
        async with await self._opened() as store:
            await open_vault(self._settings, store)
        return "set" if self._settings.secret_key else "in waystation.key"

    async def store(self) -> str:
        """Writes and reads, through every table."""
        async with await self._opened() as store:
            for table in self._tables:
                await store.scan(table.specs[0].item, limit=1)
            probe = Checkpoint(
                table="doctor", consumer="doctor", shard=nanoid(), expires_at=store.now() + 60
            )
            await store.put(probe)
            await store.delete(Checkpoint.key(probe.table, probe.consumer, probe.shard))
        return f"{self._settings.store}: {len(self._tables)} tables, written and read"

    async def queue(self) -> str:
        settings = self._settings
        url = settings.aws_endpoint_url
        async with (
            await self._opened() as store,
            await open_queues(settings.queue, self._queues, store, endpoint_url=url) as queues,
        ):
            depths = [await queue.depth() for queue in queues]
        waiting = sum(depth.ready + depth.delayed for depth in depths)
        return f"{settings.queue}: {len(depths)} queues, {waiting} messages waiting"

    def _blobs(self) -> Blobs:
        settings = self._settings
        return open_blobs(
            settings.blobs, endpoint_url=settings.aws_endpoint_url, region=settings.aws_region
        )

    async def blobs(self) -> str:
        blobs = self._blobs()
        key = f"doctor/{nanoid()}"
        await blobs.put(key, b"test")
        read = await blobs.get(key)
        await blobs.delete(key)
        if read != b"test":
            raise BlobError("what was written could not be read")
        return f"{self._settings.blobs}: written and read"

    async def clock(self) -> str:
        """Our clock against that of whoever keeps the blobs."""
        if time.time() < _EARLIEST:
            raise SettingsError("the clock shows a time long past")
        blobs = self._blobs()
        key = f"doctor/{nanoid()}"
        await blobs.put(key, b"test")
        stamps = [at async for name, at in blobs.walk("doctor") if name == key]
        await blobs.delete(key)
        off = time.time() - stamps[0] if stamps else 0.0
        if abs(off) > _SKEW_SECONDS:
            raise SettingsError(f"the clock is off by {off:.0f} seconds")
        return f"within {_SKEW_SECONDS:g} seconds of the object store's"
