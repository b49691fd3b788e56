"""Routes of the desk. It belongs to the installation: to everybody but operators it is 404."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from litestar import Controller, Request, Router, get, post, put
from litestar.datastructures import State
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody, QueryParameter
from msgspec import Meta

from waystation.desk.letters import Letter  # noqa: TC001 - Litestar reads it
from waystation.desk.service import Desk
from waystation.desk.switches import SwitchInput  # noqa: TC001 - Litestar reads it
from waystation.patterns import MAX_CURSOR, Listing, listing
from waystation.seam import OPERATORS, Principal

if TYPE_CHECKING:
    from waystation.desk.tables import (
        AuditAction,
        ConversationState,
        EventRecord,
        Redrive,
        SwitchChange,
        Switches,
        Unknown,
    )

DeskService = NamedDependency[Desk]
AnyRequest = Request[Principal, None, State]
Limit = Annotated[int, QueryParameter(ge=1, le=100)]
Cursor = Annotated[str | None, QueryParameter(max_length=MAX_CURSOR)]


class FlowView(msgspec.Struct, kw_only=True):
    type: str
    requested_at: str
    attempts: int


class ReplyView(msgspec.Struct, kw_only=True):
    type: str
    sent_at: str
    source_message_id: str


class ConversationView(msgspec.Struct, kw_only=True):
    """What is known of a conversation. Nothing that was said is."""

    id: str
    channel: str | None
    closed: bool
    last_intent: str | None
    last_routed_team: str | None
    last_routing_confidence: float | None
    risk_flags: list[str]
    pending_flow: FlowView | None
    last_auto_reply: ReplyView | None
    agent_replied_at: str | None
    order_last4: str | None
    last_processed_message_id: str | None
    last_processed_at: str | None
    updated_at: str
    version: int


class AuditView(msgspec.Struct, kw_only=True):
    at: str
    action_id: str
    action_type: str
    payload: Any
    idempotency_key: str
    result: str
    event_id: str | None


class EventView(msgspec.Struct, kw_only=True):
    event_id: str
    status: str
    mode: str
    conversation_id: str
    message_id: str | None
    intent: str | None
    safe_mode: bool
    automation_enabled: bool
    received_at: str | None
    created_at: str
    last_processed_at: str
    payload_sha256: str
    payload_bytes: int
    result: str | None
    failures: int
    last_error: str | None


class SwitchesView(msgspec.Struct, kw_only=True):
    safe_mode: bool
    automation_enabled: bool
    channels: list[str] | None
    templates: dict[str, bool]
    source_id: str | None
    outbound: bool
    updated_at: str | None
    updated_by: str | None


class SwitchChangeView(msgspec.Struct, kw_only=True):
    at: str
    by: str
    before: Any
    after: Any


class UnknownView(msgspec.Struct, kw_only=True):
    id: str
    at: str
    conversation_id: str
    template: str
    detail: str


class Found(msgspec.Struct, forbid_unknown_fields=True):
    """What a person has found out."""

    outcome: Literal["sent", "not_sent"]


class RedriveInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """How fast to send dead letters again, and how many."""

    per_minute: Annotated[int, Meta(ge=1, le=60_000)] = 60
    most: Annotated[int, Meta(ge=1, le=1_000_000)] = 100_000


class RedriveView(msgspec.Struct, kw_only=True):
    id: str
    status: Literal["running", "done"]
    per_minute: int
    total: int
    sent: int
    by: str
    created_at: str
    updated_at: str


class DeskController(Controller):
    """Conversations, events and what was done about them."""

    path = "/v1/desk"
    tags = ("Desk",)
    opt = OPERATORS

    @get("/conversations/{conversation_id:str}", summary="A conversation's state")
    async def conversation(
        self, conversation_id: FromPath[str], desk: DeskService
    ) -> ConversationView:
        return _conversation_view(await desk.conversation(conversation_id))

    @get("/conversations/{conversation_id:str}/audit", summary="What was done in a conversation")
    async def audit(
        self,
        conversation_id: FromPath[str],
        desk: DeskService,
        limit: Limit = 50,
        cursor: Cursor = None,
    ) -> Listing[AuditView]:
        """The latest first."""
        found, after = await desk.audit(conversation_id, limit, cursor)
        return listing([_audit_view(each) for each in found], after)

    @get("/events/{event_id:str}", summary="An event, or an action that it led to")
    async def event(self, event_id: FromPath[str], desk: DeskService) -> EventView:
        return _event_view(await desk.event(event_id))

    @get("/unknown", summary="Replies of which nobody knows whether they were sent")
    async def unknown(
        self, desk: DeskService, limit: Limit = 50, cursor: Cursor = None
    ) -> Listing[UnknownView]:
        found, after = await desk.unknowns(limit, cursor)
        return listing([_unknown_view(each) for each in found], after)

    @post("/unknown/{unknown_id:str}", status_code=204, summary="Say what became of a reply")
    async def settle(
        self, unknown_id: FromPath[str], data: JSONBody[Found], desk: DeskService
    ) -> None:
        await desk.settle(unknown_id, sent=data.outcome == "sent")


class SwitchesController(Controller):
    """What the desk may do."""

    path = "/v1/desk/switches"
    tags = ("Desk",)
    opt = OPERATORS

    @get("", summary="The switches")
    async def show(self, desk: DeskService) -> SwitchesView:
        return _switches_view(await desk.switches.shown(), desk)

    @put("", summary="Set switches; what is left out stays as it is")
    async def set(
        self, data: JSONBody[SwitchInput], request: AnyRequest, desk: DeskService
    ) -> SwitchesView:
        return _switches_view(await desk.switches.set(request.user.user_id, data), desk)

    @get("/changes", summary="Who has set which switches")
    async def changes(
        self, desk: DeskService, limit: Limit = 50, cursor: Cursor = None
    ) -> Listing[SwitchChangeView]:
        """The latest first."""
        found, after = await desk.switches.changes(limit, cursor)
        return listing([_change_view(each) for each in found], after)


class LettersController(Controller):
    """Events that were tried too often."""

    path = "/v1/desk/dead-letters"
    tags = ("Desk",)
    opt = OPERATORS

    @get("", summary="Dead letters, without what they say")
    async def list_all(
        self, desk: DeskService, limit: Limit = 50, cursor: Cursor = None
    ) -> Listing[Letter]:
        """The oldest first."""
        return listing(*await desk.letters.page(limit, cursor))

    @post("/redrive", status_code=202, summary="Send dead letters again")
    async def redrive(
        self, data: JSONBody[RedriveInput], request: AnyRequest, desk: DeskService
    ) -> RedriveView:
        begun = await desk.letters.redrive(request.user.user_id, data.per_minute, data.most)
        return _redrive_view(begun)

    @get("/redrive", summary="How far sending them again has come")
    async def progress(self, desk: DeskService) -> RedriveView:
        return _redrive_view(await desk.letters.progress())

    @get("/{letter_id:str}", summary="A dead letter")
    async def show(self, letter_id: FromPath[str], desk: DeskService) -> Letter:
        return await desk.letters.one(letter_id)


def _conversation_view(state: ConversationState) -> ConversationView:
    flow, reply = state.pending_flow, state.last_auto_reply
    return ConversationView(
        id=state.conversation_id,
        channel=state.channel,
        closed=bool(state.closed),
        last_intent=state.last_intent,
        last_routed_team=state.last_routed_team,
        last_routing_confidence=state.last_routing_confidence,
        risk_flags=sorted(state.risk_flags or ()),
        pending_flow=FlowView(
            type=flow.type, requested_at=flow.requested_at, attempts=flow.attempts
        )
        if flow
        else None,
        last_auto_reply=ReplyView(
            type=reply.type, sent_at=reply.sent_at, source_message_id=reply.source_message_id
        )
        if reply
        else None,
        agent_replied_at=state.agent_replied_at,
        order_last4=state.last_order.last4 if state.last_order else None,
        last_processed_message_id=state.last_processed_message_id,
        last_processed_at=state.last_processed_at,
        updated_at=state.updated_at,
        version=state.version,
    )


def _audit_view(action: AuditAction) -> AuditView:
    return AuditView(
        at=action.timestamp,
        action_id=action.action_id,
        action_type=action.action_type,
        payload=_decoded(action.action_payload_redacted),
        idempotency_key=action.idempotency_key,
        result=action.result,
        event_id=action.event_id,
    )


def _decoded(text: str) -> Any:
    """What a text of JSON says; another service may have written something else."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text


def _event_view(record: EventRecord) -> EventView:
    return EventView(
        event_id=record.event_id,
        status=record.status,
        mode=record.mode,
        conversation_id=record.conversation_id,
        message_id=record.source_message_id,
        intent=record.intent,
        safe_mode=record.safe_mode,
        automation_enabled=record.automation_enabled,
        received_at=record.received_at,
        created_at=record.created_at,
        last_processed_at=record.last_processed_at,
        payload_sha256=record.payload_sha256,
        payload_bytes=record.payload_bytes,
        result=record.result,
        failures=record.failures,
        last_error=record.last_error,
    )


def _switches_view(row: Switches, desk: Desk) -> SwitchesView:
    return SwitchesView(
        safe_mode=row.safe_mode,
        automation_enabled=row.automation_enabled,
        channels=row.channels,
        templates=row.templates,
        source_id=row.source_id,
        outbound=desk.outbound,
        updated_at=row.updated_at,
        updated_by=row.updated_by,
    )


def _change_view(change: SwitchChange) -> SwitchChangeView:
    return SwitchChangeView(
        at=change.at, by=change.by, before=_decoded(change.before), after=_decoded(change.after)
    )


def _unknown_view(parked: Unknown) -> UnknownView:
    return UnknownView(
        id=parked.unknown_id,
        at=parked.at,
        conversation_id=parked.conversation_id,
        template=parked.template,
        detail=parked.detail,
    )


def _redrive_view(row: Redrive) -> RedriveView:
    return RedriveView(
        id=row.redrive_id,
        status=row.status,
        per_minute=row.per_minute,
        total=row.total,
        sent=row.sent,
        by=row.by,
        created_at=row.created_at,
        updated_at=row.updated_at,
    )


router = Router(path="/", route_handlers=[DeskController, SwitchesController, LettersController])
