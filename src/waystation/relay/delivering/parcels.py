"""What this process holds in memory: events, and deliveries that are under way or about to be.

Every delivery in memory is claimed in the table, so that others leave it alone while this process
lives and find it when it does not. How many there are, and how large, is bounded, and so is each
account's share.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

from waystation.relay.delivering.forwarding import forwarded
from waystation.relay.rules.trail import TRAIL, extended
from waystation.relay.states import webhook_of
from waystation.store import key_of

if TYPE_CHECKING:
    from waystation.relay.delivering.lanes import Lane
    from waystation.relay.delivering.outcomes import Settlement
    from waystation.relay.keyring import Keyring
    from waystation.relay.rules.paths import Webhook
    from waystation.relay.tables import Delivery, Event
    from waystation.store import Key, Write

CLAIM_MS = 60_000
"""How long others keep away from what somebody has claimed. It is renewed while it waits."""

MOST_HELD = 10_000
MOST_BYTES = 64 * 1024 * 1024
_CROWDED = 8
"""An account that has the eighth part of all room is asked to wait."""

_CALM_SECONDS = 0.2


class Parcel:
    """An event, with what its deliveries share.

    `event` is as it is stored, and `wrote` what has made it so, if that is known. `rowless` are
    those of its deliveries that have no row, and that the event's own claim is for. It is
    `abandoned` when nobody here has one of these any more: then its claim runs out, and whoever
    comes begins anew.
    """

    __slots__ = (
        "_headers",
        "_keyring",
        "_webhook",
        "abandoned",
        "bytes",
        "count",
        "event",
        "joining",
        "rowless",
        "size",
        "wrote",
    )

    def __init__(self, event: Event, keyring: Keyring, webhook: Webhook | None = None) -> None:
        self.event = event
        self.wrote: Write | None = None
        self.size = event.size
        self.rowless: set[str] = set()
        self.joining: Settlement | None = None
        self.bytes = 0
        self.count = 0
        self.abandoned = False
        self._keyring = keyring
        self._webhook = webhook
        self._headers: dict[str, str] | None = None

    @property
    def key(self) -> Key[Event]:
        return key_of(self.event) if self.wrote is None else self.wrote.key

    @property
    def webhook(self) -> Webhook:
        """The event as it came; SettingsError when its sealed part cannot be opened."""
        if self._webhook is None:
            self._webhook = webhook_of(self.event, self._keyring)
        return self._webhook

    @property
    def headers(self) -> dict[str, str]:
        """The headers that all its deliveries have."""
        if self._headers is None:
            came = self.webhook.headers
            self._headers = forwarded(came) | {
                "x-waystation-event": self.event.event_id,
                TRAIL: extended(came.get(TRAIL, ""), self.event.source_id),
            }
        return self._headers


class Held:
    """A delivery in memory. One that is `stored` has a row, and a claim of its own there."""

    __slots__ = ("delivery", "lane", "parcel", "stored")

    def __init__(self, delivery: Delivery, parcel: Parcel, lane: Lane, *, stored: bool) -> None:
        self.delivery = delivery
        self.parcel = parcel
        self.lane = lane
        self.stored = stored

    @property
    def until(self) -> int:
        """The millisecond at which others may take it over."""
        return (self.delivery.due_at if self.stored else self.parcel.event.due_at) or 0


class Memory:
    """The room for deliveries. No account has more of it than is free, so that one may fill half, a
    second one a quarter, and a newcomer always finds some."""

    def __init__(self, *, most: int = MOST_HELD, most_bytes: int = MOST_BYTES) -> None:
        self.most = most
        self.most_bytes = most_bytes
        self.count = 0
        self.bytes = 0
        self._counts: Counter[str] = Counter()
        self._sizes: Counter[str] = Counter()
        self._freed: asyncio.Future[None] | None = None

    def has_room(self, account: str) -> bool:
        if self._counts[account] >= self.most - self.count:
            return False
        return self._sizes[account] < self.most_bytes - self.bytes

    def is_crowded(self, account: str) -> bool:
        """Whether an account has much in memory."""
        return self._counts[account] * _CROWDED >= self.most

    async def calm(self, account: str) -> None:
        """Wait a moment while it is crowded: it may be that events come faster than this process
        can deliver them, and whoever sends them should feel it. Where an endpoint is slow that
        helps nobody, so that it is a moment only."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_CALM_SECONDS):
                while self.is_crowded(account):
                    if self._freed is None:
                        self._freed = asyncio.get_running_loop().create_future()
                    await asyncio.shield(self._freed)

    def take(self, parcel: Parcel) -> bool:
        """Room for one more delivery of an event, if there is any."""
        event = parcel.event
        account = event.user_id
        size = 0 if parcel.count else parcel.size
        if not self.has_room(account):
            return False
        if size and self._sizes[account] + size > self.most_bytes - self.bytes:
            return False
        parcel.count += 1
        self.count += 1
        self._counts[account] += 1
        if size:
            parcel.bytes = size
            self.bytes += size
            self._sizes[account] += size
        return True

    def give(self, parcel: Parcel) -> None:
        account = parcel.event.user_id
        parcel.count -= 1
        self.count -= 1
        self._counts[account] -= 1
        if not parcel.count:
            self.bytes -= parcel.bytes
            self._sizes[account] -= parcel.bytes
            parcel.bytes = 0
        if not self._counts[account]:
            del self._counts[account]
            self._sizes.pop(account, None)
        if self._freed is not None:
            self._freed.set_result(None)
            self._freed = None
