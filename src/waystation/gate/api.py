"""Routes of the gate: workspaces, the whitelist, the latest checks and the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from litestar import Controller, Request, Router, delete, get, post, put
from litestar.datastructures import State
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody, QueryParameter

from waystation.errors import InvalidInput
from waystation.gate.payloads import is_slack_id
from waystation.gate.service import Gate
from waystation.gate.slack import ABSENT, SCOPES
from waystation.gate.workspaces import NO_APP, RateLimit, WhitelistInput, WorkspaceInput
from waystation.patterns import MAX_CURSOR, Cursors, Listing, listing
from waystation.seam import Principal
from waystation.times import iso, iso_of_ms

if TYPE_CHECKING:
    from waystation.gate.tables import CheckRecord, Whitelist, Workspace

GateService = NamedDependency[Gate]
AnyRequest = Request[Principal, None, State]
Limit = Annotated[int, QueryParameter(ge=1, le=100)]
Cursor = Annotated[str | None, QueryParameter(max_length=MAX_CURSOR)]
SlackId = Annotated[str | None, QueryParameter(max_length=40)]


class WorkspaceView(msgspec.Struct, kw_only=True):
    """A workspace. Its secrets are never shown again."""

    team_id: str
    app_id: str | None
    name: str
    bot_user_id: str
    has_bot_token: bool
    has_signing_secret: bool
    scopes: list[str]
    missing_scopes: list[str]
    source_id: str | None
    rate_limit: RateLimit
    allowed_event_types: list[str]
    created_at: str
    updated_at: str


class WhitelistView(msgspec.Struct, kw_only=True):
    """Who may pass. An empty list lets everybody pass."""

    team_ids: list[str]
    user_ids: list[str]
    channel_ids: list[str]


class CheckView(msgspec.Struct, kw_only=True):
    id: str
    at: str | None
    outcome: Literal["passed", "refused"]
    reason: str
    detail: str
    team_id: str
    user_id: str | None
    channel_id: str | None
    event_type: str
    event_id: str | None


class Trial(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Whom to ask Slack about."""

    user_id: str | None = None
    channel_id: str | None = None


class TrialResult(msgspec.Struct, kw_only=True):
    passed: bool
    reason: str
    detail: str
    scopes: list[str]
    missing_scopes: list[str]


class WorkspaceController(Controller):
    """Slack workspaces, each the account's whose bot token proves it."""

    path = "/v1/gate/workspaces"
    tags = ("Gate",)

    @get("", summary="All workspaces")
    async def list_all(
        self,
        request: AnyRequest,
        gate: GateService,
        cursors: NamedDependency[Cursors],
        limit: Limit = 50,
        cursor: Cursor = None,
    ) -> Listing[WorkspaceView]:
        user_id = request.user.user_id
        found, more = cursors.cut(
            await gate.workspaces.of(user_id),
            limit,
            cursor,
            f"workspaces {user_id}",
            lambda workspace: workspace.team_id,
        )
        return listing([workspace_view(workspace) for workspace in found], more)

    @put("/{team_id:str}", summary="Add or change a workspace")
    async def set(
        self,
        team_id: FromPath[str],
        data: JSONBody[WorkspaceInput],
        request: AnyRequest,
        gate: GateService,
    ) -> WorkspaceView:
        workspace = await gate.workspaces.put(request.user.user_id, team_id, data)
        gate.forgive(workspace)
        return workspace_view(workspace)

    @get("/{team_id:str}", summary="A workspace")
    async def show(
        self, team_id: FromPath[str], request: AnyRequest, gate: GateService
    ) -> WorkspaceView:
        return workspace_view(await gate.workspaces.get(request.user.user_id, team_id))

    @delete("/{team_id:str}", summary="Remove a workspace, with its secrets")
    async def remove(self, team_id: FromPath[str], request: AnyRequest, gate: GateService) -> None:
        await gate.workspaces.delete(request.user.user_id, team_id)

    @post("/{team_id:str}/check", status_code=200, summary="Ask Slack about a user and a channel")
    async def check(
        self,
        team_id: FromPath[str],
        data: JSONBody[Trial],
        request: AnyRequest,
        gate: GateService,
    ) -> TrialResult:
        """Slack is asked, whatever is remembered, and nothing is let through."""
        workspace = await gate.workspaces.get(request.user.user_id, team_id)
        for field in ("user_id", "channel_id"):
            _check_id(getattr(data, field), field)
        verdict, scopes = await gate.try_out(
            workspace, data.user_id or ABSENT, data.channel_id or ABSENT
        )
        return TrialResult(
            passed=verdict.passed,
            reason=verdict.reason,
            detail=verdict.detail,
            scopes=scopes,
            missing_scopes=missing(scopes),
        )


class GateController(Controller):
    """What the gate lets pass, has let pass, and remembers."""

    path = "/v1/gate"
    tags = ("Gate",)

    @get("/whitelist", summary="Who may pass")
    async def whitelist(self, request: AnyRequest, gate: GateService) -> WhitelistView:
        return _whitelist_view(await gate.workspaces.whitelist(request.user.user_id))

    @put("/whitelist", summary="Set who may pass; an empty list lets everybody pass")
    async def set_whitelist(
        self, data: JSONBody[WhitelistInput], request: AnyRequest, gate: GateService
    ) -> WhitelistView:
        return _whitelist_view(await gate.workspaces.set_whitelist(request.user.user_id, data))

    @get("/checks", summary="The latest refusals, and what Slack was asked about")
    async def checks(
        self,
        request: AnyRequest,
        gate: GateService,
        outcome: Annotated[Literal["passed", "refused"] | None, QueryParameter()] = None,
        limit: Limit = 50,
        cursor: Cursor = None,
    ) -> Listing[CheckView]:
        await gate.records.finish()
        found, after = await gate.records.page(request.user.user_id, outcome, limit, cursor)
        return listing([_check_view(record) for record in found], after)

    @delete("/cache", summary="Forget what Slack has confirmed")
    async def forget(
        self,
        request: AnyRequest,
        gate: GateService,
        team_id: Annotated[str, QueryParameter(max_length=40)],
        user_id: SlackId = None,
        channel_id: SlackId = None,
    ) -> None:
        """Of a user, of a channel, of one in the other, or of the whole team."""
        workspace = await gate.workspaces.get(request.user.user_id, team_id)
        _check_id(user_id, "user_id")
        _check_id(channel_id, "channel_id")
        await gate.forget(workspace, user_id, channel_id)


def workspace_view(workspace: Workspace) -> WorkspaceView:
    return WorkspaceView(
        team_id=workspace.team_id,
        app_id=None if workspace.app_id == NO_APP else workspace.app_id,
        name=workspace.name,
        bot_user_id=workspace.bot_user_id,
        has_bot_token=workspace.token is not None,
        has_signing_secret=workspace.signing_secret is not None,
        scopes=workspace.scopes,
        missing_scopes=missing(workspace.scopes),
        source_id=workspace.source_id,
        rate_limit=RateLimit(workspace.rate_count, workspace.rate_seconds),
        allowed_event_types=workspace.allowed_event_types,
        created_at=iso(workspace.created_at),
        updated_at=iso(workspace.updated_at),
    )


def missing(scopes: list[str]) -> list[str]:
    """The scopes that the gate would like to have. Slack does not always say which there are."""
    return [scope for scope in SCOPES if scope not in scopes] if scopes else []


def _whitelist_view(whitelist: Whitelist) -> WhitelistView:
    return WhitelistView(
        team_ids=whitelist.team_ids,
        user_ids=whitelist.user_ids,
        channel_ids=whitelist.channel_ids,
    )


def _check_view(record: CheckRecord) -> CheckView:
    return CheckView(
        id=record.check_id,
        at=iso_of_ms(record.at),
        outcome=record.outcome,
        reason=record.reason,
        detail=record.detail,
        team_id=record.team_id,
        user_id=record.slack_user_id,
        channel_id=record.channel_id,
        event_type=record.event_type,
        event_id=record.event_id,
    )


def _check_id(given: str | None, field: str) -> None:
    if given is not None and not is_slack_id(given):
        raise InvalidInput(field, "must be an id of Slack: upper-case letters and digits")


router = Router(path="/", route_handlers=[WorkspaceController, GateController])
