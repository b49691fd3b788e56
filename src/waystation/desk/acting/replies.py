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
    from waystation.desk.acting.plans import StateChange
    from waystation.desk.deciding.decisions import Decision, Order
    from waystation.desk.deciding.rules import Rules
    from waystation.desk.receiving.envelopes import Envelope

_ORDER_STATUS = "order_status"


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """A reply, or the reason why there is none. `asks` is the flow that a question opens, `answers`
    that it goes on with one, and `gives_up` that there is no more point in waiting."""

    template: str | None = None
    text: str | None = None
    reason: str | None = None
    asks: PendingFlow | None = None
    order: OrderTrace | None = None
    answers: bool = False
    gives_up: bool = False


class Replies:
    def __init__(self, rules: Rules, lookups: Lookups) -> None:
        self._templates = rules.templates
        self._lookups = lookups

    async def propose(
        self,
        envelope: Envelope,
        decision: Decision,
        before: StateChange,
        now: float,
        *,
        waiting: bool,
    ) -> Proposal:
        if decision.reply_text is not None:
            return Proposal(template=CUSTOM, text=decision.reply_text)
        number = order_number(envelope.text, asked=waiting)
        answers = waiting and number is not None
        wanted = _ORDER_STATUS if answers and decision.reply is None else decision.reply
        if wanted is None:
            return self._question(before, now) if waiting else Proposal(reason="no template fits")
        template = self._templates.get(wanted)
        if template is None:
            return Proposal(reason=f"there is no template {wanted}")
        if not template.fields:
            return Proposal(template=wanted, text=template.text)
        if number is None:
            return self._question(before, now)
        trace = self._lookups.trace(number)
        order = await self._lookups.find(envelope, number)
        if order is None:
            reason = "the order could not be looked up"
            return Proposal(reason=reason, order=trace, answers=answers)
        text = _filled(template.text, order)
        return Proposal(template=wanted, text=text, order=trace, answers=answers)

    def _question(self, before: StateChange, now: float) -> Proposal:
        """Ask for the order's number, unless that was done often enough or would not help."""
        template = self._templates.get(NEED_ORDER_NUMBER)
        if not self._lookups.possible or template is None:
            return Proposal(reason="orders cannot be looked up")
        if flows.spent(before):
            return Proposal(reason="the order's number was asked for twice", gives_up=True)
        return Proposal(
            template=NEED_ORDER_NUMBER, text=template.text, asks=flows.asked(before, now)
        )


def _filled(text: str, order: Order) -> str:
    tracking = f"You can follow it at {order.tracking_url}" if order.tracking_url else ""
    lines = text.format(status=order.status, tracking=tracking).splitlines()
    return "\n".join(line.rstrip() for line in lines).strip()
