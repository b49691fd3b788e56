"""The relay: receiving against a bare echo, memory and lists as it grows.

Delivering is in saturation.md.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import uvloop

from benchmarks.harness import environment, save
from benchmarks.wire import closed_loop, helper, open_loop, percentiles, plain
from waystation.ids import timed_id
from waystation.relay.tables import Event
from waystation.seam import tables_of
from waystation.store import open_store
from waystation.systems import SYSTEMS

if TYPE_CHECKING:
    from collections.abc import Iterator

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))
STORED = int(os.environ.get("BENCH_EVENTS", "1000000"))
SIZE = 2000
COMMAND = [sys.executable, "-m", "waystation.cli"]


class Server:
    """`waystation serve` on a file, and an account."""

    def __init__(self, url: str, key: str, pid: int) -> None:
        self.url = url
        self.key = key
        self.pid = pid
        self.port = int(url.rpartition(":")[2])

    def call(self, path: str, body: object = None, method: str | None = None) -> Any:
        request = urllib.request.Request(
            self.url + path,
            None if body is None else json.dumps(body).encode(),
            {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())

    def source(self, *destinations: str, **given: Any) -> str:
        source: str = self.call("/v1/sources", {"name": "bench", **given})["id"]
        for url in destinations:
            given = {"name": "bench", "destination_url": url, "concurrency": 100}
            self.call(f"/v1/sources/{source}/connections", given)
        return source

    @property
    def seconds(self) -> float:
        """The processor time that it has taken, with its children's."""
        listed = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return sum(map(_seconds, [self.pid, *map(int, listed)]))

    @property
    def megabytes(self) -> float:
        status = Path(f"/proc/{self.pid}/status").read_text()
        found = re.search(r"RssAnon:\s+(\d+) kB", status)
        assert found
        return round(int(found[1]) / 1024, 1)


def _seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def serving(
    folder: Path,
    module: str = "waystation.cli",
    settings: dict[str, str] | None = None,
    *,
    packages: Path | None = None,
    options: tuple[str, ...] = (),
) -> Iterator[Server]:
    """`packages` has another state of the product."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WAYSTATION_")}
    paths = [*([str(packages)] if packages else []), str(Path(__file__).parents[1])]
    kept["PYTHONPATH"] = os.pathsep.join([*paths, kept.get("PYTHONPATH", "")])
    kept |= settings or {}
    process = subprocess.Popen(
        [sys.executable, "-m", module, "serve", "--port", "0", "--json", *options],
        cwd=folder,
        env=kept,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        key = subprocess.run(
            [*COMMAND, "keys", "create", "bench@example.com"],
            cwd=folder,
            env=kept,
            capture_output=True,
            text=True,
            check=True,
        )
        yield Server(url, key.stdout.strip(), process.pid)
    finally:
        process.terminate()
        process.communicate()


async def ingest(server: Server, asgi: Server, echo: int) -> dict[str, Any]:
    """Acknowledged events per second, and how long an answer takes at 1,000 a second. `asgi` is
    the same server whose doors are answered through ASGI."""
    path = f"/in/{server.source()}"
    contenders = {
        "echo": (echo, "/", 20_000),
        "relay": (server.port, path, 10_000),
        "relay through ASGI": (asgi.port, f"/in/{asgi.source()}", 10_000),
    }
    found: dict[str, Any] = {}
    for connections in (32, 128):
        rates: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(ROUNDS):
            for name in random.sample(list(contenders), len(contenders)):
                port, where, count = contenders[name]
                rates[name].append(await closed_loop(port, plain(where, SIZE), connections, count))
        found[f"{connections} connections"] = {
            **{name: round(statistics.median(values)) for name, values in rates.items()},
            "relay / echo": ratio(rates["relay"], rates["echo"]),
            "relay / relay through ASGI": ratio(rates["relay"], rates["relay through ASGI"]),
        }
    answers: dict[str, list[float]] = {"echo": [], "relay": []}
    for _ in range(ROUNDS):
        answers["echo"] += await open_loop(echo, plain("/", SIZE), 1000, 3)
        answers["relay"] += await open_loop(server.port, plain(path, SIZE), 1000, 3)
    found["at 1,000/s"] = {name: percentiles(took) for name, took in answers.items()}
    return found


def ratio(ours: list[float], theirs: list[float]) -> float:
    """The median of the ratios within each round."""
    return round(statistics.median(a / b for a, b in zip(ours, theirs, strict=True)), 3)


class Drained(NamedTuple):
    """How many milliseconds each delivery took, and when the last one came, by the clock that has
    no date."""

    took: list[float]
    last: float


async def drained(notes: str, expected: int) -> Drained:
    """What the receiver notes, once all deliveries have reached it or a minute has passed."""
    found: list[tuple[float, float]] = []
    for _ in range(3000):
        found += await asyncio.to_thread(read, notes)
        if len(found) >= expected:
            break
        await asyncio.sleep(0.02)
    last = max((sent + took / 1000 for sent, took in found), default=0.0)
    return Drained([took for _, took in found], last)


def read(url: str) -> list[tuple[float, float]]:
    with urllib.request.urlopen(url, timeout=10) as answer:
        found: list[tuple[float, float]] = json.loads(answer.read())
        return found


async def fill(folder: Path, source: str, user: str, count: int) -> None:
    """Events as the relay would have written them."""
    async with await open_store(
        f"sqlite:///{folder}/waystation.db", tables_of(SYSTEMS), env="dev"
    ) as store:
        now = time.time()
        for start in range(0, count, 2000):
            events = []
            for n in range(start, min(count, start + 2000)):
                at = now - (count - n) * 0.01
                events.append(
                    Event(
                        event_id=timed_id("evt", at),
                        source_id=source,
                        user_id=user,
                        status="failed" if n % 1000 == 0 else "delivered",
                        headers='{"content-type":"application/json"}',
                        body=json.dumps({"n": n, "text": "x" * 500}),
                        source_ip="127.0.0.1",
                        method="POST",
                        received_at=int(at * 1000),
                        expires_at=int(now) + 86_400 * 30,
                    )
                )
            await store.batch_write(puts=events)


def listed(server: Server, path: str) -> dict[str, float]:
    """Milliseconds that a page takes."""
    took = []
    for _ in range(60):
        begun = time.perf_counter()
        server.call(path)
        took.append((time.perf_counter() - begun) * 1000)
    return percentiles(took[10:])


async def growth(folder: Path) -> dict[str, Any]:
    """Memory and lists with a thousand and with a million events."""
    with serving(folder) as server:
        user = server.call("/v1/me")["id"]
        few, many = server.source(), server.source()
    await fill(folder, few, user, 1000)
    await fill(folder, many, user, STORED)
    found: dict[str, Any] = {}
    with serving(folder) as server:
        found["memory at the start"] = server.megabytes
        for name, source in (("1 thousand", few), (f"{STORED:,}", many)):
            base = f"/v1/sources/{source}/events?limit=50"
            cursor = server.call(base)["cursor"]
            found[f"list of {name}"] = listed(server, base)
            found[f"next page of {name}"] = listed(server, f"{base}&cursor={cursor}")
        found[f"failed of {STORED:,}"] = listed(
            server, f"/v1/sources/{many}/events?limit=50&status=failed"
        )
        await closed_loop(server.port, plain(f"/in/{many}", SIZE), 32, 20_000)
        found["memory after 20,000 more"] = server.megabytes
    found["file in MB"] = round((folder / "waystation.db").stat().st_size / 2**20)
    return found


def table(title: str, rows: dict[str, Any]) -> str:
    lines = [f"## {title}", ""]
    for name, row in rows.items():
        text = (
            json.dumps(row)
            if not isinstance(row, dict)
            else ", ".join(
                f"{key} {json.dumps(value) if isinstance(value, dict) else value}"
                for key, value in row.items()
            )
        )
        lines.append(f"- {name}: {text}")
    return "\n".join([*lines, ""])


async def main() -> None:
    with tempfile.TemporaryDirectory() as home:
        folders = [Path(home) / name for name in ("ingest", "growth", "asgi")]
        for folder in folders:
            folder.mkdir()
        with (
            serving(folders[0]) as server,
            serving(folders[2], "benchmarks.through_asgi") as asgi,
            helper("echo") as echo,
        ):
            one = await ingest(server, asgi, echo)
        print(table("Ingest", one), flush=True)
        two = await growth(folders[1])
        print(table("Growth", two), flush=True)
    save_all(one, two)


def save_all(one: dict[str, Any], two: dict[str, Any]) -> None:
    parts = [
        "# The relay\n",
        __doc__ or "",
        "\nThe sender, the server and the receiver share one machine's cores.\n",
        table("Ingest: acknowledged events of 2 KB, against a bare ASGI echo on uvicorn", one),
        table("Growth: lists in milliseconds, memory in MB (anonymous)", two),
    ]
    save("relay", "\n".join(parts), {"ingest": one, "growth": two} | environment())


if __name__ == "__main__":
    uvloop.run(main())
