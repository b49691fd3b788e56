"""Slack in trouble: refused in time, and well again by itself."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

from tests.gate.post import event_of

if TYPE_CHECKING:
    from tests.gate.post import Post


@pytest.mark.parametrize(
    "trouble",
    ["hang", "cut", "endless", "500", "html", "half", "empty", "internal_error", "fatal_error"],
)
async def test_without_an_answer_it_is_refused_in_time_and_recovers(
    local: Post, trouble: str
) -> None:
    local.slack.trouble = trouble
    begun = time.monotonic()
    answer = await local.send()
    assert time.monotonic() - begun < 2.3  # 1.9, and room for a busy machine
    assert await local.reason(answer) == (403, "unavailable", "1")
    local.slack.trouble = None
    assert (await local.send()).status == 200
    assert len(await local.passed()) == 1


async def test_a_no_that_was_said_counts_more_than_a_missing_answer(local: Post) -> None:
    local.slack.failing = {"team.info", "users.info"}
    for _ in range(7):
        answer = await local.send(event_of(channel="C9"))
        assert await local.reason(answer) == (403, "channel_not_found", "1")
    local.slack.failing = set()
    assert (await local.send()).status == 200


async def test_what_slack_does_not_know_is_refused(local: Post) -> None:
    local.slack.trouble = "some_new_error"
    answer = await local.send()
    assert await local.reason(answer) == (403, "slack_error", "1")


async def test_a_server_that_is_not_there_is_no_answer(local: Post) -> None:
    local.gate.slack._url = "http://127.0.0.1:1/api"
    answer = await local.send()
    assert await local.reason(answer) == (403, "unavailable", "1")


async def test_a_short_pause_that_slack_asks_for_fits_in(local: Post) -> None:
    local.slack.throttled = 3
    assert (await local.send()).status == 200
    assert local.slack.asked == 6


@pytest.mark.parametrize("retry_after", [None, "soon", "-1"])
async def test_without_a_length_a_pause_is_a_second(local: Post, retry_after: str | None) -> None:
    local.slack.throttled, local.slack.retry_after = 3, retry_after
    begun = time.monotonic()
    assert (await local.send()).status == 200
    assert time.monotonic() - begun >= 1.0


async def test_a_long_pause_is_kept(local: Post) -> None:
    local.slack.throttled, local.slack.retry_after = 3, "30"
    begun = time.monotonic()
    answer = await local.send()
    assert time.monotonic() - begun < 1.0
    assert await local.reason(answer) == (403, "throttled", "1")
    assert (await local.send()).status == 403
    assert local.slack.asked == 3
    local.clock.advance(30)
    assert (await local.send()).status == 200


async def test_when_slack_is_down_it_is_left_alone(local: Post) -> None:
    local.slack.trouble = "500"
    for n in range(8):
        assert (await local.send(event_of(f"U{n}0"))).status == 403
    assert local.slack.calls["team.info"] == 5
    local.slack.trouble = None
    assert (await local.send()).status == 403
    local.clock.advance(5)
    assert (await local.send()).status == 200
    assert (await local.send(event_of("U1", None))).status == 200


async def test_trouble_with_one_workspace_is_not_anothers(local: Post) -> None:
    local.slack.team("T2", "xoxb-2")
    local.slack.user("U2", "T2")
    assert (await local.put("T2", bot_token="xoxb-2")).status == 200
    local.slack.throttled, local.slack.retry_after = 3, "60"
    assert (await local.send()).status == 403
    assert (await local.send(event_of("U2", None, "T2"))).status == 200


async def test_many_different_checks_at_once_are_bounded(local: Post) -> None:
    local.slack.delay = 0.3
    events = [event_of(f"U{n}X") for n in range(80)]
    answers = await asyncio.gather(*(local.send(event) for event in events))
    assert {answer.status for answer in answers} == {403}
    assert local.slack.calls["team.info"] == 50
    reasons = {reason for reason, _, _ in await local.refusals()}
    assert reasons == {"busy", "user_not_found"}


async def test_what_is_remembered_passes_while_slack_is_down(local: Post) -> None:
    await local.send()
    local.slack.trouble = "500"
    assert (await local.send()).status == 200
