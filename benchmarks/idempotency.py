"""Idempotency on DynamoDB Local: ours against Powertools for AWS Lambda."""

from __future__ import annotations

import asyncio
import os
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import boto3
from aws_lambda_powertools.utilities.idempotency import (
    DynamoDBPersistenceLayer,
    IdempotencyConfig,
    idempotent_function,
)
from botocore.config import Config
from tests.support import dynamodb_local

from benchmarks.harness import Contender, Result, environment, measure, save
from benchmarks.store import callers_of
from waystation.patterns import Idempotency, Run, idempotency
from waystation.store import open_store

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))
RESULT = {"status": "charged", "amount": 4200, "receipt": "rcp_0123456789abcdef"}


class Context:
    def get_remaining_time_in_millis(self) -> int:
        return 60_000


class Powertools:
    """In threads, because it is synchronous."""

    def __init__(self, endpoint: str, callers: int) -> None:
        client = boto3.client(
            "dynamodb",
            endpoint_url=endpoint,
            region_name="eu-west-1",
            config=Config(max_pool_connections=callers),
        )
        table = f"powertools-{uuid.uuid4().hex[:8]}"
        client.create_table(
            TableName=table,
            AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
            KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
            BillingMode="PAY_PER_REQUEST",
        )
        config = IdempotencyConfig()
        config.register_lambda_context(Context())  # type: ignore[arg-type]
        layer = DynamoDBPersistenceLayer(table_name=table, boto3_client=client)

        def charge(order: dict[str, Any]) -> dict[str, Any]:
            return RESULT

        self._charge = idempotent_function(
            charge, data_keyword_argument="order", config=config, persistence_store=layer
        )
        self._callers = callers
        self._threads = ThreadPoolExecutor(callers)

    def call(self, order: dict[str, Any]) -> None:
        assert self._charge(order=order) == RESULT

    def runs(self, orders: Any) -> Any:
        async def one() -> None:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._threads, self.call, next(orders))

        return callers_of(one, self._callers)

    def close(self) -> None:
        self._threads.shutdown()


def new_orders() -> Any:
    while True:
        yield {"order": uuid.uuid4().hex, "amount": 4200, "currency": "EUR"}


def one_order() -> Any:
    order = next(new_orders())
    while True:
        yield order


def ours(once: Idempotency, orders: Any, callers: int) -> Any:
    async def charge(run: Run) -> dict[str, Any]:
        return RESULT

    async def one() -> None:
        order = next(orders)
        assert await once.run("charge", order["order"], charge, payload=order) == RESULT

    return callers_of(one, callers)


async def compare(endpoint: str) -> list[Result]:
    results = []
    async with await open_store(
        "dynamodb://eu-west-1", [idempotency], env="bench", endpoint_url=endpoint
    ) as store:
        await store.ensure_tables()
        once = Idempotency(store)
        for callers in (1, 16):
            theirs = Powertools(endpoint, callers)
            for name, orders in (("first call", new_orders), ("repeated call", one_order)):
                mine = ours(once, orders(), callers)
                await mine(1)
                runs = theirs.runs(orders())
                await runs(1)
                contenders = [
                    Contender("powertools", runs, 200 * min(callers, 4)),
                    Contender("ours", mine, 200 * min(callers, 4)),
                ]
                results.append(await measure(f"{name}, {callers} callers", contenders, ROUNDS))
            theirs.close()
    return results


def report(results: list[Result]) -> str:
    where = environment()
    lines = [
        "# Idempotency, measured",
        "",
        f"`make bench` on {where['cores']} cores, {where['system']} {where['machine']}, Python"
        f" {where['python']}, {where['date']}; {ROUNDS} rounds, contenders interleaved in each, "
        "both on DynamoDB Local, which needs most of the time itself. Powertools for AWS Lambda "
        "runs in as many threads as there are callers. CPU is that of the calling process. Both "
        "write twice for a first call and once for a repeated one; ours also checks the payload "
        "and holds a lease that shuts out late runs.",
        "",
        "| call | Powertools | ours | time for a call | CPU for a call |",
        "|---|---:|---:|---:|---:|",
    ]
    for result in results:
        cpu = result.cpu_us("ours") / result.cpu_us("powertools")
        lines.append(
            f"| {result.operation} | {result.rate('powertools'):,.0f}/s, "
            f"{result.cpu_us('powertools'):,.0f} µs CPU | {result.rate('ours'):,.0f}/s, "
            f"{result.cpu_us('ours'):,.0f} µs CPU | {1 / result.ratio('ours', 'powertools'):.2f} "
            f"of Powertools' | {cpu:.2f} of Powertools' |"
        )
    return "\n".join([*lines, ""])


async def main() -> None:
    os.environ.setdefault("AWS_ACCESS_KEY_ID", "local")
    os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "local")
    with dynamodb_local.running() as endpoint:
        results = await compare(endpoint)
    data = {
        "environment": environment(),
        "rates": {r.operation: {n: r.rate(n) for n in r.figures} for r in results},
        "cpu_us": {r.operation: {n: r.cpu_us(n) for n in r.figures} for r in results},
    }
    save("idempotency", report(results), data)


if __name__ == "__main__":
    asyncio.run(main())
