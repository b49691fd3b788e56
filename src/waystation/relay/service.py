"""The relay: webhooks come in, are on disk, and go out to whoever is connected."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from waystation.patterns import Timers, WriteBatches
from waystation.relay.connections import Connections
from waystation.relay.delivering.alerts import Alerts
from waystation.relay.delivering.lanes import Lanes
from waystation.relay.delivering.onward import Elsewhere, Onward
from waystation.relay.delivering.parcels import Memory
from waystation.relay.delivering.tools import Tools
from waystation.relay.delivering.worker import Worker
from waystation.relay.directory import Directory
from waystation.relay.keyring import Keyring
from waystation.relay.receiving.intake import Intake
from waystation.relay.replays import Replays
from waystation.relay.rules.evaluation import Rules
from waystation.relay.sources import Sources
from waystation.relay.states import webhook_of
from waystation.relay.stats import Statistics
from waystation.relay.tail import Tails
from waystation.relay.wakeups import Wakeups

if TYPE_CHECKING:
    from waystation.outbound import Outbound
    from waystation.patterns import Vault
    from waystation.queues import Queue
    from waystation.relay.delivering.inboxes import Inboxes
    from waystation.relay.delivering.worker import Billed
    from waystation.relay.directory import Known
    from waystation.relay.receiving.intake import Receipt
    from waystation.relay.tables import Event
    from waystation.store import Store


class Relay:
    """Everything about webhooks but HTTP.

    With a `queue`, workers in other processes deliver what this one receives.
    """

    def __init__(
        self,
        store: Store,
        vault: Vault,
        outbound: Outbound,
        *,
        inboxes: Inboxes,
        billed: Billed,
        queue: Queue | None = None,
        stopping: asyncio.Event | None = None,
        public_url: str | None = None,
        batches: WriteBatches | None = None,
    ) -> None:
        stopping = stopping or asyncio.Event()
        self.store = store
        self.outbound = outbound
        self.public_url = public_url.rstrip("/") if public_url else None
        self.keyring = Keyring(vault)
        self.directory = Directory(store, self.keyring)
        self.statistics = Statistics(store)
        self.tails = Tails(store, stopping)
        self.tools = Tools(
            store=store,
            batches=batches or WriteBatches(store),
            timers=Timers(store, "relay"),
            directory=self.directory,
            keyring=self.keyring,
            rules=Rules(),
            outbound=outbound,
            inboxes=inboxes,
            lanes=Lanes(store.clock),
            memory=Memory(),
        )
        alerts = Alerts(store, self.directory, self._record)
        self.worker = Worker(self.tools, alerts, billed, stopping)
        self.onward: Onward = self.worker
        if queue is not None:
            self.onward = Elsewhere(queue, self.directory, self.tools.timers, self.keyring)
        self.intake = Intake(
            store,
            self.tools.batches,
            self.directory,
            self.keyring,
            self.onward,
            self.tails.ring,
        )
        wakeups = Wakeups(self.tools.timers, self.onward)
        self.sources = Sources(store, self.keyring, self.directory, wakeups, public_url)
        self.connections = Connections(store, self.keyring, self.directory, wakeups, outbound.guard)
        self.replays = Replays(store, self.directory, self.worker.planning, wakeups)

    async def _record(self, known: Known, event: Event) -> Receipt:
        """Take in an event of our own."""
        return await self.intake.record(known, event, webhook_of(event, self.keyring))

    async def close(self) -> None:
        self.tools.rules.close()
