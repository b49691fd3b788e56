"""The embedded queue against raw SQLite: send, receive and acknowledge, each step durable."""

from __future__ import annotations

import asyncio
import os
import queue
import sqlite3
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.harness import Contender, Result, environment, measure, save
from benchmarks.store import callers_of
from waystation.queues import Queue, QueueSpec, open_queues
from waystation.store import open_store

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))
VALUE = {"event_id": "evt_0123456789abcdef", "source_id": "src_0123456789abcdef", "attempt": 1}
BODY = b'{"event_id":"evt_0123456789abcdef","source_id":"src_0123456789abcdef","attempt":1}'
PLAIN = QueueSpec(name="plain", visibility=600)
ORDERED = QueueSpec(name="ordered", ordered=True, visibility=600)
DEEP = QueueSpec(name="deep", visibility=600)


class RawQueue:
    """The least that a durable queue on SQLite can be: one table, one index, one writing thread."""

    def __init__(self, path: Path) -> None:
        self._loop = asyncio.get_running_loop()
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "wal_autocheckpoint=1000"):
            self._connection.execute(f"PRAGMA {pragma}")
        self._connection.execute(
            "CREATE TABLE m (seq INTEGER PRIMARY KEY, body BLOB NOT NULL, visible_at REAL NOT NULL)"
        )
        self._connection.execute("CREATE INDEX mv ON m (visible_at, seq)")
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()
        self._connection.close()

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            jobs = [job]
            while len(jobs) < 512 and not self._queue.empty():
                jobs.append(self._queue.get())
            self._connection.execute("BEGIN IMMEDIATE")
            results = [work(self._connection) for work, _ in jobs]
            self._connection.execute("COMMIT")
            self._loop.call_soon_threadsafe(self._finish, jobs, results)

    def _finish(self, jobs: list[Any], results: list[Any]) -> None:
        for (_, future), result in zip(jobs, results, strict=True):
            future.set_result(result)

    def _run(self, work: Any) -> asyncio.Future[Any]:
        future = self._loop.create_future()
        self._queue.put((work, future))
        return future

    def send(self) -> asyncio.Future[Any]:
        return self._run(
            lambda c: c.execute(
                "INSERT INTO m (body, visible_at) VALUES (?, ?)", (BODY, time.time())
            )
        )

    def receive(self) -> asyncio.Future[Any]:
        def work(connection: sqlite3.Connection) -> Any:
            now = time.time()
            row = connection.execute(
                "SELECT seq, body FROM m WHERE visible_at<=? ORDER BY visible_at, seq LIMIT 1",
                (now,),
            ).fetchone()
            connection.execute("UPDATE m SET visible_at=? WHERE seq=?", (now + 600, row[0]))
            return row

        return self._run(work)

    def ack(self, seq: int) -> asyncio.Future[Any]:
        return self._run(lambda c: c.execute("DELETE FROM m WHERE seq=?", (seq,)))

    def sends(self, callers: int) -> Any:
        async def one() -> None:
            await self.send()

        return callers_of(one, callers)

    def round_trips(self, callers: int) -> Any:
        async def one() -> None:
            await self.send()
            row = await self.receive()
            await self.ack(row[0])

        return callers_of(one, callers)


def sends(target: Queue, callers: int) -> Any:
    async def one() -> None:
        await target.send(VALUE)

    return callers_of(one, callers)


def round_trips(target: Queue, callers: int, groups: int = 0) -> Any:
    sent = 0

    async def one() -> None:
        nonlocal sent
        sent += 1
        await target.send(VALUE, group=f"g{sent % groups}" if groups else None)
        messages = await target.receive(1, wait=5)
        for message in messages:
            await target.ack(message)

    return callers_of(one, callers)


async def compare(path: Path) -> list[Result]:
    results = []
    raw = RawQueue(path / "raw.db")
    async with await open_store(f"sqlite:///{path / 'ours.db'}", []) as store:
        queues = await open_queues("embedded", [PLAIN, ORDERED, DEEP], store)
        for callers, count in ((1, 600), (32, 6_000)):
            plain = queues[PLAIN]
            results.append(
                await measure(
                    f"send, {callers} callers",
                    [
                        Contender("raw", raw.sends(callers), count),
                        Contender("ours", sends(plain, callers), count),
                    ],
                    ROUNDS,
                )
            )
            contenders = [
                Contender("raw", raw.round_trips(callers), count),
                Contender("ours", round_trips(plain, callers), count),
            ]
            if callers > 1:
                grouped = round_trips(queues[ORDERED], callers, groups=1000)
                contenders.append(Contender("ours, ordered", grouped, count))
            name = f"send, receive and acknowledge, {callers} callers"
            results.append(await measure(name, contenders, ROUNDS))
    raw.close()
    return results


async def growth(path: Path) -> list[tuple[int, float]]:
    """Round trips beside so many waiting messages."""
    figures = []
    async with await open_store(f"sqlite:///{path / 'deep.db'}", []) as store:
        deep = (await open_queues("embedded", [DEEP], store))[DEEP]
        waiting = 0
        for size in (1_000, 100_000, 1_000_000):
            while waiting < size:
                batch = min(4_000, size - waiting)
                await asyncio.gather(*(deep.send(VALUE) for _ in range(batch)))
                waiting += batch
            run = round_trips(deep, 32)
            result = await measure(f"{size} waiting", [Contender("ours", run, 6_000)], ROUNDS)
            figures.append((size, result.rate("ours")))
    return figures


def report(results: list[Result], growths: list[tuple[int, float]]) -> str:
    where = environment()
    lines = [
        "# The embedded queue, measured",
        "",
        f"`make bench` on {where['cores']} cores, {where['system']} {where['machine']}, Python"
        f" {where['python']}, {where['date']}; {ROUNDS} rounds, contenders interleaved in each. "
        "Every send, receive and acknowledgement is durable before the next step. Raw SQLite is "
        "one table, one index and a group-committing thread: no groups, receipts, counts or dead "
        "letters.",
        "",
        "| operation | contender | per second | of raw SQLite | CPU |",
        "|---|---|---:|---:|---:|",
    ]
    for result in results:
        for name in result.figures:
            ratio = "" if name == "raw" else f"{result.ratio(name, 'raw'):.2f}"
            lines.append(
                f"| {result.operation} | {name} | {result.rate(name):,.0f} | {ratio} | "
                f"{result.cpu_us(name):,.0f} µs |"
            )
    lines += [
        "",
        "## Growth",
        "",
        "Send, receive and acknowledge with 32 callers, beside messages that wait:",
        "",
        "| waiting | per second |",
        "|---:|---:|",
        *(f"| {size:,} | {rate:,.0f} |" for size, rate in growths),
        "",
        "Finding the next message is one step in an index, however many wait and however many "
        "groups there are. `depth` counts every message, off the event loop.",
        "",
    ]
    return "\n".join(lines)


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        results = await compare(Path(folder))
        growths = await growth(Path(folder))
    data = {
        "environment": environment(),
        "rates": {r.operation: {n: r.rate(n) for n in r.figures} for r in results},
        "growth": growths,
    }
    save("queues", report(results, growths), data)


if __name__ == "__main__":
    asyncio.run(main())
