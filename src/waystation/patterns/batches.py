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
from typing import TYPE_CHECKING, Any, Protocol

from waystation.errors import (
    CancellationReason,
    InvalidRequest,
    Overloaded,
    TransactionCancelled,
)
from waystation.patterns.tallies import summed
from waystation.store import prepare

if TYPE_CHECKING:
    from collections.abc import Sequence

    from waystation.patterns.tallies import Tally
    from waystation.store import Action, Key, Store, Write

_MOST_BYTES = 3 * 1024 * 1024
_FEWEST = 8
"""Where another process writes, a transaction has otherwise at most the mean of what the last one
had and what waits: senders who send again when they have their answer would come in a large and a
small crowd in turn, and with the large one waiting for the disk, there is nothing to do
meanwhile."""

_AT_ONCE = 2
_FEWEST_BESIDE = 24
"""Writes for which a second transaction is asked for there while the first is under way, so that
the other process need not wait for this one. Each costs it half a millisecond, however small."""

_LULL_TURNS = 16
_LULL_SECONDS = 0.005
_QUICK_SECONDS = 0.00004
"""A turn of the loop in which nothing is done."""

MOST_WAITING = 1_000
"""Writes of one line. More would wait for longer than a sender does."""

MOST_WAITING_BYTES = 64 * 1024 * 1024
"""What new writes of all lines may hold in memory."""


class Together(Protocol):
    """Writes that are put together when it is their turn, and may have become more by then."""

    @property
    def key(self) -> Key[Any]:
        """The item that they are about: they are put together once nobody else writes it here."""
        ...

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
        self.keys: list[Any] = [] if together is None else [together.key.place]
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
    """`under_way` are the items that are being written, `last` is how much the last transaction
    had."""

    __slots__ = ("last", "runners", "under_way", "waiting")

    def __init__(self) -> None:
        self.runners = 0
        self.last = 0
        self.under_way: set[Any] = set()
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
        if queue.runners < _AT_ONCE and self._is_worth_it(queue):
            queue.runners += 1
            runner = asyncio.create_task(self._run(line, queue))
            self._runners.add(runner)
            runner.add_done_callback(self._runners.discard)
        return entry.done

    def _is_worth_it(self, queue: _Line, own: int = 0) -> bool:
        """Whether to begin a transaction, with so many runners of one's own."""
        if queue.runners == own:
            return True
        return self._store.pipelined and len(queue.waiting) >= _FEWEST_BESIDE

    async def _run(self, line: str, queue: _Line) -> None:
        try:
            while queue.waiting and self._is_worth_it(queue, own=1):
                if self._store.writes_here:
                    await self._until_quiet()
                batch = self._next_batch(queue)
                if not batch:
                    return  # it waits for the other one
                keys = {key for entry in batch for key in entry.keys}
                queue.under_way |= keys
                try:
                    await self._commit(batch)
                except BaseException as error:
                    for entry in batch:
                        entry.finish(error)
                    if not isinstance(error, Exception):
                        raise
                finally:
                    queue.under_way -= keys
        finally:
            queue.runners -= 1
            if not (queue.waiting or queue.runners):
                self._lines.pop(line, None)

    async def _until_quiet(self) -> None:
        """Wait with all lines until the loop has nothing else to do, but for a moment only. What
        comes meanwhile is in the same transaction, and the thread that writes it need not wait for
        the interpreter's lock again and again."""
        if self._lull is None or self._lull.done():
            self._lull = asyncio.create_task(_lull())
        await asyncio.shield(self._lull)

    def _next_batch(self, queue: _Line) -> list[_Entry]:
        """The next entries that fit into one transaction and touch different items, none of which
        is under way."""
        waiting = queue.waiting
        entries, most = len(waiting), self._store.most_together
        if self._store.pipelined:
            entries = max(_FEWEST, (queue.last + entries + 1) // 2)
        batch: list[_Entry] = []
        keys: set[Any] = set()
        tallied: set[int] = set()
        more = tallied
        before: Sequence[Tally] | None = None
        size = 0
        while waiting and len(batch) < entries:
            entry = waiting[0]
            if not (keys.isdisjoint(entry.keys) and queue.under_way.isdisjoint(entry.keys)):
                break
            if not entry.ready():
                waiting.popleft()
                continue
            if entry.tallies is not before:  # most have the very same
                more = tallied.union(map(id, entry.tallies))
            count = len(keys) + len(entry.keys) + len(more)
            full = count > most or size + entry.size > _MOST_BYTES
            if (batch and (full or not keys.isdisjoint(entry.keys))) or (
                not queue.under_way.isdisjoint(entry.keys)
            ):
                break
            batch.append(waiting.popleft())
            keys.update(entry.keys)
            tallied, before = more, entry.tallies
            size += entry.size
        queue.last = len(batch) or queue.last
        return batch

    async def _commit(self, batch: list[_Entry]) -> None:
        while batch:
            writes = [write for entry in batch for write in entry.actions]
            try:
                tallies = summed(entry.tallies for entry in batch)
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


def _own_reasons(
    entry: _Entry, tallies: list[Tally], reasons: Sequence[CancellationReason | None]
) -> TransactionCancelled:
    split = len(entry.actions)
    by_key = {tally.key: reason for tally, reason in zip(tallies, reasons[split:], strict=True)}
    return TransactionCancelled([*reasons[:split], *(by_key[tally.key] for tally in entry.tallies)])
