"""Retries, lost answers, refused credentials: what DynamoDB Local will not do for us.

The endpoint here is a local server that answers as told, with the bodies that AWS documents.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from email.utils import formatdate
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web

from tests.contract.model import TABLES, Counter, Thing
from tests.support.endpoint import served
from waystation.aws import AwsChain
from waystation.errors import (
    AccessRefused,
    InvalidRequest,
    OutcomeUnknown,
    StoreUnavailable,
    TableMissing,
    Throttled,
    TransactionConflict,
)
from waystation.store import Put, Store, Update, absent, add, add_to_set, key_of, open_store, set_to

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

Answer = tuple[int, dict[str, Any]] | str
LOST = "lost"
FINE: Answer = (200, {})
THROTTLED: Answer = (400, {"__type": "com.amazon#ProvisionedThroughputExceededException"})
BROKEN: Answer = (500, {"__type": "com.amazon#InternalServerError"})


class Endpoint:
    """Answers each call with the next of its answers, and the last one for ever."""

    def __init__(self) -> None:
        self.answers: list[Answer] = [FINE]
        self.calls: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.url = ""
        self.connections: set[Any] = set()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.calls.append(json.loads(await request.read()))
        self.headers.append(dict(request.headers))
        self.connections.add(request.transport)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, str):
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        status, body = answer
        headers = {}
        if "date" in body:
            headers["Date"] = body["date"]
        return web.Response(status=status, body=json.dumps(body).encode(), headers=headers)


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    built = Endpoint()
    async with served(built.handle) as built.url:
        yield built


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waystation.aws.client.FIRST_WAIT", 0.0001)


@pytest.fixture
async def store(endpoint: Endpoint) -> AsyncIterator[Store]:
    async with await open_store(
        "dynamodb://eu-west-1", TABLES, endpoint_url=endpoint.url
    ) as opened:
        yield opened


async def test_throttling_is_retried(endpoint: Endpoint, store: Store) -> None:
    endpoint.answers = [THROTTLED, THROTTLED, FINE]
    await store.put(Counter("c"), when=absent())
    assert len(endpoint.calls) == 3


async def test_throttling_without_end_is_reported(endpoint: Endpoint, store: Store) -> None:
    endpoint.answers = [THROTTLED]
    with pytest.raises(Throttled):
        await store.get(Counter.key("c"))
    assert len(endpoint.calls) == 8


@pytest.mark.parametrize("trouble", [BROKEN, LOST])
async def test_reads_are_repeated_after_any_trouble(
    endpoint: Endpoint, store: Store, trouble: Answer
) -> None:
    endpoint.answers = [trouble, trouble, FINE]
    assert await store.get(Counter.key("c")) is None
    assert len(endpoint.calls) == 3


@pytest.mark.parametrize("trouble", [BROKEN, LOST])
async def test_writes_that_may_happen_twice_are_repeated(
    endpoint: Endpoint, store: Store, trouble: Answer
) -> None:
    endpoint.answers = [trouble, FINE]
    await store.update(Thing.key("a", "1"), set_to("a", 1), add_to_set("b", {1}))
    assert len(endpoint.calls) == 2


@pytest.mark.parametrize("trouble", [BROKEN, LOST])
async def test_writes_that_must_not_happen_twice_are_not_repeated(
    endpoint: Endpoint, store: Store, trouble: Answer
) -> None:
    endpoint.answers = [trouble, FINE]
    with pytest.raises(OutcomeUnknown):
        await store.update(Thing.key("a", "1"), add("a", 1))
    assert len(endpoint.calls) == 1
    endpoint.answers = [trouble, FINE]
    with pytest.raises(OutcomeUnknown):
        await store.put(Thing("a", "1"), when=absent())
    assert len(endpoint.calls) == 2


async def test_transactions_are_repeated_with_one_token(endpoint: Endpoint, store: Store) -> None:
    endpoint.answers = [LOST, BROKEN, FINE]
    await store.transact(Put(Thing("a", "1"), when=absent()))
    tokens = {call["ClientRequestToken"] for call in endpoint.calls}
    assert len(endpoint.calls) == 3
    assert len(tokens) == 1


async def test_transaction_conflicts_are_retried_and_then_reported(
    endpoint: Endpoint, store: Store
) -> None:
    cancelled: Answer = (
        400,
        {
            "__type": "com.amazon#TransactionCanceledException",
            "CancellationReasons": [{"Code": "TransactionConflict"}, {"Code": "None"}],
        },
    )
    endpoint.answers = [cancelled, FINE]
    await store.transact(Put(Thing("a", "1")), Put(Thing("a", "2")))
    assert len(endpoint.calls) == 2
    endpoint.answers = [cancelled]
    with pytest.raises(TransactionConflict):
        await store.transact(Put(Thing("a", "1")), Put(Thing("a", "2")))


async def test_batch_leftovers_are_asked_for_again(endpoint: Endpoint, store: Store) -> None:
    things = [Thing("a", str(n)) for n in range(3)]
    left = {"PutRequest": {"Item": {"PK": {"S": "OWNER#a"}, "SK": {"S": "THING#2"}}}}
    endpoint.answers = [(200, {"UnprocessedItems": {"dev-things": [left]}}), FINE]
    await store.batch_write(puts=things)
    assert endpoint.calls[1]["RequestItems"] == {"dev-things": [left]}


async def test_a_batch_that_gets_nowhere_is_reported(endpoint: Endpoint, store: Store) -> None:
    key = {"PK": {"S": "OWNER#a"}, "SK": {"S": "THING#1"}}
    left = {"dev-things": {"Keys": [key], "ConsistentRead": True}}
    endpoint.answers = [(200, {"Responses": {}, "UnprocessedKeys": left})]
    with pytest.raises(Throttled):
        await store.batch_get([Thing.key("a", "1")])


@pytest.mark.parametrize(
    "code",
    ["ExpiredTokenException", "UnrecognizedClientException", "AccessDeniedException"],
)
async def test_refused_credentials_are_reported_at_once(
    endpoint: Endpoint, store: Store, code: str
) -> None:
    endpoint.answers = [(400, {"__type": f"com.amazon#{code}", "message": "no"})]
    with pytest.raises(AccessRefused, match=code):
        await store.get(Counter.key("c"))
    assert len(endpoint.calls) == 1


async def test_a_missing_table_names_the_table_and_the_region(
    endpoint: Endpoint, store: Store
) -> None:
    endpoint.answers = [(400, {"__type": "com.amazon#ResourceNotFoundException"})]
    with pytest.raises(TableMissing, match=r"dev-counters.*eu-west-1"):
        await store.get(Counter.key("c"))


async def test_a_wrong_clock_is_corrected_by_the_services(endpoint: Endpoint, store: Store) -> None:
    skewed = {
        "__type": "com.amazon#InvalidSignatureException",
        "message": "Signature expired",
        "date": formatdate(time.time() + 7200, usegmt=True),
    }
    endpoint.answers = [(400, skewed), FINE]
    await store.get(Counter.key("c"))
    stamps = [headers["x-amz-date"] for headers in endpoint.headers]
    assert stamps[1] > stamps[0]


async def test_an_endpoint_that_is_not_there_is_reported() -> None:
    async with await open_store(
        "dynamodb://eu-west-1", TABLES, endpoint_url="http://127.0.0.1:1"
    ) as store:
        with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1:1"):
            await store.get(Counter.key("c"))


async def test_an_answer_that_is_not_json_is_reported(endpoint: Endpoint, store: Store) -> None:
    endpoint.answers = [(403, {})]
    with pytest.raises(StoreUnavailable, match="Http403"):
        await store.get(Counter.key("c"))


async def test_connections_are_reused(endpoint: Endpoint, store: Store) -> None:
    for _ in range(20):
        await store.get(Counter.key("c"))
    assert len(endpoint.connections) == 1


async def test_missing_credentials_say_so(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    async with await open_store("dynamodb://eu-west-1", TABLES, endpoint_url=endpoint.url) as store:
        with pytest.raises(AccessRefused, match="no AWS credentials"):
            await store.get(Counter.key("c"))


async def test_a_session_token_is_sent(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "session")
    async with await open_store("dynamodb://eu-west-1", TABLES, endpoint_url=endpoint.url) as store:
        await store.get(Counter.key("c"))
    assert endpoint.headers[0]["x-amz-security-token"] == "session"


async def test_a_missing_region_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_REGION", raising=False)
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    with pytest.raises(InvalidRequest, match="region"):
        await open_store("dynamodb://", TABLES)


async def test_an_outage_does_not_multiply_the_load(endpoint: Endpoint, store: Store) -> None:
    endpoint.answers = [THROTTLED]
    key = key_of(Counter("c"))
    await asyncio.gather(*(store.get(key) for _ in range(200)), return_exceptions=True)
    assert len(endpoint.calls) <= 200 + 100


REFUSED: Answer = (400, {"__type": "com.amazon#AccessDeniedException"})
CONFLICT: Answer = (400, {"__type": "com.amazon#TransactionConflictException"})


@pytest.mark.parametrize("then", [THROTTLED, REFUSED])
async def test_a_lost_answer_is_not_forgotten_over_later_trouble(
    endpoint: Endpoint, store: Store, then: Answer
) -> None:
    endpoint.answers = [LOST, then]
    with pytest.raises(OutcomeUnknown):
        await store.transact(Update(Thing.key("a", "1"), add("a", 1)))


async def test_a_conflict_with_a_transaction_is_retried(endpoint: Endpoint, store: Store) -> None:
    endpoint.answers = [CONFLICT, FINE]
    await store.put(Thing("a", "1"), when=absent())
    endpoint.answers = [CONFLICT]
    with pytest.raises(TransactionConflict):
        await store.put(Thing("a", "1"), when=absent())


async def test_a_closed_store_says_so(endpoint: Endpoint) -> None:
    store = await open_store("dynamodb://eu-west-1", TABLES, endpoint_url=endpoint.url)
    await store.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        await store.get(Counter.key("c"))


_EXPIRING = """
import datetime, json, pathlib, sys
count = pathlib.Path(sys.argv[1])
n = int(count.read_text()) + 1 if count.exists() else 1
count.write_text(str(n))
soon = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=60)
print(json.dumps({"Version": 1, "AccessKeyId": f"KEY{n}", "SecretAccessKey": "s",
                  "SessionToken": "t", "Expiration": soon.isoformat()}))
"""


async def test_credentials_are_refreshed_before_they_expire(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """botocore's own chain: a process in the AWS configuration gives keys for a minute."""
    script, config = tmp_path / "keys.py", tmp_path / "config"
    script.write_text(_EXPIRING)
    command = f"{sys.executable} {script} {tmp_path / 'count'}"
    config.write_text(f"[default]\ncredential_process = {command}\n")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    async with await open_store("dynamodb://eu-west-1", TABLES, endpoint_url=endpoint.url) as store:
        for _ in range(2):
            await store.get(Counter.key("c"))
    signed = [headers["Authorization"].split("/")[0] for headers in endpoint.headers]
    assert len(set(signed)) == 2


def test_the_streams_of_a_stand_in_are_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = AwsChain("eu-west-1", "http://all.example")
    assert chain.endpoint("streams.dynamodb") == "http://all.example/"
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", "http://tables.example")
    assert chain.endpoint("streams.dynamodb") == "http://tables.example/"
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB_STREAMS", "http://streams.example")
    assert chain.endpoint("streams.dynamodb") == "http://streams.example/"
    assert chain.endpoint("dynamodb") == "http://tables.example/"
