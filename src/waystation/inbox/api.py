"""Routes of those who send: tenants, inboxes, messages, user tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
from litestar import Controller, Request, Response, Router, delete, get, post, put
from litestar.datastructures import State
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody, QueryParameter
from msgspec import Meta

from waystation.inbox.publishing import NewMessage, Published, Uids
from waystation.inbox.readers import Place, check_name
from waystation.inbox.readers_api import ReaderController
from waystation.inbox.service import Inbox, ReaderDrift
from waystation.inbox.tenants import InboxInput, TenantInput  # noqa: TC001 - read by Litestar
from waystation.inbox.tokens import LONGEST_SECONDS
from waystation.patterns import MAX_CURSOR, Listing, listing
from waystation.seam import Principal, needs
from waystation.times import iso

if TYPE_CHECKING:
    from waystation.inbox.tables import InboxConfig, Settings

InboxService = NamedDependency[Inbox]
AnyRequest = Request[Principal, None, State]
Limit = Annotated[int, QueryParameter(ge=1, le=100)]
Cursor = Annotated[str | None, QueryParameter(max_length=MAX_CURSOR)]


class TenantView(msgspec.Struct, kw_only=True):
    tenant: str
    title: str
    ttl: str


class InboxView(msgspec.Struct, kw_only=True):
    inbox: str
    title: str
    description: str
    ttl: dict[str, str]
    categories: list[str]


class TenantName(msgspec.Struct, kw_only=True):
    tenant: str
    created_at: str


class TokenInput(msgspec.Struct, forbid_unknown_fields=True):
    expires_in: Annotated[int, Meta(ge=1, le=LONGEST_SECONDS, description="seconds")] = 3_600


class UserToken(msgspec.Struct):
    token: str
    expires_at: str


class MoreUsers(msgspec.Struct, forbid_unknown_fields=True):
    uids: Uids


class Reconciling(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """With `dry_run`, wrong counters are only reported. `cursor` goes on where a call has ended."""

    dry_run: bool = False
    cursor: Annotated[str, Meta(max_length=MAX_CURSOR)] | None = None


class Reconciled(msgspec.Struct, kw_only=True):
    checked: int
    drift: list[ReaderDrift]
    cursor: str | None


class TenantController(Controller):
    """Tenants: whoever puts a tenant's settings first, owns it."""

    path = "/v1/tenants"
    tags = ("Inbox",)

    @get("", summary="All tenants of the account")
    async def list_all(
        self,
        request: AnyRequest,
        inboxes: InboxService,
        limit: Limit = 50,
        cursor: Cursor = None,
    ) -> Listing[TenantName]:
        found, more = await inboxes.tenants.list_tenants(request.user.user_id, limit, cursor)
        names = [TenantName(tenant=t.tenant_key, created_at=iso(t.created_at)) for t in found]
        return listing(names, more)

    @put("/{tenant:str}/settings", summary="Claim a tenant, or change its settings")
    async def set(
        self,
        tenant: FromPath[str],
        data: JSONBody[TenantInput],
        request: AnyRequest,
        inboxes: InboxService,
    ) -> TenantView:
        return _tenant(await inboxes.tenants.put(request.user.user_id, tenant, data))

    @get("/{tenant:str}/settings", summary="A tenant's settings")
    async def show(
        self, tenant: FromPath[str], request: AnyRequest, inboxes: InboxService
    ) -> TenantView:
        return _tenant(await inboxes.tenants.get(request.user.user_id, tenant))

    @post(
        "/{tenant:str}/rotate-key",
        status_code=204,
        opt=needs("admin"),
        summary="Make all user tokens of a tenant worthless",
    )
    async def rotate(
        self, tenant: FromPath[str], request: AnyRequest, inboxes: InboxService
    ) -> None:
        await inboxes.tenants.rotate(request.user.user_id, tenant)

    @get("/{tenant:str}/inboxes", summary="A tenant's inboxes")
    async def list_inboxes(
        self,
        tenant: FromPath[str],
        request: AnyRequest,
        inboxes: InboxService,
        limit: Limit = 50,
        cursor: Cursor = None,
    ) -> Listing[InboxView]:
        found, more = await inboxes.tenants.list_inboxes(
            request.user.user_id, tenant, limit, cursor
        )
        return listing([_inbox(config) for config in found], more)


class InboxController(Controller):
    """An inbox of a tenant, and what is sent to it."""

    path = "/v1/tenants/{tenant:str}/inboxes/{inbox:str}"
    tags = ("Inbox",)

    @put("", summary="Add an inbox, or change it")
    async def set(
        self,
        tenant: FromPath[str],
        inbox: FromPath[str],
        data: JSONBody[InboxInput],
        request: AnyRequest,
        inboxes: InboxService,
    ) -> InboxView:
        place = Place(tenant, inbox)
        return _inbox(await inboxes.tenants.put_inbox(request.user.user_id, place, data))

    @get("", summary="An inbox's settings")
    async def show(
        self,
        tenant: FromPath[str],
        inbox: FromPath[str],
        request: AnyRequest,
        inboxes: InboxService,
    ) -> InboxView:
        return _inbox(await inboxes.tenants.inbox(request.user.user_id, Place(tenant, inbox)))

    @post("/messages", summary="Publish a message to some users, or to everyone")
    async def publish(
        self,
        tenant: FromPath[str],
        inbox: FromPath[str],
        data: JSONBody[NewMessage],
        request: AnyRequest,
        inboxes: InboxService,
    ) -> Response[Published]:
        """A message to many users is accepted as a whole and given out in the background, if it
        takes longer than a moment: `GET` shows how far it is."""
        published = await inboxes.publish(request.user.user_id, Place(tenant, inbox), data)
        return Response(published, status_code=200 if published.duplicate else 201)

    @get("/messages/{message_id:str}", summary="How far a message has got")
    async def progress(
        self,
        tenant: FromPath[str],
        inbox: FromPath[str],
        message_id: FromPath[str],
        request: AnyRequest,
        inboxes: InboxService,
    ) -> Published:
        place = Place(tenant, inbox)
        return await inboxes.publishing.show(request.user.user_id, place, message_id)

    @post("/messages/{message_id:str}/users", status_code=202, summary="Send it to more users")
    async def add_users(
        self,
        tenant: FromPath[str],
        inbox: FromPath[str],
        message_id: FromPath[str],
        data: JSONBody[MoreUsers],
        request: AnyRequest,
        inboxes: InboxService,
    ) -> Published:
        place = Place(tenant, inbox)
        return await inboxes.add_users(request.user.user_id, place, message_id, data.uids)

    @delete("/messages/{message_id:str}", summary="Withdraw a message from every reader")
    async def withdraw(
        self,
        tenant: FromPath[str],
        inbox: FromPath[str],
        message_id: FromPath[str],
        request: AnyRequest,
        inboxes: InboxService,
    ) -> None:
        place = Place(tenant, inbox)
        await inboxes.publishing.withdraw(request.user.user_id, place, message_id)
        inboxes.streams.hurry()

    @post("/users/{uid:str}/token", status_code=201, summary="A token for a user's browser")
    async def token(
        self,
        tenant: FromPath[str],
        inbox: FromPath[str],
        uid: FromPath[str],
        request: AnyRequest,
        inboxes: InboxService,
        data: JSONBody[TokenInput | None] = None,
    ) -> UserToken:
        place = Place(tenant, inbox)
        await inboxes.tenants.inbox(request.user.user_id, place)
        reader = place.reader(check_name("uid", uid))
        await inboxes.books.load(reader)  # who has a token has come
        token, expires = await inboxes.tokens.issue(reader, (data or TokenInput()).expires_in)
        return UserToken(token, iso(expires))

    @post("/reconcile", status_code=200, opt=needs("admin"), summary="Recount some users' counters")
    async def reconcile(
        self,
        tenant: FromPath[str],
        inbox: FromPath[str],
        request: AnyRequest,
        inboxes: InboxService,
        data: JSONBody[Reconciling | None] = None,
    ) -> Reconciled:
        given = data or Reconciling()
        checked, drift, cursor = await inboxes.reconcile(
            request.user.user_id, Place(tenant, inbox), given.cursor, fix=not given.dry_run
        )
        return Reconciled(checked=checked, drift=drift, cursor=cursor)


def _tenant(settings: Settings) -> TenantView:
    return TenantView(tenant=settings.tenant_key, title=settings.title, ttl=settings.ttl)


def _inbox(config: InboxConfig) -> InboxView:
    return InboxView(
        inbox=config.inbox_key,
        title=config.title,
        description=config.description,
        ttl=config.ttl,
        categories=sorted(config.categories or ()),
    )


router = Router(path="/", route_handlers=[TenantController, InboxController, ReaderController])
