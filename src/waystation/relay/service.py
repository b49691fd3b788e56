"""The relay: takes webhooks in, durably, and hands them on."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Literal

import msgspec

from waystation.accounts.keys import iso
from waystation.errors import NotFound, Overloaded, TransactionCancelled, TransactionConflict
from waystation.ids import timed_id
from waystation.patterns.ratelimits import Limit, LocalLimiter
from waystation.relay import usage
from waystation.relay.billing import OPERATOR
from waystation.relay.connections import Connections
from waystation.relay.dedupe import digest_of
from waystation.relay.deliver import Deliver, InboxSender
from waystation.relay.directory import Directory, Known
from waystation.relay.dispatch import RESCUE_MS, Dispatch
from waystation.relay.egress import Egress, Guard
from waystation.relay.keyring import Keyring
from waystation.relay.lanes import Lanes
from waystation.relay.ledger import Ledger, Tally
from waystation.relay.sources import Sources
from waystation.relay.stats import Statistics, day_tally, hour_tally
from waystation.relay.tables import Delivery, Event, Seen
from waystation.relay.wakes import Wakes
from waystation.store import Put, absent, attr, exists, key_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from waystation.errors import CancellationReason
    from waystation.patterns.vault import Vault
    from waystation.relay.paths import Webhook
    from waystation.store import Store
    from waystation.store.actions import Action

log = logging.getLogger(__name__)

_HIDDEN = ("authorization", "proxy-authorization", "cookie")
_REDACTED = "[redacted]"
_TRIES = 4
_MOST_COUNTERS = 10_000
_encode = msgspec.json.Encoder().encode


class Receipt(msgspec.Struct):
    """What a sender is told."""

    id: str
    status: Literal["received", "duplicate"]


class Relay:
    """Everything about webhooks but HTTP.

    A worker in this process sets `begin`: an event is then written with its deliveries, and `begin`
    makes their first attempts. Without one, `hand_over` tells a worker elsewhere of the event.
    `heard` tells those who listen. `kick` makes a worker in this process look at something now.
    """

    def __init__(
        self,
        store: Store,
        vault: Vault,
        *,
        networks: list[str],
        public_url: str | None = None,
        inbox: InboxSender | None = None,
    ) -> None:
        self.store = store
        self.public_url = public_url.rstrip("/") if public_url else None
        self.keyring = Keyring(vault)
        self.directory = Directory(store, self.keyring)
        self.egress = Egress(Guard(networks))
        self.ledger = Ledger(store)
        self.wakes = Wakes(store)
        self.lanes = Lanes(store.clock)
        self.dispatch = Dispatch(store, self.ledger, self.wakes, self.lanes)
        self.deliver = Deliver(store, self.ledger, self.wakes, self.egress, self.keyring, inbox)
        self.sources = Sources(store, self.keyring, self.directory, public_url)
        self.connections = Connections(
            store, self.keyring, self.directory, self.egress.guard, inboxes=inbox is not None
        )
        self.statistics = Statistics(store)
        self.begin: Callable[[Event, list[Delivery]], None] | None = None
        self.hand_over: Callable[[Event], Awaitable[None]] | None = None
        self.heard: Callable[[Event], None] | None = None
        self.kick: Callable[[str], None] | None = None
        self._limiter = LocalLimiter(store.clock)
        self._counters: dict[str, tuple[int, Known, list[Tally]]] = {}

    def admit(self, known: Known) -> None:
        """Count a request against the source's minute; what is refused is not counted."""
        limit = known.limits.events_per_minute if known.limits else None
        if limit is not None:
            self._limiter.take(known.source.source_id, Limit(limit, 60))

    async def receive(self, known: Known, webhook: Webhook, sender: str) -> Receipt:
        """Write down a webhook that was checked. It is durable when this returns."""
        digest = digest_of(known.dedupe, known.source.provider, webhook)
        return await self.record(known, self._event(known, webhook, sender), digest)

    def _event(self, known: Known, webhook: Webhook, sender: str) -> Event:
        now = self.store.clock()
        headers = webhook.headers
        if any(name in headers for name in _HIDDEN):
            headers = headers | {name: _REDACTED for name in _HIDDEN if name in headers}
        try:
            text, binary = webhook.content.decode(), None
        except UnicodeDecodeError:
            text, binary = "", webhook.content
        return Event(
            event_id=timed_id("evt", now),
            source_id=known.source.source_id,
            user_id=known.source.user_id,
            headers=_encode(headers).decode(),
            body=text,
            body_bytes=binary,
            query_string=webhook.query_string or None,
            path=webhook.path or None,
            source_ip=sender,
            content_type=headers.get("content-type"),
            method=webhook.method,
            received_at=int(now * 1000),
            expires_at=int(now) + (known.limits.retention if known.limits else 90 * 86_400),
        )

    async def record(self, known: Known, event: Event, digest: str | None) -> Receipt:
        """Write an event, what is to become of it, and its usage in one transaction, unless it
        was seen before."""
        made = await self._planned(event)
        first = None
        try:
            first = await self._write(known, event, digest, made)
        finally:
            if first != event.event_id:
                self.dispatch.release(made)
        if first != event.event_id:
            return Receipt(first, "duplicate")
        if self.heard is not None:
            self.heard(event)
        if event.todo is not None and self.hand_over is not None:
            await self.hand_over(event)
        elif made and self.begin is not None:
            self.begin(event, made)
        return Receipt(first, "received")

    async def _planned(self, event: Event) -> list[Delivery]:
        """An event's deliveries if they are made here; or else it says that there is more to do."""
        if event.user_id == OPERATOR:
            event.todo = event.source_id
            return []
        connections = await self.directory.connections(event.source_id)
        if not connections:
            return []
        if self.begin is None:
            event.todo = event.source_id
            return []
        try:
            return self.dispatch.planned(event, connections)
        except Exception:
            log.exception("the deliveries of %s are made later", event.event_id)
            event.todo = event.source_id
            return []

    async def _write(
        self, known: Known, event: Event, digest: str | None, made: list[Delivery]
    ) -> str:
        """The id of the event, or of the one that came first."""
        actions: list[Action] = [Put(event)]
        if digest is not None:
            expires = event.received_at // 1000 + known.dedupe.window
            seen = Seen(
                source_id=event.source_id,
                digest=digest,
                event_id=event.event_id,
                expires_at=expires,
            )
            actions.append(Put(seen, when=absent()))
        actions += [Put(delivery) for delivery in made]
        if event.todo is not None:
            await self.wakes.expect(event.source_id, int(self.store.clock() * 1000) + RESCUE_MS)
        await self.dispatch.expect(made)
        decided = self.dispatch.tallies(event, made)
        for _ in range(_TRIES):
            tallies = self._tallies(known, event)
            if decided:
                tallies = [*tallies, *decided]
            try:
                await self.ledger.write(event.user_id, actions, tallies, event.size, new=True)
            except TransactionConflict as error:
                raise Overloaded(
                    "too many at once write for this account", retry_after=1.0
                ) from error
            except TransactionCancelled as error:
                first = await self._refused(known, error.reasons, len(actions), digest)
                if first is not None:
                    return first
            else:
                return event.event_id
        raise Overloaded("the usage of this account changes too fast", retry_after=1.0)

    def _tallies(self, known: Known, event: Event) -> list[Tally]:
        """The counters of one more event. Those of a second are the same for all its events."""
        second = event.received_at // 1000
        made = self._counters.get(event.source_id)
        if made is None or made[0] != second or made[1] is not known:
            if len(self._counters) > _MOST_COUNTERS:
                self._counters.clear()
            made = (second, known, self._new_tallies(known, event))
            self._counters[event.source_id] = made
        return made[2]

    def _new_tallies(self, known: Known, event: Event) -> list[Tally]:
        now = event.received_at / 1000
        if known.source.user_id == OPERATOR:
            return []
        source = Tally(
            key=key_of(known.source),
            adds={"event_count": 1},
            sets={"last_event_at": iso(now)},
            when=lambda _: exists() & (attr("status") == "active"),
        )
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
            self.directory.forget(known.source.source_id)
            raise NotFound("there is no such source, or it is paused")
        if account is not None:
            await usage.settle_refusal(self.store, known.source.user_id, account.item)
        return None

    async def expect_change(self, connection_id: str) -> None:
        """Have somebody look at a connection even if we do not live to say so after its change."""
        await self.wakes.expect(connection_id, int(self.store.clock() * 1000) + RESCUE_MS)

    async def expect_changes(self, source_id: str) -> None:
        for connection in await self.directory.list_connections(source_id):
            await self.expect_change(connection.connection_id)

    async def wake(self, name: str) -> None:
        """Have somebody look at a source, connection or replay now."""
        await self.wakes.ensure(name, int(self.store.clock() * 1000))
        if self.kick is not None:
            self.kick(name)

    async def close(self) -> None:
        await self.egress.close()
