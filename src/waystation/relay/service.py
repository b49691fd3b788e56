"""The relay: takes webhooks in, durably, and hands them on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Literal
from weakref import WeakValueDictionary

import msgspec

from waystation.errors import (
    NotFound,
    Overloaded,
    TransactionCancelled,
    TransactionConflict,
    WaystationError,
)
from waystation.ids import secret_hash, timed_id
from waystation.patterns import RESCUE_MS, Limit, LocalLimiter, Newest, Tally, Timers, WriteBatches
from waystation.relay import usage
from waystation.relay.billing import OPERATOR
from waystation.relay.connections import Connections
from waystation.relay.dedupe import DEFAULT_WINDOW, digest_of
from waystation.relay.deliver import Deliver
from waystation.relay.directory import ALERTS_PROVIDER, Directory, Known
from waystation.relay.dispatch import Dispatch
from waystation.relay.keyring import Keyring
from waystation.relay.lanes import Lanes
from waystation.relay.rules.evaluation import Rules
from waystation.relay.rules.paths import Webhook
from waystation.relay.sources import Sources
from waystation.relay.stats import Statistics, day_tally, hour_tally
from waystation.relay.tables import Delivery, Event, Seen, Source
from waystation.store import Put, absent

if TYPE_CHECKING:
    from waystation.errors import CancellationReason
    from waystation.outbound import Outbound
    from waystation.patterns import Vault
    from waystation.queues import Queue
    from waystation.relay.inboxes import Inboxes
    from waystation.store import Action, Store

log = logging.getLogger(__name__)

_TRIES = 4
_MOST_COUNTERS = 10_000
_encode = msgspec.json.Encoder().encode


Begin = Callable[[Event, list[Delivery]], None]
"""Makes the first attempts at an event's deliveries."""


class EventRef(msgspec.Struct):
    """What the queue carries: enough to find an event."""

    source_id: str
    received_at: int
    event_id: str


class Receipt(msgspec.Struct):
    """The answer to a webhook that was taken."""

    id: str
    status: Literal["received", "duplicate"]


class Relay:
    """Everything about webhooks but HTTP.

    Where this process delivers, an event is written with its deliveries, and `begin` makes their
    first attempts. Elsewhere `hand_over` tells a worker in another process of the event. `heard`
    tells those who listen. `kick` has a worker in this process look at something now.
    """

    def __init__(
        self,
        store: Store,
        vault: Vault,
        outbound: Outbound,
        *,
        inboxes: Inboxes,
        public_url: str | None = None,
        batches: WriteBatches | None = None,
    ) -> None:
        self.store = store
        self.public_url = public_url.rstrip("/") if public_url else None
        self.keyring = Keyring(vault)
        self.directory = Directory(store, self.keyring)
        self.outbound = outbound
        self.inboxes = inboxes
        self.batches = batches or WriteBatches(store)
        self.timers = Timers(store, "relay")
        self.lanes = Lanes(store.clock)
        self.rules = Rules(self.keyring)
        self.dispatch = Dispatch(store, self.batches, self.timers, self.lanes, self.rules)
        self.deliver = Deliver(
            store, self.batches, self.timers, outbound, self.keyring, self.rules, inboxes
        )
        self.sources = Sources(store, self.keyring, self.directory, public_url)
        self.connections = Connections(store, self.keyring, self.directory, outbound.guard)
        self.statistics = Statistics(store)
        self.begin: Begin | None = None
        self.hand_over: Callable[[Event], Awaitable[None]] | None = None
        self.heard: Callable[[Event], None] | None = None
        self.kick: Callable[[str], None] | None = None
        self._limiter = LocalLimiter(store.clock)
        self._minutes: Newest[str, int] = Newest(_MOST_COUNTERS)
        self._full: Newest[str, int] = Newest(_MOST_COUNTERS)
        self._beginning: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._counters: Newest[str, tuple[int, Known, list[Tally]]] = Newest(_MOST_COUNTERS)

    def deliver_here(
        self, begin: Begin, take: Callable[[Event], Awaitable[None]], kick: Callable[[str], None]
    ) -> None:
        """This process has a worker, which attempts deliveries as soon as they are written."""
        self.begin, self.hand_over, self.kick = begin, take, kick

    def leave_to_others(self, queue: Queue) -> None:
        """Workers in other processes hear of new events by a queue. If that fails, an event's
        timer leads them to it later."""

        async def hand_over(event: Event) -> None:
            ref = EventRef(event.source_id, event.received_at, event.event_id)
            try:
                await queue.send(ref)
            except WaystationError as error:
                log.warning("event %s was not passed on at once: %s", event.event_id, error)

        self.hand_over = hand_over

    def admit(self, known: Known) -> None:
        """Count a request against the source's minute, as far as this process has seen it; what is
        refused is not counted. All processes together are counted when it is written."""
        limit = known.limits.events_per_minute if known.limits else None
        if limit is not None:
            source_id, now = known.source.source_id, self.store.clock()
            if self._full.get(source_id) == now // 60:
                raise usage.minute_is_full(limit, now)
            self._limiter.take(source_id, Limit(limit, 60))

    def _unadmit(self, known: Known) -> None:
        """What was not accepted after all is not counted."""
        if known.limits and known.limits.events_per_minute:
            limit = Limit(known.limits.events_per_minute, 60)
            self._limiter.give_back(known.source.source_id, limit)

    async def receive(self, known: Known, webhook: Webhook, sender: str) -> Receipt:
        """Write down a webhook that was checked. It is durable when this returns."""
        digest = digest_of(known.dedupe, known.source.provider, webhook)
        try:
            return await self.record(known, self._event(known, webhook, sender), digest)
        except BaseException:
            self._unadmit(known)
            raise

    async def receive_from_house(
        self,
        user_id: str,
        source_id: str,
        body: bytes,
        headers: dict[str, str],
        *,
        sender: str = "",
        dedupe: str | None = None,
    ) -> Receipt:
        """Take an event from another system of this house for an account's source. It is durable
        when this returns; the same `dedupe` again is the event that came first."""
        known = await self.directory.source(source_id)
        if known is None or known.source.user_id != user_id or known.source.status != "active":
            raise NotFound("there is no such source, or it is paused")
        self.admit(known)
        digest = None if dedupe is None else _house_digest(dedupe)
        webhook = Webhook(body, {n.lower(): v for n, v in headers.items()}, "", "POST", "")
        event = self._event(known, webhook, sender)
        try:
            return await self.record(known, event, digest, DEFAULT_WINDOW)
        except BaseException:
            self._unadmit(known)
            raise

    async def seen_from_house(self, source_id: str, dedupe: str) -> str | None:
        """The event that a source has taken from another system under the same `dedupe`."""
        seen = await self.store.get(Seen.key(source_id, _house_digest(dedupe)))
        return None if seen is None else seen.event_id

    async def owns(self, user_id: str, source_id: str) -> bool:
        """Whether an account has such a source, for another system to give events to."""
        known = await self.directory.source(source_id)
        if known is None or known.source.provider == ALERTS_PROVIDER:
            return False
        return known.source.user_id == user_id

    def _event(self, known: Known, webhook: Webhook, sender: str) -> Event:
        now = self.store.clock()
        event_id = timed_id("evt", now)
        headers, sealed = self.keyring.split_request(
            webhook.headers, webhook.query_string, event_id
        )
        try:
            text, binary = webhook.content.decode(), None
        except UnicodeDecodeError:
            text, binary = "", webhook.content
        return Event(
            event_id=event_id,
            source_id=known.source.source_id,
            user_id=known.source.user_id,
            headers=_encode(headers).decode(),
            body=text,
            body_bytes=binary,
            sealed=sealed,
            path=webhook.path or None,
            source_ip=sender,
            content_type=webhook.headers.get("content-type"),
            method=webhook.method,
            received_at=int(now * 1000),
            expires_at=int(now) + (known.limits.retention if known.limits else 90 * 86_400),
        )

    async def record(
        self, known: Known, event: Event, digest: str | None, window: int | None = None
    ) -> Receipt:
        """Write an event, its deliveries and its usage in one transaction, unless it is a
        duplicate of another within `window` seconds, or those that the source says."""
        deliveries = await self._planned(event)
        first = None
        try:
            first = await self._write(known, event, digest, window, deliveries)
        finally:
            if first != event.event_id:
                self.dispatch.release(deliveries)
        if first != event.event_id:
            return Receipt(first, "duplicate")
        if self.heard is not None:
            self.heard(event)
        if event.todo is not None and self.hand_over is not None:
            await self.hand_over(event)
        elif deliveries and self.begin is not None:
            self.begin(event, deliveries)
        return Receipt(first, "received")

    async def _planned(self, event: Event) -> list[Delivery]:
        """An event's deliveries, if this process delivers; if not, the event is marked as yet to be
        processed."""
        if event.user_id == OPERATOR:
            event.todo = event.source_id
            return []
        connections = await self.directory.connections(event.source_id)
        if not connections:
            event.processed_at = event.received_at  # there is nobody to ask
            return []
        if self.begin is None:
            event.todo = event.source_id
            return []
        try:
            deliveries = self.dispatch.planned(event, connections)
        except Exception:
            log.exception("the deliveries of %s are created later", event.event_id)
            deliveries = None
        if deliveries is None:
            event.todo = event.source_id
        return deliveries or []

    async def _write(
        self,
        known: Known,
        event: Event,
        digest: str | None,
        window: int | None,
        deliveries: list[Delivery],
    ) -> str:
        """The id of the event, or of the one that came first."""
        actions: list[Action] = [Put(event)]
        if digest is not None:
            expires = event.received_at // 1000 + (window or known.dedupe.window)
            seen = Seen(
                source_id=event.source_id,
                digest=digest,
                event_id=event.event_id,
                expires_at=expires,
            )
            actions.append(Put(seen, when=absent()))
        actions += [Put(delivery) for delivery in deliveries]
        if event.todo is not None:
            await self.timers.expect(event.source_id, int(self.store.clock() * 1000) + RESCUE_MS)
        await self.dispatch.expect(deliveries)
        decided = self.dispatch.tallies(event, deliveries)
        for _ in range(_TRIES):
            tallies = self._tallies(known, event)
            if decided:
                tallies = [*tallies, *decided]
            try:
                await self._begin_minute(known, event.received_at)
                await self.batches.write(event.user_id, actions, tallies, event.size, new=True)
            except TransactionConflict as error:
                raise Overloaded(
                    "too many writers at the same time for this account", retry_after=1.0
                ) from error
            except TransactionCancelled as error:
                first = await self._refused(known, error.reasons, len(actions), digest)
                if first is not None:
                    return first
            else:
                return event.event_id
        raise Overloaded("this account's usage changes too fast", retry_after=1.0)

    def _tallies(self, known: Known, event: Event) -> list[Tally]:
        """The counters of one more event. Those of a second are the same for all its events."""
        second = event.received_at // 1000
        kept = self._counters.get(event.source_id)
        if kept is None or kept[0] != second or kept[1] is not known:
            kept = (second, known, self._new_tallies(known, event))
            self._counters[event.source_id] = kept
        return kept[2]

    def _new_tallies(self, known: Known, event: Event) -> list[Tally]:
        now = event.received_at / 1000
        if known.source.user_id == OPERATOR:
            return []
        source = usage.source_tally(known, now)
        if known.limits is None:  # our own alerts cost nothing
            return [source]
        return [
            source,
            usage.usage_tally(event.user_id, known.limits, now),
            hour_tally(event.user_id, now, received=1),
            day_tally(event.user_id, event.source_id, now, received=1),
        ]

    async def _refused(
        self,
        known: Known,
        reasons: list[CancellationReason | None],
        actions: int,
        digest: str | None,
    ) -> str | None:
        """The first event's id if this one was seen before; None to try again."""
        if digest is not None and (duplicate := reasons[1]) is not None:
            first = duplicate.item
            return first.event_id if isinstance(first, Seen) else None
        source, account = [*reasons[actions : actions + 2], None, None][:2]
        if source is not None:
            self._source_refused(known, source.item)
        if account is not None:
            await usage.settle_refusal(self.store, known.source.user_id, account.item)
        return None

    def _source_refused(self, known: Known, found: object) -> None:
        """Raise why a source takes no more, unless it is only that its minute had not begun."""
        source_id, now = known.source.source_id, self.store.clock()
        if not isinstance(found, Source) or found.status != "active":
            self.directory.forget(source_id)
            raise NotFound("there is no such source, or it is paused")
        limit = known.limits.events_per_minute if known.limits else None
        minute = int(now // 60)
        counted = found.minute is not None and 0 <= found.minute - minute <= usage.SKEW_MINUTES
        if limit is not None and counted and found.minute_count >= limit:
            self._full[source_id] = minute
            raise usage.minute_is_full(limit, now)
        self._minutes.pop(source_id, None)

    async def _begin_minute(self, known: Known, at_ms: int) -> None:
        """Have the source's minute begin before its first event is counted."""
        source_id, minute = known.source.source_id, at_ms // 60_000
        if not known.limits or known.limits.events_per_minute is None:
            return
        if self._minutes.get(source_id) != minute:
            lock = self._beginning.setdefault(source_id, asyncio.Lock())
            async with lock:
                if self._minutes.get(source_id) != minute:
                    await usage.begin_minute(self.store, known, minute)
                    self._minutes[source_id] = minute

    async def expect_change(self, connection_id: str) -> None:
        """Set a connection's timer before it changes, in case this process dies right after."""
        await self.timers.expect(connection_id, int(self.store.clock() * 1000) + RESCUE_MS)

    async def expect_changes(self, source_id: str) -> None:
        for connection in await self.directory.list_connections(source_id):
            await self.expect_change(connection.connection_id)

    async def close(self) -> None:
        self.rules.close()

    async def wake(self, name: str) -> None:
        """Have a worker look at a source, connection or replay now."""
        await self.timers.ensure(name, int(self.store.clock() * 1000))
        if self.kick is not None:
            self.kick(name)


def _house_digest(dedupe: str) -> str:
    return secret_hash(f"house {dedupe}")[:40]
