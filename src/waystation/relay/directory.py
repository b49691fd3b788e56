"""Sources and connections as the hot path sees them: looked up once, remembered for a moment.

A change that this process makes is seen at once; one that another makes, within two seconds. What
must be exact is checked in the transaction itself.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from waystation.accounts import PLANS, Limits, User
from waystation.errors import ConditionFailed, Overloaded, SettingsError
from waystation.ids import is_id
from waystation.patterns import Newest
from waystation.relay.receiving import signatures
from waystation.relay.receiving.dedupe import Dedupe
from waystation.relay.receiving.signatures import Arrival, Check, CustomScheme
from waystation.relay.tables import Connection, Owner, Source
from waystation.store import absent

if TYPE_CHECKING:
    from waystation.relay.keyring import Keyring
    from waystation.store import Store

log = logging.getLogger(__name__)

_FRESH_SECONDS = 2.0
_MOST_KEPT = 10_000
_ADOPT_SECONDS = 60.0
ALERTS_PROVIDER = "waystation"


class Verification(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a source's webhooks are checked. Without a mode, by the provider's signature."""

    mode: str = "signature"
    scheme: CustomScheme | None = None


class Known(msgspec.Struct, frozen=True, gc=False):
    """A source, with everything that receiving for it takes."""

    source: Source
    secrets: list[str]
    check: Check | None
    dedupe: Dedupe
    limits: Limits | None
    at: float

    def signed(self, arrival: Arrival) -> bool:
        """Whether the webhook comes from whom the source expects. (PayPal's needs more.)"""
        if self.check is None:
            return True
        check = self.check
        return any(check(arrival, secret) for secret in self.secrets)


class Directory:
    def __init__(self, store: Store, keyring: Keyring, *, most_kept: int = _MOST_KEPT) -> None:
        self._store = store
        self._keyring = keyring
        self._installed: dict[str, Known] = {}
        self._known: Newest[str, Known] = Newest(most_kept)
        self._owned: Newest[str, None] = Newest(most_kept)
        self._adopted: Newest[str, float] = Newest(most_kept)
        self._lists: Newest[str, tuple[float, dict[str, Connection]]] = Newest(most_kept)

    def install(self, source: Source, secrets: list[str]) -> None:
        """Know a source that is in no table, for good."""
        self._installed[source.source_id] = self._opened(source, secrets, None)

    async def source(self, source_id: str) -> Known | None:
        if source_id in self._installed:
            return self._installed[source_id]
        known = self._known.get(source_id)
        now = self._store.clock()
        if known is not None and now - known.at < _FRESH_SECONDS:
            return known
        source = await self.find_source(source_id) if is_id(source_id) else None
        if source is None or source.status == "deleted":
            self._known.pop(source_id, None)
            return None
        user = await self._store.get(User.key(source.user_id))
        if user is None:
            return None
        try:
            secrets = self._keyring.inbound(source)
        except SettingsError as error:
            log.warning("source %s: %s", source_id, error)
            raise Overloaded("this source cannot check signatures now", retry_after=60.0) from None
        found = self._opened(source, secrets, PLANS[user.plan])
        self._known[source_id] = found
        return found

    def _opened(self, source: Source, secrets: list[str], limits: Limits | None) -> Known:
        dedupe = msgspec.json.decode(source.dedupe, type=Dedupe) if source.dedupe else Dedupe()
        return Known(
            source, secrets, check_of(source, secrets), dedupe, limits, self._store.clock()
        )

    async def find_source(self, source_id: str) -> Source | None:
        """A source by its id alone. The index is for those that others have written."""
        owner = await self._store.get(Owner.key(source_id))
        if owner is not None:
            return await self._store.get(Source.key(owner.user_id, source_id))
        page = await self._store.query(Source.query(source_id, index="GSI3"))
        return page.items[0] if page.items else None

    async def connections(self, source_id: str) -> list[Connection]:
        """Those of a source that are not deleted."""
        return list((self._fresh(source_id) or await self._listed(source_id)).values())

    def _fresh(self, source_id: str) -> dict[str, Connection] | None:
        listed = self._lists.get(source_id)
        if listed is None or self._store.clock() - listed[0] >= _FRESH_SECONDS:
            return None
        return listed[1]

    async def _listed(self, source_id: str) -> dict[str, Connection]:
        listed = self._fresh(source_id)
        if listed is not None:
            return listed
        now = self._store.clock()
        found = {c.connection_id: c for c in await self.list_connections(source_id)}
        self._lists[source_id] = (now, found)
        return found

    async def connection(self, source_id: str, connection_id: str) -> Connection | None:
        """One of them, as up to date as the others; None if it is deleted."""
        listed = self._fresh(source_id) or await self._listed(source_id)
        return listed.get(connection_id)

    async def leads_anywhere(self, source_id: str) -> bool:
        """Whether somebody may want a source's events."""
        return source_id in self._installed or bool(await self.connections(source_id))

    async def list_connections(self, source_id: str) -> list[Connection]:
        query = Connection.query(source_id)
        found = [c async for c in self._store.iterate(query) if c.status != "deleted"]
        await self._adopt(found)
        return found

    async def _adopt(self, connections: list[Connection]) -> None:
        """Write down whose those connections are that another service wrote, so that they are
        found by their id like our own."""
        strange = [c for c in connections if c.connection_id not in self._owned]
        if not strange:
            return
        owners = await self._store.batch_get([Owner.key(c.connection_id) for c in strange])
        for connection, owner in zip(strange, owners, strict=True):
            if owner is None:
                await self._own(connection)
            self._owned[connection.connection_id] = None

    async def _own(self, connection: Connection) -> None:
        owner = Owner(
            thing_id=connection.connection_id,
            user_id=connection.user_id,
            source_id=connection.source_id,
        )
        with suppress(ConditionFailed):  # somebody else has just done so
            await self._store.put(owner, when=absent())

    async def adopt_all(self, user_id: str) -> None:
        """The same for all connections of an account, once a minute at most."""
        now = self._store.clock()
        if now - self._adopted.get(user_id, 0.0) < _ADOPT_SECONDS:
            return
        self._adopted[user_id] = now
        async for source in self._store.iterate(Source.query(user_id)):
            await self.list_connections(source.source_id)

    async def find_connection(self, connection_id: str) -> Connection | None:
        owner = await self._store.get(Owner.key(connection_id))
        if owner is None:
            return None
        return await self._store.get(Connection.key(owner.source_id, connection_id))

    def forget(self, source_id: str) -> None:
        self._known.pop(source_id, None)
        self._lists.pop(source_id, None)


def check_of(source: Source, secrets: list[str]) -> Check | None:
    """How a source's webhooks are checked; None when they are not."""
    stored = source.verification
    verification = msgspec.json.decode(stored, type=Verification) if stored else Verification()
    if verification.mode == "none":
        return None
    if source.provider == "custom":
        return signatures.custom(verification.scheme or CustomScheme()) if secrets else None
    # A provider that we do not know, or one without its secrets, is never taken on trust.
    return signatures.CHECKS.get(source.provider, _nobody)


def _nobody(arrival: Arrival, secret: str) -> bool:
    return False
