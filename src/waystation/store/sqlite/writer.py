"""Group commit: one thread writes for everybody, and one sync makes many writes durable. A process
that has nothing else to do writes on its event loop."""

from __future__ import annotations

import asyncio
import logging
import queue
import sqlite3
import threading
from contextlib import nullcontext
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

from waystation.errors import StoreError, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from waystation.store.sqlite.turns import Turns

R = TypeVar("R")

log = logging.getLogger(__name__)

_MAX_BATCH = 512
_MAX_WAITING = 4096


class _Job:
    """A piece of work, or a statement with its values where there is nothing to decide."""

    __slots__ = ("error", "future", "result", "sql", "values", "work")

    def __init__(
        self,
        future: asyncio.Future[Any],
        work: Callable[[sqlite3.Connection], Any] | None,
        sql: str | None = None,
        values: tuple[Any, ...] = (),
    ) -> None:
        self.future = future
        self.work = work
        self.sql = sql
        self.values = values
        self.result: Any = None
        self.error: BaseException | None = None

    def finish(self) -> None:
        if self.future.done():
            return  # the caller has gone; the write stands
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)


class Writer:
    """Runs jobs in durable transactions, many to a transaction, in the order they came.

    A job decides before it writes: one that raises a StoreError must not have written anything,
    because the others in its transaction are committed all the same.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        look_again: Callable[[sqlite3.Connection], None],
        turns: Turns | None,
    ) -> None:
        """`look_again` runs at the start of a transaction if somebody else may have written since
        it last did, and may refuse it. Without `turns` nobody else writes, and there is nothing to
        wait for: jobs are done on the event loop."""
        self._connection = connection
        self._turns = turns
        self._look_again = look_again
        self._looked = False
        self._loop = asyncio.get_running_loop()
        self._accepted = 0
        self._batch_done: asyncio.Future[None] | None = None
        self._gathered: list[_Job] = []
        self._queue: queue.SimpleQueue[list[_Job]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False
        if turns is not None:
            self._thread = threading.Thread(
                target=self._work, name="waystation-writer", daemon=True
            )
            self._thread.start()

    def run(self, work: Callable[[sqlite3.Connection], R]) -> Awaitable[R]:
        """The result of a job, once it is durable."""
        return self._submit(_Job(self._loop.create_future(), work))

    def execute(self, sql: str, values: tuple[Any, ...]) -> Awaitable[None]:
        """Carry out one statement, durably."""
        return self._submit(_Job(self._loop.create_future(), None, sql, values))

    def _submit(self, job: _Job) -> Awaitable[Any]:
        if self._closed:
            job.future.set_exception(StoreUnavailable("the store is closed"))
            return job.future
        if self._accepted >= _MAX_WAITING:
            return self._submit_later(job)
        if not self._gathered:
            self._loop.call_soon(self._hand_over)
        self._gathered.append(job)
        self._accepted += 1
        return job.future

    async def _submit_later(self, job: _Job) -> Any:
        while self._accepted >= _MAX_WAITING:
            await asyncio.shield(self._room())
        return await self._submit(job)

    def _room(self) -> asyncio.Future[None]:
        """Done when a batch is."""
        if self._batch_done is None:
            self._batch_done = self._loop.create_future()
        return self._batch_done

    def _hand_over(self) -> None:
        """Do all jobs of this turn of the loop at once: one wake-up, one sync."""
        jobs, self._gathered = self._gathered, []
        if not jobs:
            return
        if self._thread is not None:
            self._queue.put(jobs)
        else:
            self._do(jobs)

    def _do(self, jobs: list[_Job]) -> None:
        self._commit(jobs)
        self._finish(jobs)

    async def close(self) -> None:
        """Finish the jobs accepted so far."""
        if self._closed:
            return
        self._closed = True
        await self.leave_thread()
        self._connection.close()
        if self._turns is not None:
            self._turns.close()

    async def leave_thread(self) -> None:
        """Finish what was given to the thread, and do without it from now on: a loop that does
        nothing else need not wake one, and need not be woken by it."""
        self._hand_over()
        if self._thread is not None:
            self._queue.put([])
            await asyncio.to_thread(self._thread.join)
            self._thread = None
            while not self._queue.empty():  # they came meanwhile
                self._do(self._queue.get())

    def _work(self) -> None:
        while jobs := self._queue.get():
            while len(jobs) < _MAX_BATCH and not self._queue.empty():
                more = self._queue.get()
                if not more:
                    self._queue.put(more)
                    break
                jobs = jobs + more
            self._commit(jobs)
            try:
                self._loop.call_soon_threadsafe(self._finish, jobs)
            except RuntimeError:
                return  # the loop has ended, and the callers with it

    def _commit(self, batch: list[_Job]) -> None:
        looked = self._looked
        for job in batch:
            job.error = None
        try:
            self._transaction(batch)
        except Exception as error:  # noqa: BLE001 - every caller must hear of it
            self._roll_back()
            self._looked = False
            if looked and isinstance(error, sqlite3.IntegrityError):
                self._commit(batch)  # somebody may have written who does not take turns
                return
            if len(batch) > 1 and not isinstance(error, sqlite3.OperationalError | StoreError):
                for job in batch:  # one of them is at fault: the others need not suffer
                    self._commit([job])
                return
            for job in batch:
                job.error = _as_store_error(error)

    def _transaction(self, batch: list[_Job]) -> None:
        with self._turns or nullcontext():
            self._write(batch)

    def _write(self, batch: list[_Job]) -> None:
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        self._looked = self._looked and (self._turns is None or self._turns.alone)
        if not self._looked:
            self._look_again(connection)
            self._looked = True
        for sql, jobs in groupby(batch, _sql):
            if sql is not None:
                connection.executemany(sql, [job.values for job in jobs])
            else:
                _decide(jobs, connection)
        connection.execute("COMMIT")

    def _roll_back(self) -> None:
        """Nothing of this transaction was acknowledged, and nothing of it stays."""
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            log.exception("a transaction could not be rolled back")

    def _finish(self, jobs: list[_Job]) -> None:
        for job in jobs:
            job.finish()
        self._accepted -= len(jobs)
        if self._batch_done is not None:
            self._batch_done.set_result(None)
            self._batch_done = None


def _as_store_error(error: Exception) -> StoreError:
    if isinstance(error, StoreError):
        return error
    reported = StoreUnavailable(f"the write failed: {error}")
    reported.__cause__ = error
    return reported


_sql = attrgetter("sql")


def _decide(jobs: Iterable[_Job], connection: sqlite3.Connection) -> None:
    for job in jobs:
        assert job.work is not None
        try:
            job.result = job.work(connection)
        except StoreError as error:
            job.error = error
