"""Write batches: what many callers write at once, in one transaction with its counters.

Writes that change the same few counters, such as an account's usage of the month, would all wait
for each other as transactions of their own. So whatever is to be written in a line while a
transaction is under way goes together into the next one, and each counter is changed once, by the
sum. Counters and items are in one transaction all the same.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from waystation.errors import (
    CancellationReason,
    InvalidRequest,
    Overloaded,
    TransactionCancelled,
)
from waystation.patterns.bounded import Newest
from waystation.store import (
    Condition,
    Key,
    Update,
    Write,
    add,
    prepare,
    set_if_absent,
    set_or_remove,
    with_sums,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from waystation.store import Action, Store

_MOST_BYTES = 3 * 1024 * 1024
_MOST_TEMPLATES = 4_096
_MOST_MULTIPLE = 64
_FEWEST = 8
"""Where another process writes, a transaction has otherwise at most the mean of what the last one
had and what waits: senders who send again when they have their answer would come in a large and a
small crowd in turn, and with the large one waiting for the disk, there is nothing to do
meanwhile."""

_LULL_TURNS = 16
_LULL_SECONDS = 0.005
_QUICK_SECONDS = 0.00004
"""A turn of the loop in which nothing is done."""

MOST_WAITING = 1_000
"""Writes of one line. More would wait for longer than a sender does."""

MOST_WAITING_BYTES = 64 * 1024 * 1024
"""What new writes of all lines may hold in memory."""


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
    template: Write | None = None
    """What it is like, but for its sums. What it sets is often of a moment: then nobody but its
    multiples has the same."""

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
        """This tally `number` times over. Small multiples are kept: they come again and again."""
        if number == 1:
            return self
        multiple = self.multiples.get(number)
        if multiple is None:
            adds = {field: each * number for field, each in self.adds.items()}
            self._take_template()
            multiple = msgspec.structs.replace(self, adds=adds, prepared=None, multiples={})
            if number <= _MOST_MULTIPLE:
                self.multiples[number] = multiple
        return multiple

    def write(self) -> Write:
        """The update, also prepared once. Most differ from others in their sums only."""
        if self.prepared is None:
            condition = self.when(self.adds) if self.when else None
            sums = [n for field, n in self.adds.items() if field not in self.sets]
            self.prepared = with_sums(self._take_template(), sums, condition)
        return self.prepared

    def _take_template(self) -> Write:
        if self.template is None and self.sets:
            self.template = prepare(self._action())
        elif self.template is None:
            shape = (self.key.place, *self.adds, *self.defaults.items())
            self.template = _templates.get(shape)
            if self.template is None:
                self.template = _templates[shape] = prepare(self._action())
        return self.template

    def _action(self) -> Update[Any]:
        added = self.adds.items()  # what is set in the same batch wins over what is added
        changes = [add(field, number) for field, number in added if field not in self.sets]
        changes += [set_or_remove(field, value) for field, value in self.sets.items()]
        given = (pair for pair in self.defaults.items() if pair[0] not in self.sets)
        changes += [set_if_absent(field, value) for field, value in given]
        return Update(self.key, *changes, when=self.when(self.adds) if self.when else None)


_templates: Newest[tuple[Any, ...], Write] = Newest(_MOST_TEMPLATES)


class Together(Protocol):
    """Writes that are put together when it is their turn, and may have become more by then."""

    def build(self) -> tuple[Sequence[Action | Write], Sequence[Tally]]:
        """What to write. It is called once for each try."""
        ...

    def written(self) -> None:
        """All of it is durable. What is built after this may rely on it."""
        ...


class _Held:
    """What waits to be written, or is being written."""

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes = 0


class _Entry:
    __slots__ = ("actions", "done", "held", "keys", "size", "tallies", "together")

    def __init__(
        self,
        held: _Held,
        done: asyncio.Future[None],
        actions: Sequence[Action | Write],
        tallies: Sequence[Tally],
        size: int,
        together: Together | None = None,
    ) -> None:
        self.held = held
        self.together = together
        self.size = size
        self.done = done
        self.actions: list[Write] = []
        self.keys: list[Any] = []
        self.tallies: Sequence[Tally] = ()
        if together is None:
            self._prepare(actions, tallies)  # what makes no sense ends here
        held.bytes += size

    def _prepare(self, actions: Sequence[Action | Write], tallies: Sequence[Tally]) -> None:
        self.actions = [prepare(action) for action in actions]
        self.keys = [write.place for write in self.actions]
        self.tallies = tallies

    def ready(self) -> bool:
        """Whether there is something to write, now that it is its turn."""
        if self.together is None or self.actions:
            return True
        try:
            self._prepare(*self.together.build())
        except Exception as error:  # noqa: BLE001 - it is the entry's to raise
            self.finish(error)
            return False
        if not self.actions:
            self.finish()
        return bool(self.actions)

    def finish(self, error: BaseException | None = None) -> None:
        self.held.bytes -= self.size
        self.size = 0
        if error is None and self.together is not None:
            self.together.written()
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

    def __init__(
        self,
        store: Store,
        *,
        most_waiting: int = MOST_WAITING,
        most_bytes: int = MOST_WAITING_BYTES,
    ) -> None:
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._most_waiting = most_waiting
        self._most_bytes = most_bytes
        self._held = _Held()
        self._lines: dict[str, _Line] = {}
        self._runners: set[asyncio.Task[None]] = set()
        self._lull: asyncio.Task[None] | None = None

    def write(
        self,
        line: str,
        actions: Sequence[Action | Write],
        tallies: Sequence[Tally],
        size: int = 0,
        *,
        new: bool = False,
    ) -> asyncio.Future[None]:
        """Write all of it or none; durable when this is done.

        TransactionCancelled has the reasons of these actions, and then of these tallies. What is
        `new` is refused when too much waits; what has begun is not.
        """
        if new and self._is_full(line):
            raise Overloaded("too much is waiting to be written", retry_after=1.0)
        done = self._loop.create_future()
        return self._add(line, _Entry(self._held, done, actions, tallies, size))

    def write_together(self, line: str, together: Together, size: int = 0) -> asyncio.Future[None]:
        """The same for what is put together when it is its turn."""
        done = self._loop.create_future()
        return self._add(line, _Entry(self._held, done, (), (), size, together))

    def _is_full(self, line: str) -> bool:
        queue = self._lines.get(line)
        waiting = 0 if queue is None else len(queue.waiting)
        return waiting >= self._most_waiting or self._held.bytes >= self._most_bytes

    def _add(self, line: str, entry: _Entry) -> asyncio.Future[None]:
        queue = self._lines.get(line)
        if queue is None:
            queue = self._lines[line] = _Line()
        queue.waiting.append(entry)
        if not queue.busy:
            queue.busy = True
            runner = asyncio.create_task(self._run(line, queue))
            self._runners.add(runner)
            runner.add_done_callback(self._runners.discard)
        return entry.done

    async def _run(self, line: str, queue: _Line) -> None:
        last = 0
        try:
            while queue.waiting:
                if self._store.writes_here:
                    await self._until_quiet()
                most = len(queue.waiting)
                if self._store.near and not self._store.writes_here:
                    most = max(_FEWEST, (last + most + 1) // 2)
                batch = _next_batch(queue.waiting, self._store.most_together, most)
                last = len(batch)
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

    async def _until_quiet(self) -> None:
        """Wait with all lines until the loop has nothing else to do, but for a moment only. What
        comes meanwhile is in the same transaction, and the thread that writes it need not wait for
        the interpreter's lock again and again."""
        if self._lull is None or self._lull.done():
            self._lull = asyncio.create_task(_lull())
        await asyncio.shield(self._lull)

    async def _commit(self, batch: list[_Entry]) -> None:
        while batch:
            writes = [write for entry in batch for write in entry.actions]
            try:
                tallies = _summed(batch)
                writes += [tally.write() for tally in tallies]
                await self._store.write_together(*writes)
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


async def _lull() -> None:
    begun = now = time.perf_counter()
    quick = 0
    for _ in range(_LULL_TURNS):
        await asyncio.sleep(0)
        before, now = now, time.perf_counter()
        quick = quick + 1 if now - before < _QUICK_SECONDS else 0
        if quick == 2 or now - begun > _LULL_SECONDS:
            return


def _next_batch(waiting: deque[_Entry], most: int, entries: int) -> list[_Entry]:
    """The next entries that fit into one transaction and touch different items, but no more than
    so many."""
    batch: list[_Entry] = []
    keys: set[Any] = set()
    tallied: set[int] = set()
    more = tallied
    before: Sequence[Tally] | None = None
    size = 0
    while waiting and len(batch) < entries:
        entry = waiting[0]
        if not entry.ready():
            waiting.popleft()
            continue
        if entry.tallies is not before:  # most have the very same
            more = tallied.union(map(id, entry.tallies))
        count = len(keys) + len(entry.keys) + len(more)
        full = count > most or size + entry.size > _MOST_BYTES
        if batch and (full or not keys.isdisjoint(entry.keys)):
            break
        batch.append(waiting.popleft())
        keys.update(entry.keys)
        tallied, before = more, entry.tallies
        size += entry.size
    return batch


def _summed(batch: list[_Entry]) -> list[Tally]:
    """Each counter's additions. Most entries of a batch have the very same tallies."""
    lists: dict[int, tuple[int, Sequence[Tally]]] = {}
    for entry in batch:
        number, _ = lists.get(id(entry.tallies), (0, ()))
        lists[id(entry.tallies)] = (number + 1, entry.tallies)
    times: dict[int, tuple[int, Tally]] = {}
    for number, tallies in lists.values():
        for tally in tallies:
            already, _ = times.get(id(tally), (0, None))
            times[id(tally)] = (already + number, tally)
    sums: dict[Key[Any], Tally] = {}
    for number, one in times.values():
        tally = one.times(number)
        before = sums.get(tally.key)
        sums[tally.key] = tally if before is None else before.merged(tally)
    return list(sums.values())


def _own_reasons(
    entry: _Entry, tallies: list[Tally], reasons: Sequence[CancellationReason | None]
) -> TransactionCancelled:
    split = len(entry.actions)
    by_key = {tally.key: reason for tally, reason in zip(tallies, reasons[split:], strict=True)}
    return TransactionCancelled([*reasons[:split], *(by_key[tally.key] for tally in entry.tallies)])
