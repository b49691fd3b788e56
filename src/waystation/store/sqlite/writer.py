"""Group commit: one thread writes for everybody, and one sync makes many writes durable."""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from waystation.errors import StoreError, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

R = TypeVar("R")

_MAX_BATCH = 512
_MAX_WAITING = 4096


class _Job:
    __slots__ = ("error", "future", "loop", "result", "work")

    def __init__(
        self,
        work: Callable[[sqlite3.Connection], Any],
        loop: asyncio.AbstractEventLoop,
        future: asyncio.Future[Any],
    ) -> None:
        self.work = work
        self.loop = loop
        self.future = future
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

    def __init__(self, connection: sqlite3.Connection, *, threaded: bool) -> None:
        self._connection = connection
        self._waiting = asyncio.Semaphore(_MAX_WAITING)
        self._queue: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False
        if threaded:
            self._thread = threading.Thread(target=self._work, name="waystation-writer", daemon=True)
            self._thread.start()

    async def run(self, work: Callable[[sqlite3.Connection], R]) -> R:
        """The result of a job, once it is durable."""
        async with self._waiting:
            if self._closed:
                raise StoreUnavailable("the store is closed")
            loop = asyncio.get_running_loop()
            job = _Job(work, loop, loop.create_future())
            if self._thread is None:
                self._commit([job])
                job.finish()
            else:
                self._queue.put(job)
            result: R = await job.future
            return result

    async def close(self) -> None:
        """Finish the jobs accepted so far."""
        if self._closed:
            return
        self._closed = True
        if self._thread is not None:
            self._queue.put(None)
            await asyncio.to_thread(self._thread.join)
        self._connection.close()

    def _work(self) -> None:
        while True:
            batch, last = self._next_batch()
            if batch:
                self._commit(batch)
                _finish(batch)
            if last:
                return

    def _next_batch(self) -> tuple[list[_Job], bool]:
        batch: list[_Job] = []
        job = self._queue.get()
        while job is not None:
            batch.append(job)
            if len(batch) == _MAX_BATCH:
                return batch, False
            try:
                job = self._queue.get_nowait()
            except queue.Empty:
                return batch, False
        return batch, True

    def _commit(self, batch: list[_Job]) -> None:
        connection = self._connection
        try:
            connection.execute("BEGIN IMMEDIATE")
            for job in batch:
                try:
                    job.result = job.work(connection)
                except StoreError as error:
                    job.error = error
            connection.execute("COMMIT")
        except BaseException as error:  # noqa: BLE001 - every caller must hear of it
            self._fail(batch, error)

    def _fail(self, batch: list[_Job], error: BaseException) -> None:
        """Nothing of this transaction was acknowledged, and nothing of it stays."""
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")
        for job in batch:
            job.error = StoreUnavailable(f"the write failed: {error}")
            job.error.__cause__ = error


def _finish(batch: list[_Job]) -> None:
    by_loop: dict[asyncio.AbstractEventLoop, list[_Job]] = {}
    for job in batch:
        by_loop.setdefault(job.loop, []).append(job)
    for loop, jobs in by_loop.items():
        try:
            loop.call_soon_threadsafe(_finish_all, jobs)
        except RuntimeError:
            continue  # that loop has ended, and its callers with it


def _finish_all(jobs: list[_Job]) -> None:
    for job in jobs:
        job.finish()
