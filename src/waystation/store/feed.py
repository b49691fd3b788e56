"""Change feeds: what happened to a table's items, at least once and in order per item."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from waystation.errors import UnreadableItem
from waystation.store.actions import Put
from waystation.store.base import pick_spec
from waystation.store.expiry import has_expired
from waystation.store.items import Item
from waystation.store.tables import Table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from waystation.store.actions import Check
    from waystation.store.base import Store
    from waystation.store.values import RawItem

RETENTION_SECONDS = 24 * 3600
_POSITIONS_AT_ONCE = 50
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


class FeedHolder(Item, table=checkpoints, pk="FEED#{table}#{consumer}", sk="HOLDER", kw_only=True):
    """The lease on reading for a consumer: one process at a time does."""

    table: str
    consumer: str
    lease_token: str | None = None
    lease_expires_at: int | None = None
    fence: int = 0
    expires_at: int | None = None


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

    idle_seconds = 0.1
    """How long to wait before another read when there was nothing new."""

    def __init__(self, store: Store, table: Table, consumer: str) -> None:
        self.table = table
        self.consumer = consumer
        self.lost = False
        self.moved = False
        """Whether the last read came to anything, be it items of types that are not declared."""
        self.from_now = False
        """Whether what came before a consumer's first read is passed over."""
        self._saver = store

    @abstractmethod
    async def read(self, limit: int = 100) -> list[Change]:
        """The next changes, at most about `limit`; none when there is nothing new."""

    @abstractmethod
    async def commit(self, *guards: Check[Any]) -> None:
        """Remember that everything read so far was dealt with. Costs nothing when nothing was read.

        The position moves only where the guards hold: TransactionCancelled says that they do not.
        """

    async def _save(self, positions: list[Checkpoint], guards: tuple[Check[Any], ...]) -> None:
        if not guards:
            for position in positions:
                await self._saver.put(position)
            return
        for start in range(0, len(positions), _POSITIONS_AT_ONCE):
            some = positions[start : start + _POSITIONS_AT_ONCE]
            await self._saver.transact(*(Put(position) for position in some), *guards)


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
