"""The page cache: hits, 304s and misses against a bare server, nginx and Varnish; growth; memory.

`wrk` sends the requests. All contenders serve the same page, are asked in every round in another
order, and share the machine's cores with `wrk`.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import shutil
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop

from benchmarks.harness import environment, save
from benchmarks.programs import free_port, process, wrk
from benchmarks.relay import Server, ratio, serving, table
from waystation.blobs import open_blobs
from waystation.pages import TABLES, Page, PageCache
from waystation.pages.keeping.places import Place
from waystation.pages.tables import Listed, PageMeta
from waystation.store import open_store

if TYPE_CHECKING:
    from collections.abc import Iterator

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))
SIZE = 10_000
ENTRIES = [int(each) for each in os.environ.get("BENCH_ENTRIES", "1000,1000000").split(",")]
_P99 = re.compile(r"99%\s+([\d.]+)(us|ms|s)")

ORIGIN = """
import asyncio, sys
from email.utils import formatdate
import uvicorn
BODY = b"x" * {size}
TYPE = (b"content-type", b"text/plain")
CACHED = (b"cache-control", b"max-age=3600")
HEADERS = [TYPE, (b"content-length", b"{size}"), (b"etag", b'"x"'), CACHED]
PLAIN = {{"type": "http.response.start", "status": 200, "headers": HEADERS}}
SAME = {{"type": "http.response.start", "status": 304, "headers": HEADERS[2:]}}
async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    known = any(name == b"if-none-match" for name, _ in scope["headers"])
    await send(dict(SAME if known else PLAIN))
    await send({{"type": "http.response.body", "body": b"" if known else BODY}})
uvicorn.run(app, port=int(sys.argv[1]), log_level="error", access_log=False, loop="uvloop",
            http="httptools", lifespan="off", server_header=False)
"""


@contextmanager
def origin(home: Path) -> Iterator[int]:
    """A bare ASGI app: what is behind the caches, and what they are compared with."""
    program = home / "origin.py"
    program.write_text(ORIGIN.format(size=SIZE))
    port = free_port()
    with process(sys.executable, str(program), str(port), port=port):
        yield port


@contextmanager
def nginx(home: Path, behind: int) -> Iterator[int]:
    """One worker, as we are one process."""
    port = free_port()
    config = home / "nginx.conf"
    config.write_text(
        f"""daemon off; worker_processes 1; pid {home}/nginx.pid; error_log {home}/nginx.log;
        events {{ worker_connections 4096; }}
        http {{
          access_log off; keepalive_requests 1000000;
          client_body_temp_path {home}/n1; proxy_temp_path {home}/n2; fastcgi_temp_path {home}/n3;
          uwsgi_temp_path {home}/n4; scgi_temp_path {home}/n5;
          proxy_cache_path {home}/cache keys_zone=pages:10m;
          server {{ listen 127.0.0.1:{port};
            location / {{ proxy_pass http://127.0.0.1:{behind}; proxy_cache pages;
              proxy_cache_lock on; add_header X-Cache $upstream_cache_status; }} }} }}"""
    )
    with process("nginx", "-c", str(config), "-p", str(home), port=port):
        yield port


@contextmanager
def varnish(home: Path, behind: int) -> Iterator[int]:
    port = free_port()
    command = ["varnishd", "-F", "-n", str(home / "varnish"), "-a", f"127.0.0.1:{port}"]
    command += ["-b", f"127.0.0.1:{behind}", "-s", "malloc,64m", "-p", "thread_pools=1"]
    with process(*command, port=port):
        yield port


async def hits(urls: dict[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    kinds = {"hit": (), "304": ('If-None-Match: "x"',)}
    for kind, headers in kinds.items():
        for connections in (8, 64):
            rates: dict[str, list[float]] = {name: [] for name in urls}
            for url in urls.values():
                await asyncio.to_thread(wrk, url, connections, *headers)
            for _ in range(ROUNDS):
                for name in random.sample(list(urls), len(urls)):
                    rate = await asyncio.to_thread(wrk, urls[name], connections, *headers)
                    rates[name].append(rate)
            row: dict[str, Any] = {n: round(statistics.median(v)) for n, v in rates.items()}
            for other in urls:
                if other != "waystation":
                    row[f"ours / {other}"] = ratio(rates["waystation"], rates[other])
            found[f"{kind}, {connections} connections"] = row
            print(f"  {kind}, {connections}: {row}")
    return found


async def misses(server: Server, urls: dict[str, str], count: int = 300) -> dict[str, Any]:
    """Milliseconds for a page that nobody has asked for, one after the other."""
    import aiohttp

    took: dict[str, list[float]] = {name: [] for name in urls}
    async with aiohttp.ClientSession() as http:
        for n in range(count):
            for name in random.sample(list(urls), len(urls)):
                begun = time.perf_counter()
                async with http.get(f"{urls[name]}?miss={n}") as answer:
                    await answer.read()
                took[name].append((time.perf_counter() - begun) * 1000)
    return {
        name: {
            "p50 ms": round(statistics.median(values), 2),
            "p95 ms": round(sorted(values)[int(len(values) * 0.95)], 2),
        }
        for name, values in took.items()
    }


async def growth(folder: Path, entries: int) -> dict[str, Any]:
    """What a page costs where there are so many: found in memory, found in the store, generated,
    and purged by a tag that they all have."""
    clock = time.time
    path = folder / f"growth-{entries}.db"
    async with await open_store(f"sqlite:///{path}", TABLES, clock=clock) as store:
        blobs = open_blobs(f"file:{folder}/bodies-{entries}")
        await blobs.put("pages/=/shared", b"x" * SIZE)
        begun = time.perf_counter()
        for at in range(0, entries, 5_000):
            places = [Place(None, f"/page/{n}") for n in range(at, min(at + 5_000, entries))]
            await store.batch_write([_meta(place) for place in places])
            await store.batch_write([_listed(place) for place in places])
        filled = time.perf_counter() - begun
        cache = PageCache(store, blobs, revalidate_seconds=86_400, memory_bytes=64 * 1024 * 1024)

        async def render() -> Page:
            return Page(body=b"x" * SIZE, tags=["all"])

        def one() -> str:
            return f"/page/{random.randrange(entries)}"

        await cache.get("/page/1", render)
        found = {
            "in memory": await _timed(2_000, lambda: cache.get("/page/1", render)),
            "in the store": await _timed(1_000, lambda: cache.get(one(), render)),
            "generated": await _timed(200, lambda: cache.get(f"/new/{random.random()}", render)),
            "purged by tag": await _timed(50, lambda: cache.revalidate(tag="all")),
            "first after a purge": await _timed(300, lambda: cache.get(one(), render)),
            "a list of 50": await _timed(100, lambda: cache.pages.entries(None, one(), 50, None)),
        }
        await cache.close()
        memory = cache.pages.memory
        return {
            **{f"{name}, µs": value for name, value in found.items()},
            "memory, MB": round(memory.bytes / 1024 / 1024, 1),
            "rows written a second while filling": round(2 * entries / filled),
        }


async def _timed(count: int, work: Any) -> int:
    """Microseconds of one, as the median of ten parts."""
    parts = []
    for _ in range(10):
        begun = time.perf_counter()
        for _ in range(max(1, count // 10)):
            await work()
        parts.append((time.perf_counter() - begun) / max(1, count // 10))
    return round(statistics.median(parts) * 1e6)


def _meta(place: Place) -> PageMeta:
    return PageMeta(
        pk=place.pk,
        s3_key="pages/=/shared",
        generated_at=int(time.time()),
        revalidate_seconds=86_400,
        etag='"x"',
        fence=1,
        url=place.url,
        status=200,
        headers=[("content-type", "text/html; charset=utf-8")],
        size=SIZE,
        digest="0" * 64,
        encodings=[],
        swr_seconds=60,
        sie_seconds=60,
        tags=["all", f"tag-{place.url[-1]}"],
        seq=0,
        versions=[],
    )


def _listed(place: Place) -> Listed:
    return Listed(scope=place.scope, label=place.label, pk_of=place.pk, url=place.url)


async def pressed(server: Server, url: str) -> dict[str, Any]:
    """The server's memory after many times more pages than may be in it."""
    import aiohttp

    before = server.megabytes
    async with aiohttp.ClientSession() as http:

        async def some(start: int) -> None:
            for n in range(start, 20_000, 16):
                async with http.get(f"{url}?many={n}") as answer:
                    await answer.read()

        await asyncio.gather(*(some(start) for start in range(16)))
    return {
        "20,000 pages of 10 KB": {
            "MB before": round(before),
            "MB after": round(server.megabytes),
            "allowed for pages": 64,
        }
    }


async def main() -> None:
    for program in ("wrk", "nginx", "varnishd"):
        if shutil.which(program) is None:
            raise SystemExit(f"{program} is missing: make bench installs it where it may")
    with tempfile.TemporaryDirectory() as home, ExitStack() as stack:
        folder = Path(home)
        os.chmod(folder, 0o755)  # noqa: PTH101 - nginx's worker is another user
        behind = stack.enter_context(origin(folder))
        ours = stack.enter_context(serving(folder))
        given = {"origin": f"http://127.0.0.1:{behind}", "revalidate_seconds": 3_600}
        await asyncio.to_thread(ours.call, "/v1/pages/sites/bench", given, "PUT")
        urls = {
            "waystation": f"http://127.0.0.1:{ours.port}/pages/bench/page",
            "bare ASGI": f"http://127.0.0.1:{behind}/page",
            "nginx": f"http://127.0.0.1:{stack.enter_context(nginx(folder, behind))}/page",
            "Varnish": f"http://127.0.0.1:{stack.enter_context(varnish(folder, behind))}/page",
        }
        one = await hits(urls)
        two = await misses(ours, urls)
        three = await pressed(ours, urls["waystation"])
        four = {f"{entries:,} pages": await growth(folder, entries) for entries in ENTRIES}
    save_all(one, two, three, four)


def save_all(one: Any, two: Any, three: Any, four: Any) -> None:
    parts = [
        "# The pages\n",
        __doc__ or "",
        table("Requests a second for a page of 10 KB, and the median of the rounds' ratios", one),
        table("A page that nobody has asked for, one after the other", two),
        table("Memory of the server", three),
        table("Growth: the library on a file, one caller", four),
    ]
    data = {"hits": one, "misses": two, "memory": three, "growth": four}
    save("pages", "\n".join(parts), data | environment())


if __name__ == "__main__":
    uvloop.run(main())
