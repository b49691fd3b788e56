"""A webhook's way through Lambda: received by one function, delivered by another."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.relay.hub import hub_at
from waystation.relay.tables import RECEIVED
from waystation.server.app import build_app
from waystation.server.aws_lambda import answer, work_off

if TYPE_CHECKING:
    import pytest

    from tests.support.receiver import Receiver
    from waystation.clock import ManualClock


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
        [message] = await hub.runtime.queues[RECEIVED].receive()
        record = {
            "messageId": message.id,
            "receiptHandle": message.receipt,
            "body": message.body.decode(),
            "attributes": {"ApproximateReceiveCount": "1", "SentTimestamp": "1700000000000"},
            "messageAttributes": {},
            "eventSourceARN": "arn:aws:sqs:us-east-1:1:relaylambda-relay-received",
        }
        [consumer] = hub.runtime.consumers
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
