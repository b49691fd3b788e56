"""From a decision to a plan: what to do about an event, given the conversation and the switches."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Any

import msgspec

from waystation.desk.acting import flows, throttles
from waystation.desk.acting.plans import Action, Plan, StateChange
from waystation.desk.acting.replies import Proposal, Replies
from waystation.desk.deciding.decisions import UNKNOWN_INTENT, Decision, Message
from waystation.desk.receiving.texts import normalised
from waystation.desk.tables import AutoReply
from waystation.patterns import redact
from waystation.times import iso

if TYPE_CHECKING:
    from collections.abc import Sequence

    from waystation.desk.acting.lookups import Lookups
    from waystation.desk.deciding.judging import Judge
    from waystation.desk.receiving.envelopes import Envelope
    from waystation.desk.switches import SwitchState
    from waystation.desk.tables import ConversationState
    from waystation.patterns import Vault
    from waystation.store import Store

_HARMLESS = Decision(intent=UNKNOWN_INTENT, confidence=1.0)
UNCERTAIN = "uncertain"
TRIAGE = "manual-triage"


class Planner:
    def __init__(
        self,
        store: Store,
        vault: Vault,
        judge: Judge,
        lookups: Lookups,
        *,
        flow_days: int,
        outbound: bool,
        recipients: Sequence[str] | None,
    ) -> None:
        self._store = store
        self._judge = judge
        self._rules = judge.rules.file
        self._flow_days = flow_days
        self._outbound = outbound
        self._recipients = None if recipients is None else {r.lower() for r in recipients}
        self._replies = Replies(judge.rules, lookups)
        self._key = vault.key("desk replies")

    async def plan(
        self, envelope: Envelope, state: ConversationState | None, switches: SwitchState
    ) -> Plan:
        found = StateChange.of(state)
        before = msgspec.structs.replace(found)
        before.channel = envelope.channel if envelope.channel != "unknown" else before.channel
        before.last_processed_message_id = envelope.message_id or envelope.reference
        if envelope.closed is not None:
            if before.closed and not envelope.closed:  # it was opened again: a new matter
                before.agent_replied_at = before.order_asks = None
            before.closed = envelope.closed
        if self._is_said(envelope, before):
            plan = await self._answered(envelope, before, switches)
        else:
            plan = self._listened(envelope, before, switches)
        plan.before = found
        return plan

    def _is_said(self, envelope: Envelope, before: StateChange) -> bool:
        """Whether a customer has written something. What comes along with a change of the ticket
        was said before, unless it is new."""
        if envelope.author != "customer" or not (envelope.text or envelope.attachments):
            return False
        if not envelope.update:
            return True
        return bool(envelope.text) and before.last_text_hash != self._hash(envelope.text)

    def _listened(self, envelope: Envelope, before: StateChange, switches: SwitchState) -> Plan:
        """An event that nobody wants an answer to: an agent's message, our own, or a new status."""
        agent = envelope.author == "agent" and bool(envelope.text or envelope.attachments)
        if agent and not envelope.update and not self._is_ours(envelope, before):
            before.agent_replied_at = iso(self._store.clock())
            before.order_asks = None
        actions = self._cancelled(envelope, before)
        return self._plan(switches, None, actions, before, before)

    def _cancelled(self, envelope: Envelope, before: StateChange) -> list[Action]:
        """The end of a flow that nobody waits for any more."""
        if before.pending_flow is None or not (before.agent_replied_at or before.closed):
            return []
        why = "closed" if before.closed else "an agent has answered"
        ended = self._flow_ended(envelope, before, f"cancelled: {why}")
        before.pending_flow = None
        return [ended]

    async def _answered(
        self, envelope: Envelope, before: StateChange, switches: SwitchState
    ) -> Plan:
        now = self._store.clock()
        before.last_text_hash = self._hash(envelope.text)
        actions = self._cancelled(envelope, before)
        flow = flows.waiting(before, now, self._flow_days)
        if before.pending_flow is not None and flow is None:
            actions.append(self._flow_ended(envelope, before, "expired"))
            before.pending_flow = None
        decision = await self._judge(
            Message(
                text=envelope.text,
                channel=envelope.channel,
                conversation_id=envelope.conversation_id,
                attachments=envelope.attachments,
                last_intent=before.last_intent,
                pending=flow.type if flow else None,
            )
        )
        refusal = throttles.why_not(envelope, decision, before, switches)
        if refusal is None:
            proposal = await self._replies.propose(
                envelope, decision, before, now, waiting=flow is not None
            )
            refusal = self._held_back(proposal, before, switches, now)
        else:
            proposal = Proposal(reason=refusal)
        if flow is not None and _ends_flow(decision, proposal, refusal):
            ended = "done" if proposal.answers else "cancelled: a person has to look"
            actions.append(self._flow_ended(envelope, before, ended))
        silent, replied = self._states(envelope, before, decision, proposal, refusal, now)
        vendor = self._vendor_actions(envelope, decision, proposal, refusal)
        actions = [*vendor, *actions, *self._handed_over(envelope, decision, switches)]
        return self._plan(switches, decision, actions, replied, silent)

    def _held_back(
        self, proposal: Proposal, before: StateChange, switches: SwitchState, now: float
    ) -> str | None:
        """Why a reply that is ready is not sent."""
        if proposal.text is None or proposal.template is None:
            return proposal.reason or "there is nothing to say"
        if throttles.switched_off(proposal.template, switches):
            return f"the template {proposal.template} is switched off"
        return throttles.throttled(before, now, answered=proposal.answers)

    def second_thoughts(
        self,
        envelope: Envelope,
        plan: Plan,
        action: Action,
        state: ConversationState | None,
        switches: SwitchState,
    ) -> str | None:
        """Why a reply that was planned, perhaps long ago, is not sent after all: because of the
        switches as they stand now, or of what has happened to the conversation since."""
        now, view = StateChange.of(state), msgspec.structs.replace(plan.silent)
        for name in ("closed", "agent_replied_at", "risk_flags"):
            if getattr(now, name) != getattr(plan.before, name):
                setattr(view, name, getattr(now, name))
        message = msgspec.structs.replace(envelope, closed=None)
        reason = throttles.why_not(message, _HARMLESS, view, switches)
        if reason is None and throttles.switched_off(action.template or "", switches):
            reason = f"the template {action.template} is switched off"
        return reason

    def _states(
        self,
        envelope: Envelope,
        before: StateChange,
        decision: Decision,
        proposal: Proposal,
        refusal: str | None,
        now: float,
    ) -> tuple[StateChange, StateChange]:
        """The conversation without the reply, and with it."""
        silent = msgspec.structs.replace(
            before,
            last_intent=decision.intent,
            last_routing_confidence=decision.confidence,
            last_routed_team=self._team(decision) or before.last_routed_team,
            risk_flags=sorted({*before.risk_flags, *_flags(decision)}),
            last_order=proposal.order or before.last_order,
        )
        if _ends_flow(decision, proposal, refusal):
            silent.pending_flow = None
            silent.order_asks = None if proposal.answers else flows.asks(before) or None
        if refusal is not None or proposal.text is None:
            return silent, silent
        lately = [iso(at) for at in throttles.recent(before, now)]
        replied = msgspec.structs.replace(
            silent,
            pending_flow=proposal.asks or silent.pending_flow,
            order_asks=proposal.asks.attempts if proposal.asks else silent.order_asks,
            auto_replies=[*lately, iso(now)],
            last_auto_reply=AutoReply(
                type=proposal.template or "",
                sent_at=iso(now),
                source_message_id=envelope.reference,
                text_hash=self._hash(proposal.text),
            ),
        )
        return silent, replied

    def _team(self, decision: Decision) -> str | None:
        """Who gets it: the decision's team if it is certain enough, the default team if it is
        nearly so, and nobody in particular if it is not."""
        if decision.escalated or decision.confidence >= self._rules.route_at:
            return decision.team or self._rules.default_team
        return self._rules.default_team if decision.confidence >= self._rules.uncertain_at else None

    def _vendor_actions(
        self, envelope: Envelope, decision: Decision, proposal: Proposal, refusal: str | None
    ) -> list[Action]:
        conversation, reference = envelope.conversation_id, envelope.reference
        about: dict[str, Any] = {
            "intent": decision.intent,
            "confidence": decision.confidence,
            "risk_flags": _flags(decision),
            "channel": envelope.channel,
            "reasons": [reason[:300] for reason in decision.reasons[:5]],
        }
        if refusal is not None:
            about["no_reply"] = refusal[:200]
        found: list[Action] = []
        if (team := self._team(decision)) is not None:
            found.append(
                Action(
                    key=f"act:rp_assign:{conversation}:{team}:{reference}",
                    type="escalate" if decision.escalated else "route",
                    call="assign",
                    value=self._rules.teams[team].id or team,
                    payload={"team": team, **about},
                )
            )
        for n, tag in enumerate(self._tags(decision)):
            found.append(
                Action(
                    key=f"act:rp_tag:{conversation}:{tag}:{reference}",
                    type="tag",
                    call="tag",
                    value=self._rules.tag_ids.get(tag, tag),
                    payload={"tag": tag} | (about if team is None and n == 0 else {}),
                )
            )
        if refusal is None and proposal.text is not None:
            reply = Action(
                key=f"act:rp_reply:{conversation}:{reference}",
                type="auto_reply",
                call="reply",
                value=proposal.text,
                template=proposal.template,
                payload={"template": proposal.template, "characters": len(proposal.text)},
            )
            found = [*found[: throttles.MOST_ACTIONS - 1], reply]
        return found[: throttles.MOST_ACTIONS]

    def _tags(self, decision: Decision) -> list[str]:
        if decision.escalated or decision.confidence >= self._rules.route_at:
            return list(dict.fromkeys([decision.intent, *decision.tags]))
        if decision.confidence >= self._rules.uncertain_at:
            return list(dict.fromkeys([UNCERTAIN, decision.intent]))
        return [TRIAGE]

    def _handed_over(
        self, envelope: Envelope, decision: Decision, switches: SwitchState
    ) -> list[Action]:
        """The event for whatever else listens, by way of the relay. No text is in it."""
        if switches.source_id is None:
            return []
        event = {
            "type": "desk.decided",
            "event_id": envelope.event_id,
            "conversation_id": envelope.conversation_id,
            "message_id": envelope.message_id,
            "channel": envelope.channel,
            "received_at": envelope.received_at,
            "intent": decision.intent,
            "intents": decision.intents,
            "team": self._team(decision),
            "confidence": decision.confidence,
            "risk_flags": _flags(decision),
            "escalated": decision.escalated,
        }
        return [
            Action(
                key=f"act:relay:{envelope.conversation_id}:{envelope.reference}",
                type="hand_over",
                call="relay",
                value=msgspec.json.encode(event).decode(),
                payload={"source_id": switches.source_id, "user_id": switches.source_owner},
            )
        ]

    def _flow_ended(self, envelope: Envelope, before: StateChange, how: str) -> Action:
        flow = before.pending_flow
        return Action(
            key=f"act:rp_flow:{envelope.conversation_id}:{envelope.reference}",
            type="flow",
            payload={"flow": redact(flow.type)[:64] if flow else "", "ended": how},
        )

    def _plan(
        self,
        switches: SwitchState,
        decision: Decision | None,
        actions: list[Action],
        replied: StateChange,
        silent: StateChange,
    ) -> Plan:
        for place, action in enumerate(actions):
            action.place = place
        automatic = decision is not None and bool(decision.reply or decision.reply_text)
        allowed = switches.automation_enabled and not switches.safe_mode
        return Plan(
            mode="automation_candidate" if automatic and allowed else "route_only",
            safe_mode=switches.safe_mode,
            automation_enabled=switches.automation_enabled,
            intent=decision.intent if decision else None,
            actions=actions,
            before=silent,
            replied=replied,
            silent=silent,
        )

    def is_dry(self, envelope: Envelope) -> bool:
        """Whether what would be asked of the vendor is only written down."""
        if not self._outbound:
            return True
        return self._recipients is not None and envelope.recipient not in self._recipients

    def _is_ours(self, envelope: Envelope, before: StateChange) -> bool:
        """Whether a message of an agent is what the desk itself has said."""
        last = before.last_auto_reply
        return last is not None and last.text_hash == self._hash(envelope.text)

    def _hash(self, text: str) -> str:
        return hmac.digest(self._key, normalised(text).encode(), "sha256").hex()[:32]


def _flags(decision: Decision) -> list[str]:
    """An escalation leaves a mark, whether or not it has a name."""
    return decision.risk_flags or (["escalated"] if decision.escalated else [])


def _ends_flow(decision: Decision, proposal: Proposal, refusal: str | None) -> bool:
    """Whether the desk stops waiting for an answer. One that it has but may not act on yet is still
    waited for."""
    if decision.escalated or proposal.gives_up:
        return True
    return proposal.answers and (refusal is None or proposal.text is None)
