"""Both keys: what passes, what does not, and why."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest
from slack_sdk.signature import Clock, SignatureVerifier

from tests.gate.post import SIGNING_SECRET, event_of, signed
from waystation.patterns import slack_signature, slack_signed

if TYPE_CHECKING:
    from tests.gate.post import Post


async def test_a_genuine_event_reaches_the_relay_as_it_came(post: Post) -> None:
    body = json.dumps(event_of())
    answer = await post.raw(body)
    assert (answer.status, answer.body) == (200, b"")
    assert await post.passed() == [body]


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ({"X-Slack-Signature": ""}, "signature_missing"),
        ({"X-Slack-Request-Timestamp": ""}, "signature_missing"),
        ({"X-Slack-Signature": "v0=" + "0" * 64}, "signature_wrong"),
        ({"X-Slack-Signature": "v1=" + "0" * 64}, "signature_wrong"),
        ({"X-Slack-Request-Timestamp": "-1"}, "signature_wrong"),
        ({"X-Slack-Request-Timestamp": "soon"}, "signature_wrong"),
    ],
)
async def test_the_first_key_is_never_left_out(
    local: Post, headers: dict[str, str], reason: str
) -> None:
    answer = await local.send(headers=headers)
    assert await local.reason(answer) == (401, reason, "1")
    assert await local.passed() == []
    assert local.slack.asked == 0


@pytest.mark.parametrize("seconds", [-301, 301])
async def test_an_old_signature_is_refused(local: Post, seconds: int) -> None:
    body = json.dumps(event_of())
    answer = await local.raw(body, signed(body, local.clock() + seconds))
    assert await local.reason(answer) == (401, "signature_old", "1")


@pytest.mark.parametrize("seconds", [-299, 299])
async def test_a_clock_may_be_off_a_little(local: Post, seconds: int) -> None:
    body = json.dumps(event_of())
    assert (await local.raw(body, signed(body, local.clock() + seconds))).status == 200


async def test_without_any_secret_everything_is_refused(local: Post) -> None:
    local.gate.signing_secret = None
    answer = await local.send()
    assert await local.reason(answer) == (401, "no_secret", "1")


async def test_a_workspaces_own_secret_counts_and_no_other(local: Post) -> None:
    own = "a secret of their own app"
    assert (await local.put(signing_secret=own)).status == 200
    assert (await local.send()).status == 401
    assert (await local.send(secret=own)).status == 200
    assert (await local.put(signing_secret=None)).status == 200
    assert (await local.send(secret=own)).status == 401
    assert (await local.send()).status == 200


class FixedClock(Clock):
    def now(self) -> float:
        return 1_700_000_000.0


def test_slacks_own_sdk_signs_and_verifies_as_we_do() -> None:
    body, now = '{"text": "schöne Grüße"}', 1_700_000_000
    theirs = signed(body, now)["X-Slack-Signature"]
    assert slack_signature(SIGNING_SECRET, str(now), body.encode()) == theirs
    assert slack_signed(SIGNING_SECRET, str(now), theirs, body.encode(), now)
    verifier = SignatureVerifier(SIGNING_SECRET, clock=FixedClock())
    ours = slack_signature(SIGNING_SECRET, str(now), body.encode())
    assert verifier.is_valid(body, str(now), ours)


async def test_the_challenge_is_answered_after_the_signature(local: Post) -> None:
    asked = {"type": "url_verification", "token": "x", "challenge": "3eZbrw1aB"}
    answer = await local.send(asked)
    assert (answer.status, answer.json) == (200, {"challenge": "3eZbrw1aB"})
    assert (await local.send(asked, secret="another secret")).status == 401


async def test_a_path_can_name_the_team_whose_secret_it_is(local: Post) -> None:
    own = "a secret of their own app"
    await local.put(signing_secret=own)
    asked = {"type": "url_verification", "challenge": "x"}
    path = "/slack/events/T1"
    assert (await local.send(asked, secret=own)).status == 401
    assert (await local.send(asked, secret=own, path=path)).status == 200
    assert (await local.send(secret=own, path=path)).status == 200
    answer = await local.send(event_of(team="T2"), secret=own, path=path)
    assert await local.reason(answer) == (403, "other_team", "1")


async def test_an_ssl_check_is_answered(local: Post) -> None:
    body = urlencode({"ssl_check": "1", "token": "x"})
    assert (await local.raw(body, form=True)).status == 200


async def test_other_methods_and_paths_are_not_slacks(local: Post) -> None:
    assert (await local.hub.server.call("GET", "/slack/events")).status == 405
    assert (await local.hub.server.call("POST", "/slack/events/a/b", body=b"{}")).status == 404
    assert (await local.hub.server.call("POST", "/slack/other", body=b"{}")).status == 404


# Key two


FORGED = [
    (event_of(team="T9"), "unknown_workspace"),
    (event_of("U9"), "user_not_found"),
    (event_of(channel="C9"), "channel_not_found"),
    (event_of("U2"), "user_deleted"),
    (event_of(channel="C2"), "channel_archived"),
    (event_of("U3"), "other_team"),
    (event_of(channel="C3"), "other_team"),
    (event_of("u1"), "unreadable"),
    (event_of("U1#C1"), "unreadable"),
    (event_of(channel=""), "unreadable"),
    (event_of(7), "unreadable"),
    (event_of(event={"channel_id": "C3"}), "unreadable"),
    (event_of(event={"user_id": "U3"}), "unreadable"),
    (event_of(enterprise_id="E9"), "other_team"),
    (event_of() | {"event": None}, "unreadable"),
    (event_of() | {"type": "other"}, "unreadable"),
]


async def test_what_is_forged_does_not_pass(post: Post) -> None:
    post.slack.team("T2", "xoxb-2")
    post.slack.user("U2", deleted=True)
    post.slack.user("U3", team="T2")
    post.slack.channel("C2", is_archived=True)
    post.slack.channel("C3", team="T2")
    for event, reason in FORGED:
        answer = await post.send(event)
        assert answer.headers["x-slack-no-retry"] == "1"
        assert answer.status == (400 if reason == "unreadable" else 403)
        if reason != "unknown_workspace":  # which has no owner to show it to
            assert (await post.refusals())[0][0] == reason
        post.clock.advance(1)
    assert await post.passed() == []


@pytest.mark.parametrize(
    "event",
    [
        event_of(channel="D1"),
        event_of(channel="G1"),
        event_of("W1"),
        event_of(None, "C1", event={"message": {"user": "U1"}}),
        event_of(None, None, event={"item": {"channel": "C1"}, "user": "U1"}),
        event_of(None, None, event={"user_id": "U1", "channel_id": "C1"}),
        event_of({"id": "U1", "name": "x"}, {"id": "C1", "name": "y"}),
        event_of(None, None, kind="team_rename"),
        event_of("U1", None, kind="user_change"),
        event_of(None, "C1", kind="channel_archive"),
    ],
)
async def test_what_slack_confirms_passes(local: Post, event: dict[str, Any]) -> None:
    local.slack.user("W1")
    local.slack.channel("D1", is_im=True)
    local.slack.channel("G1", is_private=True)
    assert (await local.send(event)).status == 200
    assert len(await local.passed()) == 1


async def test_only_ids_that_are_there_are_asked_for(local: Post) -> None:
    local.slack.calls.clear()
    await local.send(event_of(None, None, kind="team_rename"))
    assert dict(local.slack.calls) == {"team.info": 1}


async def test_a_name_that_comes_twice_could_be_read_in_two_ways(local: Post) -> None:
    body = json.dumps(event_of("U1")).replace('"user": "U1"', '"user": "U9", "user": "U1"')
    assert (await local.raw(body)).status == 400
    form = urlencode([("command", "/x"), ("team_id", "T1"), ("user_id", "U9"), ("user_id", "U1")])
    assert (await local.raw(form, form=True)).status == 400
    assert await local.passed() == []


@pytest.mark.parametrize(
    "body",
    ["", "[]", "{", '"x"', "null", '{"type": 1}', '{"type": "event_callback", "event": []}',
     '{"type": "event_callback", "team_id": "T1", "event": {"type": "message"}, "n": NaN}',
     "[" * 5_000, '{"a":' * 5_000, "\ufeff{}"],
)  # fmt: skip
async def test_what_slack_would_not_send_is_refused(local: Post, body: str) -> None:
    assert (await local.raw(body)).status == 400
    assert (await local.raw(body, form=True)).status == 400


async def test_no_ids_and_no_team_is_refused_unless_the_type_is_allowed(local: Post) -> None:
    path = "/slack/events/T1"
    event = event_of(None, None, None, kind="emoji_changed")
    answer = await local.send(event, path=path)
    assert await local.reason(answer) == (403, "no_ids", "1")
    await local.put(allowed_event_types=["emoji_changed"])
    assert (await local.send(event, path=path)).status == 200


async def test_without_a_token_only_allowed_types_pass(local: Post) -> None:
    await local.put(bot_token=None, allowed_event_types=["emoji_changed"])
    answer = await local.send()
    assert await local.reason(answer) == (403, "no_token", "1")
    assert (await local.send(event_of(kind="emoji_changed"))).status == 200


async def test_a_missing_scope_is_named(local: Post) -> None:
    local.slack.tokens["xoxb-1"].scopes = ("team:read", "channels:read")
    answer = await local.send()
    assert await local.reason(answer) == (403, "missing_scope", "1")
    [newest, *_] = (await local.hub.get("/v1/gate/checks"))["data"]
    assert newest["detail"] == "users.info needs the scope users:read"


async def test_a_revoked_token_opens_nothing(local: Post) -> None:
    local.slack.tokens["xoxb-1"].revoked = True
    answer = await local.send()
    assert await local.reason(answer) == (403, "token_invalid", "1")


# Interactions and commands


async def test_interactions_need_both_keys(post: Post) -> None:
    who = {"type": "block_actions", "team": {"id": "T1"}, "user": {"id": "U1"}}
    assert (await post.interact(**who, channel={"id": "C1"})).status == 200
    assert (
        await post.interact(**who | {"type": "view_submission"}, view={"id": "V"})
    ).status == 200
    assert (await post.interact(**who | {"user": {"id": "U9"}})).status == 403
    assert (await post.interact(**who, channel={"id": "C9"})).status == 403
    assert (
        await post.interact(**who, channel={"id": "C1"}, container={"channel_id": "C9"})
    ).status == 400
    assert len(await post.passed()) == 2


async def test_commands_need_both_keys(post: Post) -> None:
    answer = await post.command()
    assert (answer.status, answer.body) == (200, b"")
    assert (await post.command(user_id="U9")).status == 403
    assert (await post.command(channel_id="C9")).status == 403
    assert (await post.command(team_id="T9")).status == 403
    [body] = await post.passed()
    assert body.startswith("command=%2Fdeploy")


async def test_a_command_that_is_sent_again_passes_once(local: Post) -> None:
    fields = {"command": "/x", "team_id": "T1", "user_id": "U1", "channel_id": "C1"}
    body = urlencode(fields)
    headers = signed(body, local.clock())
    statuses = [(await local.raw(body, headers, form=True)).status for _ in range(2)]
    assert statuses == [200, 200]
    assert len(await local.passed()) == 1


# Organisations and shared channels


async def test_a_guest_passes_in_a_channel_that_is_shared_with_their_team(local: Post) -> None:
    local.slack.user("U7", team="T7")
    shared = {"shared_team_ids": ["T1"], "connected_team_ids": ["T7"]}
    local.slack.channel("C7", "T1", is_ext_shared=True, **shared)
    assert (await local.send(event_of("U7", "C7"))).status == 200
    assert (await local.send(event_of("U7", "C1"))).status == 403
    assert (await local.send(event_of("U7", None))).status == 403
    local.slack.user("U8", team="T8")
    assert (await local.send(event_of("U8", "C7"))).status == 403
    local.slack.channel("C6", "T1", **shared)  # it was shared once
    assert (await local.send(event_of("U7", "C6"))).status == 403


async def test_an_organisations_token_checks_its_teams_and_no_others(local: Post) -> None:
    local.slack.team("E1", "xoxb-org", enterprise="E1")
    local.slack.teams["T5"] = {"id": "T5", "enterprise_id": "E1"}
    local.slack.teams["T6"] = {"id": "T6", "enterprise_id": "E2"}
    local.slack.user("W5", team="T5", enterprise_user={"enterprise_id": "E1", "teams": ["T5"]})
    local.slack.channel("C5", team="T5")
    local.slack.channel("C6", team="T6")
    local.slack.channels["C8"] = {"id": "C8"}
    assert (await local.put("E1", bot_token="xoxb-org")).status == 200
    grid: dict[str, Any] = {"enterprise_id": "E1"}
    assert (await local.send(event_of("W5", "C5", "T5", **grid))).status == 200
    assert (await local.send(event_of("W5", "C6", "T5", **grid))).status == 403
    assert (await local.send(event_of("W5", "C8", "T5", **grid))).status == 403
    assert (await local.send(event_of("U1", "C1", "T6", **grid))).status == 403
    who = {"type": "block_actions", "team": None, "enterprise": {"id": "E1"}}
    assert (await local.interact(**who, user={"id": "W5"})).status == 200
