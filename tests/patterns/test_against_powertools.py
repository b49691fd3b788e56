"""What goes wrong with Powertools for AWS Lambda, run against it and against ours.

Every case runs on DynamoDB Local with both. It has to come out right with ours, and is known to
come out wrong with Powertools: should a release of theirs mend one, its test here will say so.
"""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from decimal import Decimal
from functools import partial
from typing import Any, Protocol

import boto3
import pytest
from aws_lambda_powertools.utilities.idempotency import (
    DynamoDBPersistenceLayer,
    IdempotencyConfig,
    idempotent_function,
)
from aws_lambda_powertools.utilities.idempotency.exceptions import (
    IdempotencyAlreadyInProgressError,
)

from waystation.clock import ManualClock
from waystation.errors import InProgress
from waystation.patterns import Idempotency, Leases, idempotency
from waystation.store import open_store

Work = Callable[[], Any]


class Contender(Protocol):
    """Something that does work once per payload."""

    def run(self, payload: Any, work: Work, *, scope: str = "work", ttl: int = 3600) -> Any: ...

    def lapse(self) -> None:
        """Let the lease of whoever works now run out."""


class Interruption(BaseException):
    """Not an Exception, as when a process is told to end."""


class Powertools:
    """All functions share one persistence layer, as its documents show."""

    def __init__(self, client: Any, table: str) -> None:
        self._layer = DynamoDBPersistenceLayer(table_name=table, boto3_client=client)

    def run(self, payload: Any, work: Work, *, scope: str = "work", ttl: int = 3600) -> Any:
        def function(data: Any) -> Any:
            return work()

        function.__qualname__ = scope
        config = IdempotencyConfig(expires_after_seconds=ttl)
        config.register_lambda_context(_Context())  # type: ignore[arg-type]
        wrapped = idempotent_function(
            function, data_keyword_argument="data", config=config, persistence_store=self._layer
        )
        return wrapped(data=payload)

    def lapse(self) -> None:
        time.sleep(_Context.MILLISECONDS / 1000 + 0.01)


class _Context:
    MILLISECONDS = 100

    def get_remaining_time_in_millis(self) -> int:
        return self.MILLISECONDS


class Ours:
    """Called from other threads, so that cases can be written for both."""

    def __init__(self, endpoint: str) -> None:
        self._clock = ManualClock(float(int(time.time())))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._store = self._wait(
            open_store(
                "dynamodb://eu-west-1",
                [idempotency],
                env=f"t{uuid.uuid4().hex[:8]}",
                clock=self._clock,
                endpoint_url=endpoint,
            )
        )
        self._wait(self._store.ensure_tables())

    def run(self, payload: Any, work: Work, *, scope: str = "work", ttl: int = 3600) -> Any:
        leases = Leases(self._store, seconds=60, longest=3600, skew=0, monotonic=self._clock)
        once = Idempotency(self._store, ttl=ttl, leases=leases)

        async def in_a_thread(_: object) -> Any:
            return await asyncio.to_thread(work)

        key = repr(payload)
        return self._wait(once.run(scope, key, in_a_thread, payload=payload))

    def lapse(self) -> None:
        self._clock.advance(61)

    def close(self) -> None:
        self._wait(self._store.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _wait(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(timeout=30)


@contextmanager
def powertools(endpoint: str) -> Iterator[Contender]:
    client = boto3.client("dynamodb", endpoint_url=endpoint, region_name="eu-west-1")
    table = f"powertools-{uuid.uuid4().hex[:8]}"
    client.create_table(
        TableName=table,
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        BillingMode="PAY_PER_REQUEST",
    )
    yield Powertools(client, table)


@contextmanager
def ours(endpoint: str) -> Iterator[Contender]:
    contender = Ours(endpoint)
    try:
        yield contender
    finally:
        contender.close()


def fails(error: BaseException) -> Work:
    def work() -> None:
        raise error

    return work


# The cases: each raises AssertionError where it goes wrong.


def case_late_result(contender: Contender) -> None:
    """A run whose lease has lapsed does not overwrite its successor's result."""

    def late() -> str:
        contender.lapse()
        contender.run("order", lambda: "successor")
        return "late"

    contender.run("order", late)
    assert contender.run("order", lambda: "again") == "successor"


def case_late_failure(contender: Contender) -> None:
    """A run whose lease has lapsed does not delete its successor's result when it fails."""

    def late() -> None:
        contender.lapse()
        contender.run("order", lambda: "successor")
        raise OSError("late")

    with pytest.raises(OSError, match="late"):
        contender.run("order", late)
    assert contender.run("order", lambda: "again") == "successor"


def case_nesting(contender: Contender) -> None:
    """A function called inside another keeps its own record."""

    def outer() -> str:
        return f"outer+{contender.run('order', lambda: 'inner', scope='inner')}"

    contender.run("order", outer, scope="outer")
    assert contender.run("order", lambda: "again", scope="inner") == "inner"
    assert contender.run("order", lambda: "again", scope="outer") == "outer+inner"


def case_second_configuration(contender: Contender) -> None:
    """A function with a shorter memory forgets sooner, whoever else uses the store."""
    contender.run("order", lambda: 1, scope="long", ttl=3600)
    contender.run("order", lambda: 1, scope="short", ttl=0)
    contender.lapse()
    assert contender.run("order", lambda: 2, scope="short", ttl=0) == 2


def case_falsy_results(contender: Contender) -> None:
    """Nothing is a result, too."""
    results: list[Any] = [0, False, "", [], {}]
    for result in results:
        contender.run({"for": repr(result)}, partial(copy, result))
        assert contender.run({"for": repr(result)}, lambda: "again") == result


def case_interruption(contender: Contender) -> None:
    """Work that was interrupted can be done again at once."""
    with pytest.raises(Interruption):
        contender.run("order", fails(Interruption()))
    try:
        assert contender.run("order", lambda: "done") == "done"
    except (IdempotencyAlreadyInProgressError, InProgress) as error:
        raise AssertionError("still locked") from error


def case_large_result(contender: Contender) -> None:
    """A result too large to keep does not make the work run again."""
    done = []

    def work() -> str:
        done.append(1)
        return "x" * 500_000

    for _ in range(2):
        try:
            contender.run("order", work)
        except Exception:  # noqa: BLE001 - what is counted is how often the work was done
            contender.lapse()
    assert len(done) == 1


def case_typed_payloads(contender: Contender) -> None:
    """A number and a text that look alike are not the same payload."""
    assert contender.run({"amount": Decimal(1)}, lambda: "number") == "number"
    assert contender.run({"amount": "1"}, lambda: "text") == "text"


CASES = [
    case_late_result,
    case_late_failure,
    case_nesting,
    case_second_configuration,
    case_falsy_results,
    case_interruption,
    case_large_result,
    case_typed_payloads,
]


def name(case: Callable[..., None]) -> str:
    return case.__name__.removeprefix("case_")


@pytest.mark.parametrize("case", CASES, ids=name)
def test_ours_comes_out_right(case: Callable[[Contender], None], dynamodb_url: str) -> None:
    with ours(dynamodb_url) as contender:
        case(contender)


@pytest.mark.parametrize("case", CASES, ids=name)
def test_powertools_comes_out_wrong(case: Callable[[Contender], None], dynamodb_url: str) -> None:
    with powertools(dynamodb_url) as contender, pytest.raises(AssertionError):
        case(contender)
