"""What the gate checks is what the program behind it reads: compared with Slack's own Bolt."""

from __future__ import annotations

import asyncio
import json
import os
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from slack_bolt.request import internals as bolt

from tests.gate.post import event_of
from tests.gate.test_library import app_behind, sent
from waystation.errors import StoreError
from waystation.gate.payloads import Unreadable, read

if TYPE_CHECKING:
    from tests.gate.post import Post
    from tests.gate.slack_server import Slack

EXAMPLES = int(os.environ.get("SHAPES", "1500"))
FORM = "application/x-www-form-urlencoded"
JSON = "application/json"
CLICK: dict[str, Any] = {"type": "block_actions", "team": {"id": "T1"}, "user": {"id": "U1"}}
FORGED = {"type": "message", "user": "U9", "channel": "C9"}


@pytest.mark.parametrize(
    "more",
    [
        {"type": "event_callback", "event": FORGED},
        {"event": FORGED},
        {"command": "/deploy"},
        {"type": "url_verification", "challenge": "x"},
        {"user": None, "message": {"user": "U9"}},
        {"authorizations": [{"team_id": "T9"}]},
        {"team": {"id": "T1", "enterprise_id": "E9"}},
        {"view": {"app_installed_team_id": "T9"}},
    ],
)
async def test_an_interaction_is_nothing_else(local: Post, more: dict[str, Any]) -> None:
    assert (await local.interact(**CLICK | more)).status in (400, 401, 403)
    assert await local.passed() == []


@pytest.mark.parametrize(
    "event",
    [
        {"assistant_thread": {"user_id": "U9", "channel_id": "C1"}},
        {"assistant_thread": {"user_id": "U1", "channel_id": "C9"}},
        {"previous_message": {"user": "U9"}},
        {"user_team": "T9", "team": "T9"},
        {"enterprise_id": "E9"},
    ],
)
async def test_ids_in_every_place_that_is_read_are_checked(
    local: Post, event: dict[str, Any]
) -> None:
    for user, channel in (("U1", "C1"), (None, "C1")):
        sent_event = event_of(user, channel, event=event)
        if user is None and "user" not in json.dumps(event):
            continue
        assert (await local.send(sent_event)).status in (400, 403)
    assert await local.passed() == []


async def test_a_command_without_a_user_is_refused(local: Post) -> None:
    assert (await local.command(user_id="")).status == 400


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        (FORM, "command=%2Fx&team_id=T1&user_id=U1;user_id=U9&channel_id=C1"),
        (FORM, "command=%2Fx&team_id=T1&user_id=U1&user.id=U9"),
        (FORM, "command=%2Fx&team_id=T1&user_id=U1&user_id[]=U9"),
        (JSON + "; charset=utf-7", json.dumps(event_of())),
        (JSON, json.dumps(event_of(event={"User": "U9"}))),
        (JSON, json.dumps({**event_of(), "Event": FORGED})),
        (JSON, json.dumps({**event_of(), "command": "/x"})),
    ],
)
async def test_what_other_languages_read_differently_is_refused(
    local: Post, content_type: str, body: str
) -> None:
    answer = await local.raw(body, {"Content-Type": content_type})
    assert answer.status in (400, 401)
    assert await local.passed() == []


async def test_the_app_behind_the_middleware_never_sees_a_smuggled_event(slack: Slack) -> None:
    async def app(*_: Any) -> None:
        raise AssertionError("it got through")

    async with app_behind(app, slack) as (url, http):
        form = {"Content-Type": FORM}
        for body, headers, status in (
            (urlencode({"payload": json.dumps({**CLICK, "event": FORGED})}), form, 400),
            (json.dumps(event_of(enterprise_id="E9")), {}, 403),
        ):
            assert (await sent(http, url, body, **headers))[0] == status


# Whatever passes, Bolt reads the same ids out of it

ids: Any = st.sampled_from(["T1", "T9", "E9", "U1", "U9", "C1", "C9", None, "", {"id": "U9"}, {}])
leaves = st.dictionaries(
    st.sampled_from(["id", "user", "user_id", "channel", "channel_id", "team_id", "team"]),
    ids,
    max_size=3,
)
people = st.dictionaries(
    st.sampled_from(
        [
            *("id", "user", "user_id", "channel", "channel_id", "team_id", "team", "event"),
            *("message", "previous_message", "item", "enterprise_id", "app_installed_team_id"),
        ]
    ),
    st.one_of(ids, ids, leaves),
    max_size=4,
)
names = st.sampled_from(
    [
        *("user", "user_id", "channel", "channel_id", "team", "team_id", "enterprise"),
        *("enterprise_id", "message", "previous_message", "item", "assistant_thread", "view"),
        *("container", "user_team", "command", "actions", "context_team_id"),
    ]
)
parts = st.dictionaries(names, st.one_of(ids, people), max_size=5)
bodies = st.builds(
    lambda outer, inner, kind, listed: {
        **outer,
        **({"event": {"type": "message", **inner}} if inner is not None else {}),
        **({"authorizations": [listed]} if listed is not None else {}),
        "type": kind,
    },
    parts,
    st.none() | parts,
    st.sampled_from(["event_callback", "block_actions", "view_submission", "shortcut"]),
    st.none()
    | st.dictionaries(
        st.sampled_from(["team_id", "enterprise_id", "team", "view", "event"]),
        st.one_of(ids, leaves),
        max_size=2,
    ),
)


THEIR_USER = {"type": "message", "user": {"team_id": "T9"}}


@settings(max_examples=EXAMPLES, deadline=None)
@given(bodies, st.booleans())
@example({"context_team_id": "T1", "event": THEIR_USER, "type": "event_callback"}, False)
def test_bolt_reads_the_ids_that_were_checked(body: dict[str, Any], form: bool) -> None:
    text = urlencode({"payload": json.dumps(body)}) if form else json.dumps(body)
    content_type = FORM if form else JSON
    try:
        asked = read(text.encode(), content_type)
    except Unreadable:
        return
    seen = bolt.parse_body(text, content_type)
    assert bolt.extract_user_id(seen) in (None, "", asked.user)
    assert bolt.extract_channel_id(seen) in (None, "", asked.channel)
    assert bolt.extract_team_id(seen) in (None, "", asked.team, asked.origin)
    assert bolt.extract_enterprise_id(seen) in (None, "", asked.enterprise)


# Time, counting and memory


async def test_slow_memory_and_a_hanging_slack_together_are_refused_in_time(
    local: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def slow(*_: Any) -> None:
        await asyncio.sleep(10)

    monkeypatch.setattr(local.gate.memory, "get", slow)
    local.slack.trouble = "hang"
    begun = time.monotonic()
    answer = await local.send()
    assert time.monotonic() - begun < 2.3  # 1.9, and room for a busy machine
    assert await local.reason(answer) == (403, "unavailable", "1")


async def test_a_limiter_that_hangs_does_not_keep_slack_waiting(
    local: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hanging(*_: Any, **__: Any) -> None:
        await asyncio.sleep(0.5)
        raise StoreError("no")

    monkeypatch.setattr(local.gate, "_shared", True)
    monkeypatch.setattr(local.gate, "_hand_over", hanging)
    monkeypatch.setattr("waystation.gate.service.SharedLimiter.give_back", hanging)
    begun = time.monotonic()
    assert (await local.send()).status == 503
    assert time.monotonic() - begun < 0.95


async def test_many_events_of_one_user_at_once_are_counted_one_by_one(post: Post) -> None:
    await post.put(rate_limit={"count": 10_000, "seconds": 60})
    answers = await asyncio.gather(*(post.send() for _ in range(40)))
    assert {answer.status for answer in answers} <= {200, 503}
    assert sum(answer.status == 200 for answer in answers) >= 30


async def test_what_anothers_token_was_told_is_not_ours_to_rely_on(post: Post) -> None:
    """Two apps in one team, of two accounts; the second one's token is good, ours is not."""
    post.slack.team("T1", "xoxb-eve", app="A9")
    tenant = (await post.hub.server.sign_up("eve@example.com"))["access_token"]
    source = await post.hub.call("POST", "/v1/sources", {"name": "x"}, token=tenant)
    given = {"bot_token": "xoxb-eve", "signing_secret": "eve's secret"}
    await post.put(token=tenant, source_id=source.json["id"], **given)
    post.slack.tokens["xoxb-1"].revoked = True
    theirs = event_of(api_app_id="A9")
    assert (await post.send(theirs, secret="eve's secret")).status == 200
    await post.gate.existence.settle()
    post.clock.advance(5)
    assert (await post.send()).status == 403


async def test_a_refusal_of_the_shared_limit_is_not_counted_here(
    local: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    from waystation.errors import TooManyRequests

    async def full(*_: Any) -> None:
        raise TooManyRequests("full", retry_after=1.0)

    await local.put(rate_limit={"count": 2, "seconds": 60})
    with monkeypatch.context() as patch:
        patch.setattr(local.gate, "_shared", True)
        patch.setattr("waystation.gate.service.SharedLimiter.take", full)
        for _ in range(5):
            assert (await local.send()).status == 429
    assert (await local.send()).status == 200


async def test_a_retry_that_reaches_another_process_is_not_counted_again(local: Post) -> None:
    await local.put(rate_limit={"count": 2, "seconds": 60})
    event = event_of()
    for _ in range(5):
        assert (await local.send(event)).status == 200
        local.gate._passed.clear()  # as in a process that has not seen it
    assert (await local.send()).status == 200
    assert len(await local.passed()) == 2


async def test_a_user_has_one_limit_however_the_team_is_named(local: Post) -> None:
    await local.put(rate_limit={"count": 3, "seconds": 60})
    statuses = []
    for n in range(6):
        team = "T1" if n % 2 else None
        answer = await local.send(event_of(team=team), path="/slack/events/T1")
        statuses.append(answer.status)
    assert statuses == [200, 200, 200, 429, 429, 429]


async def test_last_words_are_heeded_now_and_then(
    local: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    purged = []
    purge = local.gate.workspaces.purge

    async def counted(*given: Any) -> None:
        purged.append(given)
        await purge(*given)

    monkeypatch.setattr(local.gate.workspaces, "purge", counted)
    for n in range(12):
        await local.send(event_of("U9", None, kind="app_uninstalled", event_id=f"Ev{n}"))
    assert purged == []
    local.clock.advance(5)
    statuses = [
        (await local.send(event_of(None, None, kind="app_uninstalled", event_id=f"Ev1{n}"))).status
        for n in range(12)
    ]
    assert len(purged) == 1
    assert statuses == [200] * 10 + [429] * 2


async def test_events_after_a_move_wait_for_the_one_answer(local: Post) -> None:
    local.slack.teams["T1"]["enterprise_id"] = "E5"
    local.slack.delay = 0.05
    answers = await asyncio.gather(*(local.send(event_of(enterprise_id="E5")) for _ in range(5)))
    assert [answer.status for answer in answers] == [200] * 5


async def test_a_users_token_proves_no_workspace(
    local: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    local.slack.team("T8", "xoxp-8")
    found = local.slack._found

    def without_bot(method: str, *rest: Any) -> dict[str, Any]:
        return {k: v for k, v in found(method, *rest).items() if k != "bot_id"}

    monkeypatch.setattr(local.slack, "_found", without_bot)
    answer = await local.put("T8", bot_token="xoxp-8")
    assert (answer.status, answer.fields) == (400, ["bot_token"])


async def test_what_slack_says_about_a_retry_is_handed_over(local: Post) -> None:
    retry = {"X-Slack-Retry-Num": "2", "X-Slack-Retry-Reason": "http_timeout"}
    assert (await local.send(headers=retry)).status == 200
    [event] = (await local.hub.get(f"/v1/sources/{local.source_id}/events"))["data"]
    headers = (await local.hub.event(event["id"]))["headers"]
    assert headers["x-slack-retry-num"] == "2"
    assert headers["x-slack-retry-reason"] == "http_timeout"
