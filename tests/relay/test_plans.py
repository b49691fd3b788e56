"""Usage and plans: counted with the events, exact under any concurrency; statistics."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from waystation.accounts.tables import User
from waystation.relay.stats import BANDS, percentile
from waystation.relay.tables import Event, Hour, Source
from waystation.store import exists, set_to

if TYPE_CHECKING:
    from tests.relay.hub import Hub
    from tests.support.receiver import Receiver


class Free:
    """An account on the free plan."""

    def __init__(self, hub: Hub, key: str, user_id: str) -> None:
        self.hub = hub
        self.key = key
        self.user_id = user_id

    async def source(self) -> str:
        answer = await self.hub.call("POST", "/v1/sources", {"name": "x"}, token=self.key)
        assert answer.status == 201, answer
        found: str = answer.json["id"]
        return found

    async def usage(self) -> Any:
        return (await self.hub.call("GET", "/v1/usage", token=self.key)).json

    async def set(self, **fields: object) -> None:
        changes = [set_to(name, value) for name, value in fields.items()]
        await self.hub.relay.store.update(User.key(self.user_id), *changes, when=exists())


@pytest.fixture
async def free(hub: Hub) -> Free:
    tokens = await hub.server.sign_up("free@example.com")
    created = await hub.call("POST", "/v1/api-keys", {}, token=tokens["access_token"])
    me = await hub.call("GET", "/v1/me", token=created.json["key"])
    return Free(hub, created.json["key"], me.json["id"])


async def test_usage_counts_events(hub: Hub, free: Free) -> None:
    source = await free.source()
    await asyncio.gather(*(hub.send(source) for _ in range(25)))
    usage = await free.usage()
    assert (usage["plan"], usage["events"], usage["events_limit"]) == ("free", 25, 5000)
    assert (usage["sources"], usage["sources_limit"]) == (1, 3)
    shown = (await hub.call("GET", f"/v1/sources/{source}", token=free.key)).json
    assert shown["event_count"] == 25
    assert shown["last_event_at"] is not None


async def test_what_is_refused_is_not_counted(hub: Hub, free: Free) -> None:
    answer = await hub.call(
        "POST",
        "/v1/sources",
        {"name": "x", "provider": "github", "signing_secrets": ["s"], "dedupe": {"mode": "none"}},
        token=free.key,
    )
    assert (await hub.send(answer.json["id"])).status == 401
    assert (await free.usage())["events"] == 0


async def test_duplicates_are_not_counted(hub: Hub, free: Free) -> None:
    given = {"name": "x", "provider": "github", "verification": {"mode": "none"}}
    answer = await hub.call("POST", "/v1/sources", given, token=free.key)
    for _ in range(3):
        await hub.send(answer.json["id"], headers={"X-GitHub-Delivery": "1"})
    assert (await free.usage())["events"] == 1


async def test_the_months_limit_is_exact_under_concurrency(hub: Hub, free: Free) -> None:
    source = await free.source()
    await free.set(usage_this_month=4_990)
    answers = await asyncio.gather(*(hub.send(source) for _ in range(40)))
    assert sorted(a.status for a in answers) == [200] * 10 + [429] * 30
    assert (await free.usage())["events"] == 5_000
    assert len((await hub.relay.store.query(Event.query(source))).items) == 10


async def test_a_full_month_says_when_the_next_begins(hub: Hub, free: Free) -> None:
    source = await free.source()
    await free.set(usage_this_month=5_000)
    answer = await hub.send(source)
    assert answer.status == 429
    now = datetime.fromtimestamp(hub.clock(), UTC)
    following = datetime(now.year + now.month // 12, now.month % 12 + 1, 1, tzinfo=UTC)
    assert abs(int(answer.headers["retry-after"]) - (following - now).total_seconds()) <= 1
    hub.clock.advance(int(answer.headers["retry-after"]) + 1)
    assert (await hub.send(source)).status == 200
    usage = await free.usage()
    assert (usage["events"], usage["period_start"]) == (1, following.strftime("%Y-%m-%d"))


async def test_the_month_begins_once_however_many_come(hub: Hub, free: Free) -> None:
    source = await free.source()
    await free.set(usage_this_month=4_000, usage_period_start="2020-01-01")
    answers = await asyncio.gather(*(hub.send(source) for _ in range(20)))
    assert {a.status for a in answers} == {200}
    assert (await free.usage())["events"] == 20


async def test_usage_of_a_past_month_is_not_shown(free: Free) -> None:
    await free.set(usage_this_month=4_000, usage_period_start="2020-01-01")
    assert (await free.usage())["events"] == 0


async def test_a_hammering_sender_recovers(hub: Hub, free: Free) -> None:
    """What is refused does not count: the seed's never got out of its own window."""
    source = await free.source()
    answers = [await hub.send(source) for _ in range(100)]
    assert {a.status for a in answers} == {200}
    for _ in range(60):
        refused = await hub.send(source)
        assert refused.status == 429
        assert int(refused.headers["retry-after"]) >= 1
        hub.clock.advance(1)
    hub.clock.advance(2)
    assert (await hub.send(source)).status == 200


async def test_sources_are_limited_without_races(hub: Hub, free: Free) -> None:
    body = {"name": "x"}
    answers = await asyncio.gather(
        *(hub.call("POST", "/v1/sources", body, token=free.key) for _ in range(10))
    )
    assert sorted(a.status for a in answers) == [201] * 3 + [409] * 7
    created = next(a for a in answers if a.status == 201).json["id"]
    assert (await hub.call("DELETE", f"/v1/sources/{created}", token=free.key)).status == 204
    assert (await hub.call("POST", "/v1/sources", body, token=free.key)).status == 201


async def test_connections_are_limited_without_races(
    hub: Hub, free: Free, receiver: Receiver
) -> None:
    source = await free.source()
    body = {"name": "x", "destination_url": receiver.url}
    path = f"/v1/sources/{source}/connections"
    answers = await asyncio.gather(
        *(hub.call("POST", path, body, token=free.key) for _ in range(8))
    )
    assert sorted(a.status for a in answers) == [201] * 2 + [409] * 6
    created = next(a for a in answers if a.status == 201).json["id"]
    assert (await hub.call("DELETE", f"/v1/connections/{created}", token=free.key)).status == 204
    assert (await hub.call("POST", path, body, token=free.key)).status == 201


async def test_a_plan_without_limits(hub: Hub) -> None:
    source = await hub.source()
    answers = await asyncio.gather(*(hub.send(source) for _ in range(150)))
    assert {a.status for a in answers} == {200}
    usage = await hub.get("/v1/usage")
    assert (usage["events"], usage["events_limit"]) == (150, None)


# Statistics


async def test_an_overview(hub: Hub, receiver: Receiver) -> None:
    source, quiet = await hub.source(), await hub.source()
    await hub.connect(
        source,
        receiver.url,
        retry={"schedule": [10]},
        filters=[{"path": "$.n", "operator": "lt", "value": 9}],
    )
    for _ in range(3):
        await hub.sent(source)
    await hub.sent(source, b'{"n": 9}')
    receiver.fail()
    await hub.sent(source)
    await hub.later(12)
    await hub.sent(quiet)
    found = await hub.get("/v1/analytics/overview?period=24h")
    assert found["totals"] == {
        "received": 6,
        "filtered": 2,
        "delivered": 3,
        "failed": 1,
        "retried": 1,
    }
    assert found["success_rate"] == 0.75
    assert 0 <= found["latency_ms"]["p50"] <= found["latency_ms"]["p99"]
    assert [top["source_id"] for top in found["top_sources"]] == [source, quiet]
    assert found["top_sources"][0] == {
        "source_id": source,
        "received": 5,
        "delivered": 3,
        "failed": 1,
    }


async def test_an_overview_by_days_and_periods(hub: Hub) -> None:
    source = await hub.source()
    for count in (1, 2, 3):
        for _ in range(count):
            await hub.sent(source)
        hub.clock.advance(86_400)
    week = await hub.get("/v1/analytics/overview?period=7d")
    assert [day["received"] for day in week["days"]] == [1, 2, 3]
    day = await hub.get("/v1/analytics/overview?period=24h")
    assert day["totals"]["received"] == 0
    hub.clock.advance(8 * 86_400)
    assert (await hub.get("/v1/analytics/overview?period=7d"))["days"] == []
    assert (await hub.get("/v1/analytics/overview?period=30d"))["totals"]["received"] == 6


async def test_an_overview_costs_the_same_whatever_the_history(hub: Hub) -> None:
    """A million events in an hour are one item."""
    source = await hub.source()
    for _ in range(50):
        await hub.send(source)
    assert len((await hub.relay.store.scan(Hour)).items) == 1


async def test_a_new_account_has_an_empty_overview(hub: Hub) -> None:
    found = await hub.get("/v1/analytics/overview")
    assert found["success_rate"] is None
    assert found["latency_ms"] == {"p50": None, "p95": None, "p99": None}
    assert found["days"] == found["top_sources"] == []


async def test_an_unknown_period_is_refused(hub: Hub) -> None:
    answer = await hub.call("GET", "/v1/analytics/overview?period=1y")
    assert (answer.status, answer.fields) == (400, ["period"])


@pytest.mark.parametrize("share", [0.5, 0.95, 0.99])
def test_percentiles_are_right_within_their_band(share: float) -> None:
    import random

    rng = random.Random(5)
    values = sorted(rng.expovariate(1 / 80) for _ in range(5000))
    bands = [0] * (len(BANDS) + 1)
    for value in values:
        bands[sum(value > end for end in BANDS)] += 1
    exact, found = values[int(share * len(values))], percentile(bands, share)
    assert found is not None
    edges = [0, *BANDS]
    low = max(edge for edge in edges if edge <= exact)
    high = min(edge for edge in BANDS if edge >= exact)
    assert low <= found <= high


async def test_counters_and_events_are_one_transaction(hub: Hub) -> None:
    """However many are sent at once, every counter agrees with what is there."""
    sources = [await hub.source() for _ in range(3)]
    await asyncio.gather(*(hub.send(sources[n % 3]) for n in range(90)))
    store = hub.relay.store
    events = (await store.scan(Event)).items
    assert len(events) == 90
    counts = {s.source_id: s.event_count for s in (await store.scan(Source)).items}
    assert [counts[source] for source in sources] == [30, 30, 30]
    assert (await hub.get("/v1/usage"))["events"] == 90
    assert (await hub.get("/v1/analytics/overview"))["totals"]["received"] == 90
