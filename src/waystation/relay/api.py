"""Routes of sources and connections."""

from __future__ import annotations

from typing import Annotated

import msgspec
from litestar import Controller, Request, Router, delete, get, patch, post
from litestar.datastructures import State
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody, QueryParameter
from msgspec import Meta

from waystation.ids import new_id, secret_hash
from waystation.patterns import MAX_CURSOR, Cursors, Listing, listing
from waystation.relay.connections import ConnectionChanges, NewConnection  # noqa: TC001
from waystation.relay.delivering.outcomes import KEPT_CHARACTERS
from waystation.relay.events_api import EventController, RelayController
from waystation.relay.service import Relay
from waystation.relay.sources import NewSource, SourceChanges, source_place
from waystation.relay.states import own_event
from waystation.relay.views import (
    ConnectionView,
    CreatedConnection,
    SourceView,
    connection_view,
    source_view,
)
from waystation.seam import Principal, needs
from waystation.times import LAST_MS, iso

Service = NamedDependency[Relay]
Lists = NamedDependency[Cursors]
AnyRequest = Request[Principal, None, State]
Limit = Annotated[int, QueryParameter(ge=1, le=100)]
Cursor = Annotated[str | None, QueryParameter(max_length=MAX_CURSOR)]


class RotatedSecret(msgspec.Struct):
    signing_secret: Annotated[str, Meta(description="the new secret")]
    old_until: Annotated[str, Meta(description="until when deliveries are signed with the old too")]


class Secret(msgspec.Struct):
    signing_secret: str
    until: str | None


class TestResult(msgspec.Struct, kw_only=True):
    ok: bool
    status_code: int
    response_body: str
    latency_ms: int
    error: str | None


class SourceController(Controller):
    """Where webhooks come in."""

    path = "/v1/sources"
    tags = ("Relay",)

    @post("", summary="Create a source")
    async def create(
        self, data: JSONBody[NewSource], request: AnyRequest, relay: Service
    ) -> SourceView:
        source = await relay.sources.create(request.user.user_id, data)
        return source_view(source, relay.keyring, _base(request, relay))

    @get("", summary="All sources")
    async def list_all(
        self,
        request: AnyRequest,
        relay: Service,
        cursors: Lists,
        limit: Limit = 50,
        cursor: Cursor = None,
    ) -> Listing[SourceView]:
        """The oldest first, and that of the alerts last."""
        user_id, base = request.user.user_id, _base(request, relay)
        found, more = cursors.cut(
            await relay.sources.of(user_id), limit, cursor, f"sources {user_id}", source_place
        )
        return listing([source_view(source, relay.keyring, base) for source in found], more)

    @get("/{source_id:str}", summary="A source")
    async def show(
        self, source_id: FromPath[str], request: AnyRequest, relay: Service
    ) -> SourceView:
        source = await relay.sources.get(request.user.user_id, source_id)
        return source_view(source, relay.keyring, _base(request, relay))

    @patch("/{source_id:str}", summary="Change a source")
    async def change(
        self,
        source_id: FromPath[str],
        data: JSONBody[SourceChanges],
        request: AnyRequest,
        relay: Service,
    ) -> SourceView:
        source = await relay.sources.change(request.user.user_id, source_id, data)
        return source_view(source, relay.keyring, _base(request, relay))

    @delete("/{source_id:str}", summary="Delete a source and its connections")
    async def remove(self, source_id: FromPath[str], request: AnyRequest, relay: Service) -> None:
        await relay.sources.delete(request.user.user_id, source_id)

    @post("/{source_id:str}/connections", summary="Connect a source to a destination")
    async def connect(
        self,
        source_id: FromPath[str],
        data: JSONBody[NewConnection],
        request: AnyRequest,
        relay: Service,
    ) -> CreatedConnection:
        source = await relay.sources.get(request.user.user_id, source_id)
        connection, secret = await relay.connections.create(source, data)
        view = connection_view(connection, relay.keyring)
        return CreatedConnection(**msgspec.structs.asdict(view), signing_secret=secret)

    @get("/{source_id:str}/connections", summary="A source's connections")
    async def connections(
        self,
        source_id: FromPath[str],
        request: AnyRequest,
        relay: Service,
        cursors: Lists,
        limit: Limit = 50,
        cursor: Cursor = None,
    ) -> Listing[ConnectionView]:
        source = await relay.sources.get(request.user.user_id, source_id)
        found, more = cursors.cut(
            await relay.directory.list_connections(source.source_id),
            limit,
            cursor,
            f"connections {source.source_id}",
            lambda connection: f"{connection.created_at} {connection.connection_id}",
        )
        return listing([connection_view(c, relay.keyring) for c in found], more)


class ConnectionController(Controller):
    """Where webhooks go."""

    path = "/v1/connections"
    tags = ("Relay",)

    @get("/{connection_id:str}", summary="A connection")
    async def show(
        self, connection_id: FromPath[str], request: AnyRequest, relay: Service
    ) -> ConnectionView:
        found = await relay.connections.get(request.user.user_id, connection_id)
        return connection_view(found, relay.keyring)

    @patch("/{connection_id:str}", summary="Change a connection; active resumes a paused one")
    async def change(
        self,
        connection_id: FromPath[str],
        data: JSONBody[ConnectionChanges],
        request: AnyRequest,
        relay: Service,
    ) -> ConnectionView:
        admin = request.user.permissions == "admin"
        changed = await relay.connections.change(
            request.user.user_id, connection_id, data, admin=admin
        )
        return connection_view(changed, relay.keyring)

    @delete("/{connection_id:str}", summary="Delete a connection")
    async def remove(
        self, connection_id: FromPath[str], request: AnyRequest, relay: Service
    ) -> None:
        await relay.connections.delete(request.user.user_id, connection_id)

    @post("/{connection_id:str}/rotate-secret", summary="A new secret; the old one lasts a day")
    async def rotate(
        self, connection_id: FromPath[str], request: AnyRequest, relay: Service
    ) -> RotatedSecret:
        user_id = request.user.user_id
        _, secret = await relay.connections.rotate(user_id, connection_id)
        secrets = await relay.connections.secrets(user_id, connection_id)
        return RotatedSecret(secret, iso(max(s.until or 0 for s in secrets)))

    @get(
        "/{connection_id:str}/secrets",
        opt=needs("admin"),
        summary="The secrets that deliveries are signed with",
    )
    async def secrets(
        self,
        connection_id: FromPath[str],
        request: AnyRequest,
        relay: Service,
        cursors: Lists,
        limit: Limit = 50,
        cursor: Cursor = None,
    ) -> Listing[Secret]:
        """The current one first, and then those that are valid for the longest."""
        secrets = await relay.connections.secrets(request.user.user_id, connection_id)
        found, more = cursors.cut(
            secrets,
            limit,
            cursor,
            f"secrets {connection_id}",
            lambda s: f"{LAST_MS - (s.until or LAST_MS):020d} {secret_hash(s.secret)}",
        )
        shown = [Secret(s.secret, None if s.until is None else iso(s.until)) for s in found]
        return listing(shown, more)

    @post("/{connection_id:str}/test", status_code=200, summary="Send a test event now")
    async def test(
        self, connection_id: FromPath[str], request: AnyRequest, relay: Service
    ) -> TestResult:
        """It is sent once, to where the connection points now, and is not kept."""
        connection = await relay.connections.get(request.user.user_id, connection_id)
        now = relay.store.clock()
        event = own_event(connection.source_id, connection.user_id, "waystation.test", {}, now)
        reply = await relay.worker.try_out(connection, event, new_id("dlv"))
        return TestResult(
            ok=reply.ok,
            status_code=reply.status,
            response_body=reply.text(KEPT_CHARACTERS),
            latency_ms=reply.milliseconds,
            error=reply.error,
        )


router = Router(
    path="/",
    route_handlers=[SourceController, ConnectionController, EventController, RelayController],
)


def _base(request: AnyRequest, relay: Relay) -> str:
    """The URL that senders reach us at."""
    if relay.public_url is not None:
        return relay.public_url
    host = request.headers.get("host", "localhost")
    return f"{request.scope['scheme']}://{host}"
