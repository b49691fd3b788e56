"""Publishing: one write for everyone, a copy for each of some users, and taking either back.

A message to few users is one transaction. One to many is written down first, with its users in
parts, and then given out part by part.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta

from waystation.errors import Conflict, InvalidInput, NotFound, Overloaded, TransactionCancelled
from waystation.ids import OrderedIds, is_id, secret_hash
from waystation.inbox.books import TRIES
from waystation.inbox.broadcasts import again
from waystation.inbox.distribution import FEW, PART, place_of
from waystation.inbox.readers import check_category, check_name
from waystation.inbox.states import expiry_of
from waystation.inbox.tables import (
    Audiences,
    Content,
    NaturalKey,
    Part,
    PartKey,
    Publication,
    PublicMessage,
    Taxonomy,
    Withdrawal,
)
from waystation.inbox.views import is_link
from waystation.patterns import fingerprint
from waystation.store import Put, Update, absent, add, attr, exists, key_of, set_to
from waystation.times import iso

if TYPE_CHECKING:
    from waystation.inbox.broadcasts import Broadcasts
    from waystation.inbox.distribution import Distribution
    from waystation.inbox.metrics import InboxMetrics
    from waystation.inbox.readers import Place
    from waystation.inbox.tenants import Tenants
    from waystation.store import Action, Store

MOST_USERS = 10_000
"""Users that one call names; more are added by further calls."""

MOST_PARTS = 2_000
_MOST_BODY = 16 * 1024

Uids = Annotated[
    list[Annotated[str, Meta(min_length=1, max_length=128)]],
    Meta(min_length=1, max_length=MOST_USERS),
]


class Users(msgspec.Struct, forbid_unknown_fields=True, tag_field="kind", tag="users"):
    """Some users, each of whom gets a copy."""

    uids: Uids
    label: Annotated[str, Meta(max_length=200)] | None = None


class Everyone(msgspec.Struct, forbid_unknown_fields=True, tag_field="kind", tag="everyone"):
    """All users. With `backfill` also those who come later, as long as the message lives."""

    backfill: bool = False
    label: Annotated[str, Meta(max_length=200)] | None = None


class MessageContent(msgspec.Struct, forbid_unknown_fields=True):
    title: Annotated[str, Meta(min_length=1, max_length=500)]
    body: Any = ""
    cta_uri: Annotated[str, Meta(max_length=2_000)] | None = None


class NewMessage(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`host_system_id` is the sender's own id: sent again with it, a message is not sent twice."""

    audience: Users | Everyone
    sender: Annotated[str, Meta(min_length=1, max_length=200)]
    category: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    type: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    message: MessageContent
    ttl: Annotated[str, Meta(max_length=20, examples=["30d"])] | None = None
    host_system_id: Annotated[str, Meta(min_length=1, max_length=500)] | None = None


class Published(msgspec.Struct, kw_only=True):
    """A message that was accepted, and how many of its users have it."""

    id: str
    status: Literal["publishing", "published", "withdrawing", "withdrawn"]
    audience: Literal["users", "everyone"]
    recipients: int | None = None
    delivered: int | None = None
    duplicate: bool = False
    expires_at: str


class Publishing:
    def __init__(
        self,
        store: Store,
        tenants: Tenants,
        broadcasts: Broadcasts,
        distribution: Distribution,
        metrics: InboxMetrics,
    ) -> None:
        self._store = store
        self._tenants = tenants
        self._broadcasts = broadcasts
        self._distribution = distribution
        self._metrics = metrics
        self._ids = OrderedIds()

    async def publish(self, account: str, place: Place, given: NewMessage) -> Published:
        config = await self._tenants.inbox(account, place)
        _check(given)
        key = self._natural_key(place, given)
        if key is not None and (known := await self._repeated(place, key)) is not None:
            return known
        if given.category is not None:
            await self._tenants.know_category(config, given.category)
        lifetime = await self._tenants.lifetime(config, given.type, given.ttl)
        try:
            if isinstance(given.audience, Everyone):
                return await self._to_everyone(place, given, given.audience, key, lifetime)
            return await self._to_users(account, place, given, given.audience, key, lifetime)
        except TransactionCancelled:
            known = None if key is None else await self._repeated(place, key)
            if known is None:
                raise
            return known

    def _natural_key(self, place: Place, given: NewMessage) -> NaturalKey | None:
        if given.host_system_id is None:
            return None
        return NaturalKey(
            tenant_key=place.tenant,
            inbox_key=place.inbox,
            key_hash=secret_hash(given.host_system_id),
            id="",
            fingerprint=fingerprint(msgspec.to_builtins(given)),
            expires_at=0,
        )

    async def _repeated(self, place: Place, key: NaturalKey) -> Published | None:
        """What was published under this key, if anything was."""
        found = await self._store.get(key_of(key))
        if found is None:
            return None
        if found.fingerprint != key.fingerprint:
            raise Conflict("another message was sent with this host_system_id")
        publication = await self._store.get(Publication.key(found.id))
        if publication is None:
            message = await self._store.get(place.message(found.id))
            return Published(
                id=found.id,
                status="withdrawn" if message is None else "published",
                audience="everyone",
                duplicate=True,
                expires_at=iso(found.expires_at),
            )
        if publication.status == "publishing":
            await self._distribution.hurry(publication.id)
        shown = shown_publication(publication)
        shown.duplicate = True
        return shown

    # Everyone

    async def _to_everyone(
        self,
        place: Place,
        given: NewMessage,
        audience: Everyone,
        key: NaturalKey | None,
        lifetime: int,
    ) -> Published:
        now = self._store.clock()
        message = PublicMessage(
            id=self._ids.next(now),
            host_system_id=given.host_system_id,
            sender=given.sender,
            audiences=Audiences("everyone", audience.label),
            received=int(now * 1000),
            delivered=int(now * 1000),
            expiredat=int(now) + lifetime,
            taxonomy=None if given.category is None else Taxonomy(given.category),
            type=given.type,
            message=_content(given),
            tenant_key=place.tenant,
            inbox_key=place.inbox,
            backfill=audience.backfill or None,
            entered=True,
        )
        claims = _claims(key, message.id, expiry_of(message))
        await self._broadcasts.publish(message, place, *claims)
        self._metrics.published.labels("everyone").inc()
        return Published(
            id=message.id,
            status="published",
            audience="everyone",
            expires_at=iso(expiry_of(message)),
        )

    # Users

    async def _to_users(
        self,
        account: str,
        place: Place,
        given: NewMessage,
        audience: Users,
        key: NaturalKey | None,
        lifetime: int,
    ) -> Published:
        now = self._store.clock()
        uids = list(dict.fromkeys(audience.uids))
        publication = Publication(
            id=self._ids.next(now),
            tenant_key=place.tenant,
            inbox_key=place.inbox,
            account=account,
            status="publishing",
            host_system_id=given.host_system_id,
            label=audience.label,
            sender=given.sender,
            category=given.category,
            type=given.type,
            message=_content(given),
            received=int(now * 1000),
            recipients=len(uids),
            expires_at=int(now) + lifetime,
        )
        claims = _claims(key, publication.id, publication.expires_at)
        if len(uids) <= FEW:
            await self._at_once(publication, uids, claims)
        else:
            await self._in_parts(publication, uids, claims)
        self._metrics.published.labels("users").inc()
        return shown_publication(publication)

    async def _at_once(
        self, publication: Publication, uids: list[str], claims: list[Action]
    ) -> None:
        publication.uids, publication.status = uids, "published"
        publication.delivered, publication.done = len(uids), 1
        for attempt in range(TRIES):
            copies = await self._distribution.copies(publication, uids)
            try:
                await self._store.transact(*claims, Put(publication), *copies)
            except TransactionCancelled as error:
                if any(error.reasons[: len(claims)]):
                    raise
                await again(attempt)
            else:
                return
        raise Overloaded("too much changes here at the same time", retry_after=1.0)

    async def _in_parts(
        self, publication: Publication, uids: list[str], claims: list[Action]
    ) -> None:
        parts = _parts(publication, uids)
        publication.parts = len(parts)
        await self._distribution.expect(publication.id)
        await self._store.transact(*claims, Put(publication), *map(Put, parts))
        await self._distribution.hurry(publication.id)
        current = await self._store.get(key_of(publication))
        if current is not None:
            publication.status, publication.delivered = current.status, current.delivered

    async def add_users(self, account: str, place: Place, id_: str, uids: list[str]) -> Published:
        """Send a message to more users."""
        for n, uid in enumerate(uids):
            check_name(f"uids[{n}]", uid)
        uids = list(dict.fromkeys(uids))
        digest = secret_hash("\n".join(uids))
        for attempt in range(TRIES):
            publication = await self._publication(account, place, id_)
            known = PartKey(id=id_, digest=digest, expires_at=publication.expires_at)
            if await self._store.get(key_of(known)) is not None:
                return shown_publication(publication)
            if publication.status not in ("publishing", "published"):
                raise Conflict("the message is withdrawn")
            more = _parts(publication, uids)
            if publication.parts + len(more) > MOST_PARTS:
                raise Conflict(f"a message has at most {MOST_PARTS * PART} users")
            await self._distribution.expect(id_)
            same = attr("parts") == publication.parts
            usable = attr("status").is_in(["publishing", "published"])
            changed = Update(
                key_of(publication),
                set_to("parts", publication.parts + len(more)),
                add("recipients", len(uids)),
                set_to("status", "publishing"),
                when=exists() & same & usable,
            )
            try:
                parts = [Put(part, when=absent()) for part in more]
                await self._store.transact(changed, Put(known, when=absent()), *parts)
            except TransactionCancelled:
                await again(attempt)
                continue
            await self._distribution.hurry(id_)
            return await self.show(account, place, id_)
        raise Overloaded("too much changes here at the same time", retry_after=1.0)

    async def show(self, account: str, place: Place, id_: str) -> Published:
        """How far a message has got."""
        await self._tenants.inbox(account, place)
        message = await self._store.get(place.message(id_)) if is_id(id_) else None
        if message is not None:
            return Published(
                id=id_,
                status="published",
                audience="everyone",
                expires_at=iso(expiry_of(message)),
            )
        return shown_publication(await self._publication(account, place, id_))

    async def _publication(self, account: str, place: Place, id_: str) -> Publication:
        await self._tenants.inbox(account, place)
        found = await self._store.get(Publication.key(id_)) if is_id(id_) else None
        if found is None or place_of(found) != place:
            raise NotFound("there is no such message")
        return found

    async def withdraw(self, account: str, place: Place, id_: str) -> None:
        """Take a message from every reader, at once."""
        await self._tenants.inbox(account, place)
        if not is_id(id_):
            raise NotFound("there is no such message")
        if await self._store.get(place.message(id_)) is not None:
            await self._broadcasts.withdraw(place, id_)
            return
        publication = await self._publication(account, place, id_)
        if publication.status in ("withdrawing", "withdrawn"):
            return
        sign = Withdrawal(
            tenant_key=place.tenant,
            inbox_key=place.inbox,
            id=id_,
            expiredat=publication.expires_at,
        )
        await self._distribution.expect(id_)
        with suppress(TransactionCancelled):  # it was withdrawn, or has expired
            await self._store.transact(
                Update(
                    key_of(publication),
                    set_to("status", "withdrawing"),
                    set_to("done", 0),
                    when=exists() & attr("status").is_in(["publishing", "published"]),
                ),
                Put(sign),
                Update(place.stats(), add("revision", 1)),
            )
        self._broadcasts.forget(place)
        await self._distribution.hurry(id_)


def shown_publication(publication: Publication) -> Published:
    return Published(
        id=publication.id,
        status=publication.status,
        audience="users",
        recipients=publication.recipients,
        delivered=publication.delivered,
        expires_at=iso(publication.expires_at),
    )


def _check(given: NewMessage) -> None:
    """What types do not say about a message."""
    if isinstance(given.audience, Users):
        for n, uid in enumerate(given.audience.uids):
            check_name(f"audience.uids[{n}]", uid)
    if given.category is not None:
        check_category("category", given.category)
    link = given.message.cta_uri
    if link is not None and not is_link(link):
        raise InvalidInput(
            "message.cta_uri", "must be an http or https address, or a path that begins with /"
        )
    if len(msgspec.json.encode(given.message.body)) > _MOST_BODY:
        raise InvalidInput("message.body", f"has at most {_MOST_BODY} bytes")


def _content(given: NewMessage) -> Content:
    return Content(given.message.title, given.message.body, given.message.cta_uri)


def _claims(key: NaturalKey | None, id_: str, expires: int) -> list[Action]:
    """Makes a message the one that has its natural key."""
    if key is None:
        return []
    return [Put(msgspec.structs.replace(key, id=id_, expires_at=expires), when=absent())]


def _parts(publication: Publication, uids: list[str]) -> list[Part]:
    """Users in parts that follow those which there are."""
    return [
        Part(
            id=publication.id,
            number=publication.parts + n,
            uids=uids[start : start + PART],
            expires_at=publication.expires_at,
        )
        for n, start in enumerate(range(0, len(uids), PART))
    ]
