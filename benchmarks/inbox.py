"""The inbox: how counts and lists grow, what a broadcast costs, marks a second, open streams."""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import tempfile
import time
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop

from benchmarks.harness import environment, save
from benchmarks.relay import Server, serving, table
from benchmarks.wire import percentiles
from waystation.ids import OrderedIds
from waystation.inbox.publishing import Everyone, MessageContent, NewMessage, Users
from waystation.inbox.readers import Place
from waystation.inbox.tables import Audiences, Content, Entry, UserMessage
from waystation.inbox.tenants import InboxInput, TenantInput
from waystation.seam import settings_of
from waystation.server.runtime import running
from waystation.settings import load_settings
from waystation.store import set_to
from waystation.systems import SYSTEMS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from waystation.inbox.readers import Reader
    from waystation.inbox.service import Inbox
    from waystation.server.runtime import Runtime

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))
CALLS = 200
SIZES = (10, 1_000, 100_000)
BROADCASTS = (1, 100, 1_000)
COPIES = 5_000
STREAMS = 1_000
_ids = OrderedIds()


class Bench:
    """An inbox on a file, in this process."""

    def __init__(self, runtime: Runtime, account: str) -> None:
        self.store = runtime.store
        self.inboxes: Inbox = runtime.provided["inboxes"]
        self.account = account

    async def place(self, inbox: str) -> Place:
        place = Place("bench", inbox)
        await self.inboxes.tenants.put_inbox(self.account, place, InboxInput(title="Bench"))
        return place

    async def publish(self, place: Place, *uids: str) -> str:
        audience = Users(uids=list(uids)) if uids else Everyone()
        content = MessageContent("A title of some words", "A body of a sentence or two. " * 4)
        given = NewMessage(audience=audience, sender="bench", message=content)
        return (await self.inboxes.publishing.publish(self.account, place, given)).id

    async def fill(self, reader: Reader, count: int) -> None:
        """Give a reader many messages, past publishing, which would take long."""
        await self.inboxes.books.load(reader)
        now = self.store.now()
        for start in range(0, count, 1_000):
            messages = [self._message(reader, now) for _ in range(min(1_000, count - start))]
            entries = [
                Entry(
                    tenant_key=reader.tenant,
                    uid=reader.uid,
                    inbox_key=reader.inbox,
                    expires=now + 86_400,
                    id=message.id,
                    epoch=1,
                )
                for message in messages
            ]
            await self.store.batch_write(puts=[*messages, *entries])
        stats = reader.stats()
        await self.store.update(stats, set_to("published", count), set_to("unseen", count))

    def _message(self, reader: Reader, now: int) -> UserMessage:
        return UserMessage(
            id=_ids.next(now),
            sender="bench",
            audiences=Audiences("users"),
            received=now * 1000,
            delivered=now * 1000,
            expiredat=now + 86_400,
            message=Content("A title of some words", "A body of a sentence or two. " * 4),
            epoch=1,
            tenant_key=reader.tenant,
            inbox_key=reader.inbox,
            uid=reader.uid,
        )

    def rows(self) -> int:
        """Rows of the inbox's table that were written so far."""
        store: Any = self.store
        return int(
            store.reader.execute("SELECT coalesce(max(seq), 0) FROM waystation_changes").fetchone()[
                0
            ]
        )


async def interleaved(
    contenders: dict[str, Callable[[], Awaitable[object]]], calls: int = CALLS
) -> dict[str, float]:
    """Microseconds a call of each, the median over rounds in which all take part."""
    took: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(ROUNDS):
        for name in random.sample(list(contenders), len(contenders)):
            begun = time.perf_counter()
            for _ in range(calls):
                await contenders[name]()
            took[name].append((time.perf_counter() - begun) / calls * 1e6)
    return {name: statistics.median(values) for name, values in took.items()}


async def history(bench: Bench) -> dict[str, Any]:
    """The same calls for users with more and more messages."""
    place = await bench.place("history")
    readers = {size: place.reader(f"with-{size}") for size in SIZES}
    for size, reader in readers.items():
        await bench.fill(reader, size)
        assert (await bench.inboxes.reading.counts(reader)).total == size
    found: dict[str, Any] = {}
    reading = bench.inboxes.reading
    for what, call in (("counts", reading.counts), ("first page", reading.page)):
        took = await interleaved(
            {str(size): partial(call, reader) for size, reader in readers.items()}
        )
        found[what] = {f"{size:,} messages (µs)": round(took[str(size)]) for size in SIZES}
        found[what]["100,000 / 10"] = round(took["100000"] / took["10"], 2)
    return found


async def broadcasts(bench: Bench) -> dict[str, Any]:
    """Counts and first pages with more and more live broadcasts, of which a user has read none, or
    each by itself, or all at once."""
    places = {}
    for live in BROADCASTS:
        place = places[live] = await bench.place(f"live-{live}")
        for uid in ("none", "each", "all"):
            await bench.inboxes.books.load(place.reader(uid))
        ids = [await bench.publish(place) for _ in range(live)]
        for id_ in ids:
            await bench.inboxes.marks.mark(place.reader("each"), id_, "read")
        await bench.inboxes.marks.read_all(place.reader("all"), None)
    reading = bench.inboxes.reading
    found: dict[str, Any] = {}
    for what, call in (("counts", reading.counts), ("first page", reading.page)):
        for uid in ("none", "each", "all"):
            readers = {live: place.reader(uid) for live, place in places.items()}
            took = await interleaved(
                {str(live): partial(call, reader) for live, reader in readers.items()}, calls=50
            )
            named = f"{what}, read {uid} of them"
            found[named] = {f"{n:,} live (µs)": round(took[str(n)]) for n in BROADCASTS}
    return found


async def publishing(bench: Bench) -> dict[str, Any]:
    """A message to everyone against a copy for each user."""
    place = await bench.place("publishing")
    uids = [f"u{n}" for n in range(COPIES)]
    for uid in uids:
        await bench.inboxes.books.load(place.reader(uid))
    before, begun = bench.rows(), time.perf_counter()
    await bench.publish(place)
    everyone = {
        "rows written": bench.rows() - before,
        "milliseconds": round((time.perf_counter() - begun) * 1000, 2),
    }
    before, begun = bench.rows(), time.perf_counter()
    await bench.publish(place, *uids)
    await bench.inboxes.distribution.timed.finish()
    seconds = time.perf_counter() - begun
    copies = {
        "users": COPIES,
        "rows written": bench.rows() - before,
        "seconds": round(seconds, 2),
        "users a second": round(COPIES / seconds),
        "so for 1,000,000 users, minutes": round(1_000_000 / COPIES * seconds / 60, 1),
    }
    return {"one message to everyone, however many": everyone, "a copy for each user": copies}


async def marking(bench: Bench) -> dict[str, Any]:
    """Messages marked as read by 32 callers at once."""
    place = await bench.place("marking")
    marks = bench.inboxes.marks
    found: dict[str, list[float]] = {"32 users": [], "one user": []}
    count = 960
    for turn in range(ROUNDS):
        for name in random.sample(list(found), 2):
            users = 32 if name == "32 users" else 1
            readers = [place.reader(f"{name[:3]}{turn}-{n}") for n in range(users)]
            for reader in readers:
                await bench.fill(reader, count // users)
            work: list[tuple[Reader, str]] = []
            for reader in readers:
                page = [m async for m in bench.store.iterate(reader.messages())]
                work += [(reader, message.id) for message in page]
            random.shuffle(work)
            begun = time.perf_counter()

            async def caller(todo: list[tuple[Reader, str]] = work) -> None:
                while todo:
                    reader, id_ = todo.pop()
                    await marks.mark(reader, id_, "read")

            await asyncio.gather(*(caller() for _ in range(32)))
            found[name].append(count / (time.perf_counter() - begun))
            for reader in readers:
                assert (await bench.inboxes.reading.counts(reader)).unread == 0
    return {name: {"a second": round(statistics.median(v))} for name, v in found.items()}


class Listener(asyncio.Protocol):
    """One open stream: when each message came."""

    def __init__(self, head: bytes, came: dict[str, list[float]]) -> None:
        self._head = head
        self._came = came
        self._rest = b""
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.write(self._head)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        if not self.opened.done() and b"event: counts" in data:
            self.opened.set_result(None)
        text = self._rest + data
        while (at := text.find(b"event: message\nid: ")) >= 0:
            end = text.find(b"\n", at + 19)
            if end < 0:
                break
            self._came.setdefault(text[at + 19 : end].decode(), []).append(now)
            text = text[end:]
        self._rest = text[-200:]


async def streams(server: Server) -> dict[str, Any]:
    """A thousand users listen; messages to everyone, and to one of them, at 5 a second."""
    call = server.call
    base = "/v1/tenants/bench/inboxes/main"
    await asyncio.to_thread(call, "/v1/tenants/bench/settings", {"title": "Bench"}, "PUT")
    await asyncio.to_thread(call, base, {"title": "Bench"}, "PUT")
    came: dict[str, list[float]] = {}
    before = server.megabytes
    begun = time.perf_counter()
    listeners = []
    for start in range(0, STREAMS, 50):
        some = [await _listen(server, base, f"u{n}", came) for n in range(start, start + 50)]
        await asyncio.gather(*(listener.opened for listener in some))
        listeners += some
    opened = time.perf_counter() - begun
    result: dict[str, Any] = {
        "open": {
            "streams": STREAMS,
            "opened a second": round(STREAMS / opened),
            "megabytes more": round(server.megabytes - before, 1),
        }
    }
    for name, to in (("to everyone", None), ("to one user", "u7")):
        took = []
        for _ in range(20):
            audience = {"kind": "everyone"} if to is None else {"kind": "users", "uids": [to]}
            body = {"audience": audience, "sender": "b", "message": {"title": "t", "body": "b"}}
            sent = time.perf_counter()
            published = await asyncio.to_thread(call, f"{base}/messages", body)
            expected = STREAMS if to is None else 1
            async with asyncio.timeout(60):
                while len(came.get(published["id"], [])) < expected:  # noqa: ASYNC110 - a poll
                    await asyncio.sleep(0.005)
            took += [(at - sent) * 1000 for at in came[published["id"]]]
            await asyncio.sleep(0.2)
        result[f"delivery {name} (ms)"] = percentiles(took)
    for listener in listeners:
        listener.transport.close()
    return result


async def _listen(server: Server, base: str, uid: str, came: dict[str, list[float]]) -> Listener:
    path = f"{base}/users/{uid}/stream"
    head = f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {server.key}\r\n\r\n"
    loop = asyncio.get_running_loop()
    made = await loop.create_connection(
        lambda: Listener(head.encode(), came), "127.0.0.1", server.port
    )
    return made[1]


async def main() -> None:
    with tempfile.TemporaryDirectory() as home:
        given: dict[str, Any] = {"store": f"sqlite:///{home}/bench.db", "blobs": "memory:///"}
        settings = load_settings(settings_of(SYSTEMS), environ={}, secret_key="s" * 40, **given)
        async with AsyncExitStack() as stack:
            runtime = await stack.enter_async_context(running(settings, background=True))
            user = await runtime.provided["accounts"].find_or_open("bench@example.com")
            bench = Bench(runtime, user.user_id)
            tenants = bench.inboxes.tenants
            await tenants.put(user.user_id, "bench", TenantInput(title="Bench"))
            parts = {
                "history": await history(bench),
                "broadcasts": await broadcasts(bench),
                "publishing": await publishing(bench),
                "marking": await marking(bench),
            }
    with tempfile.TemporaryDirectory() as home, serving(Path(home)) as server:
        parts["streams"] = await streams(server)
    text = [
        "# The inbox\n",
        __doc__ or "",
        "\nIn one process on a file, without HTTP; the streams over HTTP, where sender, listeners "
        "and server share one machine's cores. A first page has at most 20 messages.\n",
        table("More and more messages of one user", parts["history"]),
        table("More and more live messages to everyone", parts["broadcasts"]),
        table("Publishing", parts["publishing"]),
        table("Marking as read, 32 callers, each mark on disk", parts["marking"]),
        table("Open streams", parts["streams"]),
    ]
    save("inbox", "\n".join(text), parts | environment())


if __name__ == "__main__":
    uvloop.run(main())
