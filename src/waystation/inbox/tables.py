"""The Stak inbox table.

One table holds everything. A broadcast is stored once, in the public partition; who has read it
is a receipt in each reader's own partition. Receipts have a sort key prefix of their own: under
the message's they would fill message pages and collide with targeted messages.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from waystation.store import Item, Table

PUBLIC = "$public"
TOTAL = "*"
"""The stats item that counts all categories together."""

inbox = Table("stak-inbox", pk="pk", sk="sk", ttl="expiredat", stream=True)


class Audiences(msgspec.Struct, omit_defaults=True):
    """Who a message was sent to. `uids` is not kept on readers' copies."""

    kind: Literal["users", "everyone"]
    label: str | None = None
    uids: list[str] | None = None


class Taxonomy(msgspec.Struct, omit_defaults=True):
    category: str | None = None


class Content(msgspec.Struct, omit_defaults=True):
    title: str
    body: Any
    cta_uri: str | None = None


class Settings(Item, table=inbox, pk="t#{tenant_key}", sk="st#tenant_settings", kw_only=True):
    """A tenant's configuration. `ttl` is a duration such as 30d."""

    kind: Literal["TS"] = "TS"
    title: str
    ttl: str
    tenant_key: str
    uid: str


class InboxConfig(Item, table=inbox, pk="t#{tenant_key}", sk="si#{inbox_key}", kw_only=True):
    """An inbox's configuration. `ttl` has a duration by message type, and `default`."""

    kind: Literal["IC"] = "IC"
    title: str
    description: str
    ttl: dict[str, str]
    tenant_key: str
    inbox_key: str
    uid: str


class Message(Item, kw_only=True):
    """What messages to one and to everyone have in common.

    Times are epoch milliseconds, `expiredat` seconds.
    """

    kind: Literal["UM"] = "UM"
    id: str
    host_system_id: str | None = None
    sender: str
    audiences: Audiences
    received: int
    delivered: int
    expiredat: int
    taxonomy: Taxonomy | None = None
    message: Content
    tenant_key: str
    inbox_key: str


class UserMessage(
    Message, table=inbox, pk="t#{tenant_key}U#{uid}#{inbox_key}", sk="m#{id}", kw_only=True
):
    """A message to one user."""

    readat: int | None = None
    uid: str


class PublicMessage(
    Message, table=inbox, pk="t#{tenant_key}G#$public#{inbox_key}", sk="m#{id}", kw_only=True
):
    """A message to everyone, stored once."""

    uid: Literal["$public"] = "$public"


class Receipt(
    Item,
    table=inbox,
    pk="t#{tenant_key}U#{uid}#{inbox_key}",
    sk="r#{id}",
    key_only=("tenant_key", "uid", "inbox_key", "id"),
    kw_only=True,
):
    """That a user has read a public message."""

    tenant_key: str
    uid: str
    inbox_key: str
    id: str
    taxonomy: Taxonomy | None = None
    readat: int
    expiredat: int


class UserStats(
    Item,
    table=inbox,
    pk="t#{tenant_key}U#{uid}#{inbox_key}",
    sk="c#{category}",
    key_only=("category",),
    kw_only=True,
):
    """A user's counts: of one category, or of all under `TOTAL`."""

    kind: Literal["US"] = "US"
    category: str = TOTAL
    published: int = 0
    read: int = 0
    tenant_key: str
    inbox_key: str
    uid: str


class PublicStats(
    Item,
    table=inbox,
    pk="t#{tenant_key}G#$public#{inbox_key}",
    sk="c#{category}",
    key_only=("category",),
    kw_only=True,
):
    """The counts of public messages: of one category, or of all under `TOTAL`."""

    kind: Literal["US"] = "US"
    category: str = TOTAL
    published: int = 0
    tenant_key: str
    inbox_key: str
    uid: Literal["$public"] = "$public"


TABLES = [inbox]
