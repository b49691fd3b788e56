"""Everything that one process has open, and how it fits together."""

from __future__ import annotations

import logging
import time
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from waystation.accounts.service import Accounts
from waystation.blobs import open_blobs
from waystation.errors import WaystationError
from waystation.patterns.cursors import Cursors
from waystation.patterns.idempotency import Idempotency
from waystation.queues import Consumer, open_queues
from waystation.relay import billing
from waystation.relay.service import Relay
from waystation.relay.tables import RECEIVED
from waystation.relay.tail import Tails
from waystation.relay.worker import EventRef, Worker
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
    from waystation.relay.tables import Event
    from waystation.settings import Settings
    from waystation.store import Change, Store

    Watcher = Callable[[Change], Awaitable[None]]

log = logging.getLogger(__name__)

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
        self.cursors = Cursors(vault)
        self.relay = Relay(store, vault, networks=settings.networks, public_url=settings.public_url)
        self.relay.hand_over = self._pass_on
        self.tails = Tails(self.relay, self.supervisor.stopping)
        self.worker = Worker(self.relay, self._billing())
        received = Consumer(queues[RECEIVED], self.worker.handle, concurrency=64)
        self.consumers: dict[str, Consumer] = {"relay-received": received}
        self.watchers: dict[str, Watcher] = {}

    def _count(self, outcome: Outcome, scope: str, key: str) -> None:
        self.metrics.idempotency.labels(outcome).inc()

    def _billing(self) -> dict[str, Callable[[Event], Awaitable[bool]]]:
        secrets, prices = self.settings.stripe_webhook_secrets, self.settings.prices
        if not secrets or not prices:
            return {}
        self.relay.directory.install(billing.billing_source(), secrets)
        return {billing.SOURCE_ID: billing.Billing(self.store, prices).apply}

    async def _pass_on(self, event: Event) -> None:
        """Tell a worker in another process. If that fails, the event's wake tells it later."""
        told = EventRef(event.source_id, event.received_at, event.event_id)
        try:
            await self.queues[RECEIVED].send(told)
        except WaystationError as error:
            log.warning("event %s was not passed on at once: %s", event.event_id, error)

    def add_jobs(self) -> None:
        """The background work of this process, which then processes its own events itself."""
        self.relay.begin, self.relay.hand_over = self.worker.begin, self.worker.take
        self.relay.kick = self.worker.kick
        self.supervisor.add("relay", self.worker.run)
        self.supervisor.add("sweep", every(_SWEEP_SECONDS, self._sweep))
        kind = self.settings.queue.partition(":")[0]
        self.supervisor.add("queues", every(_TEND_SECONDS[kind], self.queues.tend))
        for name, consumer in self.consumers.items():
            self.supervisor.add(name, consumer.run)

    async def tend(self) -> None:
        """All that is due, once: for where nothing runs in the background."""
        await self.queues.tend()
        await self._sweep()
        await self.worker.tick()
        await self.worker.finish()

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
        stack.push_async_callback(runtime.relay.close)
        yield runtime
