"""Connections: created, shown, changed, rotated and deleted."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from waystation.accounts import PLANS, User
from waystation.errors import (
    ConditionFailed,
    Conflict,
    Forbidden,
    InvalidInput,
    NotFound,
    SettingsError,
    TransactionCancelled,
)
from waystation.ids import is_id, new_id
from waystation.relay.delivering.inboxes import InboxTarget, check_target
from waystation.relay.delivering.retries import Retry, check_retry
from waystation.relay.rules.filters import compile_filter
from waystation.relay.rules.transforms import Transform, check_transform
from waystation.relay.sources import HEADER_NAME, Name, Url
from waystation.relay.tables import Connection, Owner, Source
from waystation.store import (
    Put,
    Update,
    absent,
    add,
    attr,
    exists,
    key_of,
    remove,
    set_or_remove,
    set_to,
)
from waystation.times import iso

if TYPE_CHECKING:
    from waystation.outbound import Guard
    from waystation.relay.directory import Directory
    from waystation.relay.keyring import Keyring, OutboundSecret
    from waystation.relay.wakeups import Wakeups
    from waystation.store import Edit, Store

HARD_LIMIT = 80
"""Connections of one source on any plan: an event's deliveries are created in one transaction."""

_MAX_RULES_BYTES = 32 * 1024
_MAX_HEADERS = 20
_RESERVED = re.compile(
    r"(?i)webhook-.*|x-waystation-.*|host|content-length|transfer-encoding|connection|upgrade|te|"
    r"trailer|expect|keep-alive|proxy-.*"
)


class RateLimit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """At most `count` deliveries in any `seconds`."""

    count: Annotated[int, Meta(ge=1, le=100_000)]
    seconds: Annotated[int, Meta(ge=1, le=3_600)] = 1


class NewConnection(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    name: Name
    destination_url: Url | None = None
    inbox: InboxTarget | None = None
    filters: Any = None
    transform: Transform | None = None
    retry: Retry | None = None
    rate_limit: RateLimit | None = None
    headers: dict[str, str] = {}
    timeout: Annotated[int, Meta(ge=1, le=30, description="seconds")] = 15
    concurrency: Annotated[int, Meta(ge=1, le=100)] = 20
    status: Literal["active", "paused"] = "active"


class ConnectionChanges(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    name: Name | UnsetType = UNSET
    destination_url: Url | UnsetType = UNSET
    inbox: InboxTarget | UnsetType = UNSET
    filters: Any = UNSET
    transform: Transform | UnsetType | None = UNSET
    retry: Retry | UnsetType | None = UNSET
    rate_limit: RateLimit | UnsetType | None = UNSET
    headers: dict[str, str] | UnsetType = UNSET
    timeout: Annotated[int, Meta(ge=1, le=30)] | UnsetType = UNSET
    concurrency: Annotated[int, Meta(ge=1, le=100)] | UnsetType = UNSET
    status: Literal["active", "paused"] | UnsetType = UNSET


class Connections:
    def __init__(
        self,
        store: Store,
        keyring: Keyring,
        directory: Directory,
        wakeups: Wakeups,
        guard: Guard,
    ) -> None:
        self._wakeups = wakeups
        self._store = store
        self._keyring = keyring
        self._directory = directory
        self._guard = guard

    async def create(self, source: Source, given: NewConnection) -> tuple[Connection, str]:
        """A new connection, and the secret that its deliveries are signed with."""
        if (given.destination_url is None) == (given.inbox is None):
            raise InvalidInput("destination_url", "give either destination_url or inbox")
        if given.inbox is not None:
            check_target(given.inbox)
        if given.destination_url is not None:
            self._guard.check_url(given.destination_url, "destination_url")
        connection_id = new_id("conn")
        secret, sealed = self._keyring.new_outbound(connection_id)
        url, query = self._keyring.split_destination(given.destination_url or "", connection_id)
        now = iso(self._store.clock())
        connection = Connection(
            connection_id=connection_id,
            source_id=source.source_id,
            user_id=source.user_id,
            name=given.name,
            destination_url=url,
            destination_query=query,
            inbox=_json(given.inbox),
            signing_secret=sealed,
            filters=_filters(given.filters),
            transform=_transform(given.transform),
            retry_config=_retry(given.retry),
            rate_limit=_json(given.rate_limit),
            headers=self._headers(given.headers, connection_id),
            timeout_seconds=given.timeout,
            concurrency=given.concurrency,
            status=given.status,
            created_at=now,
            updated_at=now,
        )
        await self._add(source, connection)
        return connection, secret

    async def _add(self, source: Source, connection: Connection) -> None:
        user = await self._store.get(User.key(source.user_id))
        if user is None:
            raise NotFound("the account no longer exists")
        limit = min(HARD_LIMIT, PLANS[user.plan].connections_per_source or HARD_LIMIT)
        count = attr("connection_count")
        room = (count.absent() | (count < limit)) & (attr("status") != "deleted")
        owner = Owner(
            thing_id=connection.connection_id,
            user_id=source.user_id,
            source_id=source.source_id,
        )
        try:
            await self._store.transact(
                Put(connection, when=absent()),
                Put(owner),
                Update(key_of(source), add("connection_count", 1), when=exists() & room),
            )
        except TransactionCancelled:
            raise Conflict(
                f"the plan {user.plan} allows at most {limit} connections for a source"
            ) from None
        self._directory.forget(source.source_id)

    async def get(self, user_id: str, connection_id: str) -> Connection:
        if not is_id(connection_id):
            raise NotFound("there is no such connection")
        connection = await self._directory.find_connection(connection_id)
        if connection is None:  # another service may have written it
            await self._directory.adopt_all(user_id)
            connection = await self._directory.find_connection(connection_id)
        if connection is None or connection.user_id != user_id or connection.status == "deleted":
            raise NotFound("there is no such connection")
        return connection

    async def change(
        self, user_id: str, connection_id: str, given: ConnectionChanges, *, admin: bool = False
    ) -> Connection:
        """Only an `admin` may send the hidden headers of a connection to another place."""
        connection = await self.get(user_id, connection_id)
        hidden = connection.headers and given.headers is UNSET and not admin
        if hidden and given.destination_url not in (
            UNSET,
            self._keyring.shown_destination(connection),
        ):
            raise Forbidden(
                "this connection has hidden headers: changing its destination_url needs the "
                "permission admin, or new headers"
            )
        changes = [set_to("updated_at", iso(self._store.clock())), *self._rules(given)]
        if given.destination_url is not UNSET:
            if connection.inbox is not None:
                raise InvalidInput("destination_url", "this connection goes to an inbox")
            self._guard.check_url(given.destination_url, "destination_url")
            url, query = self._keyring.split_destination(given.destination_url, connection_id)
            changes += [set_to("destination_url", url), set_or_remove("destination_query", query)]
        if given.inbox is not UNSET:
            if connection.inbox is None:
                raise InvalidInput("inbox", "this connection goes to a URL")
            check_target(given.inbox)
            changes.append(set_or_remove("inbox", _json(given.inbox)))
        if given.headers is not UNSET:
            changes.append(set_or_remove("headers", self._headers(given.headers, connection_id)))
        for field, value in (
            ("name", given.name),
            ("timeout_seconds", given.timeout),
            ("concurrency", given.concurrency),
            ("status", given.status),
        ):
            if value is not UNSET:
                changes.append(set_to(field, value))
        if given.status == "active":
            return await self._resume(connection, changes)
        return await self._write(connection, changes)

    async def _resume(self, connection: Connection, changes: list[Edit]) -> Connection:
        """Start counting failures again, and look at what has waited."""
        changes += [remove("disabled_reason"), remove("disabled_at"), remove("failing_since")]
        changes += [set_to("failure_streak", 0), set_to("alerted_at", 0)]
        await self._wakeups.expect([connection.connection_id])
        changed = await self._write(connection, changes)
        await self._wakeups.wake([connection.connection_id], anew=True)
        return changed

    def _rules(self, given: ConnectionChanges) -> list[Edit]:
        changes: list[Edit] = []
        if given.filters is not UNSET:
            changes.append(set_or_remove("filters", _filters(given.filters)))
        if given.transform is not UNSET:
            changes.append(set_or_remove("transform", _transform(given.transform)))
        if given.retry is not UNSET:
            changes.append(set_or_remove("retry_config", _retry(given.retry)))
        if given.rate_limit is not UNSET:
            changes.append(set_or_remove("rate_limit", _json(given.rate_limit)))
        return changes

    async def rotate(self, user_id: str, connection_id: str) -> tuple[Connection, str]:
        """A new secret; the old one signs along for a day."""
        connection = await self.get(user_id, connection_id)
        secret, sealed = self._keyring.rotated(connection, self._store.now())
        changes = [set_to("signing_secret", sealed)]
        changes.append(set_to("updated_at", iso(self._store.clock())))
        unchanged = attr("signing_secret") == connection.signing_secret
        try:
            changed = await self._store.update(
                key_of(connection), *changes, when=unchanged, returning="new"
            )
        except ConditionFailed:
            raise Conflict("somebody else has just rotated the secret: try again") from None
        self._directory.forget(connection.source_id)
        assert changed is not None
        return changed, secret

    async def secrets(self, user_id: str, connection_id: str) -> list[OutboundSecret]:
        connection = await self.get(user_id, connection_id)
        try:
            return self._keyring.outbound(connection, self._store.now())
        except SettingsError:
            raise Conflict("the stored secrets cannot be opened: rotate the secret") from None

    async def delete(self, user_id: str, connection_id: str) -> None:
        connection = await self.get(user_id, connection_id)
        ended = [
            set_to("status", "deleted"),
            set_to("updated_at", iso(self._store.clock())),
        ]
        source = Source.key(user_id, connection.source_id)
        await self._wakeups.expect([connection_id])
        try:
            await self._store.transact(
                Update(key_of(connection), *ended, when=exists() & (attr("status") != "deleted")),
                Update(source, add("connection_count", -1), when=exists()),
            )
        except TransactionCancelled:
            raise NotFound("there is no such connection") from None
        self._directory.forget(connection.source_id)
        await self._wakeups.wake([connection_id])

    async def _write(self, connection: Connection, changes: list[Edit]) -> Connection:
        try:
            changed = await self._store.update(
                key_of(connection),
                *changes,
                when=exists() & (attr("status") != "deleted"),
                returning="new",
            )
        except ConditionFailed:
            raise NotFound("there is no such connection") from None
        self._directory.forget(connection.source_id)
        assert changed is not None
        return changed

    def _headers(self, headers: dict[str, str], connection_id: str) -> str | None:
        if len(headers) > _MAX_HEADERS:
            raise InvalidInput("headers", f"at most {_MAX_HEADERS} headers are allowed")
        for name, value in headers.items():
            field = f"headers.{name[:100]}"
            if not HEADER_NAME.fullmatch(name) or _RESERVED.fullmatch(name):
                raise InvalidInput(field, "this name is reserved or not a valid header name")
            if len(value) > 1_000 or not all(" " <= c <= "~" for c in value):
                raise InvalidInput(field, "must have at most 1,000 printable ASCII characters")
        return self._keyring.seal_headers(headers, connection_id)


def _json(value: object) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()


def _filters(rules: object) -> str | None:
    if rules is None:
        return None
    compile_filter(rules)
    return _short(rules, "filters")


def _transform(transform: Transform | None) -> str | None:
    if transform is None:
        return None
    check_transform(transform)
    return _short(transform, "transform")


def _retry(retry: Retry | None) -> str | None:
    if retry is None:
        return None
    check_retry(retry)
    return _json(retry)


def _short(value: object, field: str) -> str:
    text = msgspec.json.encode(value).decode()
    if len(text) > _MAX_RULES_BYTES:
        raise InvalidInput(field, f"must have at most {_MAX_RULES_BYTES} bytes as JSON")
    return text
