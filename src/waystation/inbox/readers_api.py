"""Routes of those who read. They take a user token, or an API key of the tenant's account."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from litestar import Controller, Request, delete, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, HeaderParameter, JSONBody, QueryParameter
from litestar.response import Stream
from msgspec import Meta

from waystation.errors import InvalidInput, NotFound
from waystation.inbox.readers import Place, Reader, check_category, check_name
from waystation.inbox.reading import Status  # noqa: TC001 - read by Litestar
from waystation.inbox.service import Inbox
from waystation.inbox.views import Counts, MessageView  # noqa: TC001 - read by Litestar
from waystation.patterns import MAX_CURSOR, Listing, listing
from waystation.seam import USERS, Permission

if TYPE_CHECKING:
    from waystation.inbox.marks import Mark

InboxService = NamedDependency[Inbox]
AnyRequest = Request[Any, Any, Any]
MARKS = ("read", "unread", "archive", "unarchive")
Category = Annotated[str | None, QueryParameter(max_length=128)]


class ReadAll(msgspec.Struct, forbid_unknown_fields=True):
    category: Annotated[str, Meta(min_length=1, max_length=128)] | None = None


class ReaderController(Controller):
    """A user's inbox: messages, counts, marks, and what happens as it happens."""

    path = "/v1/tenants/{tenant:str}/inboxes/{inbox:str}/users/{uid:str}"
    tags = ("Inbox, for its users",)
    opt = USERS

    @get("/messages", summary="Messages, newest first")
    async def messages(
        self,
        tenant: FromPath[str],
        inbox: FromPath[str],
        uid: FromPath[str],
        request: AnyRequest,
        inboxes: InboxService,
        status: Annotated[Status, QueryParameter()] = "all",
        category: Category = None,
        limit: Annotated[int, QueryParameter(ge=1, le=100)] = 20,
        cursor: Annotated[str | None, QueryParameter(max_length=MAX_CURSOR)] = None,
    ) -> Listing[MessageView]:
        """`all` are those that are not archived. A page may be short, or empty, and still have a
        cursor."""
        reader = await _reader(request, inboxes, Place(tenant, inbox), uid, "read")
        found, more = await inboxes.reading.page(reader, status, category, limit, cursor)
        return listing(found, more)

    @get("/counts", summary="How many messages there are, and how many are unread")
    async def counts(
        self,
        tenant: FromPath[str],
        inbox: FromPath[str],
        uid: FromPath[str],
        request: AnyRequest,
        inboxes: InboxService,
    ) -> Counts:
        reader = await _reader(request, inboxes, Place(tenant, inbox), uid, "read")
        return await inboxes.reading.counts(reader)

    @post("/seen", status_code=200, summary="The bell was opened: everything up to now is seen")
    async def see(
        self,
        tenant: FromPath[str],
        inbox: FromPath[str],
        uid: FromPath[str],
        request: AnyRequest,
        inboxes: InboxService,
    ) -> Counts:
        reader = await _reader(request, inboxes, Place(tenant, inbox), uid, "write")
        await inboxes.marks.see(reader)
        return await _counted(inboxes, reader)

    @post("/read-all", status_code=200, summary="Read everything, or all of a category")
    async def read_all(
        self,
        tenant: FromPath[str],
        inbox: FromPath[str],
        uid: FromPath[str],
        request: AnyRequest,
        inboxes: InboxService,
        data: JSONBody[ReadAll | None] = None,
    ) -> Counts:
        reader = await _reader(request, inboxes, Place(tenant, inbox), uid, "write")
        category = data.category if data else None
        if category is not None:
            check_category("category", category)
        await inboxes.marks.read_all(reader, category)
        return await _counted(inboxes, reader)

    @post(
        [f"/messages/{{message_id:str}}/{mark}" for mark in MARKS],
        status_code=200,
        summary="Mark a message, or take the mark back",
    )
    async def mark(
        self,
        tenant: FromPath[str],
        inbox: FromPath[str],
        uid: FromPath[str],
        message_id: FromPath[str],
        request: AnyRequest,
        inboxes: InboxService,
    ) -> Counts:
        mark: Any = request.url.path.rstrip("/").rpartition("/")[2]
        return await _mark(request, inboxes, Place(tenant, inbox), uid, message_id, mark)

    @delete("/messages/{message_id:str}", summary="Delete a message for this user")
    async def remove(
        self,
        tenant: FromPath[str],
        inbox: FromPath[str],
        uid: FromPath[str],
        message_id: FromPath[str],
        request: AnyRequest,
        inboxes: InboxService,
    ) -> None:
        await _mark(request, inboxes, Place(tenant, inbox), uid, message_id, "delete")

    @get("/stream", summary="What happens in the inbox, as server-sent events")
    async def stream(
        self,
        tenant: FromPath[str],
        inbox: FromPath[str],
        uid: FromPath[str],
        request: AnyRequest,
        inboxes: InboxService,
        last_event_id: Annotated[
            str | None, HeaderParameter(name="Last-Event-ID", max_length=128)
        ] = None,
    ) -> Stream:
        """`message` is a new one, `changed` what was marked, `removed` what is gone, `refresh` says
        to read the messages anew, and `counts` follows each. After a break, `Last-Event-ID` brings
        what came since; some of it may come twice."""
        reader = await _reader(request, inboxes, Place(tenant, inbox), uid, "read")
        if last_event_id is not None:
            try:
                check_name("Last-Event-ID", last_event_id)
            except InvalidInput:
                raise InvalidInput("Last-Event-ID", "this is not an id from this stream") from None
        await inboxes.books.load(reader)
        authorization = request.headers.get("authorization")
        events = await inboxes.stream(authorization, reader, last_event_id)
        return Stream(events, media_type="text/event-stream")


async def _reader(
    request: AnyRequest, inboxes: Inbox, place: Place, uid: str, needed: Permission
) -> Reader:
    return await inboxes.reader(request.headers.get("authorization"), place, uid, needed)


async def _mark(
    request: AnyRequest, inboxes: Inbox, place: Place, uid: str, message_id: str, mark: Mark
) -> Counts:
    reader = await _reader(request, inboxes, place, uid, "write")
    try:
        check_name("message_id", message_id)
    except InvalidInput:
        raise NotFound("there is no such message") from None
    await inboxes.marks.mark(reader, message_id, mark)
    return await _counted(inboxes, reader)


async def _counted(inboxes: Inbox, reader: Reader) -> Counts:
    """What every change is answered with: the numbers that a bell shows."""
    inboxes.streams.hurry()
    return await inboxes.reading.counts(reader)
