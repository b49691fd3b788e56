"""When the desk keeps quiet: the limits on automatic replies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from waystation.desk.deciding.decisions import CUSTOM
from waystation.times import seconds_of

if TYPE_CHECKING:
    from waystation.desk.acting.plans import StateChange
    from waystation.desk.deciding.decisions import Decision
    from waystation.desk.receiving.envelopes import Envelope
    from waystation.desk.switches import SwitchState

MOST_ACTIONS = 3
_BETWEEN = 600
_DAY = 86_400
_A_DAY = 3


def why_not(
    envelope: Envelope, decision: Decision, before: StateChange, switches: SwitchState
) -> str | None:
    """Why a message gets no automatic reply at all, if it gets none."""
    refusals = [
        (switches.safe_mode, "safe mode is on"),
        (not switches.automation_enabled, "automation is off"),
        (not switches.lets(envelope.channel), f"the channel {envelope.channel} is switched off"),
        (decision.escalated, "it is an escalation"),
        (bool(before.risk_flags), "the conversation was escalated before"),
        (bool(envelope.closed or (before.closed and envelope.closed is None)), "it is closed"),
        (before.agent_replied_at is not None, "an agent has answered"),
        (not envelope.text.strip(), "there is no text, only attachments"),
        (envelope.update, "the ticket was changed, and nobody wrote"),
        (envelope.cut, "it is too long to be read whole"),
    ]
    return next((reason for holds, reason in refusals if holds), None)


def switched_off(template: str, switches: SwitchState) -> bool:
    """A template is on unless it was switched off; a decider's own words are off unless on."""
    return not switches.templates.get(template, template != CUSTOM)


def throttled(before: StateChange, now: float, *, answered: bool = False) -> str | None:
    """Why a conversation has had enough automatic replies for now, if it has. Who has `answered`
    our question need not wait for what comes of it."""
    lately = recent(before, now)
    if not answered and any(now - at < _BETWEEN for at in lately):
        return f"there was a reply less than {_BETWEEN // 60} minutes ago"
    if len(lately) >= _A_DAY:
        return f"there were {_A_DAY} replies within a day"
    return None


def recent(before: StateChange, now: float) -> list[float]:
    """When automatic replies were sent within the last day."""
    written = [*(before.auto_replies or ())]
    if before.last_auto_reply is not None:
        written.append(before.last_auto_reply.sent_at)
    times = sorted({seconds_of(at) for at in written})
    return [at for at in times if now - at < _DAY]
