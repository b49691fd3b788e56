"""Streams: what happens in an inbox, as it happens, also in another process and after a break."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from tests.inbox.office import office_at

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.inbox.office import Office
    from waystation.clock import ManualClock


class Listener:
    """Reads server-sent events as a browser does."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.last_id: str | None = None

    async def next(self) -> tuple[str, Any]:
        name, data = "", ""
        while True:
            line = (await self._response.content.readline()).decode().rstrip("\n")
            field, _, value = line.partition(": ")
            if field == "event":
                name = value
            elif field == "data":
                data = value
            elif field == "id":
                self.last_id = value
            elif not line and name:
                return name, json.loads(data)

    async def rest(self) -> bytes:
        """Everything up to the end of the stream."""
        return await self._response.content.read()

    async def until(self, wanted: str, **fields: Any) -> Any:
        """The next event of a kind that has these fields."""
        async with asyncio.timeout(20):
            while True:
                name, data = await self.next()
                if name == wanted and fields.items() <= data.items():
                    return data


@asynccontextmanager
async def listening(
    office: Office, uid: str = "u", last_id: str | None = None
) -> AsyncIterator[Listener]:
    headers = {"Authorization": f"Bearer {await office.token(uid)}"}
    headers |= {} if last_id is None else {"Last-Event-ID": last_id}
    url = office.server.url + office.user(uid, "stream")
    async with aiohttp.ClientSession() as http, http.get(url, headers=headers) as response:
        assert response.status == 200, await response.text()
        assert response.headers["content-type"].startswith("text/event-stream")
        yield Listener(response)


async def test_a_stream_begins_with_the_counts_and_tells_what_comes(office: Office) -> None:
    await office.sent("u")
    async with listening(office) as stream:
        assert (await stream.next())[1]["unread"] == 1
        own = await office.sent("u", title="Mine", category="news")
        assert (await stream.until("message"))["message"]["title"] == "Mine"
        assert stream.last_id == own
        public = await office.sent(title="All")
        assert (await stream.until("message"))["audience"] == "everyone"
        assert (await stream.until("counts", unread=3))["total"] == 3
        await office.mark(own, "read")
        await stream.until("changed", id=own, read=True)
        await office.mark(public, "archive")
        await stream.until("changed", id=public, archived=True)
        await office.call("POST", office.user("u", "read-all"))
        await stream.until("refresh")
        await stream.until("counts", unread=0)
        await office.withdraw(public)
        await stream.until("removed", id=public)
        await office.delete(own)
        await stream.until("removed", id=own)


async def test_what_is_anothers_is_not_told(local: Office) -> None:
    async with listening(local, "v") as stream:
        await stream.next()
        await local.sent("u", title="secret")
        await local.sent("v", title="mine")
        name, data = await stream.next()
        assert (name, data["message"]["title"]) == ("message", "mine")


async def test_after_a_break_nothing_is_left_out(office: Office) -> None:
    async with listening(office) as stream:
        await stream.next()
        await office.sent("u", title="before")
        await stream.until("message")
        last = stream.last_id
    office.clock.advance(10)
    for title in ("one", "two"):
        await office.sent("u", title=title)
    await office.sent(title="three")
    office.clock.advance(2)
    async with listening(office, last_id=last) as stream:
        found: list[str] = []
        while len(found) < 3:
            name, data = await stream.next()
            if name == "message" and data["message"]["title"] != "before":
                found.append(data["message"]["title"])
        assert sorted(found) == ["one", "three", "two"]


async def test_after_too_long_a_break_the_inbox_is_to_be_read_anew(
    local: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waystation.inbox.streams.MOST_CAUGHT_UP", 2)
    first = await local.sent("u")
    for _ in range(4):
        await local.sent("u")
    async with listening(local, last_id=first) as stream:
        assert (await stream.next())[0] == "refresh"


async def test_what_another_process_writes_is_told(clock: ManualClock, tmp_path: Path) -> None:
    file = f"sqlite:///{tmp_path}/way.db"
    async with (
        office_at(clock, store=file) as one,
        office_at(clock, store=file) as other,
        listening(one) as stream,
    ):
        await stream.next()
        id_ = await other.sent("u")
        await stream.until("message", id=id_)
        await other.mark(id_, "read")
        await stream.until("changed", id=id_)


async def test_a_user_has_so_many_streams_and_no_more(
    local: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waystation.inbox.streams.MOST_PER_READER", 2)
    path = local.user("u", "stream")
    async with listening(local), listening(local):
        answer = await local.call("GET", path)
        assert answer.status == 429
        assert "retry-after" in answer.headers
        async with listening(local, "v"):
            pass
    async with asyncio.timeout(20):
        while local.inboxes.streams._open:
            await asyncio.sleep(0.01)
    async with listening(local):
        pass


async def test_a_place_that_nobody_comes_for_is_given_back(
    local: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waystation.inbox.streams._CLAIM_SECONDS", 0.01)
    stream = local.inboxes.streams.reserve(local.reader(), "ann")
    async with asyncio.timeout(20):
        while local.inboxes.streams._open:
            await asyncio.sleep(0.01)

    async def allowed() -> bool:
        return True

    assert [event async for event in local.inboxes.streams.follow(stream, None, allowed)] == []


async def test_a_stream_that_cannot_keep_up_is_told_to_read_anew(local: Office) -> None:
    stream = local.inboxes.streams.reserve(local.reader(), "ann")
    for n in range(500):
        stream.push(b"event: message\ndata: %d\n\n" % n)
    assert len(stream.waiting) <= 100
    assert stream.waiting[0].startswith(b"event: refresh")


async def test_an_account_has_so_many_streams_and_no_more(
    local: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waystation.inbox.streams.MOST_PER_ACCOUNT", 2)
    await local.call("PUT", "/v1/tenants/second/settings", {"title": "x"})
    await local.call("PUT", "/v1/tenants/second/inboxes/main", {"title": "x"})
    async with listening(local), listening(local, "v"):
        path = "/v1/tenants/second/inboxes/main/users/u/stream"
        assert (await local.call("GET", path)).status == 429


async def test_a_stream_waits_for_so_many_bytes_and_no_more(local: Office) -> None:
    stream = local.inboxes.streams.reserve(local.reader(), "ann")
    for _ in range(50):
        stream.push(b"x" * 20_000)
    assert sum(map(len, stream.waiting)) <= 256 * 1024


async def test_a_stream_ends_with_its_token(local: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waystation.inbox.streams._CHECK_SECONDS", 0.0)
    async with listening(local) as stream:
        await stream.next()
        assert (await local.call("POST", "/v1/tenants/acme/rotate-key")).status == 204
        await local.sent("u", title="secret")
        async with asyncio.timeout(20):
            rest = await stream.rest()
        assert b"secret" not in rest


async def test_what_all_were_read_by_is_not_undone_by_another_mark(local: Office) -> None:
    id_ = await local.sent("u")
    await local.call("POST", local.user("u", "read-all"))
    async with listening(local) as stream:
        await stream.next()
        await local.mark(id_, "archive")
        assert "read" not in await stream.until("changed", id=id_)


async def test_one_that_is_stored_late_with_an_earlier_id_is_not_left_out(
    clock: ManualClock, tmp_path: Path
) -> None:
    """Two processes whose clocks are apart."""
    file = f"sqlite:///{tmp_path}/way.db"
    async with office_at(clock, store=file) as one, office_at(clock, store=file) as other:
        last = await one.sent("u", title="seen")
        clock.advance(-3)
        await other.sent("u", title="late")
        clock.advance(10)
        async with listening(one, last_id=last) as stream:
            titles = [(await stream.until("message"))["message"]["title"] for _ in range(2)]
        assert sorted(titles) == ["late", "seen"]


@pytest.mark.parametrize("last", ["a#b", "x" * 200, "a/b"])
async def test_an_id_that_is_none_of_ours_is_refused(local: Office, last: str) -> None:
    answer = await local.call("GET", local.user("u", "stream"), headers={"Last-Event-ID": last})
    assert answer.status == 400
