"""Whatever shape an event has: without both keys, it does not get through."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.gate.post import Post, gate_at
from tests.gate.slack_server import slack_server
from waystation.clock import ManualClock

GOOD = {"T1", "U1", "C1", "D1"}
ids: Any = st.sampled_from(
    ["T1", "T9", "U1", "U9", "C1", "C9", "D1", "E9", "", "u1", "U1#C1", "-", "B1", None, 7, [], {}]
)
objects = st.one_of(ids, st.builds(lambda id_: {"id": id_}, ids))


def mostly(good: str) -> Any:
    """Most often an id that exists: what is wrong everywhere proves little."""
    return st.integers(0, 5).flatmap(lambda n: objects if n == 0 else st.just(good))


users, channels, teams = mostly("U1"), mostly("C1"), mostly("T1")
inner = st.fixed_dictionaries(
    {"type": st.sampled_from(["message", "app_mention", "reaction_added", "team_join", "x"])},
    optional={
        "user": users,
        "user_id": users,
        "channel": channels,
        "channel_id": channels,
        "item": st.fixed_dictionaries({}, optional={"channel": channels}),
        "message": st.fixed_dictionaries({}, optional={"user": users}),
        "bot_id": ids,
    },
)
shapes = st.fixed_dictionaries(
    {
        "type": st.sampled_from(["event_callback"] * 5 + ["app_rate_limited", "other", None]),
        "event": st.integers(0, 9).flatmap(lambda n: ids if n == 0 else inner),
        "team_id": teams,
        "enterprise_id": st.integers(0, 5).flatmap(lambda n: ids if n == 0 else st.none()),
    },
    optional={
        "team": objects,
        "user": objects,
        "channel": objects,
        "event_id": st.sampled_from([None, None, None, 3]),
    },
)


def named(given: dict[str, Any]) -> set[str]:
    """Every id in a place that a program behind the gate would read one from."""
    event = given.get("event")
    places = [given.get("team_id"), given.get("enterprise_id")]
    if isinstance(event, dict):
        places += [event.get(name) for name in ("user", "user_id", "channel", "channel_id")]
        if isinstance(event.get("item"), dict):
            places.append(event["item"].get("channel"))
        if not any(event.get(name) for name in ("user", "user_id")) and isinstance(
            event.get("message"), dict
        ):
            places.append(event["message"].get("user"))
    inside = [place.get("id") if isinstance(place, dict) else place for place in places]
    return {str(place) for place in inside if place is not None}


class Fixture:
    """One gate for all examples: each has an id of its own."""

    def __init__(self, post: Post) -> None:
        self.post = post
        self.passed = 0

    async def try_one(self, event: dict[str, Any]) -> None:
        self.post.clock.advance(1)
        answer = await self.post.raw(json.dumps(event))
        assert answer.status in (200, 400, 401, 403, 429), answer
        if answer.status == 200:
            self.passed += 1
            assert "T1" in named(event), event
            assert named(event) <= GOOD, event


def test_no_shape_gets_an_event_through_without_both_keys() -> None:
    with asyncio.Runner() as runner:

        async def opened() -> Any:
            slack = slack_server()
            server = await slack.__aenter__()
            server.channel("D1")
            gate = gate_at(ManualClock(float(int(time.time()))), server)
            post = await gate.__aenter__()
            await post.put(rate_limit={"count": 100_000, "seconds": 1}, allowed_event_types=[])
            return slack, gate, Fixture(post)

        slack, gate, fixture = runner.run(opened())
        try:

            @settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
            @given(shapes)
            def shape(event: dict[str, Any]) -> None:
                runner.run(fixture.try_one(event))

            shape()
            assert fixture.passed >= 20  # or it would prove nothing
        finally:
            runner.run(gate.__aexit__(None, None, None))
            runner.run(slack.__aexit__(None, None, None))
