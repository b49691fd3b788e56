"""The inbox: its parts, put together, and who may use them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec

from waystation.accounts import PLANS, User
from waystation.errors import NotFound, WaystationError
from waystation.inbox.books import Books, Drift
from waystation.inbox.broadcasts import Broadcasts
from waystation.inbox.distribution import Distribution
from waystation.inbox.marks import Marks
from waystation.inbox.metrics import InboxMetrics
from waystation.inbox.publishing import NewMessage, Published, Publishing
from waystation.inbox.readers import Place, Reader, check_name
from waystation.inbox.reading import Reading
from waystation.inbox.streams import Streams
from waystation.inbox.tables import PUBLIC
from waystation.inbox.tenants import Tenants
from waystation.inbox.tokens import PREFIX, UserTokens
from waystation.inbox.watching import Watching
from waystation.patterns import Limit, LocalLimiter

if TYPE_CHECKING:
    from waystation.seam import Parts, Permission

_RECONCILED_AT_ONCE = 50
_RECONCILE_SECONDS = 2.0
_BEARER = "bearer "


class ReaderDrift(msgspec.Struct):
    """Counters of a user, or of everyone's messages, that were not right."""

    uid: str
    counters: list[Drift]


class Inbox:
    def __init__(self, parts: Parts) -> None:
        store = parts.store
        self._store = store
        self._cursors = parts.cursors
        self._authenticate = parts.offer("accounts.authenticate")
        self._limiter = LocalLimiter(store.clock)
        self.metrics = InboxMetrics()
        self.tenants = Tenants(store, parts.cursors, parts.offer("accounts.role"))
        self.tokens = UserTokens(store, parts.vault, self.tenants)
        self.broadcasts = Broadcasts(store)
        self.books = Books(store, self.broadcasts, self.metrics)
        self.marks = Marks(store, self.books, self.broadcasts)
        self.reading = Reading(store, self.books, self.broadcasts, parts.cursors)
        self.distribution = Distribution(
            store,
            self.books,
            self.broadcasts,
            self.marks,
            parts.stopping,
            background=parts.background,
        )
        self.publishing = Publishing(
            store, self.tenants, self.broadcasts, self.distribution, self.metrics
        )
        self.streams = Streams(store, self.reading, self.metrics, parts.stopping)
        self.watching = Watching(store, self.books, self.broadcasts, self.metrics)

    async def reader(
        self, authorization: str | None, place: Place, uid: str, needed: Permission
    ) -> Reader:
        """The user whose inbox a caller may use: their own by a user token, or any of its account
        by an API key. Every other does not exist."""
        reader = place.reader(uid)
        given = authorization or ""
        if given[: len(_BEARER)].lower() == _BEARER and given[len(_BEARER) :].startswith(PREFIX):
            if await self.tokens.check(given[len(_BEARER) :]) != reader:
                raise NotFound("there is no such user here")
            if await self.tenants.config(place) is None:
                raise NotFound("there is no such inbox")
        else:
            principal = await self._authenticate(authorization)
            principal.require(needed)
            await self.tenants.inbox(principal.user_id, place)
            check_name("uid", uid)
        return reader

    async def publish(self, account: str, place: Place, given: NewMessage) -> Published:
        """Publish a message, as far as the account's plan lets it."""
        await self._charge(account)
        published = await self.publishing.publish(account, place, given)
        self.streams.hurry()
        return published

    async def add_users(self, account: str, place: Place, id_: str, uids: list[str]) -> Published:
        """Send a message to more users, as far as the account's plan lets it."""
        await self._charge(account)
        published = await self.publishing.add_users(account, place, id_, uids)
        self.streams.hurry()
        return published

    async def _charge(self, account: str) -> None:
        user = await self._store.get(User.key(account))
        if user is None:
            raise NotFound("the account no longer exists")
        limit = PLANS[user.plan].events_per_minute
        if limit is not None:
            self._limiter.take(account, Limit(limit, 60))

    async def stream(self, authorization: str | None, reader: Reader, last_id: str | None) -> Any:
        """What happens in a reader's inbox, for as long as the caller may see it."""
        settings = await self.tenants.settings(reader.tenant)
        stream = self.streams.reserve(reader, "" if settings is None else settings.uid)

        async def allowed() -> bool:
            try:
                await self.reader(authorization, reader.place, reader.uid, "read")
            except WaystationError:
                return False
            return True

        return self.streams.follow(stream, last_id, allowed)

    async def publish_from_house(
        self, account: str, tenant: str, inbox: str, message: dict[str, object]
    ) -> str:
        """Publish a message that another system of this house has; its id. InvalidInput says what
        is wrong with it."""
        given = msgspec.convert(message, NewMessage)
        return (await self.publish(account, Place(tenant, inbox), given)).id

    async def reconcile(
        self, account: str, place: Place, cursor: str | None, *, fix: bool
    ) -> tuple[int, list[ReaderDrift], str | None]:
        """Recount some users of an inbox: how many, whose counters were wrong, and where to go on.
        The first time, also what everyone has."""
        await self.tenants.inbox(account, place)
        scope = f"reconcile {place}"
        drifted = []
        if cursor is None:
            wrong = await self.broadcasts.recount(place, fix=fix)
            counters = [Drift(c, "published", *found) for c, found in wrong.items()]
            if counters:
                drifted.append(ReaderDrift(PUBLIC, counters))
        after = None if cursor is None else self._cursors.open(cursor, scope)
        page = await self._store.query(place.members(), limit=_RECONCILED_AT_ONCE, after=after)
        ends, checked, position = time.monotonic() + _RECONCILE_SECONDS, 0, page.cursor
        for member in page.items:
            found = await self.books.recount(place.reader(member.uid), fix=fix)
            checked += 1
            if found:
                drifted.append(ReaderDrift(member.uid, found))
            if time.monotonic() > ends and checked < len(page.items):
                position = self._store.cursor(place.members(), member)
                break
        more = None if position is None else self._cursors.seal(position, scope)
        return checked, drifted, more
