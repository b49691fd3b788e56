"""Several workers, a clock that jumps, and calls that fail before or after they were carried out:
whatever happens, pages go forwards, are their tenants' own, and come back."""

from __future__ import annotations

import asyncio
import os
import random
import time
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.faults import Faults
from waystation.blobs import open_blobs
from waystation.clock import ManualClock
from waystation.errors import BlobError, OutcomeUnknown, StoreUnavailable, WaystationError
from waystation.pages import Page, PageCache
from waystation.pages.keeping.places import Place
from waystation.pages.tables import TABLES, PageMeta
from waystation.store import open_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from waystation.store import Store

SEEDS = int(os.environ.get("PAGE_SEEDS", "12"))
STEPS = 60
WORKERS = 4
TENANTS = ("ann", "bob")
KEYS = ("/a", "/b")


class Crash(BaseException):
    """A worker that is no more. Nothing that it would have done is done."""


class Trial:
    """Workers on one store, each with memory and trouble of its own."""

    def __init__(self, store: Store, clock: ManualClock, seed: int) -> None:
        self.store = store
        self.clock = clock
        self.rng = random.Random(seed)
        self.blobs = open_blobs("memory:///")
        self.trouble = True
        self.published: dict[str, list[tuple[int, str]]] = {}
        self.renders = 0

    def worker(self) -> PageCache:
        store: Any = Faults(self.store)
        for name in ("get", "update", "transact", "put", "batch_get"):
            store.around[name] = self._troubled(name)
        blobs: Any = Faults(self.blobs)
        blobs.around["put"] = self._blob
        cache = PageCache(store, blobs, tenants=True, revalidate_seconds=5, swr_seconds=5)
        cache.pages.regeneration.wait_seconds = 0.01
        return cache

    def _troubled(self, name: str) -> Any:
        async def call(real: Any, *given: Any, **named: Any) -> Any:
            for _ in range(self.rng.randrange(3)):
                await asyncio.sleep(0)
            writes = name not in ("get", "batch_get")
            dice = self.rng.random() if self.trouble else 1.0
            if dice < 0.02:
                raise StoreUnavailable("before it was carried out")
            if dice < 0.03:
                self.clock.advance(self.rng.choice([1, 5, 20]))
            answer = await real(*given, **named)
            if name == "transact":
                await self._note(given)
            if writes and 0.03 < dice < 0.05:
                raise OutcomeUnknown("after it was carried out")
            return answer

        return call

    async def _note(self, actions: Any) -> None:
        """Write down what was published."""
        for action in actions:
            key = getattr(action, "key", None)
            if key is not None and key.sk == "META":
                values: dict[str, Any] = {
                    str(c.path.parts[0]): getattr(c, "value", None) for c in action.changes
                }
                fence, blob = values["fence"].value, values["s3_key"].value
                self.published.setdefault(key.pk, []).append((fence, blob))

    async def _blob(self, real: Any, *given: Any, **named: Any) -> Any:
        await asyncio.sleep(0)
        if self.trouble and self.rng.random() < 0.03:
            raise BlobError("the disk is full")
        return await real(*given, **named)

    async def render(self, tenant: str, key: str) -> Page:
        self.renders += 1
        number = self.renders
        for _ in range(self.rng.randrange(5)):
            await asyncio.sleep(0)
        if self.trouble and self.rng.random() < 0.1:
            raise ValueError("the template is broken")
        if self.trouble and self.rng.random() < 0.05:
            self.clock.advance(20)  # longer than a lease
        return Page(body=f"{tenant} {key} {number}", tags=[key])

    async def work(self) -> None:
        cache = self.worker()
        try:
            for _ in range(STEPS):
                with suppress(WaystationError, ValueError):
                    await self._step(cache)
        except Crash:
            for flight in cache.pages.regeneration._flights.values():
                flight.cancel()
        else:
            await cache.close()

    async def _step(self, cache: PageCache) -> None:
        tenant, key = self.rng.choice(TENANTS), self.rng.choice(KEYS)
        dice = self.rng.random()
        if dice < 0.7:
            page = await cache.get(key, lambda: self.render(tenant, key), tenant=tenant)
            assert str(page.body, "utf-8").startswith(f"{tenant} {key} ")  # type: ignore[arg-type]
        elif dice < 0.8:
            mode = self.rng.choice(["soft", "hard"])
            await cache.revalidate(tag=key, tenant=tenant, mode=mode)  # type: ignore[arg-type]
        elif dice < 0.85:
            await cache.rollback(key, tenant=tenant)
        elif dice < 0.87:
            raise Crash
        else:
            self.clock.advance(self.rng.choice([1, 3, 11]))


@pytest.fixture(params=["sqlite", "dynamodb"])
async def trial_store(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Store, ManualClock]]:
    clock = ManualClock(float(int(time.time())))
    url, env = "sqlite://:memory:", "t"
    if request.param == "dynamodb":
        monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", request.getfixturevalue("dynamodb_url"))
        url, env = "dynamodb://eu-west-1", f"t{uuid.uuid4().hex[:8]}"
    async with await open_store(url, TABLES, env=env, clock=clock) as store:
        await store.ensure_tables()
        yield store, clock


async def check(trial: Trial) -> None:
    """Everything that must hold afterwards."""
    for pk, published in trial.published.items():
        fences = [fence for fence, _ in published]
        assert fences == sorted(set(fences)), (pk, fences)
        meta = await trial.store.get(PageMeta.key(pk), expired=True)
        assert meta is not None
        assert (meta.fence, meta.s3_key) == published[-1], pk
        assert await trial.blobs.get(meta.s3_key) is not None


async def recover(trial: Trial) -> None:
    """Every page can be had again, at the latest once the leases of the dead are over."""
    trial.trouble = False
    trial.clock.advance(30)
    cache = trial.worker()
    for tenant in TENANTS:
        for key in KEYS:
            await cache.revalidate(path=key, tenant=tenant, mode="hard")
            page = await cache.get(key, lambda t=tenant, k=key: trial.render(t, k), tenant=tenant)  # type: ignore[misc]
            assert page.body == f"{tenant} {key} {trial.renders}".encode()
            assert "stored" in page.cache_status
            lock: Any = await trial.store.get(Place(tenant, key).lock)
            assert (lock.lease_token, lock.lease_expires_at) == (None, None)
    await cache.close()


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_whatever_happens_on_sqlite(seed: int) -> None:
    clock = ManualClock(float(int(time.time())))
    async with await open_store("sqlite://:memory:", TABLES, clock=clock) as store:
        await _tried(Trial(store, clock, seed))


async def test_whatever_happens(trial_store: tuple[Store, ManualClock]) -> None:
    store, clock = trial_store
    await _tried(Trial(store, clock, 1))


async def _tried(trial: Trial) -> None:
    await asyncio.gather(*(trial.work() for _ in range(WORKERS)))
    await check(trial)
    await recover(trial)
    await check(trial)
