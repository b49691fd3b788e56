"""The rp_mw tables: idempotency, conversation state and audit, and a table of the desk's own.

No message text is in any of them. What has to be kept of one for a while, such as a plan that is
being carried out, is sealed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from waystation.queues import QueueSpec
from waystation.store import Item, Table

if TYPE_CHECKING:
    from waystation.store import RawItem

Mode = Literal["route_only", "automation_candidate"]

PROCESSING = "processing"
PROCESSED = "processed"
BEGUN = "begun"
"""An action that was begun, and of which nobody knows whether it was carried out."""

EVENTS = QueueSpec(name="desk-events", ordered=True, visibility=60, max_receives=20)
"""Support events, in order within each conversation. With the waits in between, a message is tried
for about an hour: so long may a vendor be away before anybody has to do anything."""

idempotency = Table("rp_mw_idempotency", pk="event_id", ttl="expires_at")
conversation_state = Table("rp_mw_conversation_state", pk="conversation_id", ttl="expires_at")
audit_actions = Table(
    "rp_mw_audit_actions", pk="conversation_id", sk="ts_action_id", ttl="expires_at"
)
desk = Table("waystation-desk", pk="pk", sk="sk", ttl="expires_at")


def _another_services(raw: RawItem, wrong: frozenset[str]) -> dict[str, Any]:
    """What cannot be made out is left out. That an event was seen is what its key says."""
    return {"mode": "route_only"} if "mode" in wrong else {}


def _unversioned(raw: RawItem, wrong: frozenset[str]) -> dict[str, Any]:
    return {"version": UNUSABLE} if "version" in wrong else {}


UNUSABLE = -1
"""The version of a state whose version another service has made something else of."""


class EventRecord(Item, table=idempotency, pk="{event_id}", mend=_another_services, kw_only=True):
    """That an event, or an action it led to, was seen.

    Keys: `evt:rp:{conversation_id}:{message_id or hash}` and `act:{verb}:...`. Whoever works on an
    event holds a lease on its record and keeps there, sealed, what it has decided to do.
    """

    event_id: str
    created_at: str
    last_processed_at: str
    received_at: str | None = None
    expires_at: int
    status: str = PROCESSED
    mode: Mode
    conversation_id: str
    safe_mode: bool
    automation_enabled: bool
    source_message_id: str | None = None
    payload_sha256: str
    payload_bytes: int
    intent: str | None = None
    lease_token: str | None = None
    lease_expires_at: int | None = None
    fence: int = 0
    plan: bytes | None = None
    answer: bytes | None = None
    result: str | None = None
    failures: int = 0
    last_error: str | None = None


class PendingFlow(msgspec.Struct):
    """A question that the conversation waits to have answered."""

    type: str
    requested_at: str
    attempts: int


class AutoReply(msgspec.Struct):
    """The latest reply of ours. `text_hash` is what we know our own words by."""

    type: str
    sent_at: str
    source_message_id: str
    text_hash: str | None = None


class OrderTrace(msgspec.Struct):
    """The order that a conversation is about, as far as it is kept."""

    hash: str
    last4: str


class ConversationState(
    Item,
    table=conversation_state,
    pk="{conversation_id}",
    version="version",
    mend=_unversioned,
    kw_only=True,
):
    """What a conversation's next message is decided with."""

    conversation_id: str
    updated_at: str
    expires_at: int
    version: int = 0
    last_processed_at: str | None = None
    last_processed_message_id: str | None = None
    last_routed_team: str | None = None
    last_routing_confidence: float | None = None
    last_intent: str | None = None
    risk_flags: set[str] | None = None
    pending_flow: PendingFlow | None = None
    last_auto_reply: AutoReply | None = None
    auto_replies: list[str] | None = None
    last_order: OrderTrace | None = None
    channel: str | None = None
    agent_replied_at: str | None = None
    closed: bool | None = None
    order_asks: int | None = None
    last_text_hash: str | None = None
    last_received_at: str | None = None


class StateVersion(Item, table=conversation_state, pk="{conversation_id}", kw_only=True):
    """A state's version alone, to replace one that cannot be counted."""

    conversation_id: str
    version: int


class AuditAction(
    Item,
    table=audit_actions,
    pk="{conversation_id}",
    sk="{timestamp}#{action_id}",
    key_only=("timestamp", "action_id"),
    mend=_another_services,
    kw_only=True,
):
    """Something the middleware did, without personal data."""

    conversation_id: str
    timestamp: str
    action_id: str
    action_type: str
    action_payload_redacted: str
    idempotency_key: str
    result: str
    expires_at: int
    event_id: str | None = None


class Switches(Item, table=desk, pk="SWITCHES", sk="NOW", version="version", kw_only=True):
    """What the desk may do. A switch that is not there is on its safe side."""

    safe_mode: bool = True
    automation_enabled: bool = False
    channels: list[str] | None = None
    templates: dict[str, bool] = msgspec.field(default_factory=dict)
    source_id: str | None = None
    source_owner: str | None = None
    updated_at: str | None = None
    updated_by: str | None = None
    version: int = 0


class SwitchChange(Item, table=desk, pk="CHANGES", sk="{at}#{change_id}", kw_only=True):
    """That somebody has set switches, and how they stood before and after."""

    at: str
    change_id: str
    by: str
    before: str
    after: str
    expires_at: int


class Cooldown(Item, table=desk, pk="VENDOR#{vendor}", sk="COOLDOWN", kw_only=True):
    """Until when a vendor is left alone, by all processes."""

    vendor: str
    until: float
    reason: str = ""
    expires_at: int


class Unknown(Item, table=desk, pk="UNKNOWN", sk="{at}#{unknown_id}", kw_only=True):
    """A reply that may have been sent, or not: a person has to look."""

    at: str
    unknown_id: str
    conversation_id: str
    idempotency_key: str
    template: str
    detail: str
    expires_at: int


class Redrive(Item, table=desk, pk="REDRIVE", sk="LATEST", version="version", kw_only=True):
    """The latest redrive of dead letters and how far it has come."""

    redrive_id: str
    status: Literal["running", "done"]
    per_minute: int
    total: int
    sent: int = 0
    by: str
    created_at: str
    updated_at: str
    begun_at: float
    version: int = 0


TABLES = [idempotency, conversation_state, audit_actions, desk]
