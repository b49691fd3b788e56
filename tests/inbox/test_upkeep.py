"""Expiry by the change feed, recounts, and the commands."""

from __future__ import annotations

import asyncio
import io
import json
import sys
from typing import TYPE_CHECKING

import pytest

from tests.inbox.office import PLACE, office_at
from waystation.cli import main
from waystation.inbox.tables import Entry, UserStats
from waystation.store import add, key_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.inbox.office import Office
    from waystation.clock import ManualClock


async def test_what_the_database_removes_falls_out_of_the_counters_once(local: Office) -> None:
    await local.counts()
    read = await local.sent("u", ttl="10s", category="news")
    await local.sent("u", ttl="10s")
    public = await local.sent(ttl="10s")
    await local.mark(read, "read")
    await local.mark(public, "read")
    kept = await local.sent("u", category="news")
    local.clock.advance(11)
    assert await local.store.sweep() >= 4
    for _ in range(3):  # the same changes again and again
        await local.heard()
        await local.inboxes.books.fold(local.reader())
    stats = await local.store.get(UserStats.key("acme", "u", "main", "*"))
    assert stats is not None
    assert (stats.published, stats.read, stats.public_read, stats.unseen) == (1, 0, 0, 1)
    public_stats = await local.store.get(PLACE.stats())
    assert public_stats is not None
    assert public_stats.published == 0
    entries = [e async for e in local.store.iterate(Entry.query("acme", "u", "main"))]
    assert [entry.id for entry in entries] == [kept]
    assert await local.drift() == []


async def test_a_feed_that_was_lost_loses_nothing(office: Office) -> None:
    """Nobody has heard of the expiry: the counts are right all the same, and stay so."""
    await office.counts()
    for _ in range(3):
        await office.sent("u", ttl="10s")
    office.clock.advance(11)
    await office.sent("u")
    assert await office.numbers() == (1, 1)
    assert await office.drift() == []


async def drifted(office: Office) -> None:
    """Counters that something has made wrong."""
    await office.sent("u", category="news")
    await office.sent("v")
    await office.store.update(office.reader().stats(), add("read", 3))
    await office.store.update(office.reader().stats("news"), add("published", -1))
    await office.store.update(PLACE.stats(), add("published", 2), add("revision", 1))
    [entry] = [e async for e in office.store.iterate(office.reader("v").entries())]
    await office.store.delete(key_of(entry))


async def test_a_recount_reports_and_mends_what_is_wrong(office: Office) -> None:
    await drifted(office)
    path = f"{office.base}/reconcile"
    for body in ({"dry_run": True}, {"dry_run": True}, None):
        found = (await office.call("POST", path, body)).json
        assert found["checked"] == 2
        wrong = {
            (drift["uid"], each["category"], each["counter"], each["counted"], each["actual"])
            for drift in found["drift"]
            for each in drift["counters"]
        }
        assert wrong == {
            ("u", "*", "read", 3, 0),
            ("u", "news", "published", 0, 1),
            ("$public", "*", "published", 2, 0),
        }
    assert (await office.call("POST", path)).json["drift"] == []
    assert await office.numbers() == (1, 1)
    page = (await office.server.get("/metrics")).body.decode()
    assert 'waystation_inbox_drift_total{counter="read"} 3.0' in page


async def test_a_recount_of_many_users_goes_page_by_page(
    local: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waystation.inbox.service._RECONCILED_AT_ONCE", 4)
    await local.publish(*(f"u{n}" for n in range(10)))
    checked, cursor = 0, None
    while True:
        body = {"cursor": cursor}
        found = (await local.call("POST", f"{local.base}/reconcile", body)).json
        checked += found["checked"]
        cursor = found["cursor"]
        if cursor is None:
            break
    assert checked == 10
    assert (await local.call("POST", f"{local.base}/reconcile", {"cursor": "x"})).status == 400


async def run(office: Office, *given: str) -> int:
    """A command, beside the server that it calls."""
    arguments = [*given, "--url", office.server.url, "--key", office.key]
    return await asyncio.to_thread(main, ["inbox", *arguments])


async def test_the_commands(
    clock: ManualClock,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("waystation.inbox.commands._USERS_AT_ONCE", 40)
    async with office_at(clock, background=True) as office:
        file = tmp_path / "users.txt"
        file.write_text("\n".join(f"u{n}" for n in range(100)))
        sent = ["send", "acme", "main", "--title", "Hello"]
        assert await run(office, *sent, "--users", str(file)) == 0
        shown = capsys.readouterr()
        assert shown.out.strip().endswith("published to 100 users")
        assert "100 of 100 users" in shown.err
        assert await run(office, *sent, "--everyone", "--json") == 0
        assert json.loads(capsys.readouterr().out)["audience"] == "everyone"
        monkeypatch.setattr(sys, "stdin", io.StringIO("u1\nu2\n"))
        assert await run(office, *sent, "--users", "-", "--category", "news") == 0
        capsys.readouterr()
        assert await run(office, "counts", "acme", "main", "u1") == 0
        assert capsys.readouterr().out == ("3 messages, 3 unread, 3 unseen\n  news: 1, 1 unread\n")
        assert await run(office, "reconcile", "acme", "main") == 0
        assert "100 users, 0 with" in capsys.readouterr().out
        await drifted(office)
        assert await run(office, "reconcile", "acme", "main", "--dry-run") == 1
        assert "u: read of * was 3, not 0" in capsys.readouterr().out
        assert await run(office, *sent, "--users", "nothing.txt") == 1
        with pytest.raises(SystemExit) as usage:
            await run(office, "send", "acme", "main", "--title", "x")
        assert usage.value.code == 2


async def test_the_feed_itself_tells_the_inbox(local: Office) -> None:
    await local.counts()
    await local.sent("u", ttl="10s")
    local.clock.advance(11)
    runner = next(f for f in local.runtime.feeds if f.watcher.name == "inbox")
    stopping = asyncio.Event()
    following = asyncio.create_task(runner.run(stopping))
    try:
        await local.store.sweep()
        async with asyncio.timeout(30):
            while (await local.store.query(local.reader().entries())).items:
                await asyncio.sleep(0.01)
    finally:
        stopping.set()
        await following
