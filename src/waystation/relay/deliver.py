"""One attempt: sign and send with what the connection is now, then write down what came of it."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import msgspec

from waystation.backoff import backoff
from waystation.errors import Overloaded, SettingsError, StoreError, TransactionCancelled
from waystation.outbound import Reply
from waystation.patterns import Tally
from waystation.relay import standard, trail
from waystation.relay.forwarding import forwarded, with_query
from waystation.relay.retries import GRACE_SECONDS, next_delay, remaining, stored_delays
from waystation.relay.rules.transforms import TransformFailed
from waystation.relay.states import (
    encode_outcomes,
    event_status,
    next_status,
    outcomes_of,
    set_by_others,
    unchanged,
    webhook_of,
)
from waystation.relay.stats import day_tally, hour_tally, latency_field
from waystation.relay.tables import Attempt, Connection, Delivery, DeliveryStatus, Event
from waystation.relay.trail import TRAIL
from waystation.store import (
    Claims,
    Put,
    Update,
    add,
    exists,
    key_of,
    partition,
    remove,
    set_to,
)

if TYPE_CHECKING:
    from waystation.outbound import Outbound
    from waystation.patterns import Timers, WriteBatches
    from waystation.relay.inboxes import Inboxes
    from waystation.relay.keyring import Keyring
    from waystation.relay.rules.evaluation import Rules
    from waystation.store import Action, Edit, Key, Store

log = logging.getLogger(__name__)

KEPT_CHARACTERS = 1_000
"""Of an answer's body."""

_CLAIMS = Claims("claim", "due_at")
_TRIES = 12


class Outcome(msgspec.Struct):
    """What came of an attempt. `last` says that trying again would not help."""

    reply: Reply
    last: bool = False


class _ClaimRanOut(Exception):
    """There is no time left for an attempt under this claim."""


class Deliver:
    """Attempts deliveries that this process has claimed."""

    def __init__(
        self,
        store: Store,
        batches: WriteBatches,
        timers: Timers,
        outbound: Outbound,
        keyring: Keyring,
        rules: Rules,
        inboxes: Inboxes,
    ) -> None:
        self._store = store
        self._batches = batches
        self._timers = timers
        self._outbound = outbound
        self._keyring = keyring
        self._rules = rules
        self._inboxes = inboxes
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def send(
        self,
        connection: Connection,
        event: Event,
        message_id: str,
        attempt: int,
        until: int | None = None,
    ) -> Outcome:
        """Send an event to where the connection points now, signed with its secrets of now, unless
        that has become later than `until`: then somebody else may be about to."""
        try:
            return await self._send(connection, event, message_id, attempt, until)
        except _ClaimRanOut:
            raise
        except Exception as error:
            # Whatever another service wrote into the connection: it ends, and shows.
            log.exception("connection %s cannot be used", connection.connection_id)
            reason = f"the connection cannot be used as it is stored: {type(error).__name__}"
            return Outcome(Reply(error=reason))

    async def _send(
        self, connection: Connection, event: Event, message_id: str, attempt: int, until: int | None
    ) -> Outcome:
        try:
            webhook = webhook_of(event, self._keyring)
            body, transformed = await self._rules.transformed(connection, event)
        except SettingsError as error:
            return Outcome(Reply(error=f"the event cannot be opened: {error}"[:300]), last=True)
        except TransformFailed as error:
            return Outcome(Reply(error=f"the transform failed: {error}"[:300]), last=True)
        if until is not None and self._store.clock() * 1000 >= until:
            raise _ClaimRanOut
        if connection.inbox is not None:
            return Outcome(
                await self._inboxes.send(
                    connection.user_id, connection.inbox, webhook, body, message_id
                )
            )
        now = int(self._store.clock())
        secrets = [s.secret for s in self._keyring.outbound(connection, now)]
        headers = forwarded(webhook.headers)
        if transformed:
            headers["content-type"] = "application/json"
            headers.pop("content-encoding", None)
        headers.update({n.lower(): v for n, v in self._keyring.headers(connection).items()})
        headers |= {
            "webhook-id": message_id,
            "webhook-timestamp": str(now),
            "webhook-signature": standard.sign(secrets, message_id, now, body),
            "x-waystation-event": event.event_id,
            "x-waystation-connection": connection.connection_id,
            "x-waystation-attempt": str(attempt),
            TRAIL: trail.extended(webhook.headers.get(TRAIL, ""), event.source_id),
        }
        url = with_query(self._keyring.destination(connection), webhook.query_string)
        reply = await self._outbound.request(
            "POST",
            url,
            headers=headers,
            body=body,
            seconds=connection.timeout_seconds,
            most=KEPT_CHARACTERS * 4,
        )
        return Outcome(reply)

    async def attempt(self, delivery: Delivery, event: Event | None) -> Reply | None:
        """Attempt a claimed delivery: what the endpoint said, or None when it was not asked."""
        key = Connection.key(delivery.source_id, delivery.connection_id)
        connection = await self._store.get(key)
        event = event or await self._store.get(_event_key(delivery))
        if event is None:
            await self._drop(delivery)
            return None
        if connection is None or connection.status == "deleted":
            gone = Outcome(Reply(error="the connection was deleted"), last=True)
            await self._finish(delivery, event, None, gone)
            return None
        if connection.status != "active":
            await self._put_back(delivery)
            return None
        try:
            until = (delivery.due_at or 0) - connection.timeout_seconds * 1000
            outcome = await self.send(
                connection, event, delivery.delivery_id, delivery.attempts + 1, until
            )
        except _ClaimRanOut:
            log.warning("delivery %s had to wait for too long", delivery.delivery_id)
            return None
        await self._finish(delivery, event, connection, outcome)
        return None if outcome.last else outcome.reply

    async def _finish(
        self, delivery: Delivery, event: Event, connection: Connection | None, outcome: Outcome
    ) -> None:
        """Write down an attempt. The other side has had the request, so this does not give up
        before the claim runs out."""
        # Deliveries of one event that end together would only undo each other's writes.
        lock = self._locks.setdefault(event.event_id, asyncio.Lock())
        async with lock:
            await self._finish_alone(delivery, event, connection, outcome)

    async def _finish_alone(
        self, delivery: Delivery, event: Event, connection: Connection | None, outcome: Outcome
    ) -> None:
        current: Event | None = event
        for attempt in range(_TRIES):
            if current is None:
                return  # expired: it is not brought back
            try:
                await self._write(delivery, current, connection, outcome)
            except TransactionCancelled as error:
                if error.reasons[0] is not None:  # the claim is no longer ours
                    log.warning("delivery %s was taken over", delivery.delivery_id)
                    return
            except (StoreError, Overloaded) as error:
                log.warning("the outcome of %s is not written yet: %s", delivery.delivery_id, error)
                if self._store.clock() * 1000 > (delivery.due_at or 0):
                    raise
                await asyncio.sleep(backoff(attempt, first=0.05, longest=5.0))
            else:
                return
            current = await self._store.get(_event_key(delivery))
        raise StoreError(f"the outcome of {delivery.delivery_id} could not be written")

    async def _write(
        self, delivery: Delivery, event: Event, connection: Connection | None, outcome: Outcome
    ) -> None:
        reply = outcome.reply
        clock = self._store.clock()
        now = int(clock * 1000)
        number = delivery.attempts + (connection is not None)
        delays = stored_delays(connection.retry_config) if connection else ()
        wait = None
        if not reply.ok and not outcome.last:
            wait = next_delay(delays, number, reply.retry_after, clock)
        status: DeliveryStatus = (
            "delivered" if reply.ok else "failed" if wait is None else "retrying"
        )
        expires = event.expires_at
        after = msgspec.structs.replace(
            delivery,
            status=status,
            attempts=number,
            updated_at=now,
            claim=None,
            error=None if reply.ok else _error_text(reply),
            lane=None,
            due_at=None,
        )
        if wait is not None:
            after.lane, after.due_at = delivery.connection_id, now + int(wait * 1000)
            await self._timers.expect(delivery.connection_id, after.due_at)
            needed = int(clock + wait + remaining(delays, number)) + GRACE_SECONDS
            if needed > expires:
                expires = needed
                await self._prolong(event, expires)
        after.expires_at = max(expires, delivery.expires_at)
        event_after = msgspec.structs.replace(event)
        _follow(event_after, delivery, status, now, expires, tried=connection is not None)
        actions: list[Action] = [
            Put(after, when=_CLAIMS.owned(delivery.claim)),
            _event_update(event, event_after),
        ]
        if connection is not None:
            actions.append(Put(_attempt(delivery, event, connection, reply, number, now, expires)))
        tallies = _tallies(delivery, connection, outcome, status, clock)
        await self._batches.write(event.user_id, actions, tallies, event.size)
        _follow(event, delivery, status, now, expires, tried=connection is not None)
        if after.due_at is not None:
            await self._timers.ensure(delivery.connection_id, after.due_at)

    async def _prolong(self, event: Event, expires: int) -> None:
        """Keep all of an event for as long as it is being retried."""
        async for item in self._store.iterate(partition([Delivery, Attempt], event.event_id)):
            if (getattr(item, "expires_at", None) or 0) < expires:
                try:
                    await self._store.update(
                        key_of(item), set_to("expires_at", expires), when=exists()
                    )
                except StoreError as error:
                    log.warning("%s is not kept for longer: %s", key_of(item), error)

    async def _put_back(self, delivery: Delivery) -> None:
        """The connection is paused: the delivery waits in its lane until it is not."""
        now = int(self._store.clock() * 1000)
        await self._release(delivery, set_to("lane", delivery.connection_id), set_to("due_at", now))

    async def _drop(self, delivery: Delivery) -> None:
        """The event has expired: there is nothing left to deliver."""
        await self._release(delivery, remove("lane"), remove("due_at"))

    async def _release(self, delivery: Delivery, *changes: Edit) -> None:
        try:
            await self._store.update(
                key_of(delivery), remove("claim"), *changes, when=_CLAIMS.owned(delivery.claim)
            )
        except StoreError as error:
            log.info("delivery %s is not ours any more: %s", delivery.delivery_id, error)


def _event_key(delivery: Delivery) -> Key[Event]:
    return Event.key(delivery.source_id, delivery.received_at, delivery.event_id)


def _follow(
    event: Event, delivery: Delivery, status: DeliveryStatus, now: int, expires: int, *, tried: bool
) -> None:
    """Make of an event what follows from its delivery's new status."""
    outcomes = outcomes_of(event)
    before = outcomes.get(delivery.connection_id)
    outcomes[delivery.connection_id] = next_status(before, status)
    if not set_by_others(event):
        event.status = event_status(outcomes)
    event.outcomes = encode_outcomes(outcomes)
    event.revision += 1
    event.attempt_count += tried
    event.expires_at = expires
    if status == event.status == "delivered" and event.delivered_at is None:
        event.delivered_at = now


def _event_update(before: Event, after: Event) -> Update[Event]:
    """What has changed of an event, and nothing else: other services may write to it too. The
    status is written in any case, so that its index entry follows what they wrote."""
    edits = [set_to("status", after.status)]
    edits += [
        set_to(name, getattr(after, name))
        for name in ("outcomes", "attempt_count", "expires_at", "delivered_at")
        if getattr(after, name) != getattr(before, name)
    ]
    return Update(key_of(before), *edits, add("revision", 1), when=unchanged(before))


def _attempt(
    delivery: Delivery,
    event: Event,
    connection: Connection,
    reply: Reply,
    number: int,
    now: int,
    expires: int,
) -> Attempt:
    return Attempt(
        event_id=event.event_id,
        sequence=event.attempt_count + 1,
        connection_id=delivery.connection_id,
        delivery_id=delivery.delivery_id,
        attempt_number=number,
        destination_url=connection.destination_url,
        status_code=reply.status,
        response_body=reply.text(KEPT_CHARACTERS) or None,
        latency_ms=reply.milliseconds,
        error=None if reply.ok else _error_text(reply),
        attempted_at=now,
        expires_at=expires,
    )


def _tallies(
    delivery: Delivery,
    connection: Connection | None,
    outcome: Outcome,
    status: DeliveryStatus,
    now: float,
) -> list[Tally]:
    tallies = []
    reply = outcome.reply
    if connection is not None:
        tallies.append(_connection_tally(connection, outcome, status, now))
    if status == "retrying":
        return [*tallies, hour_tally(delivery.user_id, now, retried=1)]
    adds: dict[str, int] = {status: 1}
    if reply.ok:
        adds[latency_field(reply.milliseconds)] = 1
    tallies.append(hour_tally(delivery.user_id, now, **adds))
    tallies.append(day_tally(delivery.user_id, delivery.source_id, now, **{status: 1}))
    return tallies


def _connection_tally(
    connection: Connection, outcome: Outcome, status: DeliveryStatus, now: float
) -> Tally:
    adds: dict[str, int] = {}
    sets: dict[str, object] = {}
    defaults: dict[str, object] = {}
    if outcome.reply.ok:
        adds["delivery_count"] = 1
        if connection.failure_streak or connection.alerted_at:
            sets = {"failure_streak": 0, "alerted_at": 0, "failing_since": None}
    else:
        if not outcome.last:  # the endpoint is not to blame for a transform
            adds["failure_streak"] = 1
            defaults["failing_since"] = int(now)
        if status == "failed":
            adds["failure_count"] = 1
    return Tally(
        key=key_of(connection), adds=adds, sets=sets, defaults=defaults, when=lambda _: exists()
    )


def _error_text(reply: Reply) -> str:
    return reply.error or f"the answer was {reply.status}"
