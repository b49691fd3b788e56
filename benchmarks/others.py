"""The other contenders: SQLite itself, boto3, PynamoDB and moto's server."""

from __future__ import annotations

import asyncio
import queue
import random
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

import boto3
from botocore.config import Config
from pynamodb.attributes import NumberAttribute, UnicodeAttribute
from pynamodb.connection import Connection as PynamoConnection
from pynamodb.models import Model
from pynamodb.transactions import TransactWrite
from tests.support.dynamodb_local import free_port

from waystation.accounts.tables import main
from waystation.relay.tables import Connection
from waystation.store import key_of, values
from waystation.store.dynamodb.tables import definition

if TYPE_CHECKING:
    from pathlib import Path

Make = Callable[[int], Connection]
TABLE = "dev-ferryhook-main"
PER_SOURCE = 50
THREADS = 32
_INSERT = "INSERT INTO t (pk, sk, body) VALUES (?, ?, ?)"


def stored(item: Connection) -> dict[str, Any]:
    """An item's attributes as they are stored."""
    return item.spec.encode(key_of(item), item)


class RawSqlite:
    """SQLite with the least around it: rows made ready, a thread that commits groups durably."""

    def __init__(self, path: Path, make: Make) -> None:
        self._body = values.pack(stored(make(1)))
        self._next = 10_000_000
        self._loop = asyncio.get_running_loop()
        self._reader = self._connect(path)
        # The same columns and indexes as ours: what the tables' access patterns need.
        self._reader.execute(
            "CREATE TABLE t (pk NOT NULL, sk NOT NULL, body BLOB NOT NULL, expires, "
            "g1pk, g1sk, g2pk, g2sk, g3pk, g3sk, PRIMARY KEY (pk, sk))"
        )
        for n in (1, 2, 3):
            self._reader.execute(
                f"CREATE INDEX t{n} ON t (g{n}pk, g{n}sk, pk, sk) WHERE g{n}pk IS NOT NULL"
            )
        self._writer = self._connect(path)
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _connect(self, path: Path) -> sqlite3.Connection:
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "wal_autocheckpoint=1000"):
            connection.execute(f"PRAGMA {pragma}")
        connection.execute("PRAGMA mmap_size=2147418112")
        return connection

    def _row(self) -> tuple[str, str, bytes]:
        self._next += 1
        n = self._next
        return f"SRC#src_{n // PER_SOURCE:012d}", f"CONN#conn_{n:012d}", self._body

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            jobs = [job]
            while len(jobs) < 512 and not self._queue.empty():
                jobs.append(self._queue.get())
            self._writer.execute("BEGIN IMMEDIATE")
            for sql, rows, _ in jobs:
                for row in rows:
                    self._writer.execute(sql, row)
            self._writer.execute("COMMIT")
            self._loop.call_soon_threadsafe(self._finish, jobs)

    def _finish(self, jobs: list[Any]) -> None:
        for _, _, future in jobs:
            future.set_result(None)

    def _writing(self, sql: str, rows: int, callers: int) -> Any:
        async def run(count: int) -> None:
            left = count

            async def caller() -> None:
                nonlocal left
                while left > 0:
                    left -= 1
                    future = self._loop.create_future()
                    self._queue.put((sql, [self._row() for _ in range(rows)], future))
                    await future

            await asyncio.gather(*(caller() for _ in range(callers)))

        return run

    async def load(self, count: int) -> None:
        rows = [
            (f"SRC#src_{n // PER_SOURCE:012d}", f"CONN#conn_{n:012d}", self._body)
            for n in range(count)
        ]
        self._reader.execute("BEGIN")
        self._reader.executemany(_INSERT, rows)
        self._reader.execute("COMMIT")
        self._loaded = count

    async def get(self, count: int) -> None:
        for _ in range(count):
            n = random.randrange(self._loaded)
            key = (f"SRC#src_{n // PER_SOURCE:012d}", f"CONN#conn_{n:012d}")
            assert self._reader.execute("SELECT body FROM t WHERE pk=? AND sk=?", key).fetchone()

    async def query(self, count: int) -> None:
        for _ in range(count):
            pk = f"SRC#src_{random.randrange(self._loaded // PER_SOURCE):012d}"
            rows = self._reader.execute(
                "SELECT body FROM t WHERE pk=? AND sk>=? AND sk<? ORDER BY sk LIMIT 25",
                (pk, "CONN#", "CONN$"),
            ).fetchall()
            assert len(rows) == 25

    def put(self, callers: int) -> Any:
        upsert = f"{_INSERT} ON CONFLICT (pk, sk) DO UPDATE SET body=excluded.body"
        return self._writing(upsert, 1, callers)

    def put_if_absent(self, callers: int) -> Any:
        return self._writing(f"{_INSERT} ON CONFLICT DO NOTHING", 1, callers)

    def transact(self, callers: int) -> Any:
        return self._writing(f"{_INSERT} ON CONFLICT DO NOTHING", 4, callers)

    async def close(self) -> None:
        self._queue.put(None)
        self._thread.join()
        self._reader.close()
        self._writer.close()


class _Threads:
    """Runs one blocking operation after another in 32 threads."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS)
        self._next = 50_000_000
        self._lock = threading.Lock()

    def number(self) -> int:
        with self._lock:
            self._next += 1
            return self._next

    def all(self, one: Callable[[], None]) -> Any:
        async def run(count: int) -> None:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(None, self._run, one, count)

        return run

    def _run(self, one: Callable[[], None], count: int) -> None:
        for done in [self._pool.submit(one) for _ in range(count)]:
            done.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()


class BotoTable(_Threads):
    """boto3's resource interface, as most people use it."""

    def __init__(self, endpoint: str, make: Make, offset: str) -> None:
        super().__init__()
        self._make = make
        self._next += hash(offset) % 1_000_000
        config = Config(max_pool_connections=THREADS)
        self._resource = boto3.resource(
            "dynamodb", region_name="eu-west-1", endpoint_url=endpoint, config=config
        )
        self._table = self._resource.Table(TABLE)

    def create(self) -> None:
        self._resource.create_table(TableName=TABLE, **definition(main)).wait_until_exists()

    def load(self, count: int) -> None:
        with self._table.batch_writer() as batch:
            for n in range(count):
                batch.put_item(Item=self._item(n))
        self._loaded = count

    def _item(self, n: int) -> dict[str, Any]:
        return stored(self._make(n))

    def get(self, _: int = THREADS) -> Any:
        def one() -> None:
            n = random.randrange(1000)
            key = {"PK": f"SRC#src_{n // PER_SOURCE:012d}", "SK": f"CONN#conn_{n:012d}"}
            assert "Item" in self._table.get_item(Key=key, ConsistentRead=True)

        return self.all(one)

    def put(self, _: int = THREADS) -> Any:
        return self.all(lambda: self._table.put_item(Item=self._item(self.number())))

    def put_if_absent(self, _: int = THREADS) -> Any:
        def one() -> None:
            self._table.put_item(
                Item=self._item(self.number()), ConditionExpression="attribute_not_exists(PK)"
            )

        return self.all(one)

    def query(self, _: int = THREADS) -> Any:
        def one() -> None:
            found = self._table.query(
                KeyConditionExpression="PK = :pk AND begins_with(SK, :sk)",
                ExpressionAttributeValues={
                    ":pk": f"SRC#src_{random.randrange(1000 // PER_SOURCE):012d}",
                    ":sk": "CONN#",
                },
                Limit=25,
                ConsistentRead=True,
            )
            assert len(found["Items"]) == 25

        return self.all(one)

    def transact(self, _: int = THREADS) -> Any:
        def one() -> None:
            self._resource.meta.client.transact_write_items(
                TransactItems=[
                    {
                        "Put": {
                            "TableName": TABLE,
                            "Item": self._item(self.number()),
                            "ConditionExpression": "attribute_not_exists(PK)",
                        }
                    }
                    for _ in range(4)
                ]
            )

        return self.all(one)


class PynamoTable(_Threads):
    """PynamoDB's models."""

    def __init__(self, endpoint: str, make: Make) -> None:
        super().__init__()
        self._make = make
        self._next += 2_000_000

        meta = {
            "table_name": TABLE,
            "host": endpoint,
            "region": "eu-west-1",
            "max_pool_connections": THREADS,
        }
        fields: dict[str, Any] = {
            "Meta": type("Meta", (), meta),
            "pk": UnicodeAttribute(hash_key=True, attr_name="PK"),
            "sk": UnicodeAttribute(range_key=True, attr_name="SK"),
        }
        sample = make(1)
        for field, name in Connection.spec.names.items():
            number = isinstance(getattr(sample, field), int | float)
            fields[field] = (NumberAttribute if number else UnicodeAttribute)(
                attr_name=name, null=True
            )
        self._model: Any = type("PynamoConnectionItem", (Model,), fields)
        self._connection = PynamoConnection(region="eu-west-1", host=endpoint)

    def _item(self, n: int) -> Any:
        built = self._make(n)
        key = key_of(built)
        stored = {f: getattr(built, f) for f in Connection.spec.names}
        return self._model(key.pk, key.sk, **{f: v for f, v in stored.items() if v is not None})

    def get(self, _: int = THREADS) -> Any:
        def one() -> None:
            n = random.randrange(1000)
            key = (f"SRC#src_{n // PER_SOURCE:012d}", f"CONN#conn_{n:012d}")
            self._model.get(*key, consistent_read=True)

        return self.all(one)

    def put(self, _: int = THREADS) -> Any:
        return self.all(lambda: self._item(self.number()).save())

    def put_if_absent(self, _: int = THREADS) -> Any:
        return self.all(
            lambda: self._item(self.number()).save(condition=self._model.pk.does_not_exist())
        )

    def query(self, _: int = THREADS) -> Any:
        def one() -> None:
            pk = f"SRC#src_{random.randrange(1000 // PER_SOURCE):012d}"
            found = list(
                self._model.query(
                    pk, self._model.sk.startswith("CONN#"), limit=25, consistent_read=True
                )
            )
            assert len(found) == 25

        return self.all(one)

    def transact(self, _: int = THREADS) -> Any:
        def one() -> None:
            with TransactWrite(connection=self._connection) as transaction:
                for _ in range(4):
                    absent = self._model.pk.does_not_exist()
                    transaction.save(self._item(self.number()), condition=absent)

        return self.all(one)


@contextmanager
def moto_server() -> Iterator[str]:
    """The endpoint of a fresh moto server."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(url + "/moto-api/", timeout=2).close()
            except OSError:
                time.sleep(0.05)
            else:
                break
        yield url
    finally:
        process.kill()
        process.wait()
