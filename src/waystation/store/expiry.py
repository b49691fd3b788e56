"""When an item counts as expired."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from waystation.store.tables import Table
    from waystation.store.values import RawItem

IGNORED_AFTER = 5 * 365 * 86_400
"""DynamoDB takes a TTL of more than five years ago for a mistake and never deletes by it."""


def has_expired(table: Table, raw: RawItem, now: int) -> bool:
    """Whether an item is past its TTL."""
    expires = expiry(table, raw)
    return expires is not None and is_past(expires, now)


def is_past(expires: int | float | Decimal, now: int) -> bool:
    return now - IGNORED_AFTER <= expires <= now


def expiry(table: Table, raw: RawItem) -> int | Decimal | None:
    """An item's TTL: a top-level number; anything else is no TTL."""
    found = None if table.ttl is None else raw.get(table.ttl)
    return found if type(found) is int or type(found) is Decimal else None
