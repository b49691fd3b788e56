"""Change feeds: what happened to a table's items, at least once and in order per item."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Literal

import msgspec

from waystation.errors import UnreadableItem
from waystation.store.base import pick_spec
from waystation.store.expiry import has_expired
from waystation.store.items import Item
from waystation.store.tables import Table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from waystation.store.values import RawItem

RETENTION_SECONDS = 24 * 3600
CHECKPOINT_SECONDS = 30 * 86_400

log = logging.getLogger(__name__)

checkpoints = Table("waystation-checkpoints", pk="pk", sk="sk", ttl="expires_at")
"""How far each consumer of each change feed has come."""


class Checkpoint(
    Item, table=checkpoints, pk="FEED#{table}#{consumer}", sk="SHARD#{shard}", kw_only=True
):
    table: str
    consumer: str
    shard: str
    sequence: str | None = None
    finished: bool = False
    expires_at: int


class Change(msgspec.Struct, frozen=True):
    """One change of one item. `expired` marks the end of an item that was past its TTL."""

    id: str
    kind: Literal["insert", "modify", "remove"]
    old: Item | None
    new: Item | None
    at: float
    expired: bool = False


class ChangeFeed(ABC):
    """A named consumer's view of a table's changes.

    Read, act, then commit: after a crash in between, the same changes come again. One process
    at a time should read for one consumer name. Changes are kept for 24 hours; `lost` says that
    some went unread for longer.
    """

    def __init__(self, table: Table, consumer: str) -> None:
        self.table = table
        self.consumer = consumer
        self.lost = False

    @abstractmethod
    async def read(self, limit: int = 100) -> list[Change]:
        """The next changes, at most about `limit`; none when there is nothing new."""

    @abstractmethod
    async def commit(self) -> None:
        """Remember that everything read so far was dealt with."""


def typed_changes(
    table: Table, change_id: str, old: RawItem | None, new: RawItem | None, at: float, by_ttl: bool
) -> Iterator[Change]:
    """A stored change as typed ones.

    Writing over an expired item that the database still held is, to users, its expiry and then
    a new item. Items of types that are not declared here are passed over.
    """
    expired = old is not None and (by_ttl or has_expired(table, old, int(at)))
    before, after = _typed(table, old), _typed(table, new)
    if expired and new is not None:
        if before is not None:
            yield Change(change_id + "-expired", "remove", before, None, at, expired=True)
        before = None
    if after is not None:
        yield Change(change_id, "modify" if before is not None else "insert", before, after, at)
    elif before is not None:
        yield Change(change_id, "remove", before, None, at, expired=expired)


def _typed(table: Table, raw: RawItem | None) -> Item | None:
    spec = None if raw is None else pick_spec(table.specs, raw)
    if spec is None or raw is None:
        return None
    try:
        return spec.decode(raw)
    except UnreadableItem as error:
        log.error("a change was passed over: %s", error)  # noqa: TRY400 - the text says it all
        return None
