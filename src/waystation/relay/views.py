"""Sources, connections, events and deliveries as the API shows them."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta

from waystation.errors import SettingsError
from waystation.relay.delivering.retries import stored_delays
from waystation.relay.directory import Verification
from waystation.relay.receiving.dedupe import Dedupe
from waystation.relay.states import outcomes_of, webhook_of
from waystation.relay.tables import DeliveryStatus, EventStatus
from waystation.times import iso, iso_of_ms

if TYPE_CHECKING:
    from waystation.relay.keyring import Keyring
    from waystation.relay.tables import Attempt, Connection, Delivery, Event, Replay, Source

_HIDDEN = "[hidden]"
_STATUSES = ", ".join(get_args(EventStatus))


class SourceView(msgspec.Struct, kw_only=True):
    id: str
    name: str
    provider: str
    url: str
    status: str
    public_url: str | None
    signing_secrets: int
    verification: dict[str, Any]
    dedupe: Dedupe
    connection_count: int
    event_count: int
    last_event_at: str | None
    created_at: str
    updated_at: str | None


def source_view(source: Source, keyring: Keyring, base_url: str) -> SourceView:
    stored = source.verification
    verification = msgspec.json.decode(stored, type=Verification) if stored else Verification()
    scheme = verification.scheme
    shown = {} if scheme is None else msgspec.structs.asdict(scheme)
    return SourceView(
        id=source.source_id,
        name=source.name,
        provider=source.provider,
        url=f"{base_url}/in/{source.source_id}",
        status=source.status,
        public_url=source.public_url,
        signing_secrets=keyring.count(source),
        verification={"mode": verification.mode, **shown},
        dedupe=msgspec.json.decode(source.dedupe, type=Dedupe) if source.dedupe else Dedupe(),
        connection_count=source.connection_count,
        event_count=source.event_count,
        last_event_at=source.last_event_at,
        created_at=source.created_at,
        updated_at=source.updated_at,
    )


class RetryView(msgspec.Struct):
    """When a delivery is tried again: seconds before each further attempt, and attempts in all."""

    schedule: list[int]
    attempts: int


class ConnectionView(msgspec.Struct, kw_only=True):
    """A connection. Its headers' values and its secret are never shown again."""

    id: str
    source_id: str
    name: str
    destination_url: str | None
    inbox: Any
    filters: Any
    transform: Any
    retry: Annotated[RetryView, Meta(description="what is used: each delay is up to 10 % longer")]
    rate_limit: Any
    headers: dict[str, str]
    timeout: int
    concurrency: int
    status: str
    disabled_reason: str | None
    disabled_at: str | None
    failure_streak: int
    delivery_count: int
    failure_count: int
    created_at: str
    updated_at: str


class CreatedConnection(ConnectionView, kw_only=True):
    signing_secret: str


def connection_view(connection: Connection, keyring: Keyring) -> ConnectionView:
    delays = stored_delays(connection.retry_config)
    return ConnectionView(
        id=connection.connection_id,
        source_id=connection.source_id,
        name=connection.name,
        destination_url=keyring.shown_destination(connection) or None,
        inbox=_json(connection.inbox),
        filters=_json(connection.filters),
        transform=_json(connection.transform),
        retry=RetryView(list(delays), len(delays) + 1),
        rate_limit=_json(connection.rate_limit),
        headers=dict.fromkeys(keyring.header_names(connection), _HIDDEN),
        timeout=connection.timeout_seconds,
        concurrency=connection.concurrency,
        status=connection.status,
        disabled_reason=connection.disabled_reason,
        disabled_at=connection.disabled_at,
        failure_streak=connection.failure_streak,
        delivery_count=connection.delivery_count,
        failure_count=connection.failure_count,
        created_at=connection.created_at,
        updated_at=connection.updated_at,
    )


def _json(text: str | None) -> Any:
    """What is stored, as a value; as it is, where another service wrote something else."""
    try:
        return None if text is None else msgspec.json.decode(text)
    except msgspec.MsgspecError:
        return text


class EventSummary(msgspec.Struct, kw_only=True):
    """An event as it is listed. `connections` has the state at each connection."""

    id: str
    source_id: str
    status: Annotated[str, Meta(description=f"{_STATUSES}, or what another service wrote")]
    connections: dict[str, DeliveryStatus]
    method: str
    path: str
    content_type: str | None
    size: int
    attempts: int
    received_at: str | None
    processed_at: str | None
    delivered_at: str | None
    expires_at: str | None


class AttemptView(msgspec.Struct, kw_only=True):
    number: int
    status_code: int
    destination_url: str
    response_body: str | None
    latency_ms: int
    error: str | None
    attempted_at: str | None


class DeliveryView(msgspec.Struct, kw_only=True):
    id: str
    connection_id: str
    replay_id: str | None
    status: DeliveryStatus
    error: str | None
    next_attempt_at: str | None
    created_at: str | None
    updated_at: str | None
    attempts: list[AttemptView]


class EventView(EventSummary, kw_only=True):
    """A whole event. A body that is not text is base64."""

    headers: dict[str, str]
    query: str
    source_ip: str
    body: str
    body_encoding: Literal["utf-8", "base64"]


class EventDetail(EventView, kw_only=True):
    deliveries: list[DeliveryView]


def event_summary(event: Event) -> EventSummary:
    return EventSummary(
        id=event.event_id,
        source_id=event.source_id,
        status=event.status,
        connections=outcomes_of(event),
        method=event.method,
        path=event.path or "",
        content_type=event.content_type,
        size=len(event.content),
        attempts=event.attempt_count,
        received_at=iso_of_ms(event.received_at),
        processed_at=iso_of_ms(event.processed_at),
        delivered_at=iso_of_ms(event.delivered_at),
        expires_at=iso(event.expires_at),
    )


def event_view(event: Event, keyring: Keyring) -> EventView:
    binary = event.body_bytes is not None
    try:
        webhook = webhook_of(event, keyring)
    except SettingsError:
        webhook = webhook_of(msgspec.structs.replace(event, sealed=None), keyring)
    return EventView(
        **msgspec.structs.asdict(event_summary(event)),
        headers=webhook.headers,
        query=webhook.query_string,
        source_ip=event.source_ip,
        body=base64.b64encode(event.content).decode() if binary else event.body,
        body_encoding="base64" if binary else "utf-8",
    )


def event_detail(
    event: Event, deliveries: list[Delivery], attempts: list[Attempt], keyring: Keyring
) -> EventDetail:
    tried: dict[str | None, list[Attempt]] = {}
    for attempt in sorted(attempts, key=lambda attempt: attempt.sequence):
        tried.setdefault(attempt.delivery_id, []).append(attempt)
    shown = [
        delivery_view(delivery, tried.get(delivery.delivery_id, []))
        for delivery in sorted(deliveries, key=_age)
    ]
    return EventDetail(**msgspec.structs.asdict(event_view(event, keyring)), deliveries=shown)


def _age(delivery: Delivery) -> tuple[int, str, str]:
    return delivery.created_at, delivery.replay_id or "", delivery.connection_id


def delivery_view(delivery: Delivery, attempts: list[Attempt]) -> DeliveryView:
    waiting = delivery.claim is None and delivery.lane is not None
    return DeliveryView(
        id=delivery.delivery_id,
        connection_id=delivery.connection_id,
        replay_id=delivery.replay_id,
        status=delivery.status,
        error=delivery.error,
        next_attempt_at=iso_of_ms(delivery.due_at) if waiting else None,
        created_at=iso_of_ms(delivery.created_at),
        updated_at=iso_of_ms(delivery.updated_at),
        attempts=[
            AttemptView(
                number=attempt.attempt_number,
                status_code=attempt.status_code,
                destination_url=attempt.destination_url,
                response_body=attempt.response_body,
                latency_ms=attempt.latency_ms,
                error=attempt.error,
                attempted_at=iso_of_ms(attempt.attempted_at),
            )
            for attempt in attempts
        ],
    )


class ReplayView(msgspec.Struct, kw_only=True):
    """A bulk replay: how many events it has come to, and the deliveries it has created."""

    id: str
    source_id: str
    status: Literal["running", "done", "failed"]
    events: int
    deliveries: int
    error: str | None
    created_at: str | None
    finished_at: str | None


def replay_view(replay: Replay) -> ReplayView:
    return ReplayView(
        id=replay.replay_id,
        source_id=replay.source_id,
        status=replay.status,
        events=replay.events,
        deliveries=replay.deliveries,
        error=replay.error,
        created_at=iso_of_ms(replay.created_at),
        finished_at=iso_of_ms(replay.finished_at),
    )
