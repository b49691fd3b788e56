"""Killed at any moment: Slack's next try goes through, and the relay has each event once."""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
import uuid
from collections import Counter
from typing import TYPE_CHECKING, Any

import aiohttp

from tests.gate.post import SIGNING_SECRET, event_of, signed
from tests.support.lives import process
from tests.support.site import SECRET, settings_with
from waystation.gate.workspaces import RateLimit, WorkspaceInput
from waystation.relay.sources import NewSource
from waystation.relay.tables import Event
from waystation.server.runtime import running

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tests.gate.slack_server import Slack

ROUNDS = max(4, int(os.environ.get("CRASH_ROUNDS", "20")) // 4)
SENDERS = 6


class Sender:
    """Sends events as Slack does: each again and again, with the same id, until it gets a 200."""

    def __init__(self) -> None:
        self.acknowledged: list[str] = []
        self.open: list[dict[str, Any]] = []

    async def keep_sending(self, url: str) -> None:
        async with aiohttp.ClientSession() as http:
            await asyncio.gather(*(self._send(http, url) for _ in range(SENDERS)))

    async def _send(self, http: aiohttp.ClientSession, url: str) -> None:
        while True:
            event = self.open.pop() if self.open else event_of(random.choice(["U1", "U2", "U3"]))
            if not await self.tried(http, url, event):
                self.open.append(event)
                return

    async def tried(self, http: aiohttp.ClientSession, url: str, event: dict[str, Any]) -> bool:
        body = json.dumps(event)
        headers = {"Content-Type": "application/json", **signed(body, time.time())}
        try:
            async with http.post(f"{url}/slack/events", data=body, headers=headers) as answer:
                if answer.status != 200:
                    return False
        except (aiohttp.ClientError, OSError):
            return False
        self.acknowledged.append(event["event_id"])
        return True


async def prepare(settings: dict[str, Any], slack: Slack) -> str:
    slack.team()
    for user in ("U1", "U2", "U3"):
        slack.user(user)
    slack.channel()
    async with running(settings_with(**settings)) as runtime:
        user_id = (await runtime.provided["accounts"].find_or_open("ann@example.com")).user_id
        source = await runtime.provided["relay"].sources.create(user_id, NewSource(name="slack"))
        given = WorkspaceInput(
            bot_token="xoxb-1",
            source_id=source.source_id,
            rate_limit=RateLimit(100_000, 60),
        )
        await runtime.provided["gate"].workspaces.put(user_id, "T1", given)
        return str(source.source_id)


async def crash_test(settings: dict[str, Any], slack: Slack, longest: float) -> None:
    source = await prepare(settings, slack)
    sender, rng = Sender(), random.Random(5)
    for _ in range(ROUNDS):
        async with process(settings, "all", 0.0) as (life, url):
            sending = asyncio.create_task(sender.keep_sending(url))
            await asyncio.sleep(rng.uniform(0.05, longest))
            life.kill()
            await sending
    async with process(settings, "all", 0.0) as (_, url), aiohttp.ClientSession() as http:
        for event in sender.open:
            assert await sender.tried(http, url, event)
    async with running(settings_with(**settings)) as runtime:
        events = [event async for event in runtime.store.iterate(Event.query(source))]
    times = Counter(json.loads(event.body)["event_id"] for event in events)
    assert len(sender.acknowledged) >= 20
    assert set(sender.acknowledged) <= times.keys()
    assert set(times.values()) == {1}


def common(slack: Slack) -> dict[str, Any]:
    return {
        "secret_key": SECRET,
        "slack_api_url": slack.url,
        "slack_signing_secret": SIGNING_SECRET,
        "allow_networks": ["127.0.0.0/8"],
    }


async def test_each_event_is_in_the_relay_once(tmp_path: Path, slack: Slack) -> None:
    files = {"store": f"sqlite:///{tmp_path}/gate.db", "blobs": f"file:{tmp_path}/blobs"}
    await crash_test(common(slack) | files, slack, 0.7)


async def test_each_event_is_in_the_relay_once_on_aws(
    slack: Slack, dynamodb_url: str, moto_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", moto_url)
    shared = {
        "store": "dynamodb://us-east-1",
        "queue": "sqs://us-east-1",
        "aws_endpoint_url": dynamodb_url,
        "blobs": "memory:///",
        "env": f"gate{uuid.uuid4().hex[:6]}",
    }
    await crash_test(common(slack) | shared, slack, 1.5)
