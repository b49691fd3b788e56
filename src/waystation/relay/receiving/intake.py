"""Taking webhooks in: each is on disk, with its usage counted, before its sender has an answer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Literal
from weakref import WeakValueDictionary

import msgspec

from waystation.errors import (
    NotFound,
    Overloaded,
    TransactionCancelled,
    TransactionConflict,
)
from waystation.ids import secret_hash, timed_id
from waystation.patterns import Limit, LocalLimiter, Newest, Tally
from waystation.relay import usage
from waystation.relay.delivering.planning import plan_tallies
from waystation.relay.directory import ALERTS_PROVIDER, Known
from waystation.relay.receiving.dedupe import DEFAULT_WINDOW, digest_of
from waystation.relay.rules.paths import Webhook
from waystation.relay.sources import HOUSE
from waystation.relay.stats import day_tally, hour_tally
from waystation.relay.tables import Event, Seen, Source
from waystation.store import Put, absent, prepare

if TYPE_CHECKING:
    from collections.abc import Callable

    from waystation.errors import CancellationReason
    from waystation.patterns import WriteBatches
    from waystation.relay.delivering.onward import Onward
    from waystation.relay.delivering.planning import Plan
    from waystation.relay.directory import Directory
    from waystation.relay.keyring import Keyring
    from waystation.store import Action, Store, Write

_TRIES = 4
_MOST_COUNTERS = 10_000
_KEPT_SECONDS = 90 * 86_400
_encode = msgspec.json.Encoder().encode


class Receipt(msgspec.Struct):
    """The answer to a webhook that was taken."""

    id: str
    status: Literal["received", "duplicate"]


class Intake:
    """Writes events down and hands them on. `heard` tells those who follow an account's events."""

    def __init__(
        self,
        store: Store,
        batches: WriteBatches,
        directory: Directory,
        keyring: Keyring,
        onward: Onward,
        heard: Callable[[Event], None],
    ) -> None:
        self._store = store
        self._batches = batches
        self._directory = directory
        self._keyring = keyring
        self._onward = onward
        self._heard = heard
        self._limiter = LocalLimiter(store.clock)
        self._minutes: Newest[str, int] = Newest(_MOST_COUNTERS)
        self._full: Newest[str, int] = Newest(_MOST_COUNTERS)
        self._beginning: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._counters: Newest[str, tuple[int, Known, list[Tally]]] = Newest(_MOST_COUNTERS)

    def admit(self, known: Known) -> None:
        """Count a request against the source's minute, as far as this process has seen it; what is
        refused is not counted. All processes together are counted when it is written."""
        limit = known.limits.events_per_minute if known.limits else None
        if limit is not None:
            source_id, now = known.source.source_id, self._store.clock()
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
            event = self._event(known, webhook, sender)
            return await self.record(known, event, webhook, digest, known.dedupe.window)
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
        known = await self._directory.source(source_id)
        if known is None or known.source.user_id != user_id or known.source.status != "active":
            raise NotFound("there is no such source, or it is paused")
        self.admit(known)
        digest = None if dedupe is None else _house_digest(dedupe)
        webhook = Webhook(body, {n.lower(): v for n, v in headers.items()}, "", "POST", "")
        event = self._event(known, webhook, sender)
        try:
            return await self.record(known, event, webhook, digest, DEFAULT_WINDOW)
        except BaseException:
            self._unadmit(known)
            raise

    async def seen_from_house(self, source_id: str, dedupe: str) -> str | None:
        """The event that a source has taken from another system under the same `dedupe`."""
        seen = await self._store.get(Seen.key(source_id, _house_digest(dedupe)))
        return None if seen is None else seen.event_id

    async def owns(self, user_id: str, source_id: str) -> bool:
        """Whether an account has such a source, for another system to give events to."""
        known = await self._directory.source(source_id)
        if known is None or known.source.provider == ALERTS_PROVIDER:
            return False
        return known.source.user_id == user_id

    def _event(self, known: Known, webhook: Webhook, sender: str) -> Event:
        now = self._store.clock()
        event_id = timed_id("evt", now)
        headers, sealed = self._keyring.split_request(
            webhook.headers, webhook.query_string, event_id
        )
        try:
            text, binary = webhook.content.decode(), None
        except UnicodeDecodeError:
            text, binary = "", webhook.content
        content_type = webhook.headers.get("content-type")
        webhook.headers = self._keyring.without_credentials(webhook.headers)
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
            content_type=content_type,
            method=webhook.method,
            received_at=int(now * 1000),
            expires_at=int(now) + (known.limits.retention if known.limits else _KEPT_SECONDS),
        )

    async def record(
        self,
        known: Known,
        event: Event,
        webhook: Webhook,
        digest: str | None = None,
        window: int = 0,
    ) -> Receipt:
        """Write an event, its deliveries and its usage in one transaction, unless it is a
        duplicate of another within `window` seconds."""
        plan = await self._onward.plan(event, webhook)
        first = None
        try:
            first = await self._write(known, plan, digest, window)
        finally:
            if first != event.event_id:
                self._onward.dropped(plan)
        if first != event.event_id:
            return Receipt(first, "duplicate")
        self._heard(event)
        await self._onward.written(plan)
        return Receipt(first, "received")

    async def _write(self, known: Known, plan: Plan, digest: str | None, window: int) -> str:
        """The id of the event, or of the one that came first."""
        event = plan.event
        put = plan.parcel.wrote = prepare(Put(event))
        actions: list[Action | Write] = [put]
        if digest is not None:
            expires = event.received_at // 1000 + window
            seen = Seen(
                source_id=event.source_id,
                digest=digest,
                event_id=event.event_id,
                expires_at=expires,
            )
            actions.append(Put(seen, when=absent()))
        actions += [Put(delivery) for delivery in plan.rows]
        await self._onward.expect(plan)
        decided = plan_tallies(plan, self._store.clock())
        for _ in range(_TRIES):
            tallies = self._tallies(known, event)
            if decided:
                tallies = [*tallies, *decided]
            try:
                if known.limits is not None and known.limits.events_per_minute is not None:
                    await self._begin_minute(known, event.received_at)
                await self._batches.write(
                    event.user_id, actions, tallies, plan.parcel.size, new=True
                )
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
        if known.source.user_id == HOUSE:
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
            await usage.settle_refusal(self._store, known.source.user_id, account.item)
        return None

    def _source_refused(self, known: Known, found: object) -> None:
        """Raise why a source takes no more, unless it is only that its minute had not begun."""
        source_id, now = known.source.source_id, self._store.clock()
        if not isinstance(found, Source) or found.status != "active":
            self._directory.forget(source_id)
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
        if self._minutes.get(source_id) != minute:
            lock = self._beginning.setdefault(source_id, asyncio.Lock())
            async with lock:
                if self._minutes.get(source_id) != minute:
                    await usage.begin_minute(self._store, known, minute)
                    self._minutes[source_id] = minute


def _house_digest(dedupe: str) -> str:
    return secret_hash(f"house {dedupe}")[:40]
