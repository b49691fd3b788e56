"""Whose a workspace is, who may pass, and what the owner sees."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from tests.gate.post import SIGNING_SECRET, Post, event_of
from tests.relay.hub import hub_at
from waystation.cli import main
from waystation.gate.records import SIGNED_SLOTS, UNSIGNED_SLOTS
from waystation.gate.tables import CheckRecord, Workspace
from waystation.store import exists, set_to

if TYPE_CHECKING:
    from pathlib import Path

    from tests.gate.slack_server import Slack
    from waystation.clock import ManualClock

ROUTES: list[tuple[str, str, Any]] = [
    ("GET", "/v1/gate/workspaces/T1", None),
    ("DELETE", "/v1/gate/workspaces/T1", None),
    ("POST", "/v1/gate/workspaces/T1/check", {}),
    ("DELETE", "/v1/gate/cache?team_id=T1", None),
]


async def test_a_workspace_shows_no_secret(post: Post) -> None:
    shown = await post.hub.get("/v1/gate/workspaces/T1")
    assert shown["name"] == "Team T1"
    assert (shown["has_bot_token"], shown["has_signing_secret"]) == (True, False)
    assert (shown["source_id"], shown["rate_limit"]) == (
        post.source_id,
        {"count": 10, "seconds": 60},
    )
    assert "xoxb" not in str(shown)
    listed = await post.hub.get("/v1/gate/workspaces")
    assert [each["team_id"] for each in listed["data"]] == ["T1"]


async def test_secrets_are_not_in_clear_in_the_database(local: Post) -> None:
    await local.put(signing_secret="hush hush hush")
    stored = await local.hub.runtime.store.get(Workspace.key("T1", "A1"))
    assert stored is not None
    assert stored.token is not None
    assert stored.signing_secret is not None
    assert b"xoxb" not in stored.token
    assert b"hush" not in stored.signing_secret


async def test_what_cannot_be_opened_opens_nothing(local: Post) -> None:
    store = local.hub.runtime.store
    await store.update(Workspace.key("T1", "A1"), set_to("token", b"x" * 40), when=exists())
    local.clock.advance(3)
    assert await local.reason(await local.send()) == (403, "no_token", "1")
    await store.update(
        Workspace.key("T1", "A1"), set_to("signing_secret", b"x" * 40), when=exists()
    )
    local.clock.advance(3)
    assert await local.reason(await local.send()) == (401, "no_secret", "1")


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"bot_token": "xoxb-wrong"}, "bot_token"),
        ({"bot_token": "xoxb-2"}, "bot_token"),
        ({"bot_token": "xoxb 1"}, "bot_token"),
        ({"bot_token": ""}, "bot_token"),
        ({"source_id": "src_nowhere"}, "source_id"),
        ({"signing_secret": "short"}, "signing_secret"),
        ({"rate_limit": {"count": 0}}, "rate_limit.count"),
        ({"colour": "red"}, "colour"),
    ],
)
async def test_what_is_wrong_is_named(local: Post, given: dict[str, Any], field: str) -> None:
    local.slack.team("T2", "xoxb-2")
    answer = await local.put(**given)
    assert (answer.status, answer.fields) == (400, [field])


async def test_a_new_workspace_needs_its_token(local: Post) -> None:
    for body in ({}, {"bot_token": None}):
        answer = await local.hub.call("PUT", "/v1/gate/workspaces/T2", body)
        assert (answer.status, answer.fields) == (400, ["bot_token"])
    for team in ("t1", "X1", "T", "T1%23", "C1"):
        answer = await local.hub.call("PUT", f"/v1/gate/workspaces/{team}", {"bot_token": "x"})
        assert (answer.status, answer.fields) == (400, ["team_id"])


async def test_what_is_left_out_stays(local: Post) -> None:
    await local.put(signing_secret="a secret of its own")
    answer = await local.hub.call("PUT", "/v1/gate/workspaces/T1", {"source_id": local.source_id})
    assert answer.status == 200
    assert (answer.json["has_bot_token"], answer.json["has_signing_secret"]) == (True, True)
    assert (await local.send(secret="a secret of its own")).status == 200


async def test_when_slack_cannot_be_asked_nothing_is_claimed(local: Post) -> None:
    local.slack.trouble = "500"
    assert (await local.put("T1")).status == 503
    local.slack.trouble = None
    assert (await local.send()).status == 200


async def test_to_another_account_a_workspace_does_not_exist(post: Post) -> None:
    other = await post.hub.server.api_key(email="bob@example.com")
    for method, path, body in ROUTES:
        assert (await post.hub.call(method, path, body, token=other)).status == 404
    await post.send(event_of("U9"))
    assert (await post.hub.call("GET", "/v1/gate/checks", token=other)).json["data"] == []
    assert (await post.hub.call("GET", "/v1/gate/workspaces", token=other)).json["data"] == []


async def test_another_account_cannot_claim_it(post: Post) -> None:
    other = await post.hub.server.api_key(email="bob@example.com")
    answer = await post.put(token=other, source_id=None)
    assert answer.status == 409
    assert (await post.put(token=other, source_id=None, bot_token="xoxb-no")).status == 400
    assert (await post.send()).status == 200
    assert (await post.hub.call("DELETE", "/v1/gate/workspaces/T1")).status == 204
    assert (await post.put(token=other, source_id=None)).status == 200
    assert (await post.hub.call("GET", "/v1/gate/workspaces/T1")).status == 404


async def test_another_accounts_source_is_not_to_be_had(local: Post) -> None:
    local.slack.team("T2", "xoxb-2")
    other = await local.hub.server.api_key(email="bob@example.com")
    answer = await local.put("T2", token=other, bot_token="xoxb-2")
    assert (answer.status, answer.fields) == (400, ["source_id"])


async def test_without_a_source_nothing_is_acknowledged(local: Post) -> None:
    await local.put(source_id=None)
    assert await local.reason(await local.send()) == (403, "no_source", "1")


async def test_a_paused_source_lets_slack_try_again(local: Post) -> None:
    path = f"/v1/sources/{local.source_id}"
    await local.hub.call("PATCH", path, {"status": "paused"})
    event = event_of()
    assert await local.reason(await local.send(event)) == (503, "source_unavailable", None)
    await local.hub.call("PATCH", path, {"status": "active"})
    headers = {"X-Slack-Retry-Num": "1", "X-Slack-Retry-Reason": "http_error"}
    assert (await local.send(event, headers=headers)).status == 200
    assert len(await local.passed()) == 1


# Whitelist


@pytest.mark.parametrize(
    ("lists", "status"),
    [
        ({}, 200),
        ({"user_ids": ["U1"]}, 200),
        ({"user_ids": ["U2"]}, 403),
        ({"team_ids": ["T2"]}, 403),
        ({"channel_ids": ["C2", "C1"]}, 200),
        ({"user_ids": ["U1"], "channel_ids": ["C2"]}, 403),
        ({"team_ids": ["T1"], "user_ids": ["U1"], "channel_ids": ["C1"]}, 200),
    ],
)
async def test_each_list_that_is_not_empty_must_have_it(
    post: Post, lists: dict[str, list[str]], status: int
) -> None:
    assert (await post.hub.call("PUT", "/v1/gate/whitelist", lists)).status == 200
    answer = await post.send()
    assert answer.status == status
    if status == 403:
        assert await post.reason(answer) == (403, "whitelist", "1")
    whole: dict[str, list[str]] = {"team_ids": [], "user_ids": [], "channel_ids": []} | lists
    assert await post.hub.get("/v1/gate/whitelist") == whole


async def test_what_has_no_channel_is_on_no_list_of_channels(local: Post) -> None:
    await local.hub.call("PUT", "/v1/gate/whitelist", {"channel_ids": ["C1"]})
    assert (await local.send(event_of("U1", None))).status == 403
    assert (await local.send(event_of(None, None, kind="app_uninstalled"))).status == 200


async def test_a_whitelist_is_the_accounts_own(local: Post) -> None:
    other = await local.hub.server.api_key(email="bob@example.com")
    lists = {"user_ids": ["U2"]}
    assert (await local.hub.call("PUT", "/v1/gate/whitelist", lists, token=other)).status == 200
    assert (await local.send()).status == 200


async def test_a_whitelist_has_ids_of_slack(local: Post) -> None:
    answer = await local.hub.call("PUT", "/v1/gate/whitelist", {"user_ids": ["ann"]})
    assert (answer.status, answer.fields) == (400, ["user_ids"])


# Rate


async def test_a_user_may_send_ten_in_any_minute(post: Post) -> None:
    post.slack.user("U2")
    for _ in range(10):
        assert (await post.send()).status == 200
        post.clock.advance(1)
    answer = await post.send()
    assert await post.reason(answer) == (429, "rate_limited", "1")
    assert 50 <= int(answer.headers["retry-after"]) <= 52
    assert (await post.send(event_of("U2"))).status == 200
    post.clock.advance(51)
    assert (await post.send()).status == 200
    assert (await post.send()).status == 429


async def test_on_dynamodb_all_processes_share_a_rate(
    post: Post, clock: ManualClock, slack: Slack
) -> None:
    settings = post.hub.runtime.settings
    if settings.store.startswith("sqlite"):
        return  # in memory: there is no other process
    given: dict[str, Any] = {"store": settings.store, "queue": settings.queue}
    given |= {"env": settings.env, "aws_endpoint_url": settings.aws_endpoint_url}
    async with hub_at(
        clock,
        slack_api_url=slack.url,
        slack_signing_secret=SIGNING_SECRET,
        allow_networks=["127.0.0.0/8"],
        **given,
    ) as hub:
        other = Post(hub, slack, post.source_id)
        statuses = [(await each.send()).status for _ in range(6) for each in (post, other)]
    assert statuses == [200] * 10 + [429] * 2


async def test_a_workspace_has_a_rate_of_its_own(local: Post) -> None:
    await local.put(rate_limit={"count": 2, "seconds": 10})
    assert [(await local.send()).status for _ in range(3)] == [200, 200, 429]
    local.clock.advance(11)
    assert (await local.send()).status == 200


async def test_the_same_event_again_is_not_counted(post: Post) -> None:
    event = event_of()
    for _ in range(12):
        assert (await post.send(event)).status == 200
    assert (await post.send()).status == 200
    assert len(await post.passed()) == 2


async def test_another_process_knows_what_has_passed(post: Post) -> None:
    event = event_of()
    assert (await post.send(event)).status == 200
    post.gate._passed.clear()
    post.clock.advance(301)
    post.slack.users["U1"]["deleted"] = True
    asked = post.slack.asked
    headers = {"X-Slack-Retry-Num": "2", "X-Slack-Retry-Reason": "http_timeout"}
    assert (await post.send(event, headers=headers)).status == 200
    assert post.slack.asked == asked
    assert len(await post.passed()) == 1


# What the owner sees


async def test_checks_are_listed_latest_first_and_in_pages(local: Post) -> None:
    for n in range(5):
        await local.send(event_of(f"U{n}9"))
        local.clock.advance(1)
    await local.send()
    whole = (await local.hub.get("/v1/gate/checks"))["data"]
    assert [each["outcome"] for each in whole] == ["passed", *["refused"] * 5]
    assert [each["user_id"] for each in whole] == ["U1", "U49", "U39", "U29", "U19", "U09"]
    assert whole[1]["event_type"] == "message"
    first = await local.hub.get("/v1/gate/checks?outcome=refused&limit=3")
    assert [each["user_id"] for each in first["data"]] == ["U49", "U39", "U29"]
    rest = await local.hub.get(f"/v1/gate/checks?outcome=refused&limit=3&cursor={first['cursor']}")
    assert [each["user_id"] for each in rest["data"]] == ["U19", "U09"]
    assert not rest["has_more"]
    for query in ("cursor=nonsense", f"cursor={first['cursor']}", "outcome=maybe", "limit=0"):
        assert (await local.hub.call("GET", f"/v1/gate/checks?{query}")).status == 400


async def test_forgers_cannot_make_us_write_without_end(local: Post) -> None:
    await local.send(event_of("U9"))
    for n in range(400):
        await local.send(headers={"X-Slack-Signature": f"v0={n:064d}"})
        if n % 10 == 9:
            local.clock.advance(61)
    for n in range(300):
        await local.send(event_of(f"U{n}9"))
        local.clock.advance(1)
    await local.gate.records.finish()
    records = (await local.hub.runtime.store.scan(CheckRecord)).items
    unsigned = [record for record in records if record.reason == "signature_wrong"]
    assert len(unsigned) == UNSIGNED_SLOTS
    assert len(records) - len(unsigned) == SIGNED_SLOTS


async def test_a_forger_writes_only_now_and_then(local: Post) -> None:
    for n in range(50):
        await local.send(headers={"X-Slack-Signature": f"v0={n:064d}"})
    await local.gate.records.finish()
    assert len((await local.hub.runtime.store.scan(CheckRecord)).items) == 10


async def test_logs_have_no_ids(local: Post, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "waystation.gate")
    await local.send(event_of("U9SECRET", "C9SECRET"))
    assert "refused, user_not_found" in caplog.text
    assert "9SECRET" not in caplog.text
    assert "xoxb" not in caplog.text


async def test_metrics_count_what_happened(local: Post) -> None:
    await local.send()
    await local.send()
    await local.send(event_of("U9"))
    page = (await local.hub.server.get("/metrics")).body.decode()
    assert 'waystation_gate_checks_total{outcome="passed",reason=""} 2.0' in page
    assert 'waystation_gate_checks_total{outcome="refused",reason="user_not_found"} 1.0' in page
    assert 'waystation_gate_cache_total{result="hit"} 1.0' in page
    assert 'waystation_gate_cache_total{result="miss"} 2.0' in page
    assert 'waystation_gate_slack_seconds_count{method="users.info"} 2.0' in page


# Trying it out


async def test_a_trial_asks_slack_whatever_is_remembered(local: Post) -> None:
    await local.send()
    path = "/v1/gate/workspaces/T1/check"
    answer = await local.hub.call("POST", path, {"user_id": "U1", "channel_id": "C1"})
    assert (answer.status, answer.json["passed"], answer.json["missing_scopes"]) == (200, True, [])
    local.slack.users["U1"]["deleted"] = True
    answer = await local.hub.call("POST", path, {"user_id": "U1"})
    assert (answer.json["passed"], answer.json["reason"]) == (False, "user_deleted")
    answer = await local.hub.call("POST", path, {"user_id": "ann"})
    assert (answer.status, answer.fields) == (400, ["user_id"])


async def test_the_command_names_missing_scopes(
    local: Post, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    local.slack.tokens["xoxb-1"].scopes = ("team:read", "channels:read")
    options = ["--url", local.hub.server.url, "--key", local.hub.key, "--team", "T1"]
    code = await asyncio.to_thread(main, ["gate", "check", *options, "--user", "U1"])
    assert code == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "refused: missing_scope",
        "users.info needs the scope users:read",
        "missing scopes: users:read, groups:read, im:read, mpim:read",
    ]
    code = await asyncio.to_thread(main, ["gate", "check", *options, "--channel", "C1", "--json"])
    assert code == 0
    assert '"passed": true' in capsys.readouterr().out
