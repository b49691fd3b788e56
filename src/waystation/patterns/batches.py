"""Write batches: what many callers write at once, in one transaction with its counters.

Writes that change the same few counters, such as an account's usage of the month, would all wait
for each other as transactions of their own. So whatever is to be written in a line while a
transaction is under way goes together into the next one, and each counter is changed once, by the
sum. Counters and items are in one transaction all the same.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from waystation.errors import (
    CancellationReason,
    InvalidRequest,
    Overloaded,
    TransactionCancelled,
)
from waystation.store import (
    Condition,
    Key,
    Update,
    Write,
    add,
    prepare,
    set_if_absent,
    set_or_remove,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from waystation.store import Action, Store

_MOST_ACTIONS = 90
_MOST_BYTES = 3 * 1024 * 1024
MOST_WAITING = 1_000
"""Writes of one line. More would wait for longer than a sender does."""


class Tally(msgspec.Struct, kw_only=True, gc=False):
    """Additions to one item's counters. Those of many entries become one update.

    `when` makes the update's condition of the sums; `defaults` complete an item that is new.
    """

    key: Key[Any]
    adds: dict[str, int]
    sets: dict[str, object] = msgspec.field(default_factory=dict)
    defaults: dict[str, object] = msgspec.field(default_factory=dict)
    when: Callable[[dict[str, int]], Condition] | None = None
    prepared: Write | None = None
    multiples: dict[int, Tally] = msgspec.field(default_factory=dict)

    def merged(self, other: Tally) -> Tally:
        adds = dict(self.adds)
        for field, number in other.adds.items():
            adds[field] = adds.get(field, 0) + number
        return Tally(
            key=self.key,
            adds=adds,
            sets=self.sets | other.sets,
            defaults=self.defaults | other.defaults,
            when=self.when or other.when,
        )

    def times(self, number: int) -> Tally:
        """This tally `number` times over. It is kept: the same multiples come again and again."""
        if number == 1:
            return self
        multiple = self.multiples.get(number)
        if multiple is None:
            adds = {field: each * number for field, each in self.adds.items()}
            multiple = msgspec.structs.replace(self, adds=adds, prepared=None, multiples={})
            self.multiples[number] = multiple
        return multiple

    def write(self) -> Write:
        """The update, also prepared once."""
        if self.prepared is None:
            self.prepared = prepare(self._action())
        return self.prepared

    def _action(self) -> Update[Any]:
        added = self.adds.items()  # what is set in the same batch wins over what is added
        changes = [add(field, number) for field, number in added if field not in self.sets]
        changes += [set_or_remove(field, value) for field, value in self.sets.items()]
        given = (pair for pair in self.defaults.items() if pair[0] not in self.sets)
        changes += [set_if_absent(field, value) for field, value in given]
        return Update(self.key, *changes, when=self.when(self.adds) if self.when else None)


class _Entry:
    __slots__ = ("actions", "done", "keys", "size", "tallies")

    def __init__(self, actions: Sequence[Action], tallies: Sequence[Tally], size: int) -> None:
        self.actions = [prepare(action) for action in actions]  # what makes no sense ends here
        self.tallies = tallies
        self.size = size
        self.keys = [write.key.place for write in self.actions]
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def finish(self, error: BaseException | None = None) -> None:
        if self.done.done():
            return  # whoever waited has gone
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)


class _Line:
    __slots__ = ("busy", "waiting")

    def __init__(self) -> None:
        self.busy = False
        self.waiting: deque[_Entry] = deque()


class WriteBatches:
    """Writes in lines, such as one for each account: one transaction at a time in each."""

    def __init__(self, store: Store, *, most_waiting: int = MOST_WAITING) -> None:
        self._store = store
        self._most_waiting = most_waiting
        self._lines: dict[str, _Line] = {}
        self._runners: set[asyncio.Task[None]] = set()

    async def write(
        self,
        line: str,
        actions: Sequence[Action],
        tallies: Sequence[Tally],
        size: int = 0,
        *,
        new: bool = False,
    ) -> None:
        """Write all of it or none; durable when this returns.

        TransactionCancelled has the reasons of these actions, and then of these tallies. What is
        `new` is refused when too much waits; what has begun is not.
        """
        entry = _Entry(actions, tallies, size)
        queue = self._lines.setdefault(line, _Line())
        if new and len(queue.waiting) >= self._most_waiting:
            raise Overloaded("too much is waiting to be written", retry_after=1.0)
        queue.waiting.append(entry)
        if not queue.busy:
            queue.busy = True
            runner = asyncio.create_task(self._run(line, queue))
            self._runners.add(runner)
            runner.add_done_callback(self._runners.discard)
        await entry.done

    async def _run(self, line: str, queue: _Line) -> None:
        try:
            while queue.waiting:
                batch = _next_batch(queue.waiting)
                try:
                    await self._commit(batch)
                except BaseException as error:
                    for entry in batch:
                        entry.finish(error)
                    if not isinstance(error, Exception):
                        raise
        finally:
            queue.busy = False
            if not queue.waiting:
                self._lines.pop(line, None)

    async def _commit(self, batch: list[_Entry]) -> None:
        while batch:
            tallies = _summed(batch)
            writes = [write for entry in batch for write in entry.actions]
            try:
                await self._store.transact(*writes, *(tally.write() for tally in tallies))
            except TransactionCancelled as error:
                batch = await self._without_refused(batch, tallies, error.reasons)
            except InvalidRequest:
                if len(batch) == 1:
                    raise
                await self._one_by_one(batch)  # one of them makes no sense
                return
            else:
                for entry in batch:
                    entry.finish()
                return

    async def _without_refused(
        self,
        batch: list[_Entry],
        tallies: list[Tally],
        reasons: Sequence[CancellationReason | None],
    ) -> list[_Entry]:
        """Those to try again without the ones that stood in the way."""
        if len(batch) == 1:
            batch[0].finish(_own_reasons(batch[0], tallies, reasons))
            return []
        kept, at = [], 0
        for entry in batch:
            own = reasons[at : at + len(entry.actions)]
            at += len(entry.actions)
            if any(own):
                entry.finish(TransactionCancelled([*own, *[None] * len(entry.tallies)]))
            else:
                kept.append(entry)
        if len(kept) < len(batch):
            return kept
        await self._one_by_one(kept)  # a counter refused: this shows for whom
        return []

    async def _one_by_one(self, batch: list[_Entry]) -> None:
        for entry in batch:
            try:
                await self._commit([entry])
            except Exception as error:  # noqa: BLE001 - it is the entry's to raise
                entry.finish(error)


def _next_batch(waiting: deque[_Entry]) -> list[_Entry]:
    """The next entries that fit into one transaction and touch different items."""
    batch: list[_Entry] = []
    keys: set[Any] = set()
    tallied: set[int] = set()
    more = tallied
    before: Sequence[Tally] | None = None
    size = 0
    while waiting:
        entry = waiting[0]
        if entry.tallies is not before:  # most have the very same
            more = tallied.union(map(id, entry.tallies))
        count = len(keys) + len(entry.keys) + len(more)
        full = count > _MOST_ACTIONS or size + entry.size > _MOST_BYTES
        if batch and (full or not keys.isdisjoint(entry.keys)):
            break
        batch.append(waiting.popleft())
        keys.update(entry.keys)
        tallied, before = more, entry.tallies
        size += entry.size
    return batch


def _summed(batch: list[_Entry]) -> list[Tally]:
    """Each counter's additions. Most entries of a batch have the very same tallies."""
    lists = {id(entry.tallies): entry.tallies for entry in batch}
    times: Counter[int] = Counter()
    for which, number in Counter(id(entry.tallies) for entry in batch).items():
        for tally in lists[which]:
            times[id(tally)] += number
    found = {id(tally): tally for tallies in lists.values() for tally in tallies}
    sums: dict[Key[Any], Tally] = {}
    for which, number in times.items():
        tally = found[which].times(number)
        before = sums.get(tally.key)
        sums[tally.key] = tally if before is None else before.merged(tally)
    return list(sums.values())


def _own_reasons(
    entry: _Entry, tallies: list[Tally], reasons: Sequence[CancellationReason | None]
) -> TransactionCancelled:
    split = len(entry.actions)
    by_key = {tally.key: reason for tally, reason in zip(tallies, reasons[split:], strict=True)}
    return TransactionCancelled([*reasons[:split], *(by_key[tally.key] for tally in entry.tallies)])
