"""Killed at any moment: nothing acknowledged is lost, and each conversation ends as it should."""

from __future__ import annotations

import asyncio
import os
import random
import time
import uuid
from collections import Counter
from typing import TYPE_CHECKING, Any

import aiohttp
import msgspec

from tests.desk.counter import PATH, TOKEN, WHERE, payload
from tests.desk.richpanel_server import KEY
from tests.support import moto_server
from tests.support.lives import process
from tests.support.site import SECRET, settings_with
from waystation.desk.switches import SwitchInput
from waystation.desk.tables import AuditAction, EventRecord
from waystation.server.runtime import running

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tests.desk.richpanel_server import Vendor

ROUNDS = max(4, int(os.environ.get("CRASH_ROUNDS", "20")) // 4)
SENDERS = 3
PER_LIFE = 3
"""The vendor takes fifty calls in thirty seconds, which is more than these need."""
TEXTS = [WHERE, "please cancel my order", "Lorem ipsum dolor", "my lawyer will write to you"]


class Sender:
    """Sends events as a vendor does: each again and again until it gets a 200."""

    def __init__(self) -> None:
        self.acknowledged: dict[str, dict[str, Any]] = {}
        self.open: list[dict[str, Any]] = []
        self.rng = random.Random(11)
        self.most = 0

    async def keep_sending(self, url: str) -> None:
        self.most = len(self.acknowledged) + PER_LIFE
        async with aiohttp.ClientSession() as http:
            await asyncio.gather(*(self._send(http, url) for _ in range(SENDERS)))

    async def _send(self, http: aiohttp.ClientSession, url: str) -> None:
        while len(self.acknowledged) < self.most:
            event = self.open.pop() if self.open else self._new()
            if not await self.tried(http, url, event):
                self.open.append(event)
                return

    def _new(self) -> dict[str, Any]:
        return payload(self.rng.choice(TEXTS), uuid.uuid4().hex[:12])

    async def tried(self, http: aiohttp.ClientSession, url: str, event: dict[str, Any]) -> bool:
        headers = {"Content-Type": "application/json", "X-Richpanel-Webhook-Token": TOKEN}
        try:
            async with http.post(
                url + PATH, data=msgspec.json.encode(event), headers=headers
            ) as answer:
                if answer.status != 200:
                    return False
                self.acknowledged[(await answer.json())["event_id"]] = event
        except (aiohttp.ClientError, OSError):
            return False
        return True


async def prepare(settings: dict[str, Any]) -> None:
    async with running(settings_with(**settings)) as runtime:
        user = await runtime.provided["accounts"].find_or_open("ann@example.com")
        on = SwitchInput(safe_mode=False, automation_enabled=True)
        await runtime.provided["desk"].switches.set(user.user_id, on)


class Ahead:
    """How far the lives of the product, and the queues that they share, are ahead of the clock."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._begun = time.time()

    def __call__(self) -> float:
        return self._begun + self.seconds


async def crash_test(settings: dict[str, Any], vendor: Vendor, ahead: Ahead) -> None:
    vendor.delay = 0.01
    vendor.clock = lambda: time.time() + ahead.seconds
    await prepare(settings)
    sender, rng = Sender(), random.Random(8)
    for n in range(ROUNDS):
        ahead.seconds = n * 120.0
        async with process(settings, "all", ahead.seconds) as (life, url):
            sending = asyncio.create_task(sender.keep_sending(url))
            await asyncio.sleep(rng.uniform(0.1, 0.8))
            life.kill()
            await sending
    assert len(sender.acknowledged) >= 8
    ahead.seconds = last = ROUNDS * 120.0
    async with process(settings, "all", last):
        await finished(settings, sender, last, ahead)
    await compare(settings, sender, vendor, last)


async def finished(settings: dict[str, Any], sender: Sender, last: float, queues: Ahead) -> None:
    """Wait until everything that was acknowledged is dealt with. Receives of those who were killed
    may still take messages on moto: after a while these come again."""
    async with (
        running(settings_with(**settings), clock=lambda: time.time() + last) as runtime,
        asyncio.timeout(120),
    ):
        waited = 0.0
        while True:
            keys = [EventRecord.key(event_id) for event_id in sender.acknowledged]
            found = await runtime.store.batch_get(keys)
            if all(record is not None and record.status == "processed" for record in found):
                return
            await asyncio.sleep(0.1)
            waited += 0.1
            if waited > 12:
                queues.seconds, waited = queues.seconds + 65, 0.0


async def compare(settings: dict[str, Any], sender: Sender, vendor: Vendor, ahead: float) -> None:
    """Every event has the actions that it would have had, each once, and nobody was told twice."""
    wanted = {
        TEXTS[0]: {"route": 1, "tag": 1, "auto_reply": 1},
        TEXTS[1]: {"route": 1, "tag": 1},
        TEXTS[2]: {"tag": 1},
        TEXTS[3]: {"escalate": 1, "tag": 1},
    }
    async with running(settings_with(**settings), clock=lambda: time.time() + ahead) as runtime:
        for event_id, event in sender.acknowledged.items():
            record = await runtime.store.get(EventRecord.key(event_id))
            assert record is not None, "an event was lost"
            assert record.status == "processed"
            conversation = event["conversation_id"]
            page = await runtime.store.query(AuditAction.query(conversation))
            done = Counter(action.action_type for action in page.items)
            assert done == wanted[event["customer_message"]], (event_id, page.items)
            ticket = vendor.tickets[conversation]
            unknown = any(action.result.startswith("unknown") for action in page.items)
            assert len(ticket.said) == done["auto_reply"] or (unknown and not ticket.said)
            assert set(ticket.assigned) == set(ticket.assigned[:1])


async def test_nothing_is_lost(tmp_path: Path, vendor: Vendor) -> None:
    files = {"store": f"sqlite:///{tmp_path}/desk.db", "blobs": f"file:{tmp_path}/blobs"}
    await crash_test(acting(vendor) | files, vendor, Ahead())


async def test_nothing_is_lost_on_aws(
    dynamodb_url: str, moto_url: str, vendor: Vendor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", moto_url)
    aws = {
        "store": "dynamodb://us-east-1",
        "queue": "sqs://us-east-1",
        "aws_endpoint_url": dynamodb_url,
        "blobs": "memory:///",
        "env": f"desk{uuid.uuid4().hex[:6]}",
        "allow_networks": ["127.0.0.0/8"],
    }
    ahead = Ahead()
    moto_server.follow(ahead, monkeypatch)
    await crash_test(acting(vendor) | aws, vendor, ahead)


def acting(vendor: Vendor) -> dict[str, Any]:
    return {
        "secret_key": SECRET,
        "desk_webhook_tokens": [TOKEN],
        "desk_outbound": True,
        "richpanel_url": vendor.url,
        "richpanel_api_key": KEY,
        "desk_orders": "tests.desk.counter:find_order",
    }
