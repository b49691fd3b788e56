"""The Stak inbox table, as the document has it, and a table of our own beside it.

A broadcast is stored once, in the public partition; who has read it is a receipt in each reader's
own partition. Receipts have a sort key prefix of their own: under the message's they would fill
message pages and collide with targeted messages. Other services may write theirs there, so that a
row below `m#` in a reader's partition is a message or such a receipt.

Beside the document's rows stand entries, one for each message that the counts contain, in order of
expiry: what has expired is left out of the counts by them, whether or not the database has removed
the message, and taken out of the counters exactly once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from waystation.store import Item, Table

if TYPE_CHECKING:
    from waystation.store import RawItem

PUBLIC: Literal["$public"] = "$public"
MARKS = ("readat", "archivedat", "epoch", "unread_epoch")
"""What a message says about its reader."""

TOTAL = "*"
"""The stats item that counts all categories together."""

inbox = Table("stak-inbox", pk="pk", sk="sk", ttl="expiredat", stream=True)
own = Table("waystation-inbox", pk="pk", sk="sk", ttl="expires_at")


class Audiences(msgspec.Struct, omit_defaults=True):
    """Who a message was sent to. `uids` is not kept on readers' copies."""

    kind: Literal["users", "everyone"]
    label: str | None = None
    uids: list[str] | None = None


class Taxonomy(msgspec.Struct, omit_defaults=True):
    category: str | None = None


class Content(msgspec.Struct, omit_defaults=True):
    title: str
    body: Any = None
    cta_uri: str | None = None


def _message(raw: RawItem, wrong: frozenset[str]) -> dict[str, Any]:
    """Another service's message, with what can be told of it."""
    found: dict[str, Any] = {}
    if "message" in wrong:
        given = raw.get("message")
        parts = given if isinstance(given, dict) else {"title": given}
        found["message"] = {"title": str(parts.get("title") or ""), "body": parts.get("body")}
        if isinstance(link := parts.get("cta_uri"), str):
            found["message"]["cta_uri"] = link
    if raw.get("readat") and not isinstance(raw["readat"], int):
        found["readat"] = 0  # at some time or other
    given = [raw[name] for name in MARKS if raw.get(name) is not None]
    odd = any(isinstance(mark, bool) or not isinstance(mark, int) for mark in given)
    return found | {"odd": odd or None}


def _nothing(raw: RawItem, wrong: frozenset[str]) -> dict[str, Any]:
    """Another service's settings: what does not fit is taken as not said."""
    return {}


def _uncounted(raw: RawItem, wrong: frozenset[str]) -> dict[str, Any]:
    """Counters that cannot be counted on: all is counted anew."""
    return {"epoch": None, "revision": None, "odd": True}


class Settings(
    Item,
    table=inbox,
    pk="t#{tenant_key}",
    sk="st#tenant_settings",
    mend=_nothing,
    kw_only=True,
):
    """A tenant's configuration. `ttl` is a duration such as 30d.

    `uid` is the account that it belongs to, if `claimed`: other services write there what they
    like. User tokens are good for one `token_generation`.
    """

    kind: Literal["TS"] = "TS"
    title: str = ""
    ttl: str = "30d"
    tenant_key: str
    uid: str = ""
    claimed: bool = False
    token_generation: int = 0
    inboxes: int = 0


class InboxConfig(
    Item, table=inbox, pk="t#{tenant_key}", sk="si#{inbox_key}", mend=_nothing, kw_only=True
):
    """An inbox's configuration. `ttl` has a duration by message type, and `default`.

    `categories` are those that messages have had: there is a bound to them.
    """

    kind: Literal["IC"] = "IC"
    title: str = ""
    description: str = ""
    ttl: dict[str, str] = msgspec.field(default_factory=dict)
    tenant_key: str
    inbox_key: str
    uid: str = ""
    categories: set[str] | None = None


class Message(Item, kw_only=True):
    """What messages to one and to everyone have in common.

    Times are epoch milliseconds, `expiredat` seconds. What has no `message` is not one.
    """

    kind: Literal["UM"] = "UM"
    id: str
    host_system_id: str | None = None
    sender: str = ""
    audiences: Audiences | None = None
    received: int | None = None
    delivered: int | None = None
    expiredat: int | None = None
    taxonomy: Taxonomy | None = None
    type: str | None = None
    message: Content | None = None
    tenant_key: str
    inbox_key: str


class UserMessage(
    Message,
    table=inbox,
    pk="t#{tenant_key}U#{uid}#{inbox_key}",
    sk="m#{id}",
    mend=_message,
    kw_only=True,
):
    """A message to one user; or, without a `message`, another service's receipt for a broadcast.

    `epoch` is the reader's when it came, and `unread_epoch` when it was set back to unread. One
    that another service wrote has none until we know of it, and is `odd`, which is never stored,
    if one of these marks is of another kind.
    """

    readat: int | None = None
    archivedat: int | None = None
    epoch: int | None = None
    unread_epoch: int | None = None
    odd: bool | None = None
    uid: str


class PublicMessage(
    Message,
    table=inbox,
    pk="t#{tenant_key}G#$public#{inbox_key}",
    sk="m#{id}",
    mend=_message,
    kw_only=True,
):
    """A message to everyone, stored once."""

    odd: bool | None = None
    uid: Literal["$public"] = PUBLIC
    backfill: bool | None = None
    entered: bool | None = None


class Receipt(Item, table=inbox, pk="t#{tenant_key}U#{uid}#{inbox_key}", sk="r#{id}", kw_only=True):
    """What a user has done with a public message. It lives as long as the message.

    `foreign` says that another service has a receipt of its own for it, which was accounted for.
    """

    tenant_key: str
    uid: str
    inbox_key: str
    id: str
    taxonomy: Taxonomy | None = None
    readat: int | None = None
    archivedat: int | None = None
    deletedat: int | None = None
    unread_epoch: int | None = None
    foreign: bool | None = None
    expiredat: int


class Tombstone(
    Item, table=inbox, pk="t#{tenant_key}U#{uid}#{inbox_key}", sk="x#{id}", kw_only=True
):
    """That a user has deleted a message, so that no repeated publication brings it back."""

    tenant_key: str
    uid: str
    inbox_key: str
    id: str
    expiredat: int


class Entry(
    Item,
    table=inbox,
    pk="t#{tenant_key}U#{uid}#{inbox_key}",
    sk="e#{expires:010d}#{id}",
    kw_only=True,
):
    """That a user's counters contain a message, or a receipt if it is not `own`."""

    tenant_key: str
    uid: str
    inbox_key: str
    expires: int
    id: str
    own: bool = True
    category: str | None = None
    read: bool = False
    epoch: int = 0
    unread_epoch: int | None = None


class PublicEntry(
    Item,
    table=inbox,
    pk="t#{tenant_key}G#$public#{inbox_key}",
    sk="e#{expires:010d}#{id}",
    kw_only=True,
):
    """That the public counters contain a message: all that is needed of it to count."""

    tenant_key: str
    inbox_key: str
    expires: int
    id: str
    number: int
    category: str | None = None
    backfill: bool = False


class Withdrawal(
    Item, table=inbox, pk="t#{tenant_key}G#$public#{inbox_key}", sk="w#{id}", kw_only=True
):
    """That a message to some users is withdrawn, while it still lies with some of them."""

    tenant_key: str
    inbox_key: str
    id: str
    expiredat: int


class UserStats(
    Item,
    table=inbox,
    pk="t#{tenant_key}U#{uid}#{inbox_key}",
    sk="c#{category}",
    key_only=("category",),
    mend=_uncounted,
    kw_only=True,
):
    """A user's counts: of one category, or of all under `TOTAL`.

    `published` and `read` are the document's: a user's own messages that are not archived, and
    what of them, and of public messages, was read. `public_read` is the latter part of `read`, and
    `unseen` counts own messages that are neither read nor seen.

    What came before the epoch `read_epoch`, and public messages up to the number `public_to`, was
    read at once. The rest is on the total only: what came before `seen_epoch`, and public messages
    up to `public_seen_to`, is seen. An `epoch` ends with every change of more than one message,
    `revision` counts all changes, and `floor` is the number of the last public message before the
    user came.
    """

    kind: Literal["US"] = "US"
    category: str = TOTAL
    published: int = 0
    read: int = 0
    public_read: int = 0
    unseen: int = 0
    public_to: int = 0
    read_epoch: int = 0
    epoch: int | None = None
    revision: int | None = None
    floor: int = 0
    seen_epoch: int = 0
    public_seen_to: int = 0
    odd: bool | None = None
    tenant_key: str
    inbox_key: str
    uid: str

    @property
    def unread(self) -> int:
        """How many of the user's own messages are."""
        return self.published - (self.read - self.public_read)


class PublicStats(
    Item,
    table=inbox,
    pk="t#{tenant_key}G#$public#{inbox_key}",
    sk="c#{category}",
    key_only=("category",),
    mend=_uncounted,
    kw_only=True,
):
    """The counts of public messages: of one category, or of all under `TOTAL`.

    The total's `revision` counts all changes. A message's number is the revision that it came with:
    numbers have the order in which messages were stored, which ids of several processes have not.
    """

    kind: Literal["US"] = "US"
    category: str = TOTAL
    published: int = 0
    revision: int | None = None
    odd: bool | None = None
    tenant_key: str
    inbox_key: str
    uid: Literal["$public"] = PUBLIC


class AccountTenants(Item, table=own, pk="ACCOUNT#{account}", sk="TENANTS", kw_only=True):
    """How many tenants an account has."""

    account: str
    count: int = 0


class AccountTenant(
    Item, table=own, pk="ACCOUNT#{account}", sk="TENANT#{tenant_key}", kw_only=True
):
    account: str
    tenant_key: str
    created_at: int


class Member(Item, table=own, pk="MEMBERS#{tenant_key}#{inbox_key}", sk="UID#{uid}", kw_only=True):
    """That a user has been seen in an inbox."""

    tenant_key: str
    inbox_key: str
    uid: str
    joined_at: int


class Publication(Item, table=own, pk="PUBLICATION#{id}", sk="MESSAGE", kw_only=True):
    """A message to users, and how far it has got: `done` is how many lists of users have been
    worked through. `uids` is the first list, if it is a short one; the others are parts. One that
    is withdrawn is taken from them list by list again.
    """

    id: str
    tenant_key: str
    inbox_key: str
    account: str
    status: Literal["publishing", "published", "withdrawing", "withdrawn"]
    host_system_id: str | None = None
    label: str | None = None
    sender: str
    category: str | None = None
    type: str | None = None
    message: Content
    received: int
    uids: list[str] = msgspec.field(default_factory=list)
    parts: int = 0
    done: int = 0
    recipients: int
    delivered: int = 0
    expires_at: int


class Part(Item, table=own, pk="PUBLICATION#{id}", sk="PART#{number:06d}", kw_only=True):
    """Some of a publication's users."""

    id: str
    number: int
    uids: list[str]
    expires_at: int


class PartKey(Item, table=own, pk="PUBLICATION#{id}", sk="USERS#{digest}", kw_only=True):
    """That a list of users was added to a publication: added again, it is the same."""

    id: str
    digest: str
    expires_at: int


class NaturalKey(
    Item, table=own, pk="KEY#{tenant_key}#{inbox_key}#{key_hash}", sk="KEY", kw_only=True
):
    """Which message the host system has sent under an id of its own."""

    tenant_key: str
    inbox_key: str
    key_hash: str
    id: str
    fingerprint: bytes
    expires_at: int


TABLES = [inbox, own]
