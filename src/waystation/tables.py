"""Every table of every system."""

from __future__ import annotations

from waystation.accounts import tables as accounts
from waystation.desk import tables as desk
from waystation.gate import tables as gate
from waystation.inbox import tables as inbox
from waystation.pages import tables as pages
from waystation.patterns.idempotency import idempotency
from waystation.patterns.ratelimits import limits
from waystation.queues import QueueSpec, parked
from waystation.relay import tables as relay
from waystation.store.feed import checkpoints

SYSTEMS = {
    "accounts": accounts.TABLES,
    "relay": relay.TABLES,
    "inbox": inbox.TABLES,
    "desk": desk.TABLES,
    "gate": gate.TABLES,
    "pages": pages.TABLES,
    "base": [checkpoints, parked, limits, idempotency],
}

TABLES = [table for tables in SYSTEMS.values() for table in tables]

QUEUES: list[QueueSpec] = [*relay.QUEUES]
"""Every queue of every system."""
