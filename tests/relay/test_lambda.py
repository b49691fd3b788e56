"""A webhook's way through Lambda: received by one function, delivered by another."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from tests.relay.hub import hub_at
from tests.server.events import sqs_record
from tests.support.site import SECRET
from waystation.relay.connections import NewConnection
from waystation.relay.rules.paths import Webhook
from waystation.relay.sources import NewSource
from waystation.relay.tables import RECEIVED
from waystation.seam import settings_of
from waystation.server.app import build_app
from waystation.server.aws_lambda import Handlers, answer, work_off
from waystation.server.runtime import running
from waystation.settings import load_settings
from waystation.systems import SYSTEMS

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tests.support.receiver import Receiver
    from waystation.clock import ManualClock
    from waystation.relay.service import Relay


def request(path: str, body: str) -> dict[str, Any]:
    return {
        "rawPath": path,
        "rawQueryString": "",
        "headers": {"host": "abc.lambda-url.eu-west-1.on.aws", "content-type": "application/json"},
        "requestContext": {
            "domainName": "abc.lambda-url.eu-west-1.on.aws",
            "stage": "$default",
            "http": {"method": "POST", "sourceIp": "203.0.113.7"},
        },
        "body": body,
        "isBase64Encoded": False,
    }


async def test_functions_hand_events_on_by_the_queue(
    clock: ManualClock, receiver: Receiver, moto_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", moto_url)
    settings = {"queue": "sqs://us-east-1", "allow_networks": ["127.0.0.0/8"]}
    async with hub_at(clock, background=False, env="relaylambda", **settings) as hub:
        await hub.runtime.queues.ensure()
        source = await hub.source()
        await hub.connect(source, receiver.url)
        got = await answer(build_app(hub.runtime), request(f"/in/{source}", '{"n": 1}'))
        assert got["statusCode"] == 200
        event_id = json.loads(got["body"])["id"]
        assert receiver.got == []
        while not (messages := await hub.runtime.queues[RECEIVED].receive()):
            pass  # a slow stand-in for SQS may have nothing at first
        [message] = messages
        record = {
            "messageId": message.id,
            "receiptHandle": message.receipt,
            "body": message.body.decode(),
            "attributes": {"ApproximateReceiveCount": "1", "SentTimestamp": "1700000000000"},
            "messageAttributes": {},
            "eventSourceARN": "arn:aws:sqs:us-east-1:1:relaylambda-relay-received",
        }
        [consumer] = [c for c in hub.runtime.consumers if c.queue.spec.name == "relay-received"]
        name = RECEIVED.scoped("relaylambda")
        done = await work_off({"Records": [record]}, {name: consumer.handle})
        await hub.runtime.drain()
        assert done == {"batchItemFailures": []}
        assert (await hub.statuses(event_id))[0] == "delivered"
        assert len(receiver.got) == 1


async def test_the_schedule_does_what_is_due(clock: ManualClock, receiver: Receiver) -> None:
    async with hub_at(clock) as hub:
        receiver.fail()
        source = await hub.source()
        await hub.connect(source, receiver.url)
        await hub.sent(source)
        receiver.work()
        clock.advance(34)
        await hub.runtime.tend()
        assert len(receiver.got) == 2


async def test_what_a_function_was_given_is_delivered_before_it_answers(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lambda may freeze the process as soon as a handler returns."""
    monkeypatch.setenv("WAYSTATION_STORE", f"sqlite:///{tmp_path / 'w.db'}")
    monkeypatch.setenv("WAYSTATION_BLOBS", f"file:{tmp_path / 'blobs'}")
    monkeypatch.setenv("WAYSTATION_SECRET_KEY", SECRET)
    async with running(load_settings(settings_of(SYSTEMS))) as runtime:
        user = await runtime.provided["accounts"].find_or_open("ann@example.com")
        relay: Relay = runtime.provided["relay"]
        source = await relay.sources.create(user.user_id, NewSource(name="x"))
        given = NewConnection(name="x", destination_url=receiver.url)
        await relay.connections.create(source, given)
        known = await relay.directory.source(source.source_id)
        assert known is not None
        await relay.intake.receive(known, Webhook(b"{}", {}), "127.0.0.1")
        [message] = await runtime.queues[RECEIVED].receive()
    handlers, loop = Handlers(logs=False), asyncio.get_running_loop()
    record = sqs_record(1, queue="dev-relay-received", body=message.decode())
    with ThreadPoolExecutor(1) as thread:  # as Lambda's runtime, it has a thread of its own
        event = {"Records": [record]}
        failed = await loop.run_in_executor(thread, handlers.sqs, event, None)
        arrived = len(receiver.got)
        await loop.run_in_executor(thread, handlers.close)
    assert (failed, arrived) == ({"batchItemFailures": []}, 1)
