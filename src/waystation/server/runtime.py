"""Everything that one process has open, and how it fits together."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from waystation.accounts.service import Accounts
from waystation.blobs import open_blobs
from waystation.patterns.idempotency import Idempotency
from waystation.queues import Consumer, open_queues
from waystation.server.metrics import Metrics
from waystation.server.secret import open_vault
from waystation.server.supervisor import Supervisor, every
from waystation.store import open_store
from waystation.tables import QUEUES, TABLES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from waystation.accounts.passwords import Passwords
    from waystation.blobs import Blobs
    from waystation.clock import Clock
    from waystation.patterns.idempotency import Outcome
    from waystation.patterns.vault import Vault
    from waystation.queues import Queues
    from waystation.settings import Settings
    from waystation.store import Change, Store

    Watcher = Callable[[Change], Awaitable[None]]

_SWEEP_SECONDS = 60.0
_SWEEP_LIMIT = 500
_SIGN_IN_SECONDS = 60
_TEND_SECONDS = {"embedded": 60.0, "sqs": 5.0}


class Runtime:
    """The parts, opened. `consumers` and `watchers` are what the systems bring to work off."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        queues: Queues,
        blobs: Blobs,
        vault: Vault,
        *,
        passwords: Passwords | None = None,
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
        self.accounts = Accounts(
            store,
            self.vault,
            passwords=passwords,
            signups=settings.signups,
            signup_plan=settings.signup_plan,
        )
        self.consumers: dict[str, Consumer] = {}
        self.watchers: dict[str, Watcher] = {}

    def _count(self, outcome: Outcome, scope: str, key: str) -> None:
        self.metrics.idempotency.labels(outcome).inc()

    def add_jobs(self) -> None:
        """The background work of this process."""
        self.supervisor.add("sweep", every(_SWEEP_SECONDS, self._sweep))
        kind = self.settings.queue.partition(":")[0]
        self.supervisor.add("queues", every(_TEND_SECONDS[kind], self.queues.tend))
        for name, consumer in self.consumers.items():
            self.supervisor.add(name, consumer.run)

    async def tend(self) -> None:
        """All that is due, once: for where nothing runs in the background."""
        await self.queues.tend()
        await self._sweep()

    async def _sweep(self) -> None:
        while await self.store.sweep(_SWEEP_LIMIT) >= _SWEEP_LIMIT:
            pass  # there is more, and each round lets others write in between


@asynccontextmanager
async def running(
    settings: Settings, *, clock: Clock = time.time, passwords: Passwords | None = None
) -> AsyncIterator[Runtime]:
    """A runtime for a block of code; whatever was opened is closed after it."""
    endpoint = settings.aws_endpoint_url
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(
            await open_store(
                settings.store, TABLES, env=settings.env, clock=clock, endpoint_url=endpoint
            )
        )
        queues = await stack.enter_async_context(
            await open_queues(settings.queue, QUEUES, store, endpoint_url=endpoint)
        )
        if endpoint is not None:  # a stand-in for AWS starts empty
            await store.ensure_tables()
            await queues.ensure()
        blobs = open_blobs(settings.blobs, endpoint_url=endpoint)
        vault = await open_vault(settings, store)
        runtime = Runtime(settings, store, queues, blobs, vault, passwords=passwords)
        stack.callback(runtime.accounts.close)
        yield runtime
