"""What Slack has confirmed is remembered for five minutes, and no longer than it may be."""

from __future__ import annotations

import asyncio
import json
import random
from typing import TYPE_CHECKING, Any

import pytest

from tests.gate.post import event_of
from waystation.errors import StoreError
from waystation.gate.tables import CacheEntry
from waystation.store import key_of

if TYPE_CHECKING:
    from tests.gate.post import Post
    from waystation.store import Store


def store_of(post: Post) -> Store:
    return post.hub.runtime.store


async def entry_of(post: Post, *ids: str) -> CacheEntry | None:
    await post.gate.existence.settle()
    return await store_of(post).get(CacheEntry.key(*(ids or ("T1", "U1", "C1"))))


def empty_memory(post: Post) -> None:
    """As after a start of the process."""
    post.gate.existence._recent.clear()


async def test_a_confirmed_check_is_kept_as_the_seed_says(post: Post) -> None:
    assert (await post.send()).status == 200
    entry = await entry_of(post)
    assert entry is not None
    now = int(post.clock())
    assert (entry.ttl, entry.verified_at) == (now + 300, now)
    raw = await store_of(post).get(key_of(entry))
    assert raw == entry


async def test_while_it_counts_slack_is_not_asked(post: Post) -> None:
    for _ in range(3):
        assert (await post.send()).status == 200
    empty_memory(post)
    assert (await post.send()).status == 200
    assert post.slack.asked == 3


async def test_after_five_minutes_slack_is_asked_again_even_if_the_row_is_still_there(
    post: Post,
) -> None:
    await post.send()
    await post.gate.existence.settle()
    post.clock.advance(299)
    await post.send()
    assert post.slack.asked == 3
    post.clock.advance(1)
    assert (await post.send()).status == 200
    assert post.slack.asked == 6
    entry = await entry_of(post)
    assert entry is not None
    assert entry.verified_at == int(post.clock())


async def test_somebody_who_is_gone_is_let_in_for_five_minutes_at_most(local: Post) -> None:
    await local.send()
    local.slack.users["U1"]["deleted"] = True
    assert (await local.send()).status == 200
    local.clock.advance(300)
    assert (await local.send()).status == 403


async def test_a_refusal_is_not_remembered(post: Post) -> None:
    assert (await post.send(event_of("U5"))).status == 403
    assert await entry_of(post, "T1", "U5", "C1") is None
    post.slack.user("U5")
    assert (await post.send(event_of("U5"))).status == 200


@pytest.mark.parametrize(
    ("ttl", "verified_at", "counts"),
    [
        (+200, -100, True),
        (+200, None, True),
        (0, -300, False),
        (-1, -301, False),
        (+86_400, None, False),
        (+355, None, False),
        (+200_000_000_000, -1, False),
        (+100, -250, True),
        (+300, -400, False),
        (+300, +4_000, True),
    ],
)
async def test_rows_of_others_count_for_as_long_as_they_may(
    post: Post, ttl: int, verified_at: int | None, counts: bool
) -> None:
    post.clock.advance(400)  # after the workspace was added
    now = int(post.clock())
    entry = CacheEntry(
        team_id="T1",
        user_id="U1",
        channel_id="C1",
        ttl=now + ttl,
        verified_at=None if verified_at is None else now + verified_at,
    )
    await store_of(post).put(entry)
    assert (await post.send()).status == 200
    assert post.slack.asked == (0 if counts else 3)


async def test_a_memory_that_fails_refuses_nobody(
    local: Post, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*_: Any) -> None:
        raise StoreError("no")

    monkeypatch.setattr(local.gate.memory, "get", broken)
    monkeypatch.setattr(local.gate.memory, "put", broken)
    assert (await local.send()).status == 200
    assert len(await local.passed()) == 1
    await local.gate.existence.settle()
    assert caplog.text.count("the memory of checks could not be") >= 2
    assert "U1" not in caplog.text


async def test_many_at_once_ask_slack_once(local: Post) -> None:
    await local.put(rate_limit={"count": 1_000, "seconds": 60})
    local.slack.delay = 0.1
    answers = await asyncio.gather(*(local.send() for _ in range(100)))
    assert {answer.status for answer in answers} == {200}
    assert local.slack.asked == 3
    assert len(await local.passed()) == 100


async def test_the_three_calls_run_at_once(local: Post) -> None:
    local.slack.delay = 0.05
    assert (await local.send()).status == 200
    assert local.slack.most_at_once == 3


# Purging


PURGES = [
    "team_id=T1",
    "team_id=T1&user_id=U1",
    "team_id=T1&channel_id=C1",
    "team_id=T1&user_id=U1&channel_id=C1",
]


@pytest.mark.parametrize("query", PURGES)
async def test_purging_makes_slack_be_asked_again(post: Post, query: str) -> None:
    await post.send()
    await post.gate.existence.settle()
    post.clock.advance(1)
    assert (await post.hub.call("DELETE", f"/v1/gate/cache?{query}")).status == 204
    post.slack.users["U1"]["deleted"] = True
    assert (await post.send()).status == 403


async def test_purging_one_leaves_the_others(local: Post) -> None:
    local.slack.user("U2")
    await local.send(event_of("U1"))
    await local.send(event_of("U2"))
    path = "/v1/gate/cache?team_id=T1&user_id=U1&channel_id=C1"
    await local.hub.call("DELETE", path)
    asked = local.slack.asked
    await local.send(event_of("U2"))
    assert local.slack.asked == asked
    await local.send(event_of("U1"))
    assert local.slack.asked == asked + 3


async def test_a_new_token_makes_slack_be_asked_again(post: Post) -> None:
    await post.send()
    post.clock.advance(1)
    post.slack.tokens["xoxb-new"] = post.slack.tokens.pop("xoxb-1")
    assert (await post.put(bot_token="xoxb-new")).status == 200
    assert (await post.send()).status == 200
    assert post.slack.asked == 6


@pytest.mark.parametrize("kind", ["app_uninstalled", "tokens_revoked"])
async def test_last_words_pass_and_purge(post: Post, kind: str) -> None:
    await post.send()
    post.clock.advance(1)
    post.slack.tokens["xoxb-1"].revoked = True
    assert (await post.send()).status == 200  # remembered
    event = event_of(None, None, kind=kind, event={"tokens": {"bot": ["UBOT"]}})
    assert (await post.send(event)).status == 200
    assert (await post.send()).status == 403
    assert sorted(json.loads(body)["event"]["type"] for body in await post.passed()) == [
        *sorted(("message", "message", kind))
    ]


@pytest.mark.parametrize("query", PURGES)
async def test_a_check_that_began_before_a_purge_does_not_outlive_it(
    local: Post, query: str
) -> None:
    local.slack.delay = 0.2
    sending = asyncio.create_task(local.send())
    while not local.slack.asked:
        await asyncio.sleep(0.005)
    local.clock.advance(1)
    await local.hub.call("DELETE", f"/v1/gate/cache?{query}")
    local.clock.advance(1)
    local.slack.delay = 0.0
    assert (await sending).status == 200
    local.slack.users["U1"]["deleted"] = True
    assert (await local.send()).status == 403


async def test_a_workspace_that_changes_hands_brings_nothing_along(local: Post) -> None:
    await local.send()
    local.clock.advance(1)
    assert (await local.hub.call("DELETE", "/v1/gate/workspaces/T1")).status == 204
    assert (await local.send()).status == 403
    assert (await local.put()).status == 200
    asked = local.slack.asked
    assert (await local.send()).status == 200
    assert local.slack.asked == asked + 3


async def test_most_of_a_skewed_workload_is_answered_from_memory(local: Post) -> None:
    await local.put(rate_limit={"count": 10_000, "seconds": 60})
    users = [f"U{n}" for n in range(50)]
    for user in users:
        local.slack.user(user)
    chance = random.Random(7)
    weights = [1 / (n + 1) for n in range(50)]
    for user in chance.choices(users, weights, k=400):
        local.clock.advance(1)
        assert (await local.send(event_of(user))).status == 200
    hits = local.gate.metrics.cache.labels("hit")._value.get()
    assert hits / 400 >= 0.8
