"""The state of conversations: read, and changed by what an event has changed and nothing else.

Between the moment a plan is made and the moment it is done, an agent may have answered, another
service may have written, or a later message may have been dealt with. What they wrote stays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from waystation.desk.tables import UNUSABLE, ConversationState, StateVersion
from waystation.store import Update, attr, exists, set_or_remove, set_to
from waystation.times import iso

if TYPE_CHECKING:
    from waystation.desk.acting.plans import Plan, StateChange
    from waystation.desk.receiving.envelopes import Envelope
    from waystation.store import Condition, Store

_MOST_REPLIES = 10
_ADDED_TO = ("risk_flags", "auto_replies")
_FIELDS = (
    "last_processed_message_id",
    "last_routed_team",
    "last_routing_confidence",
    "last_intent",
    "pending_flow",
    "last_auto_reply",
    "last_order",
    "channel",
    "agent_replied_at",
    "closed",
    "order_asks",
    "last_text_hash",
)


class Conversations:
    def __init__(self, store: Store, days: int) -> None:
        self._store = store
        self._days = days

    async def get(self, conversation_id: str) -> ConversationState | None:
        key = ConversationState.key(conversation_id)
        state = await self._store.get(key)
        if state is not None and state.version == UNUSABLE:
            await self._store.update(
                StateVersion.key(conversation_id), set_to("version", 0), when=exists()
            )
            state = await self._store.get(key)
        return state

    def reserved(
        self, envelope: Envelope, plan: Plan, state: ConversationState | None
    ) -> Update[ConversationState] | None:
        """What must hold from the moment a plan is made, even if it is never carried out: that the
        conversation is escalated, and that a reply counts towards its limit."""
        fields = self._added(plan.replied, plan.before, state)
        return self._update(envelope, fields, state) if fields else None

    def changed(
        self, envelope: Envelope, plan: Plan, after: StateChange, state: ConversationState | None
    ) -> Update[ConversationState]:
        """What an event has changed. One that comes late does not undo what came after it."""
        late = state is not None and (state.last_received_at or "") > envelope.received_at
        fields: dict[str, Any] = {"last_processed_at": iso(self._store.clock())}
        if not late:
            fields["last_received_at"] = envelope.received_at
            for name in _FIELDS:
                if getattr(after, name) != getattr(plan.before, name):
                    fields[name] = getattr(after, name)
        fields |= self._added(after, plan.before, state)
        if after is not plan.replied:
            fields |= _unreserved(plan, state)
        return self._update(envelope, fields, state)

    def _added(
        self, after: StateChange, before: StateChange, state: ConversationState | None
    ) -> dict[str, Any]:
        """What only ever grows, together with what others have added."""
        fields: dict[str, Any] = {}
        for name in _ADDED_TO:
            if getattr(after, name) != getattr(before, name):
                there = getattr(state, name, None) or ()
                fields[name] = {*(getattr(after, name) or ()), *there}
        if "auto_replies" in fields:
            fields["auto_replies"] = sorted(fields["auto_replies"])[-_MOST_REPLIES:]
        return fields

    def _update(
        self, envelope: Envelope, fields: dict[str, Any], state: ConversationState | None
    ) -> Update[ConversationState]:
        return Update(
            ConversationState.key(envelope.conversation_id),
            set_to("updated_at", iso(self._store.clock())),
            set_to("expires_at", self._store.now() + self._days * 86_400),
            *(set_or_remove(name, value) for name, value in fields.items()),
            when=_unchanged(state),
        )


def _unreserved(plan: Plan, state: ConversationState | None) -> dict[str, Any]:
    """A reply that was counted in advance and then was not sent does not count."""
    planned = {*(plan.replied.auto_replies or ())} - {*(plan.before.auto_replies or ())}
    there = (state.auto_replies if state else None) or []
    if not planned & {*there}:
        return {}
    return {"auto_replies": [at for at in there if at not in planned] or None}


def _unchanged(state: ConversationState | None) -> Condition:
    version = attr("version")
    if state is None or not state.version:
        return version.absent() | (version == 0)
    return version == state.version
