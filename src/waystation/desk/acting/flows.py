"""Pending flows: a question that was asked, and the message that answers it.

Asked, the conversation waits. A message with an order number goes on with what was wanted. After a
week, after two questions, when an agent writes or the ticket is closed, the desk stops waiting.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from waystation.desk.deciding.rules import NEED_ORDER_NUMBER
from waystation.desk.tables import PendingFlow
from waystation.times import iso, seconds_of

if TYPE_CHECKING:
    from waystation.desk.acting.plans import StateChange

MOST_ASKS = 2


def waiting(before: StateChange, now: float, days: int) -> PendingFlow | None:
    """The flow that a conversation waits in, if its time is not over."""
    flow = before.pending_flow
    if flow is None or flow.type != NEED_ORDER_NUMBER:
        return None
    return flow if now - seconds_of(flow.requested_at) < days * 86_400 else None


def asked(before: StateChange, now: float) -> PendingFlow:
    """The flow after one more question."""
    return PendingFlow(NEED_ORDER_NUMBER, iso(now), asks(before) + 1)


def asks(before: StateChange) -> int:
    """How often the question was asked since it was last answered."""
    flow = before.pending_flow
    return max(before.order_asks or 0, flow.attempts if flow else 0)


def spent(before: StateChange) -> bool:
    """Whether the question was asked often enough."""
    return asks(before) >= MOST_ASKS
