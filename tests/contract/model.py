"""Tables and items that exercise every kind of key, index and attribute."""

from __future__ import annotations

from decimal import Decimal
from enum import StrEnum
from typing import Any

from waystation.store import Index, Item, KeyAttribute, Table

things = Table(
    "things",
    pk="PK",
    sk="SK",
    indexes=[
        Index("GSI1", pk="GSI1PK", sk="GSI1SK"),
        Index("GSI2", pk="GSI2PK", project="keys"),
        Index("GSI3", pk="GSI3PK", sk="GSI3SK", project=["a"]),
    ],
    ttl="expiresAt",
    stream=True,
)


class Thing(
    Item,
    table=things,
    pk="OWNER#{owner}",
    sk="THING#{thing_id}",
    indexes={
        "GSI1": ("COLOUR#{colour}", "WEIGHT#{weight:05d}"),
        "GSI2": "LABEL#{label}",
        "GSI3": ("COLOUR#{colour}", "WEIGHT#{weight:05d}"),
    },
    rename="camel",
):
    owner: str
    thing_id: str
    colour: str | None = None
    weight: int | None = None
    label: str | None = None
    a: Any = None
    b: Any = None
    c: Any = None
    expires_at: int | None = None


class Note(Item, table=things, pk="OWNER#{owner}", sk="NOTE#{at:013d}#{note_id}", rename="camel"):
    owner: str
    at: int
    note_id: str
    text_body: str = ""


counters = Table("counters", pk="counter_id")


class Counter(Item, table=counters, pk="{counter_id}", version="version"):
    counter_id: str
    total: int = 0
    version: int = 0


class Noted(Item, table=counters, pk="NOTED#{name}", key_only=("name",), version="version"):
    name: str
    text: str | None = None
    version: int = 0


readings = Table("readings", pk="sensor", sk=KeyAttribute("at", "N"))


class Reading(Item, table=readings, pk="{sensor}", sk="{at}"):
    sensor: str
    at: Decimal
    value: float = 0.0


digests = Table("digests", pk=KeyAttribute("digest", "B"), sk=KeyAttribute("part", "B"))


class Digest(Item, table=digests, pk="{digest}", sk="{part}"):
    digest: bytes
    part: bytes
    size: int = 0


visits = Table("visits", pk="visit_key", ttl="ttl")


class Visit(
    Item,
    table=visits,
    pk="{team_id}#{user_id}",
    key_only=("team_id", "user_id"),
):
    team_id: str
    user_id: str
    seen: int = 0
    ttl: int | None = None


orders = Table(
    "orders",
    pk="PK",
    sk="SK",
    indexes=[Index("by_status", pk="status", sk="placed"), Index("by_sort", pk="SK", sk="PK")],
    apart=["total", "tags"],
)


class Colour(StrEnum):
    RED = "red"


class Order(
    Item,
    table=orders,
    pk="SHOP#{shop}",
    sk="ORDER#{number}",
    indexes={"by_status": ("{status}", "{placed}"), "by_sort": ("ORDER#{number}", "SHOP#{shop}")},
):
    shop: str
    number: int
    status: str = "new"
    placed: str | None = None
    total: int = 0


class Line(Item, table=orders, pk="SHOP#{shop}", sk="ORDER#{number}#LINE#{line:02d}"):
    shop: str
    number: int
    line: int
    colour: Colour = Colour.RED
    tags: set[str] | None = None


class Palette(Item, table=orders, pk="{colour}", sk="{number}"):
    colour: Colour
    number: str
    name: str


parcels = Table("parcels", pk="PK", ttl="expiresAt", apart=["text"])


class Parcel(Item, table=parcels, pk="PARCEL#{name}", rename="camel"):
    name: str
    text: str | None = None
    state: str = ""
    expires_at: int | None = None


class Formal(Item, table=parcels, pk="FORMAL#{name}", nulls=("reply",)):
    name: str
    text: str | None = None
    reply: str | None = None


TABLES = [things, counters, readings, digests, visits, orders, parcels]
