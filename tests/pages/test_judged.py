"""What others say about our HTTP: a suite of tests for caches, and a linter for responses."""

from __future__ import annotations

import asyncio
import shutil
import socket
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from httplint import HttpResponseLinter

from tests.pages.press import press_at
from tests.support.parts import missing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.pages.press import Origin, Press
    from waystation.clock import ManualClock

SUITE = Path(__file__).parents[2] / ".tools" / "node_modules" / "http-cache-tests"

EXPECTED = {
    # The suite is older than RFC 9111, which says: use the first of several ages, ignore a wrong
    # one. These want the response to count as stale.
    *("age-parse-nonnumeric", "age-parse-negative", "age-parse-float", "age-parse-dup-0"),
    *("age-parse-prefix-twoline", "age-parse-dup-0-twoline", "age-parse-dup-old"),
    *("age-parse-parameter", "age-parse-numeric-parameter"),
    # The origin cuts the connection, so that no answer can have the number that these look for.
    *("stale-close-must-revalidate", "stale-close-proxy-revalidate", "stale-close-no-cache"),
    "stale-close-s-maxage=2",
    # An answer whose length is not the length that it says is refused.
    *("headers-store-Content-Length", "304-etag-update-response-Content-Length"),
    # One that says in two ways where it ends is refused, as RFC 9112 has it (6.1).
    "headers-store-Transfer-Encoding",
    # Allowed by HTTP and not done here: parts and answers to POST are not kept, languages are not
    # chosen, and a date is not taken for a time of change that is later than it.
    *("partial-store-partial-reuse-partial", "partial-store-partial-reuse-partial-byterange"),
    *("partial-store-partial-reuse-partial-absent", "partial-store-partial-reuse-partial-suffix"),
    *("partial-store-partial-complete", "method-POST", "vary-normalise-lang-select"),
    "conditional-lm-fresh-no-lm",
}
"""Where we do otherwise than the suite has it, and why."""


def _port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def _node(*arguments: str, **settings: str) -> asyncio.subprocess.Process:
    program = shutil.which("node")
    if program is None or not SUITE.is_dir():
        missing("http-cache-tests", "install Node and npm, then run make setup")
    environment = {f"npm_config_{name}": value for name, value in settings.items()}
    return await asyncio.create_subprocess_exec(
        *(program, "--no-warnings", *arguments),
        cwd=SUITE,
        env={"npm_package_config_id": "", **environment},
        stdout=asyncio.subprocess.PIPE,
    )


@asynccontextmanager
async def suite_origin(folder: Path) -> AsyncIterator[str]:
    port = str(_port())
    settings = {"protocol": "http", "port": port, "pidfile": str(folder / "pid")}
    process = await _node("server/server.mjs", **settings)
    try:
        assert process.stdout is not None
        await process.stdout.readline()
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        await process.wait()


async def suite_results(url: str) -> dict[str, Any]:
    process = await _node("cli.mjs", base=url)
    try:
        out, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    return msgspec.json.decode(out)  # type: ignore[no-any-return]


async def kinds() -> dict[str, str]:
    """What the suite says about each of its tests: required, optimal, or just to know."""
    process = await _node(
        "--input-type=module",
        "-e",
        f"import all from '{SUITE}/tests/index.mjs'; const found = {{}};"
        "for (const suite of all) for (const test of suite.tests)"
        "  if (!test.browser_only) found[test.id] = test.kind ?? 'required';"
        "console.log(JSON.stringify(found))",
    )
    out, _ = await process.communicate()
    return msgspec.json.decode(out)  # type: ignore[no-any-return]


async def test_a_public_suite_of_tests_for_caches(
    clock: ManualClock, origin: Origin, tmp_path: Path
) -> None:
    """It waits for real seconds, so it has the real time."""
    real: Any = time.time
    given = {
        "revalidate_seconds": 31_536_000,
        "cache_unmarked": False,
        "cache_set_cookie": True,
    }
    async with (
        suite_origin(tmp_path) as url,
        press_at(real, origin, given={**given, "origin": url}) as press,
    ):
        judged = {name for name, kind in (await kinds()).items() if kind != "check"}
        assert len(judged) > 200
        failed = judged - EXPECTED
        for _ in range(3):  # it counts seconds, and a busy machine may miss one
            results = await suite_results(f"{press.server.url}/pages/shop")
            failed = {name for name in failed if results.get(name) is not True}
            if not failed:
                break
    assert not failed, {name: results.get(name) for name in failed}


PAGES: list[tuple[str, list[str], dict[str, str]]] = [
    ("plain", [], {}),
    ("with a lifetime", ["Cache-Control: max-age=60"], {}),
    ("with validators", ['ETag: "x"', "Last-Modified: Wed, 01 Jan 2020 00:00:00 GMT"], {}),
    ("by language", ["Vary: Accept-Language", "Cache-Control: max-age=60"], {}),
    ("encoded", [], {"accept_encoding": "gzip"}),
    ("known", ['ETag: "x"'], {"if_none_match": '"x"'}),
    ("a part", ['ETag: "x"'], {"range": "bytes=0-9"}),
    ("nothing of it", ['ETag: "x"'], {"range": "bytes=999999-"}),
]


def complaints(answer: Any, raw: list[tuple[bytes, bytes]], now: float) -> list[str]:
    linter = HttpResponseLinter(start_time=now)
    linter.process_response_topline(b"HTTP/1.1", str(answer.status).encode(), b"OK")
    linter.process_headers(raw)
    linter.feed_content(answer.body)
    linter.finish_content(True)
    return [
        f"{note.subject} {type(note).__name__}"
        for note in linter.notes
        if note.level.name in ("WARN", "BAD")
    ]


@pytest.mark.parametrize(("said", "asked"), [row[1:] for row in PAGES], ids=[r[0] for r in PAGES])
async def test_a_linter_finds_nothing_to_complain_about(
    local: Press, said: list[str], asked: dict[str, str]
) -> None:
    local.clock.advance(time.time() - local.clock())
    local.origin.say(*said, body=b"<!doctype html><title>A page</title>" + b"<p>text</p>" * 200)
    await local.get()
    answer, raw = await _raw(local, asked)
    assert complaints(answer, raw, time.time()) == []


async def _raw(press: Press, asked: dict[str, str]) -> tuple[Any, list[tuple[bytes, bytes]]]:
    """An answer as it is on the wire."""
    headers = {name.replace("_", "-"): value for name, value in asked.items()}
    import aiohttp

    async with (
        aiohttp.ClientSession(press.server.url, auto_decompress=False) as http,
        http.get("/pages/shop/p", headers=headers) as answer,
    ):
        from tests.support.site import Answer

        return Answer(answer.status, {}, await answer.read()), list(answer.raw_headers)
