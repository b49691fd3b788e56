"""The states of deliveries, and of events as they follow from them."""

from __future__ import annotations

import base64
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING

import msgspec

from waystation.ids import timed_id
from waystation.relay.rules.paths import Webhook
from waystation.relay.tables import Attempt, Delivery, DeliveryStatus, Event
from waystation.store import attr, exists
from waystation.times import iso

if TYPE_CHECKING:
    from collections.abc import Iterable

    from waystation.relay.keyring import Keyring
    from waystation.relay.tables import EventStatus
    from waystation.store import Condition

_KEPT_SECONDS = 90 * 86_400
_SHORT = 4_000
"""Characters of outcomes that are remembered; others may be anybody's."""

Outcomes = dict[str, DeliveryStatus]

_headers = msgspec.json.Decoder(dict[str, str | list[str] | int | float | bool | None])
_outcomes = msgspec.json.Decoder(Outcomes)
_encode = msgspec.json.Encoder().encode


def outcomes_of(event: Event) -> Outcomes:
    """What has become of an event at each of its connections."""
    return {} if event.outcomes is None else _outcomes.decode(event.outcomes)


def follow(
    event: Event, changes: Iterable[tuple[str, DeliveryStatus]], *, anew: bool = False
) -> None:
    """Make of an event what follows from new states at its connections. A status that another
    service has given it stays, unless the event begins `anew`."""
    text = event.outcomes
    followed = _followed if text is None or len(text) < _SHORT else _followed.__wrapped__
    event.outcomes, event.status = followed(text, event.status, tuple(changes), anew)


@lru_cache(maxsize=1024)
def _followed(
    text: str | None, status: str, changes: tuple[tuple[str, DeliveryStatus], ...], anew: bool
) -> tuple[str, str]:
    """Most events of a source go the same way."""
    outcomes: Outcomes = {} if text is None else _outcomes.decode(text)
    expected = "received" if text is None else _event_status(outcomes)
    for connection_id, now in changes:
        # What was delivered once stays delivered, whatever a replay does.
        if outcomes.get(connection_id) != "delivered":
            outcomes[connection_id] = now
    if status == expected or anew:
        status = _event_status(outcomes)
    return _encode(outcomes).decode(), status


def _event_status(outcomes: Outcomes) -> EventStatus:
    """An event's status from what became of it at each connection.

    While something is on its way the event is processing or retrying. After that one failure makes
    it failed, and one delivery delivered; filtered means that nobody wanted it, or that there was
    nobody to ask.
    """
    found = set(outcomes.values())
    if "retrying" in found:
        return "retrying"
    if "pending" in found:
        return "processing"
    if "failed" in found:
        return "failed"
    return "delivered" if "delivered" in found else "filtered"


def set_by_others(event: Event, outcomes: Outcomes) -> bool:
    """Whether another service has given an event its status, which then stays until a replay."""
    expected = "received" if event.outcomes is None else _event_status(outcomes)
    return event.status != expected


def leads_nowhere(event: Event) -> None:
    """End an event that there is nobody to ask about."""
    event.processed_at = event.received_at
    follow(event, ())


def unchanged(event: Event) -> Condition:
    """That neither we nor others have changed an event's state since it was read."""
    return _unchanged(event.revision, event.status)


@lru_cache(maxsize=64)
def _unchanged(revision: int, status: str) -> Condition:
    same: Condition = attr("revision") == revision
    if not revision:
        same = exists() & (attr("revision").absent() | same)
    if status == "received":  # which a row without one counts as
        return same & (attr("status").absent() | (attr("status") == "received"))
    return same & (attr("status") == status)


def new_delivery(event: Event, connection_id: str, replay_id: str | None, at: int) -> Delivery:
    """An event on its way to a connection, before anything has come of it."""
    return Delivery(
        event_id=event.event_id,
        delivery_id=delivery_id(event.event_id, connection_id, replay_id),
        connection_id=connection_id,
        source_id=event.source_id,
        user_id=event.user_id,
        received_at=event.received_at,
        replay_id=replay_id,
        created_at=at,
        updated_at=at,
        expires_at=event.expires_at,
    )


def delivery_of(attempt: Attempt, event: Event) -> Delivery:
    """A delivery that ended with its first attempt, as its row would be."""
    created = attempt.delivery_created_at or attempt.attempted_at
    delivery = new_delivery(event, attempt.connection_id, attempt.replay_id, created)
    delivery.delivery_id = attempt.delivery_id or delivery.delivery_id
    delivery.status = attempt.delivery_status or "failed"
    delivery.attempts, delivery.error = attempt.attempt_number, attempt.error
    delivery.updated_at = attempt.attempted_at
    return delivery


def delivery_id(event_id: str, connection_id: str, replay_id: str | None) -> str:
    """The same for the same event, connection and replay, so that none is created twice."""
    named = f"{event_id} {connection_id} {replay_id or ''}".encode()
    return "dlv_" + base64.urlsafe_b64encode(sha256(named).digest()[:15]).decode()


def own_event(source_id: str, user_id: str, kind: str, data: object, now: float) -> Event:
    """An event that we send ourselves."""
    body = {"type": kind, "timestamp": iso(now), "data": data}
    return Event(
        event_id=timed_id("evt", now),
        source_id=source_id,
        user_id=user_id,
        headers='{"content-type":"application/json"}',
        body=_encode(body).decode(),
        source_ip="",
        content_type="application/json",
        method="POST",
        received_at=int(now * 1000),
        expires_at=int(now) + _KEPT_SECONDS,
    )


def _header_text(value: object) -> str:
    """A header's value, in whatever form another service has kept it."""
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return value if isinstance(value, str) else "" if value is None else str(value)


def webhook_of(event: Event, keyring: Keyring) -> Webhook:
    """An event as it came; SettingsError when its sealed part cannot be opened."""
    sealed = keyring.confidential(event)
    try:
        stored = _headers.decode(event.headers)
    except (msgspec.MsgspecError, ValueError):  # written by somebody else
        stored = {}
    headers = {name.lower(): _header_text(value) for name, value in stored.items()}
    return Webhook(
        event.content,
        headers | sealed.headers,
        sealed.query or event.query_string or "",
        event.method,
        event.path or "",
    )
