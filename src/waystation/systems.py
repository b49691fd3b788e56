"""The one list of systems. Whoever needs to know what there is loops over it."""

from __future__ import annotations

from waystation.accounts.system import SYSTEM as ACCOUNTS
from waystation.desk.system import SYSTEM as DESK
from waystation.gate.system import SYSTEM as GATE
from waystation.inbox.system import SYSTEM as INBOX
from waystation.pages.system import SYSTEM as PAGES
from waystation.patterns import idempotency, limits, timers
from waystation.queues import parked
from waystation.relay.system import SYSTEM as RELAY
from waystation.seam import System
from waystation.store import checkpoints

__all__ = ["ACCOUNTS", "BASE", "DESK", "GATE", "INBOX", "PAGES", "RELAY", "SYSTEMS"]

BASE = System(name="base", tables=[checkpoints, parked, limits, idempotency, timers])
"""What belongs to the house itself."""

SYSTEMS = (ACCOUNTS, RELAY, INBOX, DESK, GATE, PAGES, BASE)
