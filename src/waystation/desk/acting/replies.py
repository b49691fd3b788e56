"""What the desk would say: a template, with what is known of the order, or a question for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from waystation.desk.acting import flows
from waystation.desk.deciding.decisions import CUSTOM
from waystation.desk.deciding.orders import order_number
from waystation.desk.deciding.rules import NEED_ORDER_NUMBER
from waystation.desk.tables import OrderTrace, PendingFlow

if TYPE_CHECKING:
    from waystation.desk.acting.lookups import Lookups
    from waystation.desk.deciding.decisions import Decision, Order
    from waystation.desk.deciding.rules import Rules
    from waystation.desk.receiving.envelopes import Envelope

_ORDER_STATUS = "order_status"


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """A reply, or the reason why there is none. `asks` is the flow that a question opens."""

    template: str | None = None
    text: str | None = None
    reason: str | None = None
    asks: PendingFlow | None = None
    order: OrderTrace | None = None
    ends_flow: bool = False


class Replies:
    def __init__(self, rules: Rules, lookups: Lookups) -> None:
        self._templates = rules.templates
        self._lookups = lookups

    async def propose(
        self, envelope: Envelope, decision: Decision, flow: PendingFlow | None, now: float
    ) -> Proposal:
        if decision.reply_text is not None:
            return Proposal(template=CUSTOM, text=decision.reply_text)
        number = order_number(envelope.text, asked=flow is not None)
        resumed = flow is not None and number is not None
        wanted = _ORDER_STATUS if resumed and decision.reply is None else decision.reply
        if wanted is None:
            return self._no_answer(flow, now)
        template = self._templates.get(wanted)
        if template is None:
            return Proposal(reason=f"there is no template {wanted}")
        if not template.fields:
            return Proposal(template=wanted, text=template.text)
        if number is None:
            return self._question(flow, now)
        return await self._with_order(envelope, wanted, number, resumed)

    async def _with_order(
        self, envelope: Envelope, wanted: str, number: str, resumed: bool
    ) -> Proposal:
        trace = self._lookups.trace(number)
        order = await self._lookups.find(envelope, number)
        if order is None:
            reason = "the order could not be looked up"
            return Proposal(reason=reason, order=trace, ends_flow=resumed)
        text = _filled(self._templates[wanted].text, order)
        return Proposal(template=wanted, text=text, order=trace, ends_flow=resumed)

    def _question(self, flow: PendingFlow | None, now: float) -> Proposal:
        """Ask for the order's number, unless that was done often enough or would not help."""
        template = self._templates.get(NEED_ORDER_NUMBER)
        if not self._lookups.possible or template is None:
            return Proposal(reason="orders cannot be looked up")
        if flows.spent(flow):
            return Proposal(reason="the order's number was asked for twice", ends_flow=True)
        return Proposal(template=NEED_ORDER_NUMBER, text=template.text, asks=flows.asked(flow, now))

    def _no_answer(self, flow: PendingFlow | None, now: float) -> Proposal:
        """A message that is about nothing we answer. Where it should have answered our question, we
        ask once more."""
        if flow is None:
            return Proposal(reason="there is no template for it")
        return self._question(flow, now)


def _filled(text: str, order: Order) -> str:
    tracking = f"You can follow it at {order.tracking_url}" if order.tracking_url else ""
    lines = text.format(status=order.status, tracking=tracking).splitlines()
    return "\n".join(line.rstrip() for line in lines).strip()
