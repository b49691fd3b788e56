"""One product: what passes one system arrives in another, though the process is killed."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from tests.desk.counter import PATH, TOKEN, payload
from tests.gate.post import SIGNING_SECRET, event_of, signed
from tests.gate.slack_server import slack_server
from tests.support import moto_server
from tests.support.lives import process
from tests.support.receiver import receiving
from tests.support.site import SECRET, settings_with
from waystation.server.runtime import running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

INBOX = "/v1/tenants/acme/inboxes/main"
NEXT_LIFE = 130.0
"""Seconds by which the clock of a life is ahead of the one before: claims of the dead are over."""

SECONDS = 60.0


class Caller:
    """An account on a server, whichever process it is at the time."""

    def __init__(self, http: aiohttp.ClientSession, key: str) -> None:
        self.url = ""
        self._http = http
        self._headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}

    async def call(self, method: str, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body)
        async with self._http.request(
            method, self.url + path, data=data, headers=self._headers
        ) as answer:
            assert answer.status < 300, (path, await answer.text())
            return await answer.json()

    async def sent(self, path: str, body: str, headers: dict[str, str]) -> None:
        given = {"Content-Type": "application/json", **headers}
        async with self._http.post(self.url + path, data=body, headers=given) as answer:
            assert answer.status == 200, await answer.text()

    @asynccontextmanager
    async def stream(self, path: str) -> AsyncIterator[aiohttp.StreamReader]:
        async with self._http.get(self.url + path, headers=self._headers) as answer:
            assert answer.status == 200
            yield answer.content


class Lives:
    """How far the clock is ahead in the life that is lived now."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def end(self, life: asyncio.subprocess.Process) -> None:
        """Kill it, and move on to the next one."""
        life.kill()
        self.ahead += NEXT_LIFE


@pytest.fixture
def lives() -> Lives:
    return Lives()


@pytest.fixture(params=["sqlite", "aws"])
def engine(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lives: Lives
) -> dict[str, Any]:
    shared = {"secret_key": SECRET, "allow_networks": ["127.0.0.0/8"]}
    if request.param == "sqlite":
        files = {"store": f"sqlite:///{tmp_path}/one.db", "blobs": f"file:{tmp_path}/blobs"}
        return shared | files
    moto_url = request.getfixturevalue("moto_url")
    monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", moto_url)
    moto_server.follow(lambda: time.time() + lives.ahead, monkeypatch)
    return shared | {
        "store": "dynamodb://us-east-1",
        "queue": "sqs://us-east-1",
        "aws_endpoint_url": request.getfixturevalue("dynamodb_url"),
        "blobs": "memory:///",
        "env": f"one{uuid.uuid4().hex[:6]}",
    }


@asynccontextmanager
async def account(settings: dict[str, Any]) -> AsyncIterator[Caller]:
    async with running(settings_with(**settings)) as runtime:
        accounts = runtime.provided["accounts"]
        user = await accounts.find_or_open("ann@example.com")
        _, key = await accounts.keys.create(user.user_id, "test", "admin")
    async with aiohttp.ClientSession() as http:
        yield Caller(http, key)


async def heard(stream: aiohttp.StreamReader, kind: str, text: str) -> None:
    """Read a stream until an event of a kind has a text in it."""
    current = ""
    async with asyncio.timeout(SECONDS):
        async for raw in stream:
            line = raw.decode().rstrip()
            if line.startswith("event:"):
                current = line.removeprefix("event:").strip()
            elif line.startswith("data:") and current == kind and text in line:
                return
    raise AssertionError(f"no {kind} with {text}")


async def test_a_slack_event_arrives_at_an_open_inbox(engine: dict[str, Any], lives: Lives) -> None:
    async with slack_server() as slack:
        slack.team()
        slack.user()
        slack.channel()
        settings = engine | {"slack_api_url": slack.url, "slack_signing_secret": SIGNING_SECRET}
        async with account(settings) as ann:
            async with process(settings, "all", 0.0) as (life, ann.url):
                await connect_slack(ann)
                await ann.sent("/slack/events", *slack_event("first", 0.0))
                lives.end(life)
            async with process(settings, "all", lives.ahead) as (_, ann.url):
                async with ann.stream(f"{INBOX}/users/U1/stream") as stream:
                    await heard(stream, "counts", '"total":1')
                    await ann.sent("/slack/events", *slack_event("second", NEXT_LIFE))
                    await heard(stream, "message", "second")
                messages = (await ann.call("GET", f"{INBOX}/users/U1/messages"))["data"]
    assert [m["message"]["title"] for m in messages] == ["second", "first"]


async def connect_slack(ann: Caller) -> None:
    """A workspace whose events go through the relay into an inbox of the user who wrote."""
    await ann.call("PUT", "/v1/tenants/acme/settings", {"title": "Acme"})
    await ann.call("PUT", INBOX, {"title": "Main"})
    source = (await ann.call("POST", "/v1/sources", {"name": "Slack"}))["id"]
    audience = {"kind": "users", "path": "$.event.user"}
    connection = {
        "name": "To the inbox",
        "inbox": {"tenant": "acme", "inbox": "main", "audience": audience},
        "transform": {"type": "jmespath", "expression": "{title: event.text}"},
        "retry": {"schedule": [1] * 15},
    }
    await ann.call("POST", f"/v1/sources/{source}/connections", connection)
    given = {"bot_token": "xoxb-1", "source_id": source}
    await ann.call("PUT", "/v1/gate/workspaces/T1", given)


def slack_event(text: str, ahead: float) -> tuple[str, dict[str, str]]:
    event = event_of()
    event["event"]["text"] = text
    body = json.dumps(event)
    return body, signed(body, time.time() + ahead)


async def test_a_support_message_that_was_decided_is_delivered(
    engine: dict[str, Any], lives: Lives
) -> None:
    settings = engine | {"desk_webhook_tokens": [TOKEN]}
    async with receiving() as receiver, account(settings) as ann:
        async with process(settings, "all", 0.0) as (life, ann.url):
            source = (await ann.call("POST", "/v1/sources", {"name": "Desk"}))["id"]
            connection = {"name": "To us", "destination_url": receiver.url}
            await ann.call("POST", f"/v1/sources/{source}/connections", connection)
            await ann.call("PUT", "/v1/desk/switches", {"source_id": source})
            body = json.dumps(payload("please cancel my order", "c1"))
            await ann.sent(PATH, body, {"X-Richpanel-Webhook-Token": TOKEN})
            lives.end(life)
        async with process(settings, "all", lives.ahead) as (_, ann.url), asyncio.timeout(SECONDS):
            while (
                not receiver.got
            ):  # a poll of the dead may have taken it, and hides it for a minute
                lives.ahead += 0.5
                await asyncio.sleep(0.05)
    decided = [json.loads(got.body) for got in receiver.got]
    assert {(each["type"], each["conversation_id"]) for each in decided} == {("desk.decided", "c1")}
    assert decided[0]["intent"] == "cancel_order"
    assert len({got.headers["webhook-id"] for got in receiver.got}) == 1
