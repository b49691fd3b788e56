"""The relay at saturation, against what it was at commit 976ad1c; steady loads; several processes.

A sender whose connections each send the next webhook as soon as they have their answer, the server
and a receiver share one machine's cores. Rounds are interleaved. Processor time is the server's,
for each delivery, with receiving the webhook included. One process and two are compared with wrk as
the sender and nginx as the receiver, which take the least from what is shared.
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.before import checked_out
from benchmarks.harness import environment, save
from benchmarks.programs import posting, sink, wrk
from benchmarks.relay import SIZE, Server, drained, ratio, serving, table
from benchmarks.wire import closed_loop, helper, open_loop, percentiles, plain

BEFORE = "976ad1c"
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))
MINUTES = float(os.environ.get("BENCH_MINUTES", "10"))
CONNECTIONS = 64
SLICES = 3 * ROUNDS
LOADS = {"deliveries to one": 64, "ingest, 32 connections": 32, "ingest, 128 connections": 128}
EVENTS = {1: 12_000, 10: 2_000}


async def saturated(
    server: Server, source: str, notes: str, fan_out: int, count: int
) -> tuple[float, float]:
    """Deliveries per second, and microseconds of processor time for each."""
    cpu, begun = server.seconds, time.monotonic()
    await closed_loop(server.port, plain(f"/in/{source}", SIZE), CONNECTIONS, count)
    took, last = await drained(notes, count * fan_out)
    assert len(took) == count * fan_out, "something was not delivered"
    return len(took) / (last - begun), (server.seconds - cpu) / len(took) * 1e6


async def against_before(before: Path, home: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for fan_out in EVENTS:
        rates: dict[str, list[float]] = {"before": [], "now": []}
        cpus: dict[str, list[float]] = {"before": [], "now": []}
        for number in range(ROUNDS):
            for name in random.sample(list(rates), 2):
                folder = home / f"{name} {fan_out} {number}"
                folder.mkdir()
                with (
                    serving(folder, packages=before if name == "before" else None) as server,
                    helper("receiver") as receiver,
                ):
                    notes = f"http://127.0.0.1:{receiver}/"
                    source = server.source(*[f"{notes}{n}" for n in range(fan_out)])
                    await open_loop(server.port, plain(f"/in/{source}", SIZE), 50, 1)
                    await drained(notes, 50 * fan_out)
                    count = EVENTS[fan_out]
                    rate, cpu = await saturated(server, source, notes, fan_out, count)
                rates[name].append(rate)
                cpus[name].append(cpu)
        found[f"to {fan_out}"] = {
            "deliveries/s before": round(statistics.median(rates["before"])),
            "now": round(statistics.median(rates["now"])),
            "now / before": ratio(rates["now"], rates["before"]),
            "processor µs before": round(statistics.median(cpus["before"])),
            "µs now": round(statistics.median(cpus["now"])),
            "µs now / before": ratio(cpus["now"], cpus["before"]),
        }
    return found


async def several(home: Path) -> dict[str, Any]:
    """One process and two, side by side: each has its turn in every round, because the machine's
    speed changes within seconds."""
    rates: dict[str, dict[int, list[float]]] = {}
    with ExitStack() as stack:
        there = stack.enter_context(sink(home))
        servers: dict[int, tuple[Server, str, str]] = {}
        for processes in (1, 2):
            folder = home / f"{processes} processes"
            folder.mkdir()
            options = ("--processes", str(processes))
            server = stack.enter_context(serving(folder, options=options))
            servers[processes] = server, server.source(there.url), server.source()
        for number in range(SLICES + 1):
            for name, connections in LOADS.items():
                for processes in random.sample([1, 2], 2):
                    server, source, bare = servers[processes]
                    url = f"{server.url}/in/{source if name == 'deliveries to one' else bare}"
                    before, begun = there.count(), time.monotonic()
                    rate = await asyncio.to_thread(wrk, url, connections, *posting(home, SIZE))
                    if name == "deliveries to one":
                        after, last = await asyncio.to_thread(there.settled)
                        rate = (after - before) / (last - begun)
                    if number:  # the first is to warm up
                        rates.setdefault(name, {1: [], 2: []})[processes].append(rate)
    return {
        name: {
            "one": round(statistics.median(taken[1])),
            "two": round(statistics.median(taken[2])),
            "two / one": ratio(taken[2], taken[1]),
            "half of the rounds between": _middle(taken[2], taken[1]),
        }
        for name, taken in rates.items()
    }


def _middle(ours: list[float], theirs: list[float]) -> list[float]:
    first, _, last = statistics.quantiles(
        (a / b for a, b in zip(ours, theirs, strict=True)), n=4, method="inclusive"
    )
    return [round(first, 2), round(last, 2)]


async def steady(home: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for rate, fan_out, seconds in ((200, 1, 20), (200, 10, 20), (1000, 1, 60)):
        folder = home / f"{rate} {fan_out}"
        folder.mkdir()
        with serving(folder) as server, helper("receiver") as receiver:
            notes = f"http://127.0.0.1:{receiver}/"
            source = server.source(*[f"{notes}{n}" for n in range(fan_out)])
            await open_loop(server.port, plain(f"/in/{source}", SIZE), 50, 1)
            await drained(notes, 50 * fan_out)
            taken = await open_loop(server.port, plain(f"/in/{source}", SIZE), rate, seconds)
            took, _ = await drained(notes, len(taken) * fan_out)
        found[f"{rate}/s to {fan_out} for {seconds} s"] = {
            **percentiles(took),
            "refused": rate * seconds - len(taken),
            "delivered": len(took),
        }
    return found


async def memory(home: Path) -> dict[str, Any]:
    """Anonymous memory while 1,000 events a second come and go."""
    folder = home / "memory"
    folder.mkdir()
    with serving(folder) as server, helper("receiver") as receiver:
        notes = f"http://127.0.0.1:{receiver}/"
        source = server.source(notes)
        readings = [server.megabytes]
        refused = 0
        for _ in range(max(2, int(MINUTES * 2))):
            taken = await open_loop(server.port, plain(f"/in/{source}", SIZE), 1000, 30)
            await drained(notes, len(taken))
            refused += 30_000 - len(taken)
            readings.append(server.megabytes)
    return {"MB every half minute": readings, "refused": refused}


async def main() -> None:
    with tempfile.TemporaryDirectory() as home, checked_out(BEFORE) as before:
        one = await against_before(before, Path(home))
        print(table("Saturation", one), flush=True)
        two = await several(Path(home))
        print(table("Processes", two), flush=True)
        three = await steady(Path(home))
        print(table("Steady", three), flush=True)
        four = await memory(Path(home))
        print(table("Memory", four), flush=True)
    parts = [
        "# The relay under load\n",
        __doc__ or "",
        table(f"At saturation, {CONNECTIONS} connections, webhooks of 2 KB", one),
        table("Two processes on one file and two cores", two),
        table("Steady loads: milliseconds from the sender to the receiver", three),
        table("Memory at 1,000/s to one", four),
    ]
    data = {"saturation": one, "processes": two, "steady": three, "memory": four}
    await asyncio.to_thread(save, "saturation", "\n".join(parts), data | environment())


if __name__ == "__main__":
    uvloop.run(main())
