"""What the relay brings to the house."""

from __future__ import annotations

from typing import TYPE_CHECKING

from waystation.accounts import AccountSettings
from waystation.relay.commands import add_commands
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
    from waystation.relay.delivering.inboxes import Inboxes
    from waystation.relay.events import Events
    from waystation.relay.receiving.checking import Checking
    from waystation.relay.receiving.door import MAX_BODY, webhook_door
    from waystation.relay.service import Relay
    from waystation.relay.sources import billing_source

    queue = parts.queues[RECEIVED]
    relay = Relay(
        parts.store,
        parts.vault,
        parts.outbound,
        inboxes=Inboxes(parts.offer("inbox.publish")),
        billed=parts.offer("accounts.billed"),
        queue=None if parts.background else queue,
        stopping=parts.stopping,
        public_url=parts.settings.public_url,
    )
    secrets = parts.settings.of(AccountSettings).stripe_webhook_secrets
    if secrets:
        relay.directory.install(billing_source(), secrets)
    checking = Checking(
        relay.directory, relay.intake, parts.outbound, parts.store.clock, paypal_roots
    )
    worker = relay.worker
    return Running(
        routers=_routers,
        provide={
            "relay": relay,
            "events": Events(parts.store, parts.cursors),
            "replays": relay.replays,
            "tails": relay.tails,
        },
        doors=[Door("/in", webhook_door(checking, relay.public_url), MAX_BODY, programs=True)],
        consumers=[Consumer(queue, worker.handle, concurrency=64)],
        watchers=[Watcher("relay-adoption", events, worker.due.adoption.notice)],
        jobs={"relay": worker.run},
        tend=worker.tend,
        drain=worker.drain,
        close=relay.close,
        offers={
            "relay.receive": relay.intake.receive_from_house,
            "relay.seen": relay.intake.seen_from_house,
            "relay.owns": relay.intake.owns,
        },
    )


def _routers() -> Sequence[Router]:
    from waystation.relay.api import router

    return [router]


SYSTEM = System(
    name="relay",
    tables=TABLES,
    queues=QUEUES,
    commands=add_commands,
    open=open_relay,
)
