"""What the systems share, and what your own code may use with any store."""

from waystation.patterns.batches import Together, WriteBatches
from waystation.patterns.bounded import Newest
from waystation.patterns.fingerprints import fingerprint
from waystation.patterns.idempotency import Idempotency, Outcome, Run
from waystation.patterns.leases import Lease, Leases, newer
from waystation.patterns.lists import MAX_CURSOR, Cursors, Listing, listing
from waystation.patterns.ratelimits import (
    Limit,
    LocalLimiter,
    SharedLimiter,
    limits,
    sender_key,
)
from waystation.patterns.records import Record, idempotency
from waystation.patterns.redaction import excerpt, masked_fields, redact
from waystation.patterns.slack import slack_signature, slack_signed
from waystation.patterns.tallies import Tally
from waystation.patterns.timedwork import Look, TimedWork, guarded
from waystation.patterns.timers import RESCUE_MS, Timer, Timers, timers
from waystation.patterns.vault import MIN_KEY_CHARACTERS, KeyCheck, Vault, load_or_create_key

__all__ = [
    "MAX_CURSOR",
    "MIN_KEY_CHARACTERS",
    "RESCUE_MS",
    "Cursors",
    "Idempotency",
    "KeyCheck",
    "Lease",
    "Leases",
    "Limit",
    "Listing",
    "LocalLimiter",
    "Look",
    "Newest",
    "Outcome",
    "Record",
    "Run",
    "SharedLimiter",
    "Tally",
    "TimedWork",
    "Timer",
    "Timers",
    "Together",
    "Vault",
    "WriteBatches",
    "excerpt",
    "fingerprint",
    "guarded",
    "idempotency",
    "limits",
    "listing",
    "load_or_create_key",
    "masked_fields",
    "newer",
    "redact",
    "sender_key",
    "slack_signature",
    "slack_signed",
    "timers",
]
