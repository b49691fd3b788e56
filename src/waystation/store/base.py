"""The store: what callers use, whatever the engine."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from waystation.errors import (
    CancellationReason,
    ConditionFailed,
    InvalidRequest,
    TransactionCancelled,
    UnreadableItem,
)
from waystation.store.actions import Action, Delete, Update, Write, prepare, prepare_put
from waystation.store.expressions import roots
from waystation.store.items import Item
from waystation.store.queries import Page, Query, encode_cursor
from waystation.store.tables import check_name, scoped_name

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping, Sequence
    from types import TracebackType
    from typing import Self

    from waystation.clock import Clock
    from waystation.store.expressions import Condition
    from waystation.store.feed import ChangeFeed
    from waystation.store.spec import Key, Spec
    from waystation.store.tables import Table
    from waystation.store.updates import Edit
    from waystation.store.values import RawItem

I = TypeVar("I", bound=Item)  # noqa: E741 - I for Item

Returning = Literal["old", "new"]
MAX_ACTIONS = 100
MAX_LIMIT = 2**31 - 1


class Store(ABC):
    """Typed items on an engine.

    Items past their TTL are absent to reads, counts and conditions, whatever the database still
    holds; `expired=True` shows them to the reads that take it.
    """

    most_together = MAX_ACTIONS
    """How many writes this engine makes in one step with `write_together`."""

    near = False
    """Whether a read costs so little that nothing need be remembered to save one."""

    @property
    def writes_here(self) -> bool:
        """Whether it is this process that is busy while something is written."""
        return False

    @property
    def pipelined(self) -> bool:
        """Whether somebody near by carries out transactions, one after the other, so that the next
        may as well be on its way while one is under way."""
        return False

    def __init__(
        self,
        tables: Sequence[Table],
        *,
        env: str,
        clock: Clock,
        names: Mapping[str, str] | None = None,
    ) -> None:
        self.tables = list(dict.fromkeys(tables))
        self.env = env
        self.clock = clock
        self._scoped = {table.name: scoped_name(table, env, names) for table in tables}
        for name in self._scoped.values():
            check_name(name, "a table")

    def table_name(self, table: Table) -> str:
        """The table's name in the database."""
        name = self._scoped.get(table.name)
        if name is None:
            raise InvalidRequest(
                f"table {table.name} is not among those that this store was opened with"
            )
        return name

    # Reading

    @abstractmethod
    async def get(self, key: Key[I], *, consistent: bool = True, expired: bool = False) -> I | None:
        """One item, or None. `consistent=False` is cheaper on DynamoDB and may lag."""

    @abstractmethod
    async def batch_get(self, keys: Sequence[Key[I]], *, consistent: bool = True) -> list[I | None]:
        """Many items, each in its key's place, None where there is none."""

    @abstractmethod
    async def query(
        self,
        query: Query[I],
        *,
        limit: int | None = None,
        after: str | None = None,
        reverse: bool = False,
        where: Condition | None = None,
        consistent: bool | None = None,
        expired: bool = False,
    ) -> Page[I]:
        """A page of items in the order of their sort keys.

        A page ends after `limit` items, counted before the filter, or after 1 MB. Reads are
        consistent unless on an index, where they cannot be.
        """

    @abstractmethod
    async def scan(
        self,
        item: type[I],
        *,
        limit: int | None = None,
        after: str | None = None,
        where: Condition | None = None,
        expired: bool = False,
    ) -> Page[I]:
        """A page of all items of a type, in no particular order."""

    async def count(self, query: Query[Any], *, where: Condition | None = None) -> int:
        """How many items a query finds on all its pages."""
        return len([None async for _ in self.iterate(query, where=where)])

    async def iterate(
        self,
        query: Query[I],
        *,
        reverse: bool = False,
        where: Condition | None = None,
        consistent: bool | None = None,
    ) -> AsyncIterator[I]:
        """Every item of a query, page after page."""
        cursor: str | None = None
        while True:
            page = await self.query(
                query, after=cursor, reverse=reverse, where=where, consistent=consistent
            )
            for item in page.items:
                yield item
            await asyncio.sleep(0)  # the embedded engine reads without ever waiting
            cursor = page.cursor
            if cursor is None:
                return

    def cursor(self, query: Query[I], item: I) -> str:
        """The cursor that goes on after an item, for callers who stop in the middle of a page."""
        spec = item.spec
        return encode_cursor(query.table, query.index, spec.extras(spec.key_of(item), item))

    # Writing

    async def put(
        self, item: I, *, when: Condition | None = None, returning: Literal["old"] | None = None
    ) -> I | None:
        """Write a whole item; returns the one it replaced if asked to."""
        old = await self._write(prepare_put(item, when), returning)
        _count_version(item)
        return None if old is None else cast("I", item.spec.decode(old))

    async def update(
        self,
        key: Key[I],
        *changes: Edit,
        when: Condition | None = None,
        returning: Returning | None = None,
    ) -> I | None:
        """Change some attributes, creating the item when absent; returns old or new if asked to."""
        raw = await self._write(prepare(Update(key, *changes, when=when)), returning)
        return None if raw is None else cast("I", key.spec.decode(raw))

    async def delete(
        self,
        key: Key[I],
        *,
        when: Condition | None = None,
        returning: Literal["old"] | None = None,
    ) -> I | None:
        """Remove an item; returns it if asked to."""
        old = await self._write(prepare(Delete(key, when=when)), returning)
        return None if old is None else cast("I", key.spec.decode(old))

    async def transact(self, *actions: Action | Write, token: str | None = None) -> None:
        """Do all of up to 100 actions on distinct items, or none of them.

        The same token within ten minutes makes a repetition do nothing.
        """
        if not 0 < len(actions) <= MAX_ACTIONS:
            raise InvalidRequest(f"a transaction has 1 to {MAX_ACTIONS} actions")
        if token is not None and not 0 < len(token) <= 36:
            raise InvalidRequest("a transaction token has 1 to 36 characters", field="token")
        await self._checked([prepare(action) for action in actions], token)

    async def write_together(self, *writes: Write) -> None:
        """The same for writes that were prepared, as many as the engine makes in one step."""
        if not 0 < len(writes) <= self.most_together:
            raise InvalidRequest(f"this engine makes 1 to {self.most_together} writes in one step")
        await self._checked(list(writes), None)

    async def _checked(self, writes: list[Write], token: str | None) -> None:
        if len({write.place for write in writes}) != len(writes):
            raise InvalidRequest("a transaction has at most one action per item")
        await self._transact(writes, token)
        for write in writes:
            if write.source is not None and write.key.spec.version is not None:
                _count_version(write.source)

    async def batch_write(
        self, puts: Iterable[Item] = (), deletes: Iterable[Key[Any]] = ()
    ) -> None:
        """Write and remove any number of items. Not atomic; safe to repeat."""
        writes: list[Write] = []
        for item in puts:
            if item.spec.version is not None:
                raise InvalidRequest(f"{type(item).__name__} is versioned: put it by itself")
            writes.append(prepare_put(item, None))
        writes += [prepare(Delete(key)) for key in deletes]
        if len({write.place for write in writes}) != len(writes):
            raise InvalidRequest("a batch names one item twice")
        await self._batch_write(writes)

    @abstractmethod
    def _write(self, write: Write, returning: Returning | None) -> Awaitable[RawItem | None]: ...

    @abstractmethod
    async def _transact(self, writes: list[Write], token: str | None) -> None: ...

    @abstractmethod
    async def _batch_write(self, writes: list[Write]) -> None: ...

    # Upkeep

    def changes(self, table: Table, consumer: str, *, from_now: bool = False) -> ChangeFeed:
        """The changes of a table declared with `stream=True`, for a named consumer.

        With `from_now`, a consumer without a position hears of nothing that came before.
        """
        if not self.follows(table):
            raise InvalidRequest(f"table {table.name} is not declared with stream=True")
        feed = self._feed(table, consumer)
        feed.from_now = from_now
        return feed

    def follows(self, table: Table) -> bool:
        """Whether the changes of a table can be followed here."""
        return bool(table.stream)

    @abstractmethod
    def _feed(self, table: Table, consumer: str) -> ChangeFeed: ...

    @abstractmethod
    async def ensure_tables(self) -> None:
        """Create what is missing and check what is there."""

    @abstractmethod
    async def sweep(self, limit: int = 500) -> int:
        """Remove up to `limit` expired items per table, and say how many went."""

    @abstractmethod
    async def close(self) -> None:
        """Finish what was accepted and let go of the database."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    # Shared by the engines

    def now(self) -> int:
        """The current second, rounded down: TTLs are whole seconds."""
        return int(self.clock())

    def _failed(self, write: Write, old: RawItem | None) -> ConditionFailed:
        return ConditionFailed(
            f"the condition on {write.key} did not hold", item=_readable(write.key.spec, old)
        )

    def _cancelled(
        self,
        writes: Sequence[Write],
        failures: Sequence[tuple[str, str, RawItem | None] | None],
    ) -> TransactionCancelled:
        reasons: list[CancellationReason | None] = []
        for write, failure in zip(writes, failures, strict=True):
            if failure is None:
                reasons.append(None)
            else:
                code, message, old = failure
                item = _readable(write.key.spec, old)
                reasons.append(CancellationReason(code, message, item))
        return TransactionCancelled(reasons)


def _readable(spec: Spec, raw: RawItem | None) -> Any:
    """The item for an error report; an unreadable one must not hide the error itself."""
    try:
        return None if raw is None else spec.decode(raw)
    except UnreadableItem:
        return None


def _count_version(item: Item) -> None:
    version = item.spec.version
    if version is not None:
        setattr(item, version, getattr(item, version) + 1)


def check_page(query: Query[Any] | None, limit: int | None, consistent: bool | None) -> None:
    """Refuse a page that no engine could give."""
    if limit is not None and not 0 < limit <= MAX_LIMIT:
        raise InvalidRequest(f"limit must be from 1 to {MAX_LIMIT}", field="limit")
    if consistent and query is not None and query.index is not None:
        raise InvalidRequest("an index cannot be read consistently", field="consistent")


def resolve_filter(query: Query[Any], where: Condition | None) -> Condition | None:
    """A query's filter by attribute names. It cannot look at the key that the query is by."""
    if where is None:
        return None
    condition = where.resolve(query.specs[0])
    keys = {key.name for key in (query.pk_attribute, query.sk_attribute) if key}
    if looked_at := keys & roots(condition):
        raise InvalidRequest(f"a filter cannot look at the key {min(looked_at)}", field="where")
    return condition


def pick_spec(specs: Iterable[Spec], raw: RawItem) -> Spec | None:
    """The item type whose templates fit a stored item."""
    for spec in specs:
        if spec.matches(raw):
            return spec
    return None
