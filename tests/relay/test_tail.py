"""The live tail, and the command that follows it."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from tests.support.receiver import Reaction, receiving
from waystation.client import ApiClient
from waystation.relay.client import forward, tail
from waystation.relay.tables import Event

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.relay.hub import Hub
    from tests.support.receiver import Receiver


class Tail:
    """A stream of server-sent events that somebody reads."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response

    async def next(self) -> tuple[str, Any]:
        """The id and data of the next event."""
        id_ = ""
        async with asyncio.timeout(10):
            async for raw in self.response.content:
                line = raw.decode().rstrip()
                if line.startswith("id:"):
                    id_ = line[3:].strip()
                elif line.startswith("data:"):
                    return id_, json.loads(line[5:])
        raise AssertionError("the stream has ended")


@asynccontextmanager
async def tailing(hub: Hub, path: str = "/v1/events/tail", **headers: str) -> AsyncIterator[Tail]:
    headers["Authorization"] = f"Bearer {hub.key}"
    async with (
        aiohttp.ClientSession(read_bufsize=2**20) as http,
        http.get(hub.server.url + path, headers=headers) as response,
    ):
        assert response.status == 200, await response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        await response.content.readline()  # it has begun
        yield Tail(response)


async def test_new_events_are_shown_whole(hub: Hub) -> None:
    source = await hub.source()
    await hub.send(source, b'{"old": true}')
    hub.clock.advance(1)
    async with tailing(hub) as tail:
        hub.clock.advance(1)
        event_id = (await hub.send(source, b"\xff\x00", rest="/x?a=1")).json["id"]
        _, event = await tail.next()
        assert event["id"] == event_id
        assert (event["body"], event["body_encoding"]) == ("/wA=", "base64")
        assert (event["path"], event["query"]) == ("/x", "a=1")


async def test_one_source_only(hub: Hub) -> None:
    one, other = await hub.source(), await hub.source()
    async with tailing(hub, f"/v1/events/tail?source_id={one}") as tail:
        hub.clock.advance(1)
        await hub.send(other)
        wanted = (await hub.send(one)).json["id"]
        assert (await tail.next())[1]["id"] == wanted


async def test_a_reconnect_misses_nothing(hub: Hub) -> None:
    source = await hub.source()
    async with tailing(hub) as tail:
        hub.clock.advance(1)
        first = (await hub.send(source)).json["id"]
        last_id, event = await tail.next()
        assert event["id"] == first
    missed = []
    for _ in range(5):
        hub.clock.advance(10)
        missed.append((await hub.send(source)).json["id"])
    async with tailing(hub, **{"Last-Event-ID": last_id}) as tail:
        seen = [(await tail.next())[1]["id"] for _ in range(6)]
        assert seen == [first, *missed]  # the last one seen may come again


async def test_an_event_that_becomes_visible_late_is_not_missed(hub: Hub) -> None:
    """Another process's clock or transaction may be a little behind."""
    source = await hub.source()
    async with tailing(hub) as tail:
        hub.clock.advance(10)
        young = (await hub.send(source)).json["id"]
        assert (await tail.next())[1]["id"] == young
        hub.clock.advance(-1)
        late = (await hub.send(source)).json["id"]
        hub.clock.advance(1)
        assert (await tail.next())[1]["id"] == late


async def test_since_a_time(hub: Hub) -> None:
    source = await hub.source()
    ids = []
    for _ in range(3):
        ids.append((await hub.send(source)).json["id"])
        hub.clock.advance(60)
    since = (await hub.event(ids[1]))["received_at"]
    async with tailing(hub, f"/v1/events/tail?since={since}") as tail:
        assert [(await tail.next())[1]["id"] for _ in range(2)] == ids[1:]


async def test_others_events_are_not_shown(hub: Hub) -> None:
    other = await hub.server.api_key(email="bob@example.com")
    theirs = (await hub.call("POST", "/v1/sources", {"name": "x"}, token=other)).json["id"]
    mine = await hub.source()
    async with tailing(hub) as tail:
        hub.clock.advance(1)
        await hub.send(theirs)
        wanted = (await hub.send(mine)).json["id"]
        assert (await tail.next())[1]["id"] == wanted


async def test_tails_are_bounded_and_given_back(hub: Hub) -> None:
    for _ in range(2):
        async with asyncio.TaskGroup() as group:
            begun = asyncio.Event()
            opened = 0

            async def hold() -> None:
                nonlocal opened
                async with tailing(hub):
                    opened += 1
                    if opened == 10:
                        begun.set()  # noqa: B023
                    await begun.wait()  # noqa: B023
                    refused = await hub.call("GET", "/v1/events/tail")
                    assert refused.status == 429

            for _ in range(10):
                group.create_task(hold())
        async with asyncio.timeout(10):
            while hub.runtime.provided["tails"].open:
                hub.clock.advance(20)
                await asyncio.sleep(0.05)


async def test_callers_who_leave_at_once_keep_no_place(hub: Hub) -> None:
    headers = {"Authorization": f"Bearer {hub.key}"}
    for _ in range(25):
        async with aiohttp.ClientSession() as http:
            response = await http.get(f"{hub.server.url}/v1/events/tail", headers=headers)
            response.close()
    async with asyncio.timeout(20):
        while (await hub.call("GET", "/v1/events/tail?since=x")).status == 429:
            await asyncio.sleep(0.1)
        while hub.runtime.provided["tails"].open:
            await asyncio.sleep(0.1)


async def test_an_idle_tail_goes_on_from_where_it_began(hub: Hub) -> None:
    """Also one that had nothing to show before it broke."""
    source = await hub.source()
    async with aiohttp.ClientSession() as http:
        headers = {"Authorization": f"Bearer {hub.key}"}
        async with http.get(f"{hub.server.url}/v1/events/tail", headers=headers) as response:
            lines = [(await response.content.readline()).decode() for _ in range(3)]
    [last] = [line[3:].strip() for line in lines if line.startswith("id:")]
    hub.clock.advance(60)
    missed = (await hub.send(source)).json["id"]
    hub.clock.advance(60)
    async with tailing(hub, **{"Last-Event-ID": last}) as tail:
        assert (await tail.next())[1]["id"] == missed


async def test_a_break_between_two_sources_loses_neither(hub: Hub) -> None:
    one, other = await hub.source(), await hub.source()
    since = "2023-01-01T00:00:00Z"
    older = (await hub.send(other)).json["id"]
    hub.clock.advance(10)
    newer = (await hub.send(one)).json["id"]
    async with tailing(hub, f"/v1/events/tail?since={since}") as tail:
        last, event = await tail.next()
        assert event["id"] == older
    async with tailing(hub, **{"Last-Event-ID": last}) as tail:
        seen = {(await tail.next())[1]["id"] for _ in range(2)}
    assert seen == {older, newer}


async def test_a_tail_ends_so_that_a_revoked_key_does_not_last(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waystation.relay.tail._LIFE_SECONDS", 0.1)
    async with tailing(hub) as tail:
        async with asyncio.timeout(10):
            await tail.response.content.read()


@pytest.mark.parametrize("last", ["x", "-1", "1e5", "9" * 14])
async def test_an_id_that_is_none_is_refused(hub: Hub, last: str) -> None:
    answer = await hub.call("GET", "/v1/events/tail", headers={"Last-Event-ID": last})
    assert answer.status == 400


# The command


class Command:
    """`waystation relay …` as a process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def line(self) -> str:
        assert self.process.stdout is not None
        async with asyncio.timeout(15):
            return (await self.process.stdout.readline()).decode().rstrip()


@asynccontextmanager
async def command(hub: Hub, *arguments: str) -> AsyncIterator[Command]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "waystation.cli", "relay", *arguments),
        *("--url", hub.server.url, "--key", hub.key),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield Command(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def test_the_command_forwards_events_as_they_came(hub: Hub, receiver: Receiver) -> None:
    source = await hub.source()
    since = "2023-01-01T00:00:00Z"
    arguments = ("tail", "--since", since, "--forward", f"{receiver.url}/local")
    await hub.send(source, b"\xff\x00", "PUT", rest="/x?a=1", headers={"X-Kind": "new"})
    async with command(hub, *arguments) as running:
        line = await running.line()
    [got] = receiver.got
    assert (got.method, got.path, got.query, got.body) == ("PUT", "/local/x", "a=1", b"\xff\x00")
    assert got.headers["x-kind"] == "new"
    assert line.endswith("-> 200")


async def test_the_command_survives_a_server_that_goes_away(hub: Hub, clock: Any) -> None:
    """Cut off in the middle of the stream, it goes on where it was."""
    source = await hub.source()
    cut: list[asyncio.Task[None]] = []

    async def relayed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A proxy that can be told to hang up."""
        host, port = hub.server.url.removeprefix("http://").split(":")
        far_reader, far_writer = await asyncio.open_connection(host, int(port))

        async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            while data := await source.read(65536):
                target.write(data)
                await target.drain()

        tasks = [
            asyncio.create_task(copy(reader, far_writer)),
            asyncio.create_task(copy(far_reader, writer)),
        ]
        cut.extend(tasks)
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        writer.close()
        far_writer.close()

    proxy = await asyncio.start_server(relayed, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
    troubles: list[str] = []
    seen: list[str] = []
    sent: list[str] = []
    async with ApiClient(url, hub.key) as api:
        stream = tail(api, None, "2023-01-01T00:00:00Z", troubles.append)
        for _ in range(4):
            for _ in range(3):
                hub.clock.advance(1)
                sent.append((await hub.send(source)).json["id"])
            async with asyncio.timeout(15):
                while len(seen) < len(sent):
                    seen.append((await anext(stream))["id"])
            for task in cut:
                task.cancel()
            cut.clear()
    proxy.close()
    await proxy.wait_closed()
    assert seen == sent
    assert len(troubles) >= 3


@pytest.mark.parametrize("path", ["/../../admin", "/a/../b", "/./x"])
async def test_a_path_does_not_leave_the_target(hub: Hub, receiver: Receiver, path: str) -> None:
    async with aiohttp.ClientSession() as http:
        event = {"id": "evt_1", "body": "", "body_encoding": "utf-8", "headers": {}}
        event |= {"path": path, "query": "", "method": "DELETE"}
        status, _ = await forward(http, event, f"{receiver.url}/hooks/dev")
    assert status == 0
    assert receiver.got == []


async def test_the_command_stops_at_a_count_and_speaks_json(hub: Hub) -> None:
    source = await hub.source()
    await hub.send(source)
    await hub.send(source)
    arguments = ("tail", "--since", "2023-01-01T00:00:00Z", "--count", "2", "--json")
    async with command(hub, *arguments) as running:
        events = [json.loads(await running.line()) for _ in range(2)]
        assert await running.process.wait() == 0
    assert {event["source_id"] for event in events} == {source}


async def test_a_key_that_is_wrong_ends_the_command(hub: Hub) -> None:
    async with command(hub, "tail", "--source", "src_nobody") as running:
        _, output = await running.process.communicate()
        assert running.process.returncode == 1
        assert b"404" in output


async def test_the_command_replays(hub: Hub, receiver: Receiver) -> None:
    source = await hub.source()
    await hub.connect(source, receiver.url)
    event_id = await hub.sent(source)
    async with command(hub, "replay", event_id) as running:
        assert await running.line() == f"{event_id}: 1 deliveries"
        assert await running.process.wait() == 0
    async with command(hub, "replay", "--source", source, "--status", "delivered") as running:
        line = await running.line()
        assert line.endswith("done, 1 events, 1 deliveries")
        assert await running.process.wait() == 0
    await hub.settle()
    assert len(receiver.got) == 3


async def test_the_command_needs_events_or_a_source(hub: Hub) -> None:
    async with command(hub, "replay") as running:
        assert await running.process.wait() == 1


async def test_forwarding_to_nowhere_is_shown_and_counts(hub: Hub) -> None:
    async with receiving() as gone:
        pass
    source = await hub.source()
    first = (await hub.send(source)).json["id"]
    await hub.send(source)
    arguments = ("tail", "--since", "2023-01-01T00:00:00Z", "--count", "2", "--forward", gone.url)
    async with command(hub, *arguments) as running:
        assert "->" in await running.line()
        assert "->" in await running.line()
        assert await running.process.wait() == 1
        assert running.process.stderr is not None
        assert f"{first} was not taken" in (await running.process.stderr.read()).decode()
    assert len((await hub.relay.store.scan(Event)).items) == 2


async def test_forwarding_that_is_refused_counts(hub: Hub, receiver: Receiver) -> None:
    source = await hub.source()
    await hub.send(source)
    arguments = ("tail", "--since", "2023-01-01T00:00:00Z", "--count", "1", "--forward")
    for status, code in ((500, 1), (200, 0)):
        receiver.default = Reaction(status)
        async with command(hub, *arguments, receiver.url) as running:
            assert (await running.line()).endswith(f"-> {status}")
            assert await running.process.wait() == code


@pytest.mark.parametrize("target", ["localhost:3000", "3000", "ftp://localhost", "http://"])
async def test_forwarding_to_what_is_no_url_is_a_usage_error(hub: Hub, target: str) -> None:
    async with command(hub, "tail", "--forward", target) as running:
        assert await running.process.wait() == 2
        assert running.process.stderr is not None
        assert b"must begin with http://" in await running.process.stderr.read()


async def test_several_sources_are_shown_in_the_order_of_time(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where there are more events than are put in order at a time."""
    monkeypatch.setattr("waystation.relay.tail._MOST_AT_A_TIME", 6)
    monkeypatch.setattr("waystation.relay.tail._FEWEST_OF_ONE", 2)
    sources = [await hub.source() for _ in range(3)]
    sent = []
    for number in range(24):
        source = sources[number * 7 % 3 if number < 12 else 0]
        sent.append((await hub.send(source)).json["id"])
        hub.clock.advance(0.5 if number % 4 else 0.002)
    async with tailing(hub, "/v1/events/tail?since=2023-01-01T00:00:00Z") as tail:
        assert [(await tail.next())[1]["id"] for _ in sent] == sent


async def test_many_events_of_one_moment_are_all_shown(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waystation.relay.tail._MOST_AT_A_TIME", 3)
    monkeypatch.setattr("waystation.relay.tail._FEWEST_OF_ONE", 3)
    source = await hub.source()
    sent = {(await hub.send(source)).json["id"] for _ in range(10)}
    async with tailing(hub, "/v1/events/tail?since=2023-01-01T00:00:00Z") as tail:
        assert {(await tail.next())[1]["id"] for _ in sent} == sent
