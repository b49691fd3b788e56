"""The desk: events a second through the worker, and how long a vendor waits for its answer.

The worker is compared with the queue alone: the same messages, received and acknowledged, with
nothing done about them. Both run on a file, durable at every step, and the desk records what it
would do, as it comes.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import statistics
import tempfile
from pathlib import Path
from typing import Any

import uvloop
from tests.support.site import settings_with

from benchmarks.harness import environment, save
from benchmarks.relay import ratio, serving, table
from benchmarks.wire import closed_loop, open_loop, percentiles, request
from waystation.desk.tables import EVENTS
from waystation.queues import Consumer
from waystation.server.runtime import Runtime, running

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))
EVENTS_A_ROUND = 1_000
KEPT = 20_000
TOKEN = "a token for benchmarks"
TEXT = "Hello, I would like to know where my order #12345 is. " + "It was a present. " * 20
_numbers = itertools.count(1)


def body(conversation: str) -> bytes:
    given = {
        "event_type": "message_created",
        "conversation_id": conversation,
        "message_id": f"m{next(_numbers)}",
        "channel": "email",
        "customer_message": TEXT,
    }
    return json.dumps(given).encode()


async def filled(runtime: Runtime, conversations: int, count: int) -> None:
    intake = runtime.provided["desk"].intake
    for start in range(0, count, 100):
        await asyncio.gather(
            *(intake.take(body(f"c{n % conversations}")) for n in range(start, start + 100))
        )


async def worked_off(runtime: Runtime, handle: Any, count: int) -> float:
    """Events a second from a full queue to an empty one."""
    done, finished, stopping = 0, asyncio.Event(), asyncio.Event()

    async def counted(message: Any) -> None:
        nonlocal done
        await handle(message)
        done += 1
        if done == count:
            finished.set()

    consumer = Consumer(runtime.queues[EVENTS], counted, concurrency=64)
    loop = asyncio.get_running_loop()
    begun = loop.time()
    task = asyncio.create_task(consumer.run(stopping))
    await finished.wait()
    seconds = loop.time() - begun
    stopping.set()
    await task
    return count / seconds


async def nothing(_: Any) -> None:
    """What the queue alone costs."""


async def throughput(runtime: Runtime) -> dict[str, Any]:
    desk = runtime.provided["desk"]
    found: dict[str, Any] = {}
    for conversations in (1, 8, 64):
        rates: dict[str, list[float]] = {"queue alone": [], "worker": []}
        handlers = {"queue alone": nothing, "worker": desk.worker.handle}
        for _ in range(ROUNDS):
            for name in random.sample(list(handlers), len(handlers)):
                await filled(runtime, conversations, EVENTS_A_ROUND)
                rates[name].append(await worked_off(runtime, handlers[name], EVENTS_A_ROUND))
        found[f"{conversations} conversations"] = {
            **{name: round(statistics.median(values)) for name, values in rates.items()},
            "worker / queue": ratio(rates["worker"], rates["queue alone"]),
        }
    return found


async def growth(runtime: Runtime) -> dict[str, Any]:
    """The same when there is much to remember: rows of events, actions, audits and states."""
    desk = runtime.provided["desk"]
    before = await _rate(runtime, "new")
    await filled(runtime, 5_000, KEPT)
    await worked_off(runtime, desk.worker.handle, KEPT)
    after = await _rate(runtime, "newer")
    return {
        "events a second, 64 conversations": {
            "at first": round(before),
            f"after {KEPT:,} more events": round(after),
        }
    }


async def _rate(runtime: Runtime, _: str) -> float:
    await filled(runtime, 64, EVENTS_A_ROUND)
    return await worked_off(runtime, runtime.provided["desk"].worker.handle, EVENTS_A_ROUND)


async def answers(home: Path) -> dict[str, Any]:
    """Answers at 500 a second and as fast as they come, while the worker works; the relay takes the
    same bodies."""
    settings = {"WAYSTATION_DESK_WEBHOOK_TOKENS": TOKEN}
    with serving(home, settings=settings) as server:
        source = await asyncio.to_thread(server.source)
        header = f"X-Richpanel-Webhook-Token: {TOKEN}\r\n"
        paths = {"relay": f"/in/{source}", "desk": "/desk/richpanel/webhook"}

        def make(name: str) -> Any:
            return lambda: request(paths[name], body(f"c{random.randrange(500)}"), header)

        took: dict[str, list[float]] = {name: [] for name in paths}
        rates: dict[str, list[float]] = {name: [] for name in paths}
        for _ in range(ROUNDS):
            for name in random.sample(list(paths), len(paths)):
                took[name] += await open_loop(server.port, make(name), 500, 4)
                await asyncio.sleep(3)  # what is queued is worked off
                rates[name].append(await closed_loop(server.port, make(name), 32, 3_000))
                await asyncio.sleep(8)
    return {
        "at 500/s, in ms": {name: percentiles(values) for name, values in took.items()},
        "32 connections": {
            **{name: round(statistics.median(values)) for name, values in rates.items()},
            "desk / relay": ratio(rates["desk"], rates["relay"]),
        },
    }


async def main() -> None:
    with tempfile.TemporaryDirectory() as home:
        store, blobs = f"sqlite:///{home}/bench.db", f"file:{home}/blobs"
        async with running(settings_with(store=store, blobs=blobs)) as runtime:
            one = await throughput(runtime)
            two = await growth(runtime)
    with tempfile.TemporaryDirectory() as home:
        three = await answers(Path(home))
    parts = [
        "# The desk\n",
        __doc__ or "",
        table("Events a second through the worker", one),
        table("With more to remember", two),
        table("Acknowledged once on disk; sender, server and worker on the same cores", three),
    ]
    data = {"throughput": one, "growth": two, "answers": three}
    save("desk", "\n".join(parts), data | environment())


if __name__ == "__main__":
    uvloop.run(main())
