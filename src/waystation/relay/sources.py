"""Sources: created, shown, changed and deleted."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import UNSET, Meta, UnsetType

from waystation.accounts import PLANS, User
from waystation.errors import (
    ConditionFailed,
    Conflict,
    InvalidInput,
    NotFound,
    TransactionCancelled,
)
from waystation.ids import is_id, new_id
from waystation.outbound import MAX_URL
from waystation.relay.directory import ALERTS_PROVIDER, Verification
from waystation.relay.receiving.dedupe import Dedupe, check_dedupe
from waystation.relay.receiving.signatures import (
    SIGN_THE_URL,
    CustomScheme,
    Provider,
    check_secret,
)
from waystation.relay.tables import Owner, Source
from waystation.store import Put, Update, absent, add, attr, exists, key_of, set_or_remove, set_to
from waystation.times import iso

if TYPE_CHECKING:
    from waystation.relay.directory import Directory
    from waystation.relay.keyring import Keyring
    from waystation.relay.wakeups import Wakeups
    from waystation.store import Edit, Store

MAX_SECRETS = 5
BILLING_ID = "billing"
HOUSE = "operator"
"""The owner of what is the house's own: not the id of any account."""

HARD_LIMIT = 1_000
"""Of an account without limits."""

Name = Annotated[str, Meta(min_length=1, max_length=100)]
Url = Annotated[str, Meta(extra_json_schema={"format": "uri"})]
HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")


FieldName = Annotated[
    str, Meta(pattern="^[0-9A-Za-z_-]{1,50}$", description="such as v1 in a header t=…,v1=…")
]


class VerificationInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`{"mode": "none"}` takes unsigned requests; the rest describes a custom source's HMAC."""

    mode: Literal["signature", "none"] = "signature"
    header: str | UnsetType = UNSET
    algorithm: Literal["sha1", "sha256", "sha512"] | UnsetType = UNSET
    encoding: Literal["hex", "base64"] | UnsetType = UNSET
    prefix: Annotated[str, Meta(max_length=100)] | UnsetType = UNSET
    timestamp_header: str | UnsetType | None = UNSET
    tolerance: Annotated[int, Meta(ge=1, le=86_400)] | UnsetType = UNSET
    signature_field: FieldName | UnsetType | None = UNSET
    timestamp_field: FieldName | UnsetType | None = UNSET
    separator: Annotated[str, Meta(min_length=1, max_length=1)] | UnsetType = UNSET
    joined_by: Annotated[str, Meta(max_length=10)] | UnsetType = UNSET

    def stored(self, provider: str) -> Verification:
        given = {
            name: value
            for name in CustomScheme.__struct_fields__
            if (value := getattr(self, name)) is not UNSET
        }
        if given and provider != "custom":
            field = f"verification.{min(given)}"
            raise InvalidInput(field, f"{provider} has its own signature: only mode can be set")
        for name in ("header", "timestamp_header"):
            header = given.get(name)
            if header is not None and not HEADER_NAME.fullmatch(header):
                raise InvalidInput(f"verification.{name}", "this is not a valid header name")
        if given.get("timestamp_field") and given.get("timestamp_header"):
            raise InvalidInput(
                "verification.timestamp_field", "give either timestamp_field or timestamp_header"
            )
        if given.get("timestamp_field") and not given.get("signature_field"):
            raise InvalidInput(
                "verification.signature_field", "a timestamp_field goes with a signature_field"
            )
        if given.get("separator") in ("=", " "):
            raise InvalidInput("verification.separator", "must be neither = nor a space")
        return Verification(mode=self.mode, scheme=CustomScheme(**given) if given else None)


Secrets = Annotated[list[str], Meta(max_length=MAX_SECRETS)]


class NewSource(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    name: Name
    provider: Provider = "custom"
    signing_secrets: Secrets = []
    verification: VerificationInput | None = None
    dedupe: Dedupe | None = None
    public_url: Url | None = None
    status: Literal["active", "paused"] = "active"


class SourceChanges(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    name: Name | UnsetType = UNSET
    signing_secrets: Secrets | UnsetType = UNSET
    verification: VerificationInput | UnsetType | None = UNSET
    dedupe: Dedupe | UnsetType | None = UNSET
    public_url: Url | UnsetType | None = UNSET
    status: Literal["active", "paused"] | UnsetType = UNSET


class Sources:
    def __init__(
        self,
        store: Store,
        keyring: Keyring,
        directory: Directory,
        wakeups: Wakeups,
        public_url: str | None,
    ) -> None:
        self._wakeups = wakeups
        self._store = store
        self._keyring = keyring
        self._directory = directory
        self._public_url = public_url

    async def create(self, user_id: str, given: NewSource) -> Source:
        now = iso(self._store.clock())
        source_id = new_id("src")
        source = Source(
            source_id=source_id,
            user_id=user_id,
            name=given.name,
            provider=given.provider,
            signing_secret=self._keyring.seal_inbound(given.signing_secrets, source_id),
            verification=_verification(given.verification, given.provider),
            dedupe=_dedupe(given.dedupe, given.provider),
            public_url=_checked_url(given.public_url),
            status=given.status,
            created_at=now,
            updated_at=now,
        )
        self._check(source, given.signing_secrets)
        user = await self._store.get(User.key(user_id))
        if user is None:
            raise NotFound("the account no longer exists")
        limit = PLANS[user.plan].sources or HARD_LIMIT
        counted = Update(
            key_of(user),
            add("source_count", 1),
            when=exists() & (attr("source_count").absent() | (attr("source_count") < limit)),
        )
        owner = Owner(thing_id=source_id, user_id=user_id, source_id=source_id)
        try:
            await self._store.transact(Put(source, when=absent()), Put(owner), counted)
        except TransactionCancelled:
            raise Conflict(f"the plan {user.plan} allows at most {limit} sources") from None
        await self._ensure_alerts(user_id)
        return source

    def _check(self, source: Source, secrets: list[str]) -> None:
        """Refuse a source that would trust anybody, or nobody."""
        if any(not secret or len(secret) > 1_000 or not secret.isascii() for secret in secrets):
            raise InvalidInput(
                "signing_secrets", "each secret must have 1 to 1,000 ASCII characters"
            )
        for secret in secrets:
            try:
                check_secret(source.provider, secret)
            except ValueError as error:
                raise InvalidInput(
                    "signing_secrets", f"one of the secrets is not valid: {error}"
                ) from None
        mode = "signature"
        if source.verification:
            mode = msgspec.json.decode(source.verification, type=Verification).mode
        if mode == "none":
            return
        if source.provider != "custom" and not secrets:
            raise InvalidInput(
                "signing_secrets",
                f"{source.provider} signs its webhooks: give its secret, or set verification to "
                '{"mode": "none"}',
            )
        if source.provider in SIGN_THE_URL and not (source.public_url or self._public_url):
            raise InvalidInput(
                "public_url",
                f"{source.provider} signs the URL that it calls, so that URL must be given",
            )

    async def of(self, user_id: str) -> list[Source]:
        """An account's sources, in the order of `source_place`."""
        query = Source.query(user_id)
        found = [s async for s in self._store.iterate(query) if s.status != "deleted"]
        return sorted(found, key=source_place)

    async def get(self, user_id: str, source_id: str) -> Source:
        if not is_id(source_id):
            raise NotFound("there is no such source")
        source = await self._store.get(Source.key(user_id, source_id))
        if source is None or source.status == "deleted":
            raise NotFound("there is no such source")
        return source

    async def change(self, user_id: str, source_id: str, given: SourceChanges) -> Source:
        source = await self.get(user_id, source_id)
        secrets = self._keyring.inbound(source)
        changes: list[Edit] = [set_to("updated_at", iso(self._store.clock()))]
        if given.name is not UNSET:
            changes.append(set_to("name", given.name))
        if given.status is not UNSET:
            changes.append(set_to("status", given.status))
        if given.signing_secrets is not UNSET:
            secrets = given.signing_secrets
            sealed = self._keyring.seal_inbound(secrets, source_id)
            changes.append(set_or_remove("signing_secret", sealed))
        if given.verification is not UNSET:
            source.verification = _verification(given.verification, source.provider)
            changes.append(set_or_remove("verification", source.verification))
        if given.dedupe is not UNSET:
            changes.append(set_or_remove("dedupe", _dedupe(given.dedupe, source.provider)))
        if given.public_url is not UNSET:
            source.public_url = _checked_url(given.public_url)
            changes.append(set_or_remove("public_url", source.public_url))
        if source.provider != ALERTS_PROVIDER:
            self._check(source, secrets)
        try:
            changed = await self._store.update(
                key_of(source),
                *changes,
                when=exists() & (attr("status") != "deleted"),
                returning="new",
            )
        except ConditionFailed:
            raise NotFound("there is no such source") from None
        self._directory.forget(source_id)
        assert changed is not None
        return changed

    async def delete(self, user_id: str, source_id: str) -> None:
        """Delete a source with its connections. Its events stay for as long as they are kept."""
        source = await self.get(user_id, source_id)
        if source.provider == ALERTS_PROVIDER:
            raise Conflict(
                "the source of alerts cannot be deleted: delete or pause its connections instead"
            )
        now = iso(self._store.clock())
        connections = await self._directory.list_connections(source_id)
        names = [connection.connection_id for connection in connections]
        await self._wakeups.expect(names)
        ended = [set_to("status", "deleted"), set_to("updated_at", now)]
        try:
            await self._store.transact(
                Update(key_of(source), *ended, when=exists() & (attr("status") != "deleted")),
                Update(User.key(user_id), add("source_count", -1), when=exists()),
                *(Update(key_of(c), *ended, when=exists()) for c in connections),
            )
        except TransactionCancelled:
            raise NotFound("there is no such source") from None
        self._directory.forget(source_id)
        await self._wakeups.wake(names)

    async def _ensure_alerts(self, user_id: str) -> None:
        """Every account with a source has one more, which tells what went wrong with the rest."""
        source_id = alerts_id(user_id)
        now = iso(self._store.clock())
        source = Source(
            source_id=source_id,
            user_id=user_id,
            name="Waystation alerts",
            provider=ALERTS_PROVIDER,
            created_at=now,
            updated_at=now,
        )
        owner = Owner(thing_id=source_id, user_id=user_id, source_id=source_id)
        if await self._store.get(key_of(source)) is None:
            with suppress(TransactionCancelled):  # somebody else has just created it
                await self._store.transact(Put(source, when=absent()), Put(owner))


def source_place(source: Source) -> str:
    """Sorts sources by age, and that of the alerts behind all others."""
    return f"{source.provider == ALERTS_PROVIDER:d} {source.created_at} {source.source_id}"


def billing_source() -> Source:
    """The source that Stripe calls about the plans of accounts here; it is in no table."""
    return Source(
        source_id=BILLING_ID, user_id=HOUSE, name="Billing", provider="stripe", created_at=""
    )


def alerts_id(user_id: str) -> str:
    """The id of the source that an account's alerts come from."""
    return f"src_alerts-{user_id.removeprefix('usr_')}"


def _verification(given: VerificationInput | None, provider: str) -> str | None:
    return None if given is None else msgspec.json.encode(given.stored(provider)).decode()


def _dedupe(given: Dedupe | None, provider: str) -> str | None:
    if given is None:
        return None
    check_dedupe(given, provider)
    return msgspec.json.encode(given).decode()


def _checked_url(url: str | None) -> str | None:
    if url is None:
        return None
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname)
        good = good and parts.port != 0 and not parts.query and not parts.fragment
    except ValueError:
        good = False
    if not good or len(url) > MAX_URL or not all("!" <= c <= "~" for c in url):
        raise InvalidInput(
            "public_url", "must begin with https:// or http:// and have neither query nor fragment"
        )
    return url.rstrip("/")
