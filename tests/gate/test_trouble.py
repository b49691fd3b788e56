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
    post: Post, trouble: str
) -> None:
    post.slack.trouble = trouble
    begun = time.monotonic()
    answer = await post.send()
    assert time.monotonic() - begun < 2.3  # 1.9, and room for a busy machine
    assert await post.reason(answer) == (403, "unavailable", "1")
    post.slack.trouble = None
    assert (await post.send()).status == 200
    assert len(await post.passed()) == 1


async def test_a_no_that_was_said_counts_more_than_a_missing_answer(post: Post) -> None:
    post.slack.failing = {"team.info", "users.info"}
    for _ in range(7):
        answer = await post.send(event_of(channel="C9"))
        assert await post.reason(answer) == (403, "channel_not_found", "1")
    post.slack.failing = set()
    assert (await post.send()).status == 200


async def test_what_slack_does_not_know_is_refused(post: Post) -> None:
    post.slack.trouble = "some_new_error"
    answer = await post.send()
    assert await post.reason(answer) == (403, "slack_error", "1")


async def test_a_server_that_is_not_there_is_no_answer(post: Post) -> None:
    post.gate.slack._url = "http://127.0.0.1:1/api"
    answer = await post.send()
    assert await post.reason(answer) == (403, "unavailable", "1")


async def test_a_short_pause_that_slack_asks_for_fits_in(post: Post) -> None:
    post.slack.throttled = 3
    assert (await post.send()).status == 200
    assert post.slack.asked == 6


@pytest.mark.parametrize("retry_after", [None, "soon", "-1"])
async def test_without_a_length_a_pause_is_a_second(post: Post, retry_after: str | None) -> None:
    post.slack.throttled, post.slack.retry_after = 3, retry_after
    begun = time.monotonic()
    assert (await post.send()).status == 200
    assert time.monotonic() - begun >= 1.0


async def test_a_long_pause_is_kept(post: Post) -> None:
    post.slack.throttled, post.slack.retry_after = 3, "30"
    begun = time.monotonic()
    answer = await post.send()
    assert time.monotonic() - begun < 1.0
    assert await post.reason(answer) == (403, "throttled", "1")
    assert (await post.send()).status == 403
    assert post.slack.asked == 3
    post.clock.advance(30)
    assert (await post.send()).status == 200


async def test_when_slack_is_down_it_is_left_alone(post: Post) -> None:
    post.slack.trouble = "500"
    for n in range(8):
        assert (await post.send(event_of(f"U{n}0"))).status == 403
    assert post.slack.calls["team.info"] == 5
    post.slack.trouble = None
    assert (await post.send()).status == 403
    post.clock.advance(5)
    assert (await post.send()).status == 200
    assert (await post.send(event_of("U1", None))).status == 200


async def test_trouble_with_one_workspace_is_not_anothers(post: Post) -> None:
    post.slack.team("T2", "xoxb-2")
    post.slack.user("U2", "T2")
    assert (await post.put("T2", bot_token="xoxb-2")).status == 200
    post.slack.throttled, post.slack.retry_after = 3, "60"
    assert (await post.send()).status == 403
    assert (await post.send(event_of("U2", None, "T2"))).status == 200


async def test_many_different_checks_at_once_are_bounded(post: Post) -> None:
    post.slack.delay = 0.3
    events = [event_of(f"U{n}X") for n in range(80)]
    answers = await asyncio.gather(*(post.send(event) for event in events))
    assert {answer.status for answer in answers} == {403}
    assert post.slack.calls["team.info"] == 50
    reasons = {reason for reason, _, _ in await post.refusals()}
    assert reasons == {"busy", "user_not_found"}


async def test_what_is_remembered_passes_while_slack_is_down(post: Post) -> None:
    await post.send()
    post.slack.trouble = "500"
    assert (await post.send()).status == 200
