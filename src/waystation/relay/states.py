"""The states of deliveries, and of events as they follow from them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from waystation.ids import timed_id
from waystation.relay.rules.paths import Webhook
from waystation.relay.tables import DeliveryStatus, Event
from waystation.times import iso

if TYPE_CHECKING:
    from waystation.relay.tables import EventStatus

_KEPT_SECONDS = 90 * 86_400

Outcomes = dict[str, DeliveryStatus]

_headers = msgspec.json.Decoder(dict[str, str])
_outcomes = msgspec.json.Decoder(Outcomes)
_encode = msgspec.json.Encoder().encode


def outcomes_of(event: Event) -> Outcomes:
    """What has become of an event at each of its connections."""
    return {} if event.outcomes is None else _outcomes.decode(event.outcomes)


def encode_outcomes(outcomes: Outcomes) -> str:
    return _encode(outcomes).decode()


def event_status(outcomes: Outcomes) -> EventStatus:
    """An event's status from what became of it at each connection.

    While something is on its way the event is processing or retrying. After that one failure makes
    it failed, and one delivery delivered; filtered means that nobody wanted it, and received that
    there was nobody to ask.
    """
    found = set(outcomes.values())
    if "retrying" in found:
        return "retrying"
    if "pending" in found:
        return "processing"
    if "failed" in found:
        return "failed"
    if "delivered" in found:
        return "delivered"
    return "filtered" if found else "received"


def next_status(before: DeliveryStatus | None, now: DeliveryStatus) -> DeliveryStatus:
    """A connection's state after another change. What was delivered once stays delivered, whatever
    a replay does."""
    return "delivered" if before == "delivered" else now


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


def webhook_of(event: Event) -> Webhook:
    """An event as rules see it."""
    try:
        headers = _headers.decode(event.headers)
    except msgspec.DecodeError:  # written by somebody else
        headers = {}
    return Webhook(
        event.content,
        headers,
        event.query_string or "",
        event.method,
        event.path or "",
    )
