"""The house: everything that one process has open, and the systems that live in it."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from waystation.blobs import ensure_bucket, open_blobs
from waystation.errors import DeclarationError
from waystation.outbound import Guard
from waystation.patterns import Cursors, Idempotency
from waystation.queues import open_queues
from waystation.seam import Parts, Running, every, merged, queues_of, tables_of
from waystation.server.feeds import FeedRunner
from waystation.server.metrics import Metrics
from waystation.server.secret import open_vault
from waystation.server.supervisor import Supervisor
from waystation.store import open_store
from waystation.systems import SYSTEMS

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Awaitable, Sequence

    from waystation.blobs import Blobs
    from waystation.clock import Clock
    from waystation.patterns import Outcome, Vault
    from waystation.queues import Queues
    from waystation.seam import Callers, System
    from waystation.settings import Settings
    from waystation.store import Store

log = logging.getLogger(__name__)

_SWEEP_SECONDS = 60.0
_SWEEP_LIMIT = 500
_SIGN_IN_SECONDS = 60
_TEND_SECONDS = {"embedded": 60.0, "sqs": 5.0}
_FINISH_SECONDS = 840.0
"""Lambda ends a function after fifteen minutes."""


class Runtime:
    """The parts, opened, and what the systems bring."""

    def __init__(
        self,
        settings: Settings,
        systems: Sequence[System],
        store: Store,
        queues: Queues,
        blobs: Blobs,
        vault: Vault,
        *,
        background: bool,
    ) -> None:
        self.settings = settings
        self.store = store
        self.queues = queues
        self.blobs = blobs
        self.vault = vault
        self.metrics = Metrics()
        self.supervisor = Supervisor()
        self.idempotency = Idempotency(store, hook=self._count)
        self.sign_ins = Idempotency(store, ttl=_SIGN_IN_SECONDS, hook=self._count)
        cursors = Cursors(vault)
        self._parts = Parts(
            settings=settings,
            store=store,
            queues=queues,
            blobs=blobs,
            vault=vault,
            guard=Guard(settings.networks),
            idempotency=self.idempotency,
            cursors=cursors,
            stopping=self.supervisor.stopping,
            background=background,
        )
        self.tables = tables_of(systems)
        self.systems = self._parts.open(systems)
        theirs = [running.provide for running in self.running]
        self.provided = merged("name", [{"cursors": cursors}, *theirs])
        self.consumers = [consumer for running in self.running for consumer in running.consumers]
        self.watchers = [watcher for running in self.running for watcher in running.watchers]
        self._check_watchers()
        followed = [watcher for watcher in self.watchers if store.follows(watcher.table)]
        self.feeds = [FeedRunner(store, watcher) for watcher in followed]
        for running in self.running:
            for collector in running.metrics:
                self.metrics.registry.register(collector)
        if background:
            self._add_jobs()

    @property
    def running(self) -> list[Running]:
        return list(self.systems.values())

    @property
    def callers(self) -> Callers:
        """How it is known who calls."""
        found = [running.callers for running in self.running if running.callers is not None]
        if len(found) != 1:
            raise DeclarationError(f"one system must know who calls, not {len(found)}")
        return found[0]

    def _count(self, outcome: Outcome, scope: str, key: str) -> None:
        self.metrics.idempotency.labels(outcome).inc()

    def _add_jobs(self) -> None:
        kind = self.settings.queue.partition(":")[0]
        own = {
            "sweep": every(_SWEEP_SECONDS, self._sweep),
            "queues": every(_TEND_SECONDS[kind], self.queues.tend),
        }
        consumers = [{consumer.queue.spec.name: consumer.run} for consumer in self.consumers]
        feeds = [{feed.name: feed.run} for feed in self.feeds]
        theirs = [running.jobs for running in self.running]
        for name, job in merged("job", [own, *consumers, *feeds, *theirs]).items():
            self.supervisor.add(name, job)

    def _check_watchers(self) -> None:
        merged("watcher", ({watcher.name: watcher} for watcher in self.watchers))
        for watcher in self.watchers:
            if watcher.table not in self.tables or not watcher.table.stream:
                raise DeclarationError(
                    f"{watcher.name} watches {watcher.table.name}, which is not a table of a "
                    "system here with stream=True"
                )

    async def tend(self) -> None:
        """All that is due, once: for where nothing runs in the background."""
        tends = [running.tend() for running in self.running if running.tend is not None]
        await _each(self.queues.tend(), self._sweep(), *tends)
        await self.drain()

    async def drain(self, seconds: float = _FINISH_SECONDS) -> None:
        """Wait for what is under way; what takes longer is left to others, who find it."""
        drains = (running.drain for running in self.running)
        await _each(*(drain(seconds) for drain in drains if drain is not None))

    async def close(self) -> None:
        closes = [running.close() for running in self.running if running.close is not None]
        try:
            await _each(*closes)
        finally:
            await self._parts.close()

    async def _sweep(self) -> None:
        while await self.store.sweep(_SWEEP_LIMIT) >= _SWEEP_LIMIT:
            pass  # there is more, and each round lets others write in between


async def _each(*work: Awaitable[object]) -> None:
    """Do several things at the same time: the failure of one keeps none of the others from being
    done, and is raised after them."""
    outcomes = await asyncio.gather(*work, return_exceptions=True)
    errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    for error in errors[1:]:
        log.error("something else failed, too", exc_info=error)
    if errors:
        raise errors[0]


@asynccontextmanager
async def running(
    settings: Settings,
    systems: Sequence[System] = SYSTEMS,
    *,
    background: bool = False,
    clock: Clock = time.time,
    meeting: socket.socket | None = None,
) -> AsyncIterator[Runtime]:
    """A runtime for a block of code; whatever was opened is closed after it.

    With `background` it has jobs, which begin when its supervisor is started. `meeting` is where
    the process is met that writes for several.
    """
    endpoint = settings.aws_endpoint_url
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(
            await open_store(
                settings.store,
                tables_of(systems),
                env=settings.env,
                clock=clock,
                endpoint_url=endpoint,
                names=settings.table_names,
                meeting=meeting,
            )
        )
        queues = await stack.enter_async_context(
            await open_queues(settings.queue, queues_of(systems), store, endpoint_url=endpoint)
        )
        if endpoint is not None:  # a stand-in for AWS starts empty
            await store.ensure_tables()
            await queues.ensure()
            await ensure_bucket(settings.blobs, endpoint_url=endpoint, region=settings.aws_region)
        blobs = open_blobs(settings.blobs, endpoint_url=endpoint, region=settings.aws_region)
        vault = await open_vault(settings, store)
        runtime = Runtime(settings, systems, store, queues, blobs, vault, background=background)
        stack.push_async_callback(runtime.close)
        yield runtime
