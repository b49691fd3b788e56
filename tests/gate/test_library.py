"""The parts of the gate in somebody else's program."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import aiohttp
import pytest
from slack_bolt.adapter.asgi.async_handler import AsyncSlackRequestHandler
from slack_bolt.async_app import AsyncApp
from slack_sdk.errors import SlackApiError
from slack_sdk.web.async_client import AsyncWebClient

from tests.gate.post import SIGNING_SECRET, event_of, signed
from tests.support.site import listening
from waystation.clock import ManualClock
from waystation.gate import ExistenceCheck, Refused, SlackCheck, TwoKeyMiddleware, Unavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.gate.slack_server import Slack


# Existence checks of anything


class Registry:
    """Whoever knows who exists."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.failure: Exception | None = None
        self.open = asyncio.Event()
        self.open.set()

    async def verify(self, *ids: str) -> None:
        self.asked.append(ids)
        await self.open.wait()
        if self.failure is not None:
            raise self.failure
        if "nobody" in ids:
            raise Refused("unknown", "there is nobody of that name")


async def test_any_provider_can_be_asked() -> None:
    registry, clock = Registry(), ManualClock(1_000.0)
    check = ExistenceCheck(registry.verify, clock=clock)
    assert (await check.check("shop", "ann")).passed
    assert (await check.check("shop", "ann")).cached
    refused = await check.check("shop", "nobody")
    assert (refused.passed, refused.reason) == (False, "unknown")
    clock.advance(300)
    assert not (await check.check("shop", "ann")).cached
    assert registry.asked == [("shop", "ann"), ("shop", "nobody"), ("shop", "ann")]


async def test_those_who_ask_together_are_answered_together() -> None:
    registry = Registry()
    registry.open.clear()
    check = ExistenceCheck(registry.verify)
    asking = [asyncio.create_task(check.check("shop", "ann")) for _ in range(1_000)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    registry.open.set()
    assert all(verdict.passed for verdict in await asyncio.gather(*asking))
    assert registry.asked == [("shop", "ann")]


async def test_whoever_gives_up_does_not_take_the_others_along() -> None:
    registry = Registry()
    registry.open.clear()
    check = ExistenceCheck(registry.verify)
    first = asyncio.create_task(check.check("shop", "ann"))
    second = asyncio.create_task(check.check("shop", "ann"))
    await asyncio.sleep(0)
    first.cancel()
    registry.open.set()
    assert (await second).passed


async def test_no_answer_in_time_is_a_no() -> None:
    registry = Registry()
    registry.open.clear()
    check = ExistenceCheck(registry.verify, budget=0.05)
    verdict = await check.check("shop", "ann")
    assert (verdict.passed, verdict.reason) == (False, "unavailable")


async def test_any_error_is_a_no_and_several_open_the_circuit() -> None:
    registry, clock = Registry(), ManualClock(1_000.0)
    check = ExistenceCheck(registry.verify, clock=clock)
    registry.failure = RuntimeError("boom")
    for _ in range(7):
        assert (await check.check("shop", "ann")).reason == "unavailable"
    assert len(registry.asked) == 5
    assert (await check.check("other shop", "bob")).reason == "unavailable"
    assert len(registry.asked) == 6  # whose circuit is its own
    for pause in (5, 10, 20, 40, 60, 60):
        clock.advance(pause - 0.1)
        await check.check("shop", "ann")
        asked = len(registry.asked)
        clock.advance(0.1)
        await check.check("shop", "ann")
        assert len(registry.asked) == asked + 1
    registry.failure = None
    clock.advance(60)
    assert (await check.check("shop", "ann")).passed
    assert (await check.check("shop", "eve")).passed


async def test_a_pause_that_was_asked_for_is_kept() -> None:
    registry, clock = Registry(), ManualClock(1_000.0)
    check = ExistenceCheck(registry.verify, clock=clock)
    registry.failure = Unavailable("busy", reason="throttled", retry_after=30)
    assert (await check.check("shop", "ann")).reason == "throttled"
    registry.failure = None
    clock.advance(29)
    assert (await check.check("shop", "ann")).reason == "throttled"
    clock.advance(1)
    assert (await check.check("shop", "ann")).passed


# Middleware


@asynccontextmanager
async def app_behind(
    app: Any, slack: Slack, **more: Any
) -> AsyncIterator[tuple[str, aiohttp.ClientSession]]:
    check = SlackCheck("xoxb-1", api_url=slack.url, allow_networks=["127.0.0.0/8"])
    slack.team()
    slack.user()
    slack.channel()
    guarded = TwoKeyMiddleware(app, signing_secret=SIGNING_SECRET, check=check, **more)
    async with listening(guarded) as url, aiohttp.ClientSession() as http:
        try:
            yield url, http
        finally:
            await check.close()


async def sent(http: aiohttp.ClientSession, url: str, body: str, **headers: str) -> tuple[int, str]:
    given = {"Content-Type": "application/json", **signed(body, time.time()), **headers}
    async with http.post(f"{url}/slack/events", data=body, headers=given) as answer:
        return answer.status, await answer.text()


async def test_a_bolt_app_gets_what_has_both_keys_and_nothing_else(slack: Slack) -> None:
    heard: list[str] = []
    client = AsyncWebClient("xoxb-1", base_url=slack.url)
    bolt = AsyncApp(signing_secret=SIGNING_SECRET, client=client, process_before_response=True)

    @bolt.event("message")
    async def on_message(event: dict[str, Any]) -> None:
        heard.append(event["user"])

    @bolt.command("/deploy")
    async def on_command(ack: Any, command: dict[str, Any]) -> None:
        heard.append(command["user_id"])
        await ack("done")

    handler = AsyncSlackRequestHandler(bolt)
    async with app_behind(handler, slack) as (url, http):
        assert (await sent(http, url, json.dumps(event_of())))[0] == 200
        assert (await sent(http, url, json.dumps(event_of("U9"))))[0] == 403
        assert (await sent(http, url, json.dumps(event_of(channel="C9"))))[0] == 403
        forged = {"X-Slack-Signature": "v0=" + "0" * 64}
        assert (await sent(http, url, json.dumps(event_of()), **forged))[0] == 401
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        fields = {"command": "/deploy", "team_id": "T1", "user_id": "U1", "channel_id": "C1"}
        assert await sent(http, url, urlencode(fields), **form) == (200, "done")
        assert (await sent(http, url, urlencode(fields | {"user_id": "U9"}), **form))[0] == 403
        challenge = json.dumps({"type": "url_verification", "challenge": "abc"})
        status, text = await sent(http, url, challenge)
        assert (status, json.loads(text)) == (200, {"challenge": "abc"})
    assert heard == ["U1", "U1"]


async def test_other_paths_and_large_bodies(slack: Slack) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        message = await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": message["body"]})

    paths = ["/slack/events/"]
    async with app_behind(app, slack, max_body=1_000, paths=paths) as (url, http):
        async with http.post(f"{url}/other", data=b"hello") as answer:
            assert (answer.status, await answer.read()) == (200, b"hello")
        assert (await sent(http, url, "x" * 1_001))[0] == 413
        assert (await sent(http, url, "{}"))[0] == 400
        body = json.dumps(event_of())
        assert await sent(http, url, body) == (200, body)
        assert (await sent(http, url, json.dumps(event_of(team=None))))[0] == 403
        assert (await sent(http, url, json.dumps(event_of(team="T9"))))[0] == 403


async def test_without_a_secret_or_a_token_nothing_passes(slack: Slack) -> None:
    slack.team()
    slack.user()
    slack.channel()

    async def no_token(team: str) -> None:
        return None

    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("it must not come here")

    check = SlackCheck(no_token, api_url=slack.url)
    for secret, status in (("", 401), (SIGNING_SECRET, 403)):
        guarded = TwoKeyMiddleware(app, signing_secret=secret, check=check)
        async with listening(guarded) as url, aiohttp.ClientSession() as http:
            assert (await sent(http, url, json.dumps(event_of())))[0] == status
    await check.close()


# The stand-in, seen by Slack's own client


async def test_slacks_own_client_takes_the_stand_in_for_slack(slack: Slack) -> None:
    slack.team()
    slack.user()
    slack.channel()
    client = AsyncWebClient("xoxb-1", base_url=slack.url)
    assert (await client.auth_test())["team_id"] == "T1"
    assert (await client.users_info(user="U1"))["user"]["id"] == "U1"
    assert (await client.conversations_info(channel="C1"))["channel"]["id"] == "C1"
    assert (await client.team_info())["team"]["id"] == "T1"
    with pytest.raises(SlackApiError, match="user_not_found"):
        await client.users_info(user="U9")
    slack.throttled = 1
    with pytest.raises(SlackApiError) as refused:
        await client.users_info(user="U1")
    assert refused.value.response.status_code == 429
    assert refused.value.response.headers["Retry-After"] == "1"
