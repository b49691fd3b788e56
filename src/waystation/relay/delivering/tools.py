"""What delivering works with: parts of the house, and what one process knows of its own work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from waystation.outbound import Outbound
    from waystation.patterns import Timers, WriteBatches
    from waystation.relay.delivering.inboxes import Inboxes
    from waystation.relay.delivering.lanes import Lanes
    from waystation.relay.delivering.parcels import Memory
    from waystation.relay.directory import Directory
    from waystation.relay.keyring import Keyring
    from waystation.relay.rules.evaluation import Rules
    from waystation.store import Store


@dataclass(frozen=True)
class Tools:
    store: Store
    batches: WriteBatches
    timers: Timers
    directory: Directory
    keyring: Keyring
    rules: Rules
    outbound: Outbound
    inboxes: Inboxes
    lanes: Lanes
    memory: Memory

    def now(self) -> int:
        """Milliseconds."""
        return int(self.store.clock() * 1000)
