"""The gate: checked events a second against the relay's own ingest, and what Slack is asked."""

from __future__ import annotations

import asyncio
import hmac
import itertools
import json
import os
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop
from tests.gate.slack_server import slack_server

from benchmarks.harness import environment, save
from benchmarks.relay import Server, ratio, serving, table
from benchmarks.wire import closed_loop, open_loop, percentiles, request

if TYPE_CHECKING:
    from tests.gate.slack_server import Slack

    from benchmarks.wire import Make

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))
USERS = 1_000
CHANNELS = 20
SECRET = "a signing secret for benchmarks"
TEXT = "x" * 1_500
_numbers = itertools.count(1)


def signed(path: str, user: str, channel: str) -> bytes:
    """A request as Slack sends it, of about 2 KB."""
    body = json.dumps(
        {
            "type": "event_callback",
            "team_id": "T1",
            "api_app_id": "A1",
            "event_id": f"Ev{next(_numbers):09d}",
            "event_time": int(time.time()),
            "event": {"type": "message", "user": user, "channel": channel, "text": TEXT},
        }
    ).encode()
    at = str(int(time.time()))
    digest = hmac.digest(SECRET.encode(), b"v0:" + at.encode() + b":" + body, "sha256").hex()
    headers = f"X-Slack-Request-Timestamp: {at}\r\nX-Slack-Signature: v0={digest}\r\n"
    return request(path, body, headers)


def from_one(path: str, count: int) -> Make:
    """So many requests, signed before the clock runs: the sender shares the server's cores."""
    return iter([signed(path, "U1", "C1") for _ in range(count)]).__next__


async def put(server: Server, source: str) -> None:
    given = {
        "bot_token": "xoxb-1",
        "source_id": source,
        "rate_limit": {"count": 100_000, "seconds": 1},
    }
    await asyncio.to_thread(server.call, "/v1/gate/workspaces/T1", given, "PUT")
    await asyncio.sleep(1.1)  # what Slack says in this second does not count yet


async def checked(server: Server, path: str) -> dict[str, Any]:
    """Events a second where everything is remembered, and how long they take at 1,000 a second.
    The relay alone checks the same signature and looks for duplicates, too."""
    contenders = {"relay": path, "gate": "/slack/events"}
    found: dict[str, Any] = {}
    for connections in (32, 128):
        rates: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(ROUNDS):
            for name in random.sample(list(contenders), len(contenders)):
                make = from_one(contenders[name], 8_000)
                rates[name].append(await closed_loop(server.port, make, connections, 8_000))
        found[f"{connections} connections"] = {
            **{name: round(statistics.median(values)) for name, values in rates.items()},
            "gate / relay": ratio(rates["gate"], rates["relay"]),
        }
    answers: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(ROUNDS):
        for name in random.sample(list(contenders), len(contenders)):
            make = from_one(contenders[name], 3_000)
            answers[name] += await open_loop(server.port, make, 1000, 3)
    found["at 1,000/s"] = {name: percentiles(took) for name, took in answers.items()}
    return found


async def unchecked(server: Server, slack: Slack, source: str) -> dict[str, Any]:
    """A thousand requests at once for one key that nobody has asked about, with a Slack that takes
    a tenth of a second."""
    slack.delay = 0.1
    await put(server, source)
    slack.calls.clear()
    make = from_one("/slack/events", 1_000)
    begun = time.perf_counter()
    await closed_loop(server.port, make, 1_000, 1_000)
    took = time.perf_counter() - begun
    slack.delay = 0.0
    return {"1,000 at once": {"seconds": round(took, 2), "calls of Slack": slack.asked}}


async def skewed(server: Server, slack: Slack, source: str) -> dict[str, Any]:
    """Requests of a thousand users in twenty channels, the busiest most often: from the start, and
    going on."""
    await put(server, source)
    return {name: await _skewed(server, slack) for name in ("first 20,000", "next 20,000")}


async def _skewed(server: Server, slack: Slack) -> dict[str, Any]:
    slack.calls.clear()
    users = [f"U{n}" for n in range(USERS)]
    weights = [1 / (n + 1) for n in range(USERS)]
    requests = [
        signed("/slack/events", user, f"C{min(CHANNELS - 1, int(random.expovariate(0.3)))}")
        for user in random.choices(users, weights, k=20_000)
    ]
    rate = await closed_loop(server.port, iter(requests).__next__, 32, 20_000)
    hits = 1 - slack.calls["team.info"] / 20_000
    return {"hit rate": round(hits, 3), "per second": round(rate)}


async def main() -> None:
    async with slack_server() as slack:
        slack.team()
        for n in range(USERS):
            slack.user(f"U{n}")
        for n in range(CHANNELS):
            slack.channel(f"C{n}")
        settings = {
            "WAYSTATION_SLACK_API_URL": slack.url,
            "WAYSTATION_SLACK_SIGNING_SECRET": SECRET,
        }
        with (
            tempfile.TemporaryDirectory() as home,
            serving(Path(home), settings=settings) as server,
        ):
            source = await asyncio.to_thread(server.source)
            own = await asyncio.to_thread(
                lambda: server.source(provider="slack", signing_secrets=[SECRET])
            )
            await put(server, source)
            one = await checked(server, f"/in/{own}")
            two = await unchecked(server, slack, source)
            three = await skewed(server, slack, source)
    parts = [
        "# The gate\n",
        __doc__ or "",
        "\nThe sender, Slack's stand-in and the server share one machine's cores.\n",
        table("Everything is remembered: events of 2 KB, acknowledged once on disk", one),
        table("Nothing is remembered, Slack takes 100 ms", two),
        table("A skewed workload", three),
    ]
    data = {"checked": one, "unchecked": two, "skewed": three}
    save("gate", "\n".join(parts), data | environment())


if __name__ == "__main__":
    uvloop.run(main())
