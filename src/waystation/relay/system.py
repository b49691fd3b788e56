"""What the relay brings to the house."""

from __future__ import annotations

from typing import TYPE_CHECKING

from waystation.relay.commands import add_commands
from waystation.relay.settings import RelaySettings
from waystation.relay.tables import QUEUES, RECEIVED, TABLES, events
from waystation.seam import Door, Parts, Running, System, Watcher

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cryptography import x509
    from litestar import Router


def open_relay(
    parts: Parts,
    *,
    paypal_roots: Sequence[x509.Certificate] | None = None,
) -> Running:
    from waystation.queues import Consumer
    from waystation.relay import billing
    from waystation.relay.door import MAX_BODY, webhook_door
    from waystation.relay.events import Events
    from waystation.relay.inboxes import Inboxes
    from waystation.relay.service import Relay
    from waystation.relay.tail import Tails
    from waystation.relay.worker import Worker

    settings = parts.settings.of(RelaySettings)
    relay = Relay(
        parts.store,
        parts.vault,
        parts.outbound,
        inboxes=Inboxes(parts.offer("inbox.publish")),
        public_url=parts.settings.public_url,
    )
    special = {}
    if settings.stripe_webhook_secrets:
        relay.directory.install(billing.billing_source(), settings.stripe_webhook_secrets)
        special[billing.SOURCE_ID] = billing.Billing(parts.store, settings.prices).apply
    worker = Worker(relay, special, parts.stopping)
    if parts.background:
        relay.deliver_here(worker.begin, worker.take, worker.timed.kick)
    else:
        relay.leave_to_others(parts.queues[RECEIVED])
    return Running(
        routers=_routers,
        provide={
            "relay": relay,
            "relay_worker": worker,
            "events": Events(parts.store, parts.cursors),
            "replays": worker.replays,
            "tails": Tails(relay, parts.stopping),
        },
        doors=[Door("/in", webhook_door(relay, paypal_roots), MAX_BODY, programs=True)],
        consumers=[Consumer(parts.queues[RECEIVED], worker.handle, concurrency=64)],
        watchers=[Watcher("relay-adoption", events, worker.adoption.notice)],
        jobs={"relay": worker.timed.run},
        tend=worker.tend,
        drain=worker.timed.drain,
        close=relay.close,
        offers={
            "relay.receive": relay.receive_from_house,
            "relay.seen": relay.seen_from_house,
            "relay.owns": relay.owns,
        },
    )


def _routers() -> Sequence[Router]:
    from waystation.relay.api import router

    return [router]


SYSTEM = System(
    name="relay",
    tables=TABLES,
    queues=QUEUES,
    settings=RelaySettings,
    commands=add_commands,
    open=open_relay,
)
