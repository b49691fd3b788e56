"""Tenants and their inboxes: whose they are, how long messages live, and who may read.

A tenant belongs to the account that first puts its settings; to every other it does not exist. One
that another service has written belongs to nobody yet, and only an operator may take it.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from waystation.errors import (
    ConditionFailed,
    Conflict,
    InvalidInput,
    NotFound,
    TransactionCancelled,
)
from waystation.inbox.readers import Place, check_category, check_name
from waystation.inbox.tables import AccountTenant, AccountTenants, InboxConfig, Settings
from waystation.patterns import Newest
from waystation.store import (
    Put,
    Update,
    absent,
    add,
    add_to_set,
    attr,
    exists,
    key_of,
    set_if_absent,
    set_to,
)

if TYPE_CHECKING:
    from waystation.patterns import Cursors
    from waystation.seam import Offer
    from waystation.store import Store

MOST_TENANTS = 1_000
MOST_INBOXES = 100
MOST_CATEGORIES = 50
LONGEST_TTL = 5 * 366 * 86_400

_FRESH_SECONDS = 2.0
_MOST_KEPT = 10_000
_DURATION = re.compile(r"(\d{1,9})([smhdw])", re.ASCII)
_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 7 * 86_400}

Title = Annotated[str, Meta(max_length=200)]


class TenantInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`ttl` is how long messages live where an inbox does not say it."""

    title: Title
    ttl: Annotated[str, Meta(max_length=20, examples=["30d"])] = "30d"


class InboxInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`ttl` has how long messages of a type live, and `default` for all others."""

    title: Title
    description: Annotated[str, Meta(max_length=2_000)] = ""
    ttl: Annotated[dict[str, str], Meta(max_length=50)] = {}


class Tenants:
    """`role` says what an account is. What another process changes is seen within two seconds."""

    def __init__(self, store: Store, cursors: Cursors, role: Offer) -> None:
        self._store = store
        self._cursors = cursors
        self._role = role
        self._known: Newest[str, tuple[float, Settings]] = Newest(_MOST_KEPT)
        self._inboxes: Newest[Place, tuple[float, InboxConfig]] = Newest(_MOST_KEPT)

    # Tenants

    async def put(self, account: str, tenant: str, given: TenantInput) -> Settings:
        """Change a tenant's settings, which makes it the account's own if it is nobody's."""
        check_name("tenant", tenant)
        seconds_of_ttl("ttl", given.ttl)
        self._known.pop(tenant, None)
        current = await self._store.get(Settings.key(tenant))
        if current is None or not current.claimed:
            await self._claim(account, tenant, current, given)
        else:
            if current.uid != account:
                raise NotFound("there is no such tenant")
            await self._store.update(
                key_of(current), set_to("title", given.title), set_to("ttl", given.ttl)
            )
        return await self.get(account, tenant)

    async def _claim(
        self, account: str, tenant: str, current: Settings | None, given: TenantInput
    ) -> None:
        used = current is not None or await self._has_inboxes(tenant)
        if used and await self._role(account) != "operator":
            raise NotFound("there is no such tenant")
        edits = [
            set_to("title", given.title),
            set_to("ttl", given.ttl),
            set_to("uid", account),
            set_to("claimed", True),
            set_if_absent("token_generation", 0),
        ]
        free = attr("claimed").absent() | (attr("claimed") == False)  # noqa: E712
        room = attr("count").absent() | (attr("count") < MOST_TENANTS)
        row = AccountTenant(account=account, tenant_key=tenant, created_at=self._store.now())
        try:
            await self._store.transact(
                Update(Settings.key(tenant), *edits, when=free),
                Update(AccountTenants.key(account), add("count", 1), when=room),
                Put(row, when=absent()),
            )
        except TransactionCancelled as error:
            if error.reasons[1] is not None:
                raise Conflict(f"an account has at most {MOST_TENANTS} tenants") from None
            current = await self._store.get(Settings.key(tenant))
            if current is None or current.uid != account:
                raise NotFound("there is no such tenant") from None

    async def _has_inboxes(self, tenant: str) -> bool:
        return bool((await self._store.query(InboxConfig.query(tenant), limit=1)).items)

    async def get(self, account: str, tenant: str) -> Settings:
        """An account's own tenant."""
        settings = await self.settings(tenant)
        if settings is None or not settings.claimed or settings.uid != account:
            raise NotFound("there is no such tenant")
        return settings

    async def settings(self, tenant: str) -> Settings | None:
        """Whoever's tenant it is."""
        now = self._store.clock()
        at, known = self._known.get(tenant) or (-math.inf, None)
        if known is not None and 0 <= now - at < _FRESH_SECONDS:
            return known
        try:
            check_name("tenant", tenant)
        except InvalidInput:
            return None
        found = await self._store.get(Settings.key(tenant))
        if found is not None:
            self._known[tenant] = (now, found)
        return found

    async def list_tenants(
        self, account: str, limit: int, cursor: str | None
    ) -> tuple[list[AccountTenant], str | None]:
        scope = f"tenants {account}"
        query = AccountTenant.query(account)
        return await self._cursors.page(self._store, query, limit, cursor, scope)

    async def rotate(self, account: str, tenant: str) -> None:
        """Make all user tokens of a tenant worthless."""
        settings = await self.get(account, tenant)
        await self._store.update(key_of(settings), add("token_generation", 1), when=exists())
        self._known.pop(tenant, None)

    # Inboxes

    async def put_inbox(self, account: str, place: Place, given: InboxInput) -> InboxConfig:
        settings = await self.get(account, place.tenant)
        check_name("inbox", place.inbox)
        for kind, ttl in given.ttl.items():
            check_name("ttl", kind)
            seconds_of_ttl(f"ttl.{kind}", ttl)
        edits = [
            set_to("title", given.title),
            set_to("description", given.description),
            set_to("ttl", given.ttl),
            set_to("uid", account),
        ]
        self._inboxes.pop(place, None)
        try:
            await self._store.update(place.config(), *edits, when=exists())
        except ConditionFailed:
            count = attr("inboxes")
            room = count.absent() | (count < MOST_INBOXES)
            try:
                await self._store.transact(
                    Update(place.config(), *edits, when=absent()),
                    Update(key_of(settings), add("inboxes", 1), when=exists() & room),
                )
            except TransactionCancelled as error:
                if error.reasons[1] is not None:
                    raise Conflict(f"a tenant has at most {MOST_INBOXES} inboxes") from None
        return await self.inbox(account, place)

    async def inbox(self, account: str, place: Place) -> InboxConfig:
        """An inbox of an account's own tenant."""
        await self.get(account, place.tenant)
        config = await self.config(place)
        if config is None:
            raise NotFound("there is no such inbox")
        return config

    async def config(self, place: Place) -> InboxConfig | None:
        now = self._store.clock()
        at, known = self._inboxes.get(place) or (-math.inf, None)
        if known is not None and 0 <= now - at < _FRESH_SECONDS:
            return known
        try:
            check_name("tenant", place.tenant)
            check_name("inbox", place.inbox)
        except InvalidInput:
            return None
        found = await self._store.get(place.config())
        if found is not None:
            self._inboxes[place] = (now, found)
        return found

    async def list_inboxes(
        self, account: str, tenant: str, limit: int, cursor: str | None
    ) -> tuple[list[InboxConfig], str | None]:
        await self.get(account, tenant)
        query = InboxConfig.query(tenant)
        return await self._cursors.page(self._store, query, limit, cursor, f"inboxes {tenant}")

    async def know_category(self, config: InboxConfig, category: str) -> None:
        """Make a category one of the inbox's own; there is a bound to them."""
        check_category("category", category)
        if category in (config.categories or ()):
            return
        names = attr("categories")
        room = names.absent() | (names.size() < MOST_CATEGORIES) | names.contains(category)
        try:
            await self._store.update(
                key_of(config), add_to_set("categories", {category}), when=exists() & room
            )
        except ConditionFailed:
            raise InvalidInput(
                "category", f"an inbox has at most {MOST_CATEGORIES} categories"
            ) from None
        self._inboxes.pop(Place(config.tenant_key, config.inbox_key), None)

    async def lifetime(self, config: InboxConfig, type_: str | None, ttl: str | None) -> int:
        """How many seconds a message lives: as it says, as its type does, its inbox, its tenant."""
        if ttl is not None:
            return seconds_of_ttl("ttl", ttl)
        settings = await self.settings(config.tenant_key)
        named = config.ttl.get(type_) if type_ is not None else None
        stored = named or config.ttl.get("default") or (settings.ttl if settings else "30d")
        try:
            return seconds_of_ttl("ttl", stored)
        except InvalidInput:  # another service wrote it
            return _UNITS["d"] * 30


def seconds_of_ttl(field: str, text: str) -> int:
    found = _DURATION.fullmatch(text)
    seconds = int(found[1]) * _UNITS[found[2]] if found else 0
    if not 0 < seconds <= LONGEST_TTL:
        raise InvalidInput(
            field, "must be a duration of up to five years, such as 90s, 45m, 12h, 30d or 8w"
        )
    return seconds
