"""`waystation pages …` as people type it."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

from waystation.cli import main

if TYPE_CHECKING:
    import pytest

    from tests.pages.press import Press


async def run(press: Press, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """A command's exit code and what it printed, while the server runs."""
    call = ["pages", *words, "--url", press.server.url, "--key", press.key]
    code = await asyncio.to_thread(main, call)
    return code, capsys.readouterr().out


async def test_a_page_is_shown(local: Press, capsys: pytest.CaptureFixture[str]) -> None:
    local.origin.say("Cache-Tag: a, b")
    await local.get()
    code, out = await run(local, capsys, "inspect", "shop", "/p")
    assert code == 0
    assert "state        fresh" in out
    assert "tags         a, b" in out
    code, out = await run(local, capsys, "inspect", "shop", "/p", "--json")
    assert json.loads(out)["pages"][0]["tags"] == ["a", "b"]


async def test_pages_are_listed(local: Press, capsys: pytest.CaptureFixture[str]) -> None:
    for path in ("/blog/1", "/blog/2", "/about"):
        await local.get(path)
    code, out = await run(local, capsys, "inspect", "shop", "--prefix", "/blog")
    assert (code, out.split()) == (0, ["fresh", "200", "/blog/1", "fresh", "200", "/blog/2"])


async def test_pages_are_purged(local: Press, capsys: pytest.CaptureFixture[str]) -> None:
    await local.get()
    code, out = await run(local, capsys, "revalidate", "shop", "--path", "/p", "--dry-run")
    assert (code, out) == (0, "path /p is about 1 page\n/p\n")
    code, out = await run(local, capsys, "revalidate", "shop", "--all", "--hard")
    assert (code, out) == (0, "purged all\n")
    assert "detail=purged" in await local.how()


async def test_a_page_goes_back(local: Press, capsys: pytest.CaptureFixture[str]) -> None:
    await local.get()
    await local.revalidate(all=True, mode="hard")
    await local.get()
    code, out = await run(local, capsys, "rollback", "shop", "/p")
    assert (code, out) == (0, "/p is what it was before, until it is purged\n")
    assert await local.text() == "page 1 of /p"


async def test_pages_are_warmed(local: Press, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [f"/{n}" for n in range(60)]
    code, out = await run(local, capsys, "warm", "shop", *paths)
    assert (code, out) == (0, "60 pages are warm\n")
    local.origin.fail()
    code, out = await run(local, capsys, "warm", "shop", "/broken")
    assert code == 1
    assert "/broken: the origin said 503" in out


async def test_what_does_not_work_says_so(local: Press, capsys: pytest.CaptureFixture[str]) -> None:
    assert (await run(local, capsys, "inspect", "shop", "/none"))[0] == 1
    assert (await run(local, capsys, "inspect", "none", "/p"))[0] == 1
    assert (await run(local, capsys, "warm", "shop"))[0] == 2
