"""A server with a gate, a workspace in it, and Slack's own way of signing what it sends."""

from __future__ import annotations

import itertools
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from slack_sdk.signature import SignatureVerifier

from tests.relay.hub import Hub, hub_at

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.gate.slack_server import Slack
    from tests.support.site import Answer
    from waystation.clock import ManualClock
    from waystation.gate.service import Gate

SIGNING_SECRET = "8f742231b10e8888abcd99yyyzzz85a5"
_numbers = itertools.count(1)


def signed(body: str, at: float, secret: str = SIGNING_SECRET) -> dict[str, str]:
    """The headers that Slack's own SDK computes."""
    signature = SignatureVerifier(secret).generate_signature(timestamp=str(int(at)), body=body)
    assert signature is not None
    return {"X-Slack-Request-Timestamp": str(int(at)), "X-Slack-Signature": signature}


def event_of(
    user: Any = "U1",
    channel: Any = "C1",
    team: Any = "T1",
    *,
    kind: str = "message",
    event_id: str | None = None,
    event: dict[str, Any] | None = None,
    **more: Any,
) -> dict[str, Any]:
    inner: dict[str, Any] = {"type": kind, "text": "hello", "ts": "1.2"}
    inner |= {} if user is None else {"user": user}
    inner |= {} if channel is None else {"channel": channel}
    outer = {
        "type": "event_callback",
        "api_app_id": "A1",
        "event_id": event_id or f"Ev{next(_numbers):08d}",
        "event_time": 1_700_000_000,
        "event": inner | (event or {}),
    }
    return outer | ({} if team is None else {"team_id": team}) | more


class Post:
    """Sends what Slack would."""

    def __init__(self, hub: Hub, slack: Slack, source_id: str) -> None:
        self.hub = hub
        self.slack = slack
        self.source_id = source_id
        self.clock = hub.clock
        self.gate: Gate = hub.runtime.provided["gate"]

    async def raw(
        self,
        body: str,
        headers: dict[str, str] | None = None,
        *,
        form: bool = False,
        secret: str = SIGNING_SECRET,
        path: str = "/slack/events",
    ) -> Answer:
        kind = "application/x-www-form-urlencoded" if form else "application/json"
        given = {"Content-Type": kind, **signed(body, self.clock(), secret), **(headers or {})}
        return await self.hub.server.call("POST", path, body=body.encode(), headers=given)

    async def send(self, event: dict[str, Any] | None = None, **more: Any) -> Answer:
        return await self.raw(json.dumps(event or event_of()), **more)

    async def interact(self, **payload: Any) -> Answer:
        return await self.raw(urlencode({"payload": json.dumps(payload)}), form=True)

    async def command(self, **fields: str) -> Answer:
        given = {"command": "/deploy", "team_id": "T1", "user_id": "U1", "channel_id": "C1"}
        return await self.raw(urlencode(given | fields), form=True)

    async def put(self, team: str = "T1", token: str | None = None, **given: Any) -> Answer:
        body = {"bot_token": "xoxb-1", "source_id": self.source_id, **given}
        answer = await self.hub.call("PUT", f"/v1/gate/workspaces/{team}", body, **_as(token))
        self.clock.advance(1)  # what Slack says in the second of a new token does not count yet
        return answer

    async def passed(self) -> list[str]:
        """The bodies of all events that the relay has, oldest first."""
        found = await self.hub.get(f"/v1/sources/{self.source_id}/events?limit=100")
        events = [await self.hub.event(each["id"]) for each in reversed(found["data"])]
        return [event["body"] for event in events]

    async def refusals(self) -> list[tuple[str, str | None, str | None]]:
        found = await self.hub.get("/v1/gate/checks?outcome=refused&limit=100")
        return [(each["reason"], each["user_id"], each["channel_id"]) for each in found["data"]]

    async def reason(self, answer: Answer) -> tuple[int, str, str | None]:
        """An answer's status, the reason that the owner sees, and whether Slack may try again."""
        newest = (await self.refusals())[0]
        return answer.status, newest[0], answer.headers.get("x-slack-no-retry")


def _as(token: str | None) -> dict[str, str]:
    return {} if token is None else {"token": token}


@asynccontextmanager
async def gate_at(clock: ManualClock, slack: Slack, **settings: Any) -> AsyncIterator[Post]:
    """A gate with the workspace T1, its user U1 and its channel C1."""
    slack.team()
    slack.user()
    slack.channel()
    given = {"slack_api_url": slack.url, "slack_signing_secret": SIGNING_SECRET, **settings}
    async with hub_at(clock, **given) as hub:
        post = Post(hub, slack, await hub.source())
        assert (await post.put()).status == 200
        yield post
