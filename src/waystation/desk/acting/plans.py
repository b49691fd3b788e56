"""Plans: what is to be done about one event, decided once and then carried out to the end.

A plan is written down, sealed, before the first of its actions. Whoever takes an event over goes on
with the plan that is there, so that a switch that was set meanwhile, or a decider that would say
something else now, cannot lead to two half-done plans.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from waystation.desk.tables import AutoReply, ConversationState, Mode, OrderTrace, PendingFlow

ActionType = Literal["route", "escalate", "tag", "auto_reply", "hand_over", "flow"]
Call = Literal["assign", "tag", "reply", "relay", "none"]

_CHANGING = (
    "last_processed_message_id",
    "last_routed_team",
    "last_routing_confidence",
    "last_intent",
    "risk_flags",
    "pending_flow",
    "last_auto_reply",
    "auto_replies",
    "last_order",
    "channel",
    "agent_replied_at",
    "closed",
    "order_asks",
    "last_text_hash",
)


class Action(msgspec.Struct, kw_only=True):
    """One thing to do. `call` is what is asked of whom, `value` a team's id, a tag or a text, and
    `payload` what the audit shows of it. `place` is its place in the plan."""

    key: str
    place: int = 0
    type: ActionType
    call: Call = "none"
    value: str = ""
    template: str | None = None
    payload: dict[str, Any] = msgspec.field(default_factory=dict)


class StateChange(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A conversation's state after an event, but for its times and version."""

    last_processed_message_id: str | None = None
    last_routed_team: str | None = None
    last_routing_confidence: float | None = None
    last_intent: str | None = None
    risk_flags: list[str] = []
    pending_flow: PendingFlow | None = None
    last_auto_reply: AutoReply | None = None
    auto_replies: list[str] | None = None
    last_order: OrderTrace | None = None
    channel: str | None = None
    agent_replied_at: str | None = None
    closed: bool | None = None
    order_asks: int | None = None
    last_text_hash: str | None = None

    @classmethod
    def of(cls, state: ConversationState | None) -> StateChange:
        if state is None:
            return cls()
        found = {name: getattr(state, name) for name in _CHANGING}
        return cls(**found | {"risk_flags": sorted(state.risk_flags or ())})


class Plan(msgspec.Struct, kw_only=True):
    """`before` is the state that the plan was made with, `replied` the state after it if the reply
    is sent, or if it is not known whether it was, and `silent` the state without it."""

    mode: Mode
    safe_mode: bool
    automation_enabled: bool
    intent: str | None = None
    actions: list[Action] = msgspec.field(default_factory=list)
    before: StateChange
    replied: StateChange
    silent: StateChange

    def steps(self, *, dry_run: bool) -> list[Action]:
        """What has to be done, rather than written down only. In a dry run nothing is asked of the
        vendor; the relay is in this house."""
        return [
            action
            for action in self.actions
            if action.call == "relay" or (action.call != "none" and not dry_run)
        ]

    def reply(self) -> Action | None:
        return next((action for action in self.actions if action.call == "reply"), None)
