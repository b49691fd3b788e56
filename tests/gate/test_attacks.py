"""Attacks on the gate: with one key, from another account, through Slack's answers, or by size."""

from __future__ import annotations

import asyncio
import http.client
import json
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import pytest

from tests.gate.post import event_of, signed
from tests.gate.test_library import app_behind, sent
from tests.support.site import listening
from waystation.clock import ManualClock
from waystation.errors import StoreError
from waystation.gate import ExistenceCheck, SlackCheck, TwoKeyMiddleware, Unavailable
from waystation.gate.payloads import claimed

if TYPE_CHECKING:
    from tests.gate.post import Post
    from tests.gate.slack_server import Slack

FORM = "application/x-www-form-urlencoded"
GOOD = {"type": "block_actions", "team": {"id": "T1"}, "user": {"id": "U1"}}


# With the signing secret alone


def two_ways() -> list[tuple[str, str]]:
    """Content types with bodies that some programs read as one thing and others as another."""
    forged = json.dumps(event_of("U9"))[:-1]
    good = quote(json.dumps(GOOD), safe="")
    return [
        (FORM, f'{forged}, "x": "&payload={good}&y="}}'),
        ("text/plain", json.dumps(event_of())),
        ("", json.dumps(event_of())),
        ("application/json", " " + json.dumps(event_of())),
        (FORM, urlencode({"payload": json.dumps(GOOD), "user_id": "U9", "command": "/x"})),
        (FORM, "ssl_check=1&command=%2Fdeploy&team_id=T1&user_id=U9"),
        ("application/json", json.dumps({**GOOD, "team_id": "T1"})),
        ("application/json", json.dumps(event_of(event={"message": {"user": "U9"}}))),
        ("application/json", json.dumps(event_of(user_id="U9"))),
        ("application/json", json.dumps(event_of(channel_id="C9"))),
        ("application/json", json.dumps({**event_of(), "user": {"id": "U9"}})),
        (
            "application/json",
            json.dumps({"type": "url_verification", "challenge": "x", "event": {"user": "U9"}}),
        ),
        ("application/json", '{"type": "url_verification", "challenge": "\\ud800"}'),
    ]


@pytest.mark.parametrize(("content_type", "body"), two_ways())
async def test_what_could_be_read_in_two_ways_is_refused(
    local: Post, content_type: str, body: str
) -> None:
    answer = await local.raw(body, {"Content-Type": content_type})
    assert answer.status == 400
    assert await local.passed() == []


@pytest.mark.parametrize("name", ["X-Slack-Signature", "X-Slack-Request-Timestamp", "Content-Type"])
async def test_a_header_that_comes_twice_counts_as_missing(local: Post, name: str) -> None:
    body = json.dumps(event_of())
    headers = {"Content-Type": "application/json", **signed(body, local.clock())}

    def twice() -> int:
        host = local.hub.server.url.removeprefix("http://")
        connection = http.client.HTTPConnection(host, timeout=5)
        connection.putrequest("POST", "/slack/events")
        for each, value in [*headers.items(), (name, headers[name])]:
            connection.putheader(each, value)
        connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body.encode())
        status = connection.getresponse().status
        connection.close()
        return status

    assert await asyncio.to_thread(twice) in (400, 401)
    assert await local.passed() == []


async def test_a_command_is_not_an_event_that_is_allowed(local: Post) -> None:
    await local.put(bot_token=None)
    assert (await local.command(command="app_uninstalled")).status == 403


async def test_an_allowed_type_does_not_let_forged_ids_pass(local: Post) -> None:
    await local.put(allowed_event_types=["message"])
    assert (await local.send(event_of("U9"))).status == 403
    assert (await local.send(event_of(None, "C9"))).status == 403


async def test_one_key_does_not_keep_out_what_has_both(local: Post) -> None:
    first = event_of(None, None, kind="app_uninstalled", event_id="Ev77")
    assert (await local.send(first)).status == 200
    local.clock.advance(1)
    assert (await local.send(event_of(event_id="Ev77"))).status == 200
    assert len(await local.passed()) == 2


# From another account


async def test_anothers_app_in_the_same_team_gets_nothing_of_ours(local: Post) -> None:
    """Two apps in one team are two workspaces, and each has its own events."""
    local.slack.team("T1", "xoxb-eve", app="A9")
    tenant = (await local.hub.server.sign_up("eve@example.com"))["access_token"]
    theirs = await local.hub.call("POST", "/v1/sources", {"name": "x"}, token=tenant)
    given = {"bot_token": "xoxb-eve", "source_id": theirs.json["id"]}
    assert (await local.put(token=tenant, **given)).status == 200
    given = {"bot_token": None, "allowed_event_types": ["message"]}
    assert (await local.put(token=tenant, source_id=theirs.json["id"], **given)).status == 200
    assert (await local.send()).status == 200
    assert len(await local.passed()) == 1
    path = f"/v1/sources/{theirs.json['id']}/events"
    assert (await local.hub.call("GET", path, token=tenant)).json["data"] == []
    assert (await local.hub.get("/v1/gate/workspaces/T1"))["app_id"] == "A1"


async def test_a_tenant_whose_token_is_of_the_app_may_use_its_secret(local: Post) -> None:
    local.slack.team("T2", "xoxb-2")
    local.slack.user("U2", "T2")
    tenant = (await local.hub.server.sign_up("bob@example.com"))["access_token"]
    source = await local.hub.call("POST", "/v1/sources", {"name": "x"}, token=tenant)
    given = {"bot_token": "xoxb-2", "source_id": source.json["id"]}
    assert (await local.put("T2", token=tenant, **given)).status == 200
    assert (await local.send(event_of("U2", None, "T2"))).status == 200
    assert (await local.send(event_of("U2", None, "T2", api_app_id=None))).status == 401


async def test_an_organisations_events_are_not_taken_by_an_app_in_one_of_its_teams(
    local: Post,
) -> None:
    local.slack.team("E1", "xoxb-org", enterprise="E1")
    local.slack.team("T5", "xoxb-eve", enterprise="E1", app="A9")
    local.slack.user("W5", "T5")
    local.slack.channel("C5", "T5")
    assert (await local.put("E1", bot_token="xoxb-org")).status == 200
    tenant = (await local.hub.server.sign_up("eve@example.com"))["access_token"]
    given = {"bot_token": "xoxb-eve", "source_id": None, "signing_secret": "eve's own secret"}
    assert (await local.put("T5", token=tenant, **given)).status == 200
    assert (await local.send(event_of("W5", "C5", "T5", enterprise_id="E1"))).status == 200
    assert len(await local.passed()) == 1


async def test_another_cannot_use_up_our_rate(local: Post) -> None:
    local.slack.team("T6", "xoxb-6", app="A6")
    tenant = (await local.hub.server.sign_up("eve@example.com"))["access_token"]
    source = (await local.hub.call("POST", "/v1/sources", {"name": "x"}, token=tenant)).json["id"]
    given = {"source_id": source, "signing_secret": "eve's secret"}
    await local.put("T6", token=tenant, bot_token="xoxb-6", **given)
    allowed: dict[str, Any] = {"bot_token": None, "allowed_event_types": ["message"]}
    assert (await local.put("T6", token=tenant, **given, **allowed)).status == 200
    for n in range(12):
        ours = event_of(enterprise_id="T6", api_app_id="A6", event_id=f"Ev{n}")
        answer = await local.send(ours, secret="eve's secret", path="/slack/events/T6")
        assert answer.status == 403
    assert (await local.send()).status == 200


async def test_made_up_teams_push_out_no_real_ones(local: Post) -> None:
    for n in range(300):
        await local.send(event_of(team=f"T{n}X"), secret="a wrong secret")
    assert len(local.gate.workspaces._known) <= 1


# Failures of our own


async def test_a_retry_after_a_failed_hand_over_is_not_counted_twice(post: Post) -> None:
    await post.put(rate_limit={"count": 1, "seconds": 60})
    path = f"/v1/sources/{post.source_id}"
    await post.hub.call("PATCH", path, {"status": "paused"})
    event = event_of()
    for _ in range(3):
        assert (await post.send(event)).status == 503
    await post.hub.call("PATCH", path, {"status": "active"})
    assert (await post.send(event)).status == 200
    assert (await post.send()).status == 429


@pytest.mark.parametrize("error", [StoreError("no"), RuntimeError("no"), KeyError("no")])
async def test_trouble_of_our_own_lets_slack_try_again(
    local: Post, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async def broken(*_: Any) -> None:
        raise error

    monkeypatch.setattr(local.gate.workspaces, "whitelist", broken)
    answer = await local.send()
    assert await local.reason(answer) == (503, "failed", None)


async def test_a_relay_that_takes_too_long_lets_slack_try_again(
    local: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waystation.gate.service.REQUEST_SECONDS", 0.1)

    async def stuck(*_: Any, **__: Any) -> None:
        await asyncio.sleep(60)

    monkeypatch.setattr(local.gate, "_hand_over", stuck)
    answer = await local.send()
    assert await local.reason(answer) == (503, "too_slow", None)


async def test_a_source_with_a_short_memory_still_takes_an_event_once(local: Post) -> None:
    path = f"/v1/sources/{local.source_id}"
    short = {"dedupe": {"mode": "fields", "fields": ["$.event_id"], "window": 1}}
    assert (await local.hub.call("PATCH", path, short)).status == 200
    event = event_of()
    assert (await local.send(event)).status == 200
    local.gate._passed.clear()
    local.clock.advance(3_600)
    assert (await local.send(event)).status == 200
    assert len(await local.passed()) == 1


# By size


async def test_a_flood_without_signatures_does_not_keep_slack_out(local: Post) -> None:
    for _ in range(300):
        await local.hub.server.call("POST", "/slack/events", body=b'{"team_id": "T1"}')
    assert (await local.send()).status == 200


def test_a_long_form_that_nobody_has_signed_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def reading(*_: Any, **__: Any) -> None:
        raise AssertionError("this would take tens of milliseconds")

    monkeypatch.setattr("waystation.gate.payloads.parse_qsl", reading)
    for body in (b"payload=" + b"%41" * 85_000, b"&team_id=T1" * 23_000, b"%22team%22" * 25_000):
        claimed(body, FORM)


async def test_a_long_form_finds_its_workspace(local: Post) -> None:
    own = "a secret of their own app"
    await local.put(signing_secret=own)
    payload = {"type": "block_actions", "api_app_id": "A1", "team": {"id": "T1"}}
    payload |= {"user": {"id": "U1"}, "text": "x" * 50_000}
    body = urlencode({"payload": json.dumps(payload, separators=(",", ":"))})
    answer = await local.raw(body, signed(body, local.clock(), own), form=True)
    assert answer.status == 200


async def test_what_another_app_sends_is_not_ours(local: Post) -> None:
    payload = {**GOOD, "api_app_id": "A9", "text": "x" * 5_000}
    body = urlencode({"payload": json.dumps(payload)})
    answer = await local.raw(body, form=True, path="/slack/events/T1")
    assert await local.reason(answer) == (403, "other_app", "1")


async def test_large_signed_bodies_do_not_hold_up_others(local: Post) -> None:
    event = event_of()
    event["event"]["blocks"] = [{} for _ in range(60_000)]
    sending = asyncio.create_task(local.send(event))
    longest, last = 0.0, time.perf_counter()
    while not sending.done():
        await asyncio.sleep(0.001)
        longest, last = max(longest, time.perf_counter() - last), time.perf_counter()
    assert sending.result().status == 200
    assert longest < 0.25  # sender and server share this loop


# Slack's answers


async def test_a_pause_of_nothing_does_not_make_us_hammer(local: Post) -> None:
    local.slack.throttled, local.slack.retry_after = 1_000, "0"
    assert (await local.send()).status == 403
    assert local.slack.asked == 6


@pytest.mark.parametrize("kind", ["users", "channels", "teams"])
async def test_an_answer_about_somebody_else_is_no_answer(local: Post, kind: str) -> None:
    for known in getattr(local.slack, kind).values():
        known["id"] = "X9"
    assert (await local.send()).status == 403


async def test_those_who_fail_together_count_once() -> None:
    clock = ManualClock(1_000.0)
    failing = True

    async def verify(*ids: str) -> None:
        await asyncio.sleep(0)
        if failing:
            raise Unavailable("no")

    check = ExistenceCheck(verify, clock=clock)
    await asyncio.gather(*(check.check("shop", str(n)) for n in range(45)))
    failing = False
    clock.advance(5)
    assert (await check.check("shop", "ann")).passed


async def test_a_longer_pause_stands() -> None:
    clock, pauses = ManualClock(1_000.0), [600.0, 1.0]

    async def verify(*ids: str) -> None:
        pause = pauses.pop(0)
        await asyncio.sleep(0)
        raise Unavailable("no", retry_after=pause)

    check = ExistenceCheck(verify, clock=clock)
    await asyncio.gather(check.check("shop", "a"), check.check("shop", "b"))
    clock.advance(500)
    assert (await check.check("shop", "c")).detail == "it is being left alone"


async def test_after_trouble_one_at_a_time_tries_again() -> None:
    clock, asked = ManualClock(1_000.0), 0

    async def verify(*ids: str) -> None:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0.01)
        raise Unavailable("no")

    check = ExistenceCheck(verify, clock=clock)
    for n in range(5):
        await check.check("shop", str(n))
    clock.advance(5)
    verdicts = await asyncio.gather(*(check.check("shop", f"x{n}") for n in range(5)))
    assert asked == 6
    assert sorted(verdict.reason for verdict in verdicts) == ["busy"] * 4 + ["unavailable"]


# Shared channels and organisations


async def test_an_event_of_a_shared_channel_is_ours_by_its_authorization(local: Post) -> None:
    shared = {"shared_team_ids": ["T1"], "connected_team_ids": ["T7"]}
    local.slack.channel("C7", "T1", is_ext_shared=True, **shared)
    local.slack.user("U7", team="T7")
    ours: dict[str, Any] = {"authorizations": [{"team_id": "T1"}], "context_team_id": "T1"}
    assert (await local.send(event_of("U7", "C7", "T7", **ours))).status == 200
    assert (await local.send(event_of("U1", "C1", "T7", **ours))).status == 403
    assert (await local.send(event_of("U7", "C7", "T8", **ours))).status == 403
    assert len(await local.passed()) == 1


async def test_a_colleague_passes_in_a_channel_of_the_whole_organisation(local: Post) -> None:
    local.slack.user("U8", team="T2")
    local.slack.channel("C8", "T1", is_org_shared=True, shared_team_ids=["T1", "T2"])
    assert (await local.send(event_of("U8", "C8"))).status == 200
    assert (await local.send(event_of("U8", "C1"))).status == 403


async def test_a_team_may_join_an_organisation_later(local: Post) -> None:
    grid: dict[str, Any] = {"enterprise_id": "E5"}
    assert (await local.send(event_of(**grid))).status == 403
    local.slack.teams["T1"]["enterprise_id"] = "E5"
    assert (await local.send(event_of(**grid))).status == 403  # asked once a minute
    local.clock.advance(61)
    assert (await local.send(event_of(**grid))).status == 200
    assert (await local.send(event_of(**grid))).status == 200


async def test_purging_an_organisation_reaches_its_teams(local: Post) -> None:
    local.slack.team("E1", "xoxb-org", enterprise="E1")
    local.slack.teams["T5"] = {"id": "T5", "enterprise_id": "E1"}
    local.slack.user("W5", "T5")
    local.slack.channel("C5", "T5")
    await local.put("E1", bot_token="xoxb-org")
    event: dict[str, Any] = {"enterprise_id": "E1"}
    assert (await local.send(event_of("W5", "C5", "T5", **event))).status == 200
    local.clock.advance(1)
    path = "/v1/gate/cache?team_id=E1&user_id=W5&channel_id=C5"
    assert (await local.hub.call("DELETE", path)).status == 204
    local.slack.users["W5"]["deleted"] = True
    assert (await local.send(event_of("W5", "C5", "T5", **event))).status == 403


# The middleware


async def test_no_spelling_of_a_path_leads_around_the_middleware(slack: Slack) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"reached"})

    async def mounted(scope: Any, receive: Any, send: Any) -> None:
        await guarded(scope | {"root_path": "/api"}, receive, send)

    check = SlackCheck("xoxb-1", api_url=slack.url)
    for paths, tried in (
        (None, ["/slack/events", "/anything"]),
        (["/slack/events"], ["/slack/events/", "//slack//events", "/api/slack/events"]),
    ):
        guarded = TwoKeyMiddleware(app, signing_secret="secret", check=check, paths=paths)
        async with listening(mounted) as url:
            for path in tried:
                status = await asyncio.to_thread(_status, url, path)
                assert status == 401, path
    await check.close()


def _status(url: str, path: str) -> int:
    host = url.removeprefix("http://")
    connection = http.client.HTTPConnection(host, timeout=5)
    connection.request("POST", path, b"{}", {"Content-Type": "application/json"})
    status = connection.getresponse().status
    connection.close()
    return status


async def test_the_middleware_answers_slacks_own_questions(slack: Slack) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("it must not come here")

    async with app_behind(app, slack) as (url, http):
        challenge = json.dumps({"type": "url_verification", "challenge": "abc"})
        assert await sent(http, url, challenge) == (200, '{"challenge":"abc"}')
        form = {"Content-Type": FORM}
        assert await sent(http, url, "ssl_check=1&token=x", **form) == (200, "")


async def test_a_token_says_nothing_about_teams_it_is_not_of(slack: Slack) -> None:
    slack.team()
    slack.teams["T7"] = {"id": "T7"}
    slack.user("U7", "T7")
    slack.channel("C7", "T7")
    check = SlackCheck("xoxb-1", api_url=slack.url, allow_networks=["127.0.0.0/8"])
    assert (await check.check("T7", "U7", "C7")).reason == "other_team"
    await check.close()
