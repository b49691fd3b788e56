"""Stripe's subscription events change an account's plan.

The relay receives them at `/in/billing`, verifies, deduplicates and keeps them like any webhook,
and hands them over until they are applied, so that a crash in between loses nothing. Off until a
secret and prices are set.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import msgspec

from waystation.accounts.tables import Identity, Plan, User
from waystation.errors import ConditionFailed
from waystation.store import attr, exists, set_if_absent, set_to
from waystation.times import iso

if TYPE_CHECKING:
    from waystation.store import Condition, Edit, Store

log = logging.getLogger(__name__)

_PAID = frozenset({"active", "trialing", "past_due"})
"""`past_due` is being collected: the plan stays until Stripe gives up."""

_ENDED = frozenset({"canceled", "unpaid", "incomplete_expired", "paused"})
_PATIENCE_SECONDS = 3_600
"""How long a subscription waits for the checkout that says whose it is."""


class _Price(msgspec.Struct):
    id: str


class _Item(msgspec.Struct):
    price: _Price


class _Items(msgspec.Struct):
    data: list[_Item] = []


class _Object(msgspec.Struct):
    """A subscription, or a checkout session that has led to one."""

    id: str
    object: str = ""
    customer: str | None = None
    status: str | None = None
    items: _Items = msgspec.field(default_factory=_Items)
    metadata: dict[str, Any] | None = None
    subscription: str | None = None
    client_reference_id: str | None = None


class _Data(msgspec.Struct):
    object: _Object


class _StripeEvent(msgspec.Struct):
    type: str
    created: int
    data: _Data


class Billing:
    """`prices` says which plan each price buys."""

    def __init__(self, store: Store, prices: dict[str, Plan]) -> None:
        self._store = store
        self._prices = prices

    async def apply(self, content: bytes, age: float) -> bool:
        """Do what an event says, so many seconds after it came; whether that is done. Safe to
        repeat, and in any order."""
        try:
            notice = msgspec.json.decode(content, type=_StripeEvent)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            log.info("an event of Stripe's is not about a subscription: %s", error)
            return True
        if notice.type == "checkout.session.completed":
            await self._link(notice.data.object)
        elif notice.type.startswith("customer.subscription."):
            return await self._subscribe(notice) or age > _PATIENCE_SECONDS
        return True

    async def _link(self, session: _Object) -> None:
        """Remember which account a customer is."""
        user_id = session.client_reference_id or _named(session)
        if user_id is None or session.customer is None or not _is_key(user_id, session.customer):
            return
        changes = [set_to("stripe_customer_id", session.customer)]
        if session.subscription is not None:
            changes.append(set_if_absent("stripe_sub_id", session.subscription))
        await self._change(user_id, changes)
        identity = Identity(provider="stripe", subject=session.customer, user_id=user_id)
        if await self._store.get(User.key(user_id)) is not None:
            await self._store.put(identity)

    async def _subscribe(self, notice: _StripeEvent) -> bool:
        subscription = notice.data.object
        user_id = await self._account(subscription)
        if user_id is None:
            log.warning("subscription %s belongs to no account yet", subscription.id)
            return False
        plan = self._plan(notice.type, subscription)
        if plan is None:
            log.warning("subscription %s changes no plan", subscription.id)
            return True
        changes: list[Edit] = [
            set_to("plan", plan),
            set_to("stripe_sub_id", subscription.id),
            set_to("billed_at", notice.created),
        ]
        if subscription.customer is not None:
            changes.append(set_to("stripe_customer_id", subscription.customer))
        billed, current = attr("billed_at"), attr("stripe_sub_id")
        condition = billed.absent() | (billed <= notice.created)
        if plan == "free":  # the end of an old subscription does not end a newer one
            condition &= current.absent() | (current == subscription.id)
        await self._change(user_id, changes, condition)
        return True

    def _plan(self, kind: str, subscription: _Object) -> Plan | None:
        """The plan that an event makes it; None when it changes nothing."""
        if kind == "customer.subscription.deleted" or subscription.status in _ENDED:
            return "free"
        if subscription.status not in _PAID:
            return None
        bought = [self._prices.get(item.price.id) for item in subscription.items.data]
        return next((plan for plan in bought if plan is not None), None)

    async def _account(self, subscription: _Object) -> str | None:
        named = _named(subscription)
        if named is not None and _is_key(named):
            return named
        if subscription.customer is None or not _is_key(subscription.customer):
            return None
        known = await self._store.get(Identity.key("stripe", subscription.customer))
        return None if known is None else known.user_id

    async def _change(
        self, user_id: str, changes: list[Edit], condition: Condition | None = None
    ) -> None:
        """Change the account, unless a later event has done so already."""
        when = exists() if condition is None else exists() & condition
        stamp = set_to("updated_at", iso(self._store.clock()))
        try:
            await self._store.update(User.key(user_id), *changes, stamp, when=when)
        except ConditionFailed:
            log.info("the plan of %s is newer, or the account no longer exists", user_id)


def _named(thing: _Object) -> str | None:
    named = (thing.metadata or {}).get("user_id")
    return named if isinstance(named, str) else None


def _is_key(*texts: str) -> bool:
    return all(0 < len(text) <= 200 and "#" not in text for text in texts)
