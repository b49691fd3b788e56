"""The item store against raw SQLite, DynamoDB Local, boto3, PynamoDB and moto."""

from __future__ import annotations

import asyncio
import os
import random
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
from tests.support import dynamodb_local

from benchmarks.harness import Contender, Result, environment, measure, save
from benchmarks.others import BotoTable, PynamoTable, RawSqlite, moto_server
from benchmarks.recorded import recorded_endpoint
from waystation.accounts.tables import main
from waystation.relay.tables import Connection
from waystation.store import Put, Store, absent, key_of, open_store
from waystation.store.dynamodb.engine import DynamoStore
from waystation.store.dynamodb.wire import item_to_wire

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))
PRELOADED = 2_000
PER_SOURCE = 50


def item(n: int) -> Connection:
    """A connection of the relay: fourteen attributes, about 450 bytes."""
    return Connection(
        connection_id=f"conn_{n:012d}",
        source_id=f"src_{n // PER_SOURCE:012d}",
        user_id="usr_0123456789abcdef",
        name="Orders to the warehouse",
        destination_url="https://warehouse.example.com/hooks/orders",
        signing_secret="whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        filters='[{"path": "$.type", "operator": "equals", "value": "order.created"}]',
        created_at="2026-11-15T22:00:00Z",
        updated_at="2026-11-15T22:00:00Z",
    )


class Numbers:
    """Numbers of items that no one has written yet."""

    def __init__(self) -> None:
        self._next = 10_000_000

    def take(self) -> int:
        self._next += 1
        return self._next


class StoreRuns:
    """The operations through our store."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.numbers = Numbers()

    async def load(self, count: int) -> None:
        for start in range(0, count, 1000):
            await self.store.batch_write(puts=[item(n) for n in range(start, start + 1000)])

    def get(self, callers: int = 1, items: int = PRELOADED) -> Any:
        async def one() -> None:
            n = random.randrange(items)
            key = Connection.key(f"src_{n // PER_SOURCE:012d}", f"conn_{n:012d}")
            assert await self.store.get(key) is not None

        return callers_of(one, callers)

    def put(self, callers: int) -> Any:
        async def one() -> None:
            await self.store.put(item(self.numbers.take()))

        return callers_of(one, callers)

    def put_if_absent(self, callers: int) -> Any:
        async def one() -> None:
            await self.store.put(item(self.numbers.take()), when=absent())

        return callers_of(one, callers)

    def query(self, callers: int = 1, items: int = PRELOADED) -> Any:
        async def one() -> None:
            source = f"src_{random.randrange(items // PER_SOURCE):012d}"
            page = await self.store.query(Connection.query(source), limit=25)
            assert len(page.items) == 25

        return callers_of(one, callers)

    def transact(self, callers: int) -> Any:
        async def one() -> None:
            await self.store.transact(
                *(Put(item(self.numbers.take()), when=absent()) for _ in range(4))
            )

        return callers_of(one, callers)


def callers_of(one: Any, callers: int) -> Any:
    """A run in which so many callers share the operations between them."""

    async def run(count: int) -> None:
        left = count

        async def caller() -> None:
            nonlocal left
            while left > 0:
                left -= 1
                await one()

        await asyncio.gather(*(caller() for _ in range(callers)))

    return run


async def embedded(folder: Path) -> list[Result]:
    """Our engine against SQLite itself, on one disk."""
    print("Embedded, against raw SQLite")
    raw = RawSqlite(folder / "raw.db", item)
    async with await open_store(f"sqlite:///{folder / 'ours.db'}", [main]) as store:
        ours = StoreRuns(store)
        await ours.load(PRELOADED)
        await raw.load(PRELOADED)
        results = [
            await measure(
                "get",
                [
                    Contender("sqlite, raw", raw.get, 20_000),
                    Contender("waystation", ours.get(), 20_000),
                ],
                ROUNDS,
            ),
            await measure(
                "query of 25",
                [
                    Contender("sqlite, raw", raw.query, 2_000),
                    Contender("waystation", ours.query(), 2_000),
                ],
                ROUNDS,
            ),
        ]
        for callers, count in ((1, 400), (32, 6_000), (256, 10_000)):
            results.append(
                await measure(
                    f"put, {callers} callers",
                    [
                        Contender("sqlite, raw", raw.put(callers), count),
                        Contender("waystation", ours.put(callers), count),
                    ],
                    ROUNDS,
                )
            )
        results.append(
            await measure(
                "put if absent, 32 callers",
                [
                    Contender("sqlite, raw", raw.put_if_absent(32), 6_000),
                    Contender("waystation", ours.put_if_absent(32), 6_000),
                ],
                ROUNDS,
            )
        )
        results.append(
            await measure(
                "transaction of 4, 32 callers",
                [
                    Contender("sqlite, raw", raw.transact(32), 2_000),
                    Contender("waystation", ours.transact(32), 2_000),
                ],
                ROUNDS,
            )
        )
    await raw.close()
    return results


async def services(folder: Path) -> list[Result]:
    """Our two engines against DynamoDB Local and moto through other clients, 32 callers."""
    print("Against DynamoDB Local and moto, 32 callers")
    async with AsyncExitStack() as stack:
        local = stack.enter_context(dynamodb_local.running())
        moto = stack.enter_context(moto_server())
        store = await stack.enter_async_context(
            await open_store(f"sqlite:///{folder / 'services.db'}", [main])
        )
        dynamodb = await stack.enter_async_context(
            await open_store("dynamodb://eu-west-1", [main], endpoint_url=local)
        )
        await dynamodb.ensure_tables()
        ours, ours_dynamodb = StoreRuns(store), StoreRuns(dynamodb)
        boto = stack.enter_context(BotoTable(local, item, "boto3"))
        on_moto = stack.enter_context(BotoTable(moto, item, "moto"))
        pynamo = stack.enter_context(PynamoTable(local, item))
        on_moto.create()
        for runs in (ours, ours_dynamodb):
            await runs.load(PRELOADED)
        on_moto.load(PRELOADED)
        others: list[tuple[str, Any, int]] = [
            ("dynamodb local, boto3", boto, 400),
            ("dynamodb local, pynamodb", pynamo, 400),
            ("moto server, boto3", on_moto, 100),
        ]
        results = []
        for name, method, count in (
            ("get", "get", 20_000),
            ("put", "put", 4_000),
            ("put if absent", "put_if_absent", 4_000),
            ("query of 25", "query", 2_000),
            ("transaction of 4", "transact", 1_000),
        ):
            contenders = [
                Contender("waystation, sqlite", getattr(ours, method)(32), count),
                Contender("waystation, dynamodb local", getattr(ours_dynamodb, method)(32), 1_500),
            ]
            for label, table, few in others:
                if method == "transact" and table is on_moto:
                    continue  # it answers concurrent transactions with errors of its own
                contenders.append(Contender(label, getattr(table, method)(32), few))
            results.append(await measure(name, contenders, ROUNDS))
        return results


async def clients(folder: Path) -> list[Result]:
    """DynamoDB clients alone, against recorded answers, 32 callers."""
    print("Clients alone, 32 callers")
    answers = await recorded_answers()
    async with AsyncExitStack() as stack:
        url = stack.enter_context(recorded_endpoint(answers, folder))
        store = await stack.enter_async_context(
            await open_store("dynamodb://eu-west-1", [main], endpoint_url=url)
        )
        ours = StoreRuns(store)
        boto = stack.enter_context(BotoTable(url, item, "boto3"))
        pynamo = stack.enter_context(PynamoTable(url, item))
        return [
            await measure(
                name,
                [
                    Contender("waystation", getattr(ours, method)(32), 3_000),
                    Contender("boto3", getattr(boto, method)(32), 500),
                    Contender("pynamodb", getattr(pynamo, method)(32), 500),
                ],
                ROUNDS,
            )
            for name, method in (
                ("get", "get"),
                ("put", "put"),
                ("query of 25", "query"),
                ("transaction of 4", "transact"),
            )
        ]


async def recorded_answers() -> dict[str, str]:
    """What DynamoDB Local answers to the operations measured."""
    with dynamodb_local.running() as url:
        async with await open_store("dynamodb://eu-west-1", [main], endpoint_url=url) as store:
            assert isinstance(store, DynamoStore)
            await store.ensure_tables()
            await StoreRuns(store).load(1000)
            answers = {"PutItem": "{}", "TransactWriteItems": "{}"}
            key = item_to_wire(key_of(item(1)).attributes())
            table = store.table_name(main)
            asked: dict[str, dict[str, Any]] = {
                "DescribeTable": {},
                "GetItem": {"Key": key},
                "Query": {
                    "KeyConditionExpression": "PK = :pk",
                    "ExpressionAttributeValues": {":pk": key["PK"]},
                    "Limit": 25,
                },
            }
            for operation, request in asked.items():
                got = await store.call(operation, {"TableName": table, **request}, table=table)
                answers[operation] = msgspec.json.encode(got).decode()
            return answers


async def growth(folder: Path) -> list[dict[str, Any]]:
    """How reads fare as the table grows: a small and a large file in one run."""
    print("Growth")
    sizes = (1_000, 1_000_000)
    async with AsyncExitStack() as stack:
        runs = {}
        for items in sizes:
            url = f"sqlite:///{folder / f'{items}.db'}"
            store = await stack.enter_async_context(await open_store(url, [main]))
            runs[items] = StoreRuns(store)
            await runs[items].load(items)
        gets = [Contender(f"{n:,}", runs[n].get(items=n), 20_000) for n in sizes]
        queries = [Contender(f"{n:,}", runs[n].query(items=n), 2_000) for n in sizes]
        got = await measure("get", gets, ROUNDS)
        queried = await measure("query of 25", queries, ROUNDS)
    return [
        {
            "items": n,
            "get": got.rate(f"{n:,}"),
            "query": queried.rate(f"{n:,}"),
            "bytes_per_item": (folder / f"{n}.db").stat().st_size / n,
        }
        for n in sizes
    ]


def against(result: Result, mine: str, theirs: str) -> str:
    """A row: how a client of ours compares with boto3."""
    cpu = result.cpu_us(mine) / result.cpu_us(theirs)
    return f"| {result.operation} | {result.ratio(mine, theirs):.1f} × | {cpu:.0%} of boto3's |"


def report(
    local: list[Result],
    remote: list[Result],
    alone: list[Result],
    grown: list[dict[str, Any]],
    where: dict[str, Any],
) -> str:
    lines = [
        "# The item store, measured",
        "",
        f"`make bench` on {where['cores']} cores, {where['system']} {where['machine']}, Python "
        f"{where['python']}, {where['date']}; {ROUNDS} rounds, contenders interleaved in each. "
        "Rates are medians; a ratio is the median of the ratios within the rounds. Absolute rates "
        "on such a machine vary by half from run to run; ratios hold better.",
        "",
        "## Embedded, against raw SQLite with the same durability",
        "",
        "Raw SQLite is the limit: prepared rows, one group-committing thread, `synchronous=FULL`, "
        "no types, no conditions, no checks.",
        "",
        "| operation | raw SQLite, per second | Waystation, per second | ratio |",
        "|---|---:|---:|---:|",
    ]
    lines += [
        f"| {r.operation} | {r.rate('sqlite, raw'):,.0f} | {r.rate('waystation'):,.0f} "
        f"| {r.ratio('waystation', 'sqlite, raw'):.2f} |"
        for r in local
    ]
    lines += [
        "",
        "## Against DynamoDB Local and moto, 32 callers",
        "",
        "boto3 and PynamoDB run in 32 threads. CPU is this process's, the client's share, for an "
        "operation. moto answers concurrent transactions with internal errors; it is left out "
        "there.",
        "",
        "| operation | contender | per second | client CPU | Waystation on SQLite is faster by |",
        "|---|---|---:|---:|---:|",
    ]
    for r in remote:
        for name in r.figures:
            ratio = r.ratio("waystation, sqlite", name)
            lines.append(
                f"| {r.operation} | {name} | {r.rate(name):,.0f} | {r.cpu_us(name):,.0f} µs "
                f"| {'' if name == 'waystation, sqlite' else f'{ratio:,.1f} ×'} |"
            )
    lines += [
        "",
        "Our DynamoDB client against boto3, both on DynamoDB Local, which limits the writes:",
        "",
        "| operation | throughput | client CPU |",
        "|---|---:|---:|",
    ]
    lines += [against(r, "waystation, dynamodb local", "dynamodb local, boto3") for r in remote]
    lines += [
        "",
        "## Clients alone",
        "",
        "32 callers, an endpoint that gives recorded answers at once: what a client can do where "
        "the service is not the limit.",
        "",
        "| operation | Waystation, per second | boto3 | PynamoDB |",
        "|---|---:|---:|---:|",
    ]
    lines += [
        f"| {r.operation} | {r.rate('waystation'):,.0f} | {r.rate('boto3'):,.0f} "
        f"| {r.rate('pynamodb'):,.0f} |"
        for r in alone
    ]
    lines += ["", "| operation | throughput | client CPU |", "|---|---:|---:|"]
    lines += [against(r, "waystation", "boto3") for r in alone]
    lines += [
        "",
        "## Growth",
        "",
        "Random reads of a file that was written in order.",
        "",
        "| items | get, per second | query of 25, per second | bytes per item |",
        "|---:|---:|---:|---:|",
    ]
    for row in grown:
        lines.append(
            f"| {row['items']:,} | {row['get']:,.0f} | {row['query']:,.0f} "
            f"| {row['bytes_per_item']:,.0f} |"
        )
    lines += [
        "",
        "Reads and writes cost the logarithm of the number of items (the depth of a B-tree); a "
        "query costs its page, wherever in the table it starts; an index costs one more B-tree "
        "entry per item that is in it; a table with a change feed costs one more row per write.",
        "",
    ]
    return "\n".join(lines)


async def run() -> None:
    os.environ.setdefault("AWS_ACCESS_KEY_ID", "local")
    os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "local")
    with tempfile.TemporaryDirectory(prefix="waystation-bench-") as name:
        folder = Path(name)
        local = await embedded(folder)
        remote = await services(folder)
        alone = await clients(folder)
        grown = await growth(folder)
    where = environment()
    data = {
        "environment": where,
        "embedded": msgspec.to_builtins(local),
        "services": msgspec.to_builtins(remote),
        "clients": msgspec.to_builtins(alone),
        "growth": grown,
    }
    save("store", report(local, remote, alone, grown, where), data)


if __name__ == "__main__":
    asyncio.run(run())
