"""What the relay keeps: sources and connections beside the accounts, events in their own table.

Attribute names are camelCase. The lists in `filters`, `transform` and `retry_config`, and the
headers of an event, are JSON texts.
"""

from __future__ import annotations

from typing import Literal

from waystation.accounts.tables import main
from waystation.store import Index, Item, Table

Status = Literal["active", "paused", "deleted"]
EventStatus = Literal["received", "processing", "filtered", "delivered", "retrying", "failed"]

events = Table(
    "ferryhook-events",
    pk="PK",
    sk="SK",
    indexes=[Index("GSI1", pk="GSI1PK", sk="GSI1SK")],
    ttl="expiresAt",
)


class Source(
    Item,
    table=main,
    pk="USER#{user_id}",
    sk="SRC#{source_id}",
    indexes={"GSI3": ("SRCID#{source_id}", "SOURCE")},
    rename="camel",
    kw_only=True,
):
    """Where webhooks come in."""

    source_id: str
    user_id: str
    name: str
    provider: str
    signing_secret: str | None = None
    signing_algorithm: str | None = None
    status: Status = "active"
    event_count: int = 0
    last_event_at: str | None = None
    created_at: str


class Connection(
    Item, table=main, pk="SRC#{source_id}", sk="CONN#{connection_id}", rename="camel", kw_only=True
):
    """Where a source's webhooks go."""

    connection_id: str
    source_id: str
    user_id: str
    name: str
    destination_url: str
    signing_secret: str
    filters: str | None = None
    transform: str | None = None
    retry_config: str | None = None
    status: Status = "active"
    delivery_count: int = 0
    failure_count: int = 0
    created_at: str
    updated_at: str


class Event(
    Item,
    table=events,
    pk="SRC#{source_id}",
    sk="EVT#{received_at:013d}#{event_id}",
    indexes={"GSI1": ("EVTID#{event_id}", "EVENT")},
    rename="camel",
    kw_only=True,
):
    """A webhook that was received. Times are milliseconds, `expires_at` seconds."""

    event_id: str
    source_id: str
    user_id: str
    status: EventStatus = "received"
    headers: str
    body: str
    source_ip: str
    content_type: str | None = None
    method: str
    received_at: int
    processed_at: int | None = None
    delivered_at: int | None = None
    expires_at: int


class Attempt(
    Item, table=events, pk="EVT#{event_id}", sk="ATT#{attempt_number}", rename="camel", kw_only=True
):
    """One try to deliver an event. `status_code` is 0 when there was no answer."""

    event_id: str
    connection_id: str
    attempt_number: int
    destination_url: str
    status_code: int
    response_body: str | None = None
    latency_ms: int
    error: str | None = None
    attempted_at: int
    expires_at: int | None = None


TABLES = [events]
