"""The rp_mw tables: idempotency, conversation state and audit. No message text in any of them."""

from __future__ import annotations

from typing import Literal

import msgspec

from waystation.store import Item, Table

Mode = Literal["route_only", "automation_candidate"]

idempotency = Table("rp_mw_idempotency", pk="event_id", ttl="expires_at")
conversation_state = Table("rp_mw_conversation_state", pk="conversation_id", ttl="expires_at")
audit_actions = Table(
    "rp_mw_audit_actions", pk="conversation_id", sk="ts_action_id", ttl="expires_at"
)


class EventRecord(Item, table=idempotency, pk="{event_id}", kw_only=True):
    """That an event, or an action it led to, was seen.

    Keys: `evt:rp:{conversation_id}:{message_id or hash}` and `act:{verb}:...`.
    """

    event_id: str
    created_at: str
    last_processed_at: str
    received_at: str | None = None
    expires_at: int
    status: str = "processed"
    mode: Mode
    conversation_id: str
    safe_mode: bool
    automation_enabled: bool
    source_message_id: str | None = None
    payload_sha256: str
    payload_bytes: int
    intent: str | None = None


class PendingFlow(msgspec.Struct):
    """A question that the conversation waits to have answered."""

    type: str
    requested_at: str
    attempts: int


class AutoReply(msgspec.Struct):
    type: str
    sent_at: str
    source_message_id: str


class ConversationState(
    Item, table=conversation_state, pk="{conversation_id}", version="version", kw_only=True
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


class AuditAction(
    Item,
    table=audit_actions,
    pk="{conversation_id}",
    sk="{timestamp}#{action_id}",
    key_only=("timestamp", "action_id"),
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


TABLES = [idempotency, conversation_state, audit_actions]
