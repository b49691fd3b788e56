"""A process that writes for others: what they rely on, and what they do without it."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec
import pytest

from tests.contract.model import TABLES, Counter, Parcel, Thing
from tests.support.sharing import shared, until_shared, writing
from waystation.errors import (
    InvalidRequest,
    StoreError,
    StoreUnavailable,
    TransactionCancelled,
)
from waystation.patterns import Tally, WriteBatches
from waystation.relay.states import own_event
from waystation.seam import tables_of
from waystation.store import Put, Revise, Update, add, attr, key_of, open_store
from waystation.store.sqlite import SqliteStore, sharing
from waystation.systems import SYSTEMS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from waystation.store import Condition

Meeting = tuple[socket.socket, socket.socket]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'store.db'}"


@pytest.fixture
def meeting() -> Iterator[Meeting]:
    left, found = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with left, found:
        left.setblocking(False)
        found.setblocking(False)
        yield left, found


@asynccontextmanager
async def opened(url: str, meeting: Meeting) -> AsyncIterator[SqliteStore]:
    store = await open_store(url, TABLES, meeting=meeting[0])
    assert isinstance(store, SqliteStore)
    async with store:
        yield store


async def add_one(store: SqliteStore) -> None:
    await store.transact(Update(Counter.key("c"), add("total", 1)), Put(Thing("ann", "1")))


async def total(store: SqliteStore) -> int:
    found = await store.get(Counter.key("c"))
    return 0 if found is None else found.total


async def come(found: socket.socket) -> socket.socket:
    """What somebody who writes finds at the meeting place."""
    async with asyncio.timeout(10):
        while True:
            try:
                _, ends, _, _ = socket.recv_fds(found, 1, 1)
            except BlockingIOError:
                await asyncio.sleep(0)
            else:
                end = socket.socket(fileno=ends[0])
                end.setblocking(False)
                return end


async def test_a_store_writes_for_itself_while_nobody_comes(url: str, meeting: Meeting) -> None:
    async with opened(url, meeting) as store:
        await add_one(store)
        assert not store.is_shared
        assert await total(store) == 1


async def test_what_several_add_at_the_same_time_is_all_counted(url: str, meeting: Meeting) -> None:
    async with (
        writing(url, TABLES, meeting[1]),
        opened(url, meeting) as one,
        opened(url, meeting) as other,
    ):
        await until_shared(one)
        await until_shared(other)
        await asyncio.gather(*(add_one(store) for store in (one, other) for _ in range(50)))
        assert await total(one) == await total(other) == 100


async def test_counters_with_a_limit_let_in_exactly_so_many(url: str, meeting: Meeting) -> None:
    """What is sent of a counter is often its numbers and its condition only."""

    def within(adds: dict[str, int]) -> Condition:
        return attr("total") <= 1_000 - adds["total"]

    async with writing(url, TABLES, meeting[1]), opened(url, meeting) as store:
        await until_shared(store)
        await store.put(Counter("c"))
        batches = WriteBatches(store)
        tally = Tally(key=Counter.key("c"), adds={"total": 100}, when=within)
        for count in (1, 3, 2, 1, 6):  # of which three are too many
            puts = (Put(Thing(f"{count}", f"{n}")) for n in range(count))
            writes = [batches.write("line", [put], [tally]) for put in puts]
            outcomes = await asyncio.gather(*writes, return_exceptions=True)
            refused = sum(isinstance(outcome, TransactionCancelled) for outcome in outcomes)
            assert refused == (3 if count == 6 else 0)
        assert await total(store) == 1_000


async def test_what_comes_while_a_store_leaves_its_thread_is_written(url: str) -> None:
    async with await open_store(url, TABLES) as store:
        assert isinstance(store, SqliteStore)
        leaving = asyncio.create_task(store.writer.leave_thread())
        things = [Thing("ann", f"{n}") for n in range(50)]
        async with asyncio.timeout(10):
            for thing in things:
                await asyncio.gather(store.put(thing), asyncio.sleep(0))
        await leaving
        await store.put(Thing("ann", "last"))
        page = await store.query(Thing.query("ann"))
        assert len(page.items) == len(things) + 1


async def test_what_was_not_answered_may_have_been_written(url: str, meeting: Meeting) -> None:
    async with opened(url, meeting) as store:
        end = await come(meeting[1])
        end.sendall(b"\1\0\0\0\0")
        await until_shared(store)
        writes = asyncio.create_task(add_one(store))
        await asyncio.get_running_loop().sock_recv(end, 1)
        end.close()
        with pytest.raises(StoreUnavailable, match="written or not"):
            await writes


async def test_somebody_who_does_not_answer_is_given_up(
    url: str, meeting: Meeting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharing, "_PATIENCE_SECONDS", 0.05)
    async with opened(url, meeting) as store:
        end = await come(meeting[1])
        end.sendall(b"\1\0\0\0\0")
        await until_shared(store)
        with pytest.raises(StoreUnavailable, match="written or not"):
            await add_one(store)
        end.close()
        await add_one(store)
        assert await total(store) == 1


async def test_a_store_that_closes_waits_for_what_it_has_sent(url: str, meeting: Meeting) -> None:
    async with writing(url, TABLES, meeting[1]), opened(url, meeting) as store:
        await until_shared(store)
        writes = asyncio.create_task(add_one(store))
        await asyncio.sleep(0)
        await store.close()
        await writes
    async with await open_store(url, TABLES) as again:
        assert isinstance(again, SqliteStore)
        assert await total(again) == 1


async def test_one_that_finds_no_files_left_comes_again(
    url: str, meeting: Meeting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharing, "_AGAIN_SECONDS", 0.01)
    pair, tries = socket.socketpair, iter([OSError(24, "Too many open files")])

    def none_left() -> tuple[socket.socket, socket.socket]:
        if (error := next(tries, None)) is not None:
            raise error
        return pair()

    with monkeypatch.context() as patch:
        patch.setattr(socket, "socketpair", none_left)
        async with writing(url, TABLES, meeting[1]), opened(url, meeting) as store:
            await until_shared(store)
            await add_one(store)


ODD: dict[str, dict[str, Any]] = {
    "a text that is a number": {"state": 5},
    "a text that is a fraction": {"state": Decimal("5.5")},
    "a text that is a date": {"state": date(2026, 1, 1)},
    "a text that is an id": {"state": UUID(int=1)},
    "half a character": {"state": "\ud800"},
    "half a character apart": {"text": "\ud800"},
    "a number that is a text": {"expires_at": "5"},
    "a large number": {"expires_at": 2**80},
    "too large a number": {"expires_at": 10**40},
    "too much": {"state": "x" * 500_000},
    "too much apart": {"text": "x" * 500_000},
    "nothing unusual": {"state": "new", "text": "hello"},
}


@pytest.mark.parametrize("fields", ODD.values(), ids=ODD)
async def test_what_is_odd_is_taken_or_refused_as_without_another_process(
    url: str, fields: dict[str, Any]
) -> None:
    """By itself, and as a revision beside a good one."""

    async def outcomes(store: SqliteStore) -> list[object]:
        found: list[object] = []
        before = Parcel("b", text=fields.get("text"))
        after = Parcel("b", **fields)
        for actions in (
            [Put(Parcel("a", **fields))],
            [Put(before)],
            [Revise(before, after, when=attr("state") == ""), Put(Parcel("c"))],
            [Revise(Parcel("c"), Parcel("c", text="apart"), when=attr("state") == "")],
        ):
            try:
                await store.transact(*actions)
                found.append("done")
            except StoreError as error:
                found.append((type(error), str(error)))
        read = store.reader.execute
        rows = read('SELECT pk, sk, body, expires, large FROM "dev-parcels" ORDER BY pk').fetchall()
        return [*found, rows, read('SELECT * FROM "dev-parcels.apart"').fetchall()]

    async with await open_store("sqlite://:memory:", TABLES) as alone:
        assert isinstance(alone, SqliteStore)
        async with shared(url, TABLES) as store:
            assert await outcomes(store) == await outcomes(alone)
            assert store.is_shared


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each transaction was written by another process."""
    written: list[bool] = []
    write = sharing.Link.write

    async def noted(link: sharing.Link, *given: Any) -> bool:
        done = await write(link, *given)
        written.append(done)
        return done

    monkeypatch.setattr(sharing.Link, "write", noted)
    return written


@pytest.mark.parametrize("size", [1, 200_000], ids=["small", "large"])
async def test_puts_and_revisions_are_left_to_it(url: str, answers: list[bool], size: int) -> None:
    """What it refuses comes back with whatever is written at the same time."""
    async with shared(url, tables_of(SYSTEMS)) as store:
        event = own_event("src_1", "usr_1", "sized", "x" * size, 1_800_000_000.0)
        await store.transact(Put(event))
        for n in range(3):
            after = msgspec.structs.replace(event, revision=n + 1)
            await store.transact(Revise(event, after, when=attr("revision") == n))
            event = after
        assert await store.get(key_of(event)) == event
    assert answers == [True] * 4


async def test_a_transaction_is_not_larger_for_another_process(url: str) -> None:
    notes = [Parcel(f"{n}", "x" * 390_000) for n in range(11)]
    async with shared(url, TABLES) as store:
        with pytest.raises(InvalidRequest, match="4 MB"):
            await store.transact(*map(Put, notes))
        await store.transact(*map(Put, notes[:10]))
        assert await store.batch_get([key_of(note) for note in notes]) == [*notes[:10], None]


async def test_whoever_comes_after_it_ended_takes_its_place(url: str, meeting: Meeting) -> None:
    async with opened(url, meeting) as store:
        for number in range(2):
            end = await come(meeting[1])
            end.sendall(b"\1\0\0\0\0")
            await until_shared(store)
            end.close()
            async with asyncio.timeout(10):
                while store.is_shared:
                    await asyncio.sleep(0)
            await add_one(store)
            assert await total(store) == number + 1
        async with writing(url, TABLES, meeting[1]):
            await until_shared(store)
            await add_one(store)
            assert await total(store) == 3
            await store.close()


async def test_nonsense_from_one_does_not_trouble_the_others(url: str, meeting: Meeting) -> None:
    mine, theirs = socket.socketpair()
    async with writing(url, TABLES, meeting[1]), opened(url, meeting) as store:
        with mine:
            mine.setblocking(False)
            socket.send_fds(meeting[0], [b"+"], [theirs.fileno()])
            theirs.close()
            loop = asyncio.get_running_loop()
            assert await loop.sock_recv(mine, 5) == b"\1\0\0\0\0"
            await loop.sock_sendall(mine, b"\0\0\0\3abc")
            assert await loop.sock_recv(mine, 5) == b""
        await until_shared(store)
        await add_one(store)
        assert await total(store) == 1


async def test_it_goes_on_until_those_it_writes_for_have_gone(url: str) -> None:
    async with shared(url, TABLES) as store:
        await add_one(store)
    async with shared(url, TABLES) as store:
        assert await total(store) == 1
