"""Routes of events, replays, the tail, analytics and usage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from litestar import Controller, Request, get, post
from litestar.datastructures import State
from litestar.di import NamedDependency
from litestar.params import FromPath, HeaderParameter, JSONBody, QueryParameter
from litestar.response import ServerSentEvent, ServerSentEventMessage
from msgspec import Meta

from waystation.accounts import Accounts
from waystation.errors import InvalidInput
from waystation.patterns import MAX_CURSOR, Listing, listing
from waystation.relay import usage
from waystation.relay.events import MAX_LIMIT, Events
from waystation.relay.replays import MAX_IDS, Replays
from waystation.relay.service import Relay
from waystation.relay.stats import Overview, Period  # noqa: TC001
from waystation.relay.tables import Event, EventStatus
from waystation.relay.tail import Tails
from waystation.relay.views import (
    DeliveryView,
    EventDetail,
    EventSummary,
    ReplayView,
    delivery_view,
    event_detail,
    event_summary,
    event_view,
    replay_view,
)
from waystation.seam import Principal
from waystation.times import LAST_MS, milliseconds_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from waystation.relay.keyring import Keyring

AnyRequest = Request[Principal, None, State]
RelayService = NamedDependency[Relay]
EventService = NamedDependency[Events]
ReplayService = NamedDependency[Replays]
TailService = NamedDependency[Tails]
AccountService = NamedDependency[Accounts]
_TIME: Any = {"max_length": 40, "schema_extra": {"format": "date-time"}}
Ids = Annotated[list[str], Meta(max_length=100)]


class ReplayOne(msgspec.Struct, forbid_unknown_fields=True):
    connection_ids: Ids = []


class ReplayedOne(msgspec.Struct):
    id: str
    deliveries: list[DeliveryView]


class ReplayMany(
    msgspec.Struct, forbid_unknown_fields=True, rename={"since": "from", "until": "to"}
):
    source_id: str
    status: EventStatus | None = None
    since: str | None = None
    until: str | None = None
    event_ids: Annotated[list[str], Meta(max_length=MAX_IDS)] = []
    connection_ids: Ids = []


class RelayController(Controller):
    """What has come in, by source, and how it went."""

    path = "/v1"
    tags = ("Relay",)

    @get("/sources/{source_id:str}/events", summary="A source's events, newest first")
    async def list_events(
        self,
        source_id: FromPath[str],
        request: AnyRequest,
        relay: RelayService,
        events: EventService,
        status: Annotated[EventStatus | None, QueryParameter()] = None,
        since: Annotated[str | None, QueryParameter(name="from", **_TIME)] = None,
        until: Annotated[str | None, QueryParameter(name="to", **_TIME)] = None,
        limit: Annotated[int, QueryParameter(ge=1, le=MAX_LIMIT)] = 50,
        cursor: Annotated[str | None, QueryParameter(max_length=MAX_CURSOR)] = None,
    ) -> Listing[EventSummary]:
        source = await relay.sources.get(request.user.user_id, source_id)
        first, last = _between(since, until, LAST_MS)
        found, more = await events.page(
            source.source_id,
            status=status,
            from_ms=first,
            to_ms=last,
            limit=limit,
            cursor=cursor,
        )
        return listing([event_summary(event) for event in found], more)

    @get("/analytics/overview", summary="Totals, success rate and latency of a period")
    async def overview(
        self,
        request: AnyRequest,
        relay: RelayService,
        period: Annotated[Period, QueryParameter()] = "24h",
    ) -> Overview:
        return await relay.statistics.overview(request.user.user_id, period)

    @get("/usage", summary="This month's usage and the plan's limits")
    async def show_usage(
        self,
        request: AnyRequest,
        relay: RelayService,
        accounts: AccountService,
    ) -> usage.Usage:
        user = await accounts.get(request.user.user_id)
        return usage.shown(user, relay.store.clock())

    @get("/replays/{replay_id:str}", summary="How far a bulk replay has come")
    async def show_replay(
        self, replay_id: FromPath[str], request: AnyRequest, replays: ReplayService
    ) -> ReplayView:
        return replay_view(await replays.get(request.user.user_id, replay_id))


class EventController(Controller):
    """Single events, replays and the tail."""

    path = "/v1/events"
    tags = ("Relay",)

    @get("/tail", summary="New events as they come, as server-sent events")
    async def tail(
        self,
        request: AnyRequest,
        relay: RelayService,
        tails: TailService,
        source_id: Annotated[str | None, QueryParameter(max_length=64)] = None,
        since: Annotated[str | None, QueryParameter(**_TIME)] = None,
        last_event_id: Annotated[
            str | None, HeaderParameter(name="Last-Event-ID", max_length=40)
        ] = None,
    ) -> ServerSentEvent:
        """Go on with `Last-Event-ID` after a reconnect: some events may come again, none is left
        out. `since` is a time."""
        user_id = request.user.user_id
        if source_id is not None:
            await relay.sources.get(user_id, source_id)
        if last_event_id is not None:
            if not last_event_id.isdecimal() or len(last_event_id) > 13:
                raise InvalidInput("Last-Event-ID", "this is not an id from this stream")
            start = int(last_event_id)
        else:
            start = milliseconds_of(since, "since", -1)
        bell = tails.reserve(user_id)
        followed = tails.follow(bell, user_id, source_id, None if start < 0 else start)
        return ServerSentEvent(_messages(followed, relay.keyring))

    @get("/{event_id:str}", summary="An event with its deliveries and their attempts")
    async def show(
        self,
        event_id: FromPath[str],
        request: AnyRequest,
        events: EventService,
        relay: RelayService,
    ) -> EventDetail:
        event = await events.get(request.user.user_id, event_id)
        return event_detail(event, *await events.parts(event), relay.keyring)

    @post("/{event_id:str}/replay", status_code=202, summary="Deliver an event once more")
    async def replay(
        self,
        event_id: FromPath[str],
        request: AnyRequest,
        events: EventService,
        replays: ReplayService,
        data: JSONBody[ReplayOne | None] = None,
    ) -> ReplayedOne:
        event = await events.get(request.user.user_id, event_id)
        replay_id, new = await replays.one(event, data.connection_ids if data else [])
        return ReplayedOne(replay_id, [delivery_view(delivery, []) for delivery in new])

    @post("/replay", status_code=202, summary="Deliver many events once more, in the background")
    async def replay_many(
        self,
        data: JSONBody[ReplayMany],
        request: AnyRequest,
        relay: RelayService,
        replays: ReplayService,
    ) -> ReplayView:
        user_id = request.user.user_id
        source = await relay.sources.get(user_id, data.source_id)
        first, last = _between(data.since, data.until, int(relay.store.clock() * 1000))
        replay = await replays.begin(
            user_id,
            source.source_id,
            status=data.status,
            from_ms=first,
            to_ms=last,
            event_ids=list(dict.fromkeys(data.event_ids)),
            connection_ids=data.connection_ids,
        )
        return replay_view(replay)


async def _messages(
    followed: AsyncIterator[tuple[int, Event | None]], keyring: Keyring
) -> AsyncIterator[ServerSentEventMessage]:
    async for position, event in followed:
        if event is None:
            yield ServerSentEventMessage(data=None, id=position, comment="here")
        else:
            shown = msgspec.json.encode(event_view(event, keyring)).decode()
            yield ServerSentEventMessage(event="event", id=position, data=shown)


def _between(since: str | None, until: str | None, latest: int) -> tuple[int, int]:
    first, last = milliseconds_of(since, "from", 0), milliseconds_of(until, "to", latest)
    if first > last:
        raise InvalidInput("from", "must not be later than to")
    return first, last
