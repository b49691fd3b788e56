"""Running rules: short work where it is, long work in a thread beside the event loop.

All rules of an event share one budget, whichever connection they belong to. What may take long
waits for its account's turn, so that no account has more than one thread at a time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakValueDictionary

import msgspec

from waystation.patterns import Newest
from waystation.relay.rules.budget import Budget, RulesTooCostly
from waystation.relay.rules.filters import BodyUnreadable, stored_filter
from waystation.relay.rules.trail import TRAIL, loop
from waystation.relay.rules.transforms import TransformFailed, apply, stored_transform, weight_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from waystation.relay.rules.paths import Webhook
    from waystation.relay.tables import Connection, DeliveryStatus, Event

    Decision = tuple[DeliveryStatus, str | None]

T = TypeVar("T")

log = logging.getLogger(__name__)

SHORT = 64 * 1024
"""Bytes of body times rules that are looked at on the event loop: a few milliseconds at most."""

_TRIAL_STEPS = 10_000
_TRIAL_SECONDS = 0.02
_THREADS = 2
_MOST_BUDGETS = 10_000
_BUDGET_SECONDS = 10.0
"""After so long an event's rules may spend anew: it is being retried."""


class Rules:
    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="rules")
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._budgets: Newest[str, tuple[float, Budget]] = Newest(_MOST_BUDGETS)

    def try_now(
        self, source_id: str, webhook: Webhook, connections: Sequence[Connection]
    ) -> list[Decision] | None:
        """What is to become of an event at each connection, by their filters, if that can be said
        on the event loop; None if it may take longer."""
        weight = sum(_filter_weight(c) for c in connections if c.filters is not None)
        if weight and _size(webhook) * weight > SHORT:
            return None
        try:
            return _decisions(source_id, webhook, connections, None)
        except RulesTooCostly:
            return None

    async def decide(
        self, event: Event, webhook: Webhook, connections: Sequence[Connection]
    ) -> list[Decision]:
        """The same, however long it takes."""
        decided = self.try_now(event.source_id, webhook, connections)
        if decided is not None:
            return decided
        budget = self._budget(event.event_id)
        return await self._beside(
            event.user_id, lambda: _decisions(event.source_id, webhook, connections, budget)
        )

    async def transformed(self, stored: str, event: Event, webhook: Webhook) -> tuple[bytes, bool]:
        """The body to send by a connection's transform, and whether it is new JSON. TransformFailed
        when there is no result."""
        try:
            transform = stored_transform(stored)
            weight = weight_of(transform)
        except (msgspec.MsgspecError, ValueError) as error:  # another service wrote it
            raise TransformFailed(f"it cannot be read: {error}") from None
        if _size(webhook) * weight <= SHORT:
            with suppress(RulesTooCostly):
                return apply(transform, webhook, _trial())
        budget = self._budget(event.event_id)

        def work() -> tuple[bytes, bool]:
            budget.start()
            return apply(transform, webhook, budget)

        return await self._beside(event.user_id, work)

    async def _beside(self, account: str, work: Callable[[], T]) -> T:
        turn = self._turns.setdefault(account, asyncio.Lock())
        async with turn:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _budget(self, event_id: str) -> Budget:
        """What an event's rules have left."""
        now = time.monotonic()
        begun, budget = self._budgets.get(event_id) or (0.0, Budget())
        if now - begun > _BUDGET_SECONDS:
            budget = Budget()
            self._budgets[event_id] = (now, budget)
        return budget

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _decisions(
    source_id: str, webhook: Webhook, connections: Sequence[Connection], budget: Budget | None
) -> list[Decision]:
    """Without a budget, as far as a trial goes."""
    if (why := loop(webhook.headers.get(TRAIL, ""), source_id)) is not None:
        return [("failed", why)] * len(connections)
    if not any(connection.filters for connection in connections):
        return [("pending", None)] * len(connections)  # most often
    budget = budget or _trial()
    budget.start()
    return [_decision(connection, webhook, budget) for connection in connections]


def _size(webhook: Webhook) -> int:
    return 256 + len(webhook.content) + len(webhook.query_string)


def _trial() -> Budget:
    return Budget(_TRIAL_STEPS, _TRIAL_SECONDS, trial=True)


def _filter_weight(connection: Connection) -> int:
    if connection.filters is None:
        return 0
    try:
        return stored_filter(connection.filters).weight
    except Exception:  # noqa: BLE001 - what another service wrote shows when it is run
        return 1


def _decision(connection: Connection, webhook: Webhook, budget: Budget) -> Decision:
    if connection.filters is None:
        return "pending", None
    try:
        passed = stored_filter(connection.filters).passes(webhook, budget)
    except BodyUnreadable as reason:
        return "filtered", str(reason)
    except RulesTooCostly as error:
        if budget.trial:
            raise
        return "failed", f"the filter failed: {error}"
    except Exception as error:  # noqa: BLE001 - whatever it is, only this delivery fails
        log.warning("the filter of %s failed: %s", connection.connection_id, error)
        return "failed", f"the filter failed: {error}"[:300]
    return ("pending", None) if passed else ("filtered", None)
