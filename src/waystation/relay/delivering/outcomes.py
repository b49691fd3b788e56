"""What came of attempts, written down: deliveries that end together are one write.

The attempts of an event that end while others are being written go together into the next
transaction, and change the event once. So do those of other events, and all their counters.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import msgspec

from waystation.backoff import backoff
from waystation.errors import Overloaded, StoreError, TransactionCancelled
from waystation.outbound import Reply
from waystation.patterns import Tally
from waystation.relay.delivering.retries import (
    GRACE_SECONDS,
    next_delay,
    remaining,
    stored_delays,
)
from waystation.relay.states import (
    follow,
    unchanged,
)
from waystation.relay.stats import day_tally, hour_tally, latency_field
from waystation.relay.tables import Attempt, Connection, Delivery, DeliveryStatus, Event
from waystation.store import (
    Claims,
    Put,
    Revise,
    absent,
    exists,
    key_of,
    partition,
    prepare,
    set_to,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from waystation.errors import CancellationReason
    from waystation.relay.delivering.parcels import Held, Parcel
    from waystation.relay.delivering.tools import Tools
    from waystation.store import Action, Key, Write

log = logging.getLogger(__name__)

KEPT_CHARACTERS = 1_000
"""Of an answer's body."""

_CLAIMS = Claims("claim", "due_at")
_TRIES = 12
_WRITES_EACH = 3
_WRITES_BESIDE = 10
_THERE = exists()


class Outcome(msgspec.Struct):
    """What came of an attempt. `last` says that trying again would not help; `tainted`, that the
    connection counts failures which a success resets. Without a connection none was made, and
    without a reply the delivery goes back into its lane."""

    reply: Reply | None
    connection: Connection | None = None
    last: bool = False
    tainted: bool = False


class _Result:
    """One delivery's part of a settlement."""

    __slots__ = ("after", "held", "lost", "outcome", "tallies")

    def __init__(
        self, held: Held, outcome: Outcome, after: Delivery, tallies: Sequence[Tally]
    ) -> None:
        self.held = held
        self.outcome = outcome
        self.after = after
        self.tallies = tallies
        self.lost = False

    @property
    def tried(self) -> bool:
        return self.outcome.connection is not None and self.outcome.reply is not None

    @property
    def needs_row(self) -> bool:
        """Whether its attempt does not say it all."""
        ended = self.after.status in ("delivered", "failed")
        return self.held.stored or not (ended and self.tried)


class Settlement:
    """What is written of one event in one step. More may join until it is its turn."""

    def __init__(self, parcel: Parcel, token: str, now_ms: int) -> None:
        self.parcel = parcel
        self.results: list[_Result] = []
        self._written: asyncio.Future[None] | None = None
        self._token = token
        self._now = now_ms
        self._uncounted = False
        self._after = parcel.event
        self._revised: Write | None = None
        self._about: list[_Result] = []

    @property
    def key(self) -> Key[Event]:
        return self.parcel.key

    async def join(self, result: _Result) -> None:
        """Write one more with it, whose part of it is known when this returns."""
        self.results.append(result)
        if self._written is None:
            self._written = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._written)

    def end(self, failure: BaseException | None = None) -> None:
        """Those who have joined may go on."""
        done = self._written
        if done is None:
            return
        if failure is None:
            done.set_result(None)
            return
        stopped = StoreError("it was stopped")
        done.set_exception(failure if isinstance(failure, Exception) else stopped)
        done.exception()  # whether anybody still waits for it or not

    def build(self) -> tuple[list[Action | Write], Sequence[Tally]]:
        parcel = self.parcel
        if parcel.joining is self:
            parcel.joining = None
        self._after = parcel.event
        self._about = [result for result in self.results if not result.lost]
        if not self._about:
            return [], []
        before, after = parcel.event, msgspec.structs.replace(parcel.event)
        ended = {result.after.delivery_id for result in self._about}
        _follow(after, self._about, self._now)
        if parcel.rowless and parcel.rowless <= ended:  # nothing is left that its claim is for
            after.todo = after.claim = after.due_at = None
        self._after = after
        revise = Revise(before, after, when=unchanged(before), since=parcel.wrote)
        self._revised = prepare(revise)
        actions: list[Action | Write] = [self._revised]
        actions += [_row(result) for result in self._about if result.needs_row]
        sequence = before.attempt_count
        for result in self._about:
            if result.tried:
                sequence += 1
                actions.append(Put(_attempt(result, after, sequence)))
        tallies = self._about[0].tallies  # most settle one delivery, and many have the very same
        if len(self._about) > 1:
            tallies = [tally for result in self._about for tally in result.tallies]
        if self._uncounted:
            tallies = [tally for tally in tallies if tally.key.spec.item is not Connection]
        return actions, tallies

    def written(self) -> None:
        parcel = self.parcel
        parcel.event, parcel.wrote = self._after, self._revised
        for result in self._about:
            parcel.rowless.discard(result.after.delivery_id)
            result.held.delivery = result.after

    def refused(self, reasons: Sequence[CancellationReason | None]) -> None:
        """Leave out what others have taken over, and counters of a connection that is gone."""
        rows = [result for result in self._about if result.needs_row]
        for result, reason in zip(rows, reasons[1 : 1 + len(rows)], strict=True):
            if reason is not None:
                result.lost = True
        written = 1 + len(rows) + sum(result.tried for result in self._about)
        self._uncounted = self._uncounted or any(reasons[written:])

    @property
    def first(self) -> _Result | None:
        """One of those of the last try, which were written together or not at all."""
        return self._about[0] if self._about else None

    def found(self, event: Event) -> None:
        """The last try was written after all: only its answer was lost."""
        self.written()
        self.parcel.event, self.parcel.wrote = event, None
        for result in self._about:
            result.lost = False

    def follow(self, event: Event | None) -> None:
        """Go on from what the event has become."""
        if event is not None:
            self.parcel.event = event
        for result in self.results:
            # One that has expired is not brought back.
            if event is None or (not result.held.stored and event.claim != self._token):
                result.lost = True


class Outcomes:
    def __init__(self, tools: Tools, token: str) -> None:
        """`token` is what this process claims events with."""
        self._token = token
        self._store = tools.store
        self._batches = tools.batches
        self._timers = tools.timers
        self._now = tools.now
        self._most_joined = max(1, (self._store.most_together - _WRITES_BESIDE) // _WRITES_EACH)
        self._second = 0
        self._tallies: dict[tuple[object, ...], tuple[Tally, ...]] = {}
        """Those of this second."""

    async def settle(self, held: Held, outcome: Outcome) -> bool:
        """Write down what came of a delivery; whether it was still ours to write. Somebody may have
        had the request, so this does not give up before the claim runs out."""
        parcel = held.parcel
        if not held.stored and parcel.event.claim != self._token:
            log.warning("event %s was taken over", parcel.event.event_id)
            return False
        expires = parcel.event.expires_at
        result = self._result(held, outcome)
        if result.after.due_at is not None:
            await self._timers.expect(result.after.connection_id, result.after.due_at)
        joined = parcel.joining
        if joined is not None and len(joined.results) < self._most_joined:
            await joined.join(result)
        else:
            joined = parcel.joining = Settlement(parcel, self._token, self._now())
            joined.results.append(result)
            try:
                await self._write(joined, held.until)
            except BaseException as error:
                if parcel.joining is joined:
                    parcel.joining = None
                joined.end(error)
                raise
            joined.end()
        if result.lost:
            log.warning("delivery %s was taken over", held.delivery.delivery_id)
            return False
        if result.after.due_at is not None:
            await self._timers.ensure(result.after.connection_id, result.after.due_at)
        if result.after.expires_at > expires:
            await self._prolong(parcel.event.event_id, result.after.expires_at)
        return True

    async def _write(self, settlement: Settlement, until: int) -> None:
        event, size = settlement.parcel.event, settlement.parcel.size
        refusals = failures = 0
        while refusals < _TRIES:
            try:
                if refusals + failures and await self._was_written(settlement):
                    return
                await self._batches.write_together(event.user_id, settlement, size)
            except TransactionCancelled as error:
                refusals += 1
                settlement.refused(error.reasons)
            except (StoreError, Overloaded) as error:
                failures += 1
                log.warning("outcomes of %s are not written yet: %s", event.event_id, error)
                if self._now() > until:
                    raise
                await asyncio.sleep(backoff(failures, first=0.05, longest=5.0))
            else:
                return
        raise StoreError(f"the outcomes of {event.event_id} could not be written")

    async def _was_written(self, settlement: Settlement) -> bool:
        """Whether a try that failed was written all the same, because only its answer was lost.
        Others may have changed the event since. If it was not, the next one goes on from there."""
        event = await self._store.get(key_of(settlement.parcel.event))
        if event is None or not await self._is_there(settlement.first):
            settlement.follow(event)
            return False
        settlement.found(event)
        return True

    async def _is_there(self, result: _Result | None) -> bool:
        if result is None:
            return False
        if not result.tried:
            return await self._store.get(key_of(result.after)) == result.after
        mine = (result.after.delivery_id, result.after.attempts)
        async for attempt in self._store.iterate(Attempt.query(result.after.event_id)):
            if (attempt.delivery_id, attempt.attempt_number) == mine:
                return True
        return False

    def _result(self, held: Held, outcome: Outcome) -> _Result:
        """What a delivery is after this."""
        clock = self._store.clock()
        now = int(clock * 1000)
        delivery, event, reply = held.delivery, held.parcel.event, outcome.reply
        after = msgspec.structs.replace(
            delivery, updated_at=now, claim=None, lane=None, due_at=None, error=None
        )
        after.expires_at = max(event.expires_at, delivery.expires_at)
        if reply is None:
            after.lane, after.due_at, after.error = after.connection_id, now, delivery.error
            return _Result(held, outcome, after, ())
        connection = outcome.connection
        number = after.attempts = delivery.attempts + (connection is not None)
        if reply.ok:
            after.status = "delivered"
            return _Result(held, outcome, after, self._counted(delivery, outcome, after, clock))
        after.error = error_text(reply)
        delays = stored_delays(connection.retry_config) if connection else ()
        wait = None if outcome.last else next_delay(delays, number, reply.retry_after, clock)
        after.status = "failed" if wait is None else "retrying"
        if wait is not None:
            after.lane, after.due_at = after.connection_id, now + int(wait * 1000)
            needed = int(clock + wait + remaining(delays, number)) + GRACE_SECONDS
            after.expires_at = max(needed, after.expires_at)
        return _Result(held, outcome, after, self._counted(delivery, outcome, after, clock))

    async def _prolong(self, event_id: str, expires: int) -> None:
        """Keep all of an event for as long as it is being retried."""
        async for item in self._store.iterate(partition([Delivery, Attempt], event_id)):
            if (getattr(item, "expires_at", None) or 0) < expires:
                try:
                    await self._store.update(
                        key_of(item), set_to("expires_at", expires), when=exists()
                    )
                except StoreError as error:
                    log.warning("%s is not kept for longer: %s", key_of(item), error)

    def _counted(
        self, delivery: Delivery, outcome: Outcome, after: Delivery, now: float
    ) -> tuple[Tally, ...]:
        """The counters of an attempt. Those of a second are the same for all that end alike."""
        reply, connection = outcome.reply, outcome.connection
        assert reply is not None
        if connection is None:
            return tuple(_tallies(delivery, None, outcome, after.status, now))
        if int(now) != self._second:
            self._second, self._tallies = int(now), {}
        band = latency_field(reply.milliseconds) if reply.ok else ""
        key = (delivery.connection_id, after.status, band, outcome.last, outcome.tainted)
        kept = self._tallies.get(key)
        if kept is None:
            kept = tuple(_tallies(delivery, connection, outcome, after.status, now))
            self._tallies[key] = kept
        return kept


def error_text(reply: Reply) -> str:
    return reply.error or f"the answer was {reply.status}"


def _row(result: _Result) -> Put[Delivery]:
    held = result.held
    when = _CLAIMS.owned(held.delivery.claim) if held.stored else absent()
    return Put(result.after, when=when)


def _follow(event: Event, results: list[_Result], now: int) -> None:
    """Make of an event what follows from its deliveries' new states."""
    follow(event, [(result.after.connection_id, result.after.status) for result in results])
    event.revision += 1
    for result in results:
        event.attempt_count += result.tried
        event.expires_at = max(event.expires_at, result.after.expires_at)
    delivered = any(result.after.status == "delivered" for result in results)
    if delivered and event.status == "delivered" and event.delivered_at is None:
        event.delivered_at = now


def _attempt(result: _Result, event: Event, sequence: int) -> Attempt:
    after, connection, reply = result.after, result.outcome.connection, result.outcome.reply
    assert connection is not None
    assert reply is not None
    return Attempt(
        event_id=event.event_id,
        sequence=sequence,
        connection_id=after.connection_id,
        delivery_id=after.delivery_id,
        attempt_number=after.attempts,
        destination_url=connection.destination_url,
        status_code=reply.status,
        response_body=reply.text(KEPT_CHARACTERS) or None,
        latency_ms=reply.milliseconds,
        error=after.error,
        attempted_at=after.updated_at,
        delivery_status=after.status,
        delivery_created_at=after.created_at,
        replay_id=after.replay_id,
        expires_at=event.expires_at,
    )


def _tallies(
    delivery: Delivery,
    connection: Connection | None,
    outcome: Outcome,
    status: DeliveryStatus,
    now: float,
) -> list[Tally]:
    reply = outcome.reply
    assert reply is not None
    tallies = []
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
    assert outcome.reply is not None
    if outcome.reply.ok:
        adds["delivery_count"] = 1
        if outcome.tainted:
            sets = {"failure_streak": 0, "alerted_at": 0, "failing_since": None}
    else:
        if not outcome.last:  # the endpoint is not to blame for a transform
            adds["failure_streak"] = 1
            defaults["failing_since"] = int(now)
        if status == "failed":
            adds["failure_count"] = 1
    return Tally(
        key=key_of(connection), adds=adds, sets=sets, defaults=defaults, when=lambda _: _THERE
    )
