"""Interleaved measurements: every contender runs in every round, and medians are compared.

Machines are noisy. A contender is therefore judged by its ratio to another one in the same
round, and the figure reported is the median of those ratios.
"""

from __future__ import annotations

import json
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

Run = Callable[[int], Awaitable[None]]
"""Does so many operations."""


class Contender(msgspec.Struct):
    """One way to do an operation. `count` is how many it does in a round."""

    name: str
    run: Run
    count: int


class Figure(msgspec.Struct):
    """What a round measured: operations per second, and our CPU time for one."""

    rate: float
    cpu_us: float


class Result(msgspec.Struct):
    operation: str
    figures: dict[str, list[Figure]]

    def rate(self, name: str) -> float:
        return statistics.median(figure.rate for figure in self.figures[name])

    def cpu_us(self, name: str) -> float:
        return statistics.median(figure.cpu_us for figure in self.figures[name])

    def ratio(self, name: str, other: str) -> float:
        """How many times the other's rate, as the median over the rounds."""
        pairs = zip(self.figures[name], self.figures[other], strict=True)
        return statistics.median(mine.rate / theirs.rate for mine, theirs in pairs)


async def measure(operation: str, contenders: list[Contender], rounds: int) -> Result:
    """Run all contenders in every round, each time in another order."""
    result = Result(operation, {contender.name: [] for contender in contenders})
    for contender in contenders:
        await contender.run(max(1, contender.count // 10))
    for _ in range(rounds):
        for contender in random.sample(contenders, len(contenders)):
            cpu, start = time.process_time(), time.perf_counter()
            await contender.run(contender.count)
            seconds = time.perf_counter() - start
            busy = (time.process_time() - cpu) / contender.count * 1e6
            result.figures[contender.name].append(Figure(contender.count / seconds, busy))
    print(f"  {operation}: " + ", ".join(f"{n} {result.rate(n):,.0f}/s" for n in result.figures))
    return result


def environment() -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "python": platform.python_version(),
        "system": platform.system(),
        "machine": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "date": time.strftime("%Y-%m-%d"),
    }


def save(name: str, text: str, data: dict[str, Any]) -> None:
    folder = Path(__file__).parent
    (folder / f"{name}.md").write_text(text)
    (folder / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n")
    sys.stdout.write(text)
