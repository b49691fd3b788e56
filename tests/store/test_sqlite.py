"""What only the embedded engine does: files, processes, sweeping, backups."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
import sys
import threading
import time
from contextlib import closing
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from tests.contract.model import TABLES, Counter, Thing, things
from waystation.clock import ManualClock
from waystation.errors import (
    InvalidRequest,
    NewerFormat,
    StoreError,
    StoreUnavailable,
    TableMismatch,
    TransactionCancelled,
    UnreadableItem,
)
from waystation.store import (
    Index,
    Item,
    Put,
    Revise,
    Store,
    Table,
    Update,
    add,
    attr,
    exists,
    open_store,
    set_to,
)
from waystation.store.sqlite.engine import SqliteStore
from waystation.store.sqlite.turns import Turns

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


async def opened(file: Path, clock: ManualClock | None = None) -> SqliteStore:
    store = await open_store(f"sqlite:///{file}", TABLES, clock=clock or ManualClock())
    assert isinstance(store, SqliteStore)
    return store


async def test_items_survive_closing(file: Path) -> None:
    async with await opened(file) as store:
        await store.put(Thing("ann", "1", a=1))
    async with await opened(file) as store:
        assert await store.get(Thing.key("ann", "1")) == Thing("ann", "1", a=1)


async def test_closing_finishes_what_was_accepted(file: Path) -> None:
    store = await opened(file)
    writes = [asyncio.ensure_future(store.put(Thing("ann", str(n)))) for n in range(50)]
    await asyncio.sleep(0)
    await store.close()
    await asyncio.gather(*writes)
    async with await opened(file) as store:
        assert await store.count(Thing.query("ann")) == 50


async def test_a_closed_store_refuses(file: Path) -> None:
    store = await opened(file)
    await store.close()
    with pytest.raises(StoreUnavailable):
        await store.put(Thing("ann", "1"))
    with pytest.raises(StoreUnavailable):
        await store.get(Thing.key("ann", "1"))
    with pytest.raises(StoreUnavailable):
        await store.query(Thing.query("ann"))


async def test_a_write_whose_caller_has_gone_stands(file: Path) -> None:
    async with await opened(file) as store:
        write = asyncio.ensure_future(store.put(Thing("ann", "1")))
        await asyncio.sleep(0)
        write.cancel()
        await asyncio.gather(write, return_exceptions=True)
        await store.put(Thing("ann", "2"))
        assert await store.get(Thing.key("ann", "1")) is not None


async def test_more_writers_than_may_wait_all_get_through(file: Path) -> None:
    async with await opened(file) as store:
        await asyncio.gather(*(store.put(Thing("ann", f"{n:05d}")) for n in range(6000)))
        assert await store.count(Thing.query("ann")) == 6000


async def test_several_stores_on_one_file_see_each_other(file: Path) -> None:
    async with await opened(file) as one, await opened(file) as two:
        await one.put(Thing("ann", "1"))
        assert await two.get(Thing.key("ann", "1")) is not None


_COUNTING = """
import asyncio, sys
from pathlib import Path
from tests.contract.model import TABLES, Counter
from waystation.store import add, open_store

async def main():
    async with await open_store(f"sqlite:///{sys.argv[1]}", TABLES) as store:
        await asyncio.gather(*(
            store.update(Counter.key("shared"), add("total", 1)) for _ in range(200)
        ))

asyncio.run(main())
"""


async def test_several_processes_count_exactly(file: Path) -> None:
    processes = [
        await asyncio.create_subprocess_exec(sys.executable, "-c", _COUNTING, str(file))
        for _ in range(4)
    ]
    try:
        assert await asyncio.gather(*(process.wait() for process in processes)) == [0, 0, 0, 0]
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
                await process.wait()
    async with await opened(file) as store:
        found = await store.get(Counter.key("shared"))
        assert found is not None
        assert found.total == 800


async def test_a_newer_file_is_refused(file: Path) -> None:
    async with await opened(file):
        pass
    with sqlite3.connect(file) as connection:
        connection.execute("PRAGMA user_version=99")
    connection.close()
    with pytest.raises(NewerFormat, match="99"):
        await opened(file)


async def test_a_file_that_is_something_else_is_refused(file: Path) -> None:
    file.write_bytes(b"this is no database at all, " * 100)
    with pytest.raises(StoreError):
        await opened(file)


async def test_a_table_with_another_key_is_refused(file: Path) -> None:
    async with await opened(file):
        pass
    changed = Table("things", pk="PK", sk="OTHER")
    with pytest.raises(TableMismatch, match="things"):
        await open_store(f"sqlite:///{file}", [changed])


async def test_a_new_index_covers_old_items(file: Path) -> None:
    before = Table("events", pk="PK")

    class Before(Item, table=before, pk="{event_id}", rename={"event_id": "PK", "kind": "kind"}):
        event_id: str
        kind: str

    after = Table("events", pk="PK", indexes=[Index("by_kind", pk="kind")])

    class After(
        Item,
        table=after,
        pk="{event_id}",
        indexes={"by_kind": "{kind}"},
        rename={"event_id": "PK", "kind": "kind"},
    ):
        event_id: str
        kind: str

    async with await open_store(f"sqlite:///{file}", [before]) as store:
        await store.put(Before("1", "red"))
        await store.put(Before("2", "blue"))
    async with await open_store(f"sqlite:///{file}", [after]) as store:
        await store.put(After("3", "red"))
        found = await store.query(After.query("red", index="by_kind"))
        assert [item.event_id for item in found.items] == ["1", "3"]


async def test_environments_share_a_file_without_mixing(file: Path) -> None:
    url = f"sqlite:///{file}"
    async with (
        await open_store(url, TABLES, env="dev") as dev,
        await open_store(url, TABLES, env="prod") as prod,
    ):
        await dev.put(Thing("ann", "1"))
        assert await prod.get(Thing.key("ann", "1")) is None


async def test_sweeping_removes_expired_items_in_bounded_batches(file: Path) -> None:
    clock = ManualClock()
    async with await opened(file, clock) as store:
        expires = store.now() + 5
        await store.batch_write(
            puts=[Thing("ann", str(n), label="x", expires_at=expires) for n in range(25)]
        )
        await store.put(Thing("ann", "alive"))
        clock.advance(5)
        assert [await store.sweep(limit=10) for _ in range(4)] == [10, 10, 5, 0]
        left = await store.query(Thing.query("ann"), expired=True)
        assert list(left.items) == [Thing("ann", "alive")]


async def test_sweeping_leaves_ttls_of_long_ago(file: Path) -> None:
    async with await opened(file) as store:
        await store.put(Thing("ann", "1", expires_at=1))
        assert await store.sweep() == 0


async def test_a_swept_item_is_in_the_feed_as_expired(file: Path) -> None:
    clock = ManualClock()
    async with await opened(file, clock) as store:
        thing = Thing("ann", "1", expires_at=store.now() + 5)
        await store.put(thing)
        clock.advance(5)
        await store.sweep()
        inserted, removed = await store.changes(things, "test").read()
        assert (inserted.kind, inserted.new) == ("insert", thing)
        assert (removed.kind, removed.old, removed.expired) == ("remove", thing, True)


async def test_a_feed_says_when_changes_went_unread_for_too_long(file: Path) -> None:
    clock = ManualClock()
    async with await opened(file, clock) as store:
        await store.put(Thing("ann", "1"))
        feed = store.changes(things, "test")
        await feed.read()
        await feed.commit()
        await store.put(Thing("ann", "2"))
        clock.advance(25 * 3600)
        await store.sweep()
        behind = store.changes(things, "test")
        assert await behind.read() == []
        assert behind.lost
        newcomer = store.changes(things, "newcomer")
        await newcomer.read()
        assert not newcomer.lost


async def test_a_token_is_forgotten_after_ten_minutes(file: Path) -> None:
    from waystation.store import Update

    clock = ManualClock()
    async with await opened(file, clock) as store:
        for _ in range(2):
            await store.transact(Update(Counter.key("c"), add("total", 1)), token="t")
            clock.advance(601)
            await store.sweep()
        found = await store.get(Counter.key("c"))
        assert found is not None
        assert found.total == 2


async def test_a_backup_is_whole_though_writes_go_on(file: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    async with await opened(file) as store:
        await store.batch_write(puts=[Thing("ann", f"{n:04d}", a="x" * 500) for n in range(2000)])
        stop = asyncio.Event()

        async def keep_writing() -> None:
            n = 0
            while not stop.is_set():
                await store.put(Thing("bob", f"{n:06d}"))
                n += 1

        writing = asyncio.ensure_future(keep_writing())
        try:
            await store.backup(copy)
        finally:
            stop.set()
            await writing
    async with await opened(copy) as restored:
        assert await restored.count(Thing.query("ann")) == 2000
        bob = [item.thing_id async for item in restored.iterate(Thing.query("bob"))]
        assert bob == [f"{n:06d}" for n in range(len(bob))]
    assert not copy.with_name("copy.db.partial").exists()


async def test_a_failed_backup_says_so_and_leaves_nothing(file: Path, tmp_path: Path) -> None:
    async with await opened(file) as store:
        with pytest.raises(StoreUnavailable):
            await store.backup(tmp_path / "missing" / "copy.db")


async def test_memory_has_no_backup(tmp_path: Path) -> None:
    async with await open_store("sqlite://:memory:", TABLES) as store:
        assert isinstance(store, SqliteStore)
        with pytest.raises(InvalidRequest):
            await store.backup(tmp_path / "copy.db")


async def test_a_write_that_the_disk_refuses_is_reported_and_the_store_goes_on(file: Path) -> None:
    async with await opened(file) as store:
        await store.put(Thing("ann", "1"))
        pages = store.reader.execute("PRAGMA page_count").fetchone()[0]
        await store.writer.run(lambda c: c.execute(f"PRAGMA max_page_count={pages + 2}") and None)
        with pytest.raises(StoreUnavailable, match="full"):
            await store.put(Thing("ann", "2", a="x" * 300_000))
        assert await store.get(Thing.key("ann", "2")) is None
        await store.update(Thing.key("ann", "1"), add("a", 1))
        assert await store.get(Thing.key("ann", "1")) == Thing("ann", "1", a=1)


@pytest.mark.parametrize(
    "url", ["sqlite://", "sqlite:///", "mysql://x", "waystation.db", "sqlite:relative"]
)
async def test_a_url_that_names_no_store_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await open_store(url, TABLES)
    assert refused.value.field == "url"


async def test_a_table_that_the_store_was_not_opened_with_is_refused() -> None:
    store: Store
    async with await open_store("sqlite://:memory:", [things]) as store:
        with pytest.raises(InvalidRequest, match="counters"):
            await store.get(Counter.key("c"))


async def test_an_error_that_is_kept_does_not_freeze_later_reads(file: Path) -> None:
    before = Table("kept", pk="pk", sk="sk")

    class Before(Item, table=before, pk="K#{name}", sk="{n}"):
        name: str
        n: str
        size: str

    after = Table("kept", pk="pk", sk="sk")

    class After(Item, table=after, pk="K#{name}", sk="{n}"):
        name: str
        n: str
        size: int

    async with await open_store(f"sqlite:///{file}", [before]) as store:
        await store.batch_write(puts=[Before("x", f"{n:03d}", "large") for n in range(200)])
        with pytest.raises(UnreadableItem) as kept:
            await store.query(After.query("x"))
        await store.put(Before("x", "000", "small"))
        assert await store.get(Before.key("x", "000")) == Before("x", "000", "small")
        assert kept.value is not None


async def test_a_process_with_old_declarations_may_not_write_past_new_ones(file: Path) -> None:
    old_table = Table("shared", pk="PK")

    class Old(Item, table=old_table, pk="{name}", rename={"name": "PK"}):
        name: str
        kind: str

    new_table = Table("shared", pk="PK", indexes=[Index("by_kind", pk="kind")])

    class New(
        Item, table=new_table, pk="{name}", indexes={"by_kind": "{kind}"}, rename={"name": "PK"}
    ):
        name: str
        kind: str

    async with await open_store(f"sqlite:///{file}", [old_table]) as old:
        await old.put(Old("1", "red"))
        async with await open_store(f"sqlite:///{file}", [new_table]) as new:
            for _ in range(2):
                with pytest.raises(TableMismatch, match="another process"):
                    await old.put(Old("2", "red"))
            await new.put(New("3", "red"))
            found = await new.query(New.query("red", index="by_kind"))
            assert [item.name for item in found.items] == ["1", "3"]


async def test_another_environment_in_the_file_does_not_stop_writers(file: Path) -> None:
    async with await opened(file) as store:
        await store.put(Thing("ann", "1"))
        async with await open_store(f"sqlite:///{file}", TABLES, env="prod"):
            await store.put(Thing("ann", "2"))


async def test_a_new_file_is_its_owners_alone(file: Path) -> None:
    async with await open_store(f"sqlite:///{file}", TABLES) as store:
        await store.put(Counter("c"))
        for created in file.parent.glob(file.name + "*"):
            assert created.stat().st_mode & 0o077 == 0, created


async def test_one_writers_mistake_does_not_fail_the_others(file: Path) -> None:
    def mistaken(_: sqlite3.Connection) -> None:
        raise IndexError("a mistake")

    async with await opened(file) as store:
        outcomes = await asyncio.gather(
            store.put(Thing("ann", "1")),
            store.writer.run(mistaken),
            store.put(Thing("ann", "2")),
            return_exceptions=True,
        )
        assert [type(outcome) for outcome in outcomes] == [
            type(None),
            StoreUnavailable,
            type(None),
        ]
        assert await store.count(Thing.query("ann")) == 2


async def test_an_open_feed_says_when_changes_went_unread_for_too_long(file: Path) -> None:
    clock = ManualClock()
    async with await opened(file, clock) as store:
        feed = store.changes(things, "test")
        assert await feed.read() == []
        await store.batch_write(puts=[Thing("ann", f"{n:04d}") for n in range(1200)])
        clock.advance(25 * 3600)
        await store.sweep(limit=500)
        assert await feed.read() == []
        assert feed.lost


async def test_a_missing_directory_is_reported(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="cannot be opened"):
        await opened(tmp_path / "missing" / "store.db")


async def test_every_commit_is_synced_to_the_disk(file: Path) -> None:
    """A kill cannot show this, only a power cut could: so look at what SQLite was told."""
    async with await opened(file) as store:
        synchronous, log = await store.writer.run(
            lambda connection: [
                connection.execute(f"PRAGMA {name}").fetchone()[0]
                for name in ("synchronous", "journal_mode")
            ]
        )
        assert (synchronous, log) == (2, "wal")


bodies = Table("bodies", pk="PK", ttl="expires", apart=["text"])


class Body(Item, table=bodies, pk="BODY#{name}"):
    name: str
    text: str
    state: str = "new"
    expires: int | None = None


def apart(file: Path) -> list[tuple[int, int]]:
    """The numbers and sizes of what lies apart."""
    with sqlite3.connect(file) as connection:
        find = "SELECT name FROM sqlite_master WHERE name LIKE '%bodies.apart' AND type='table'"
        [(name,)] = connection.execute(find)
        rows = connection.execute(f'SELECT id, length(body) FROM "{name}"').fetchall()
    connection.close()
    return rows


async def test_a_change_of_state_does_not_write_what_is_apart(file: Path) -> None:
    async with await open_store(f"sqlite:///{file}", [bodies]) as store:
        await store.put(Body("a", "x" * 5000))
        [written] = apart(file)
        change = Update(Body.key("a"), set_to("state", "old"), when=attr("state") == "new")
        await store.transact(change)
        assert apart(file) == [written]
        assert await store.get(Body.key("a")) == Body("a", "x" * 5000, "old")


async def test_what_is_apart_goes_with_its_item(file: Path) -> None:
    clock = ManualClock()
    async with await open_store(f"sqlite:///{file}", [bodies], clock=clock) as store:
        for name in "abc":
            await store.put(Body(name, name * 100, expires=store.now() + 5))
        await store.put(Body("a", "new", expires=store.now() + 50))
        await store.transact(Update(Body.key("b"), set_to("text", "newer"), when=exists()))
        assert len(apart(file)) == 3
        await store.delete(Body.key("b"))
        clock.advance(5)
        assert await store.sweep() == 1
        assert len(apart(file)) == 1
        assert await store.get(Body.key("a")) is not None


async def test_items_from_before_something_was_put_apart_stay_readable(file: Path) -> None:
    before = Table("bodies", pk="PK", ttl="expires")

    class Before(Item, table=before, pk="BODY#{name}"):
        name: str
        text: str
        state: str = "new"
        expires: int | None = None

    async with await open_store(f"sqlite:///{file}", [before]) as store:
        await store.put(Before("a", "kept"))
    async with await open_store(f"sqlite:///{file}", [bodies]) as store:
        await store.transact(Update(Body.key("a"), set_to("state", "old"), when=exists()))
        assert await store.get(Body.key("a")) == Body("a", "kept", "old")


async def test_a_revision_does_not_bring_back_what_has_expired(file: Path) -> None:
    clock = ManualClock()
    async with await open_store(f"sqlite:///{file}", [bodies], clock=clock) as store:
        before = Body("a", "long", "new", int(clock()) + 10)
        await store.put(before)
        clock.advance(11)
        after = Body("a", "long", "old", int(clock()) + 100)
        with pytest.raises(TransactionCancelled):
            await store.transact(Revise(before, after, when=attr("state") == "new"))
        assert await store.get(Body.key("a")) is None


async def test_a_revision_is_what_it_was_when_it_was_asked_for(file: Path) -> None:
    async with await open_store(f"sqlite:///{file}", [bodies]) as store:
        before, after = Body("a", "long"), Body("a", "long", "old")
        await store.put(before)
        task = asyncio.create_task(store.transact(Revise(before, after, when=exists())))
        await asyncio.sleep(0)
        after.state = "newer"
        await task
        assert await store.get(Body.key("a")) == Body("a", "long", "old")


odds = Table("odds", pk="PK", ttl="expires")


class Odd(Item, table=odds, pk="ODD#{name}"):
    """Its TTL may be none, and it has a number."""

    name: str
    count: int = 0
    expires: str | int | None = None


@pytest.mark.parametrize("number", [1.0, Decimal(1)])
async def test_a_revision_may_have_a_number_of_another_type(file: Path, number: Any) -> None:
    async with await open_store(f"sqlite:///{file}", [odds]) as store:
        before = Odd("a")
        await store.put(before)
        await store.transact(Revise(before, Odd("a", number), when=attr("count") == 0))
        assert await store.get(Odd.key("a")) == Odd("a", 1)


async def test_a_revision_of_what_never_expires(file: Path) -> None:
    async with await open_store(f"sqlite:///{file}", [odds]) as store:
        before, after = Odd("a", 0, "never"), Odd("a", 1, "never")
        await store.put(before)
        await store.transact(Revise(before, after, when=attr("count") == 0))
        assert await store.get(Odd.key("a")) == after


async def test_a_revision_of_what_is_older_than_an_index(file: Path) -> None:
    """Only what is changed must fit into it."""
    before_index = Table("young", pk="PK")

    class Before(Item, table=before_index, pk="YOUNG#{name}"):
        name: str
        who: str
        count: int = 0

    young = Table("young", pk="PK", indexes=[Index("by_who", pk="by_who")])

    class Young(Item, table=young, pk="YOUNG#{name}", indexes={"by_who": "WHO#{who}"}):
        name: str
        who: str
        count: int = 0

    async with await open_store(f"sqlite:///{file}", [before_index]) as store:
        await store.put(Before("a", "b#c"))
    async with await open_store(f"sqlite:///{file}", [young]) as store:
        before, after = Young("a", "b#c"), Young("a", "b#c", 1)
        await store.transact(Revise(before, after, when=attr("count") == 0))
        assert await store.get(Young.key("a")) == after


async def test_a_revision_of_what_is_apart_writes_it(file: Path) -> None:
    async with await open_store(f"sqlite:///{file}", [bodies]) as store:
        before, after = Body("a", "long"), Body("a", "longer", "old")
        await store.put(before)
        await store.transact(Revise(before, after, when=attr("state") == "new"))
        assert await store.get(Body.key("a")) == after
        assert len(apart(file)) == 1


async def test_two_processes_put_different_things_apart(file: Path) -> None:
    """Each goes on where the other has left off."""
    async with (
        await open_store(f"sqlite:///{file}", [bodies]) as one,
        await open_store(f"sqlite:///{file}", [bodies]) as other,
    ):
        for n in range(12):
            await (one if n % 3 else other).transact(Put(Body(f"{n}", f"text {n}")))
        for n in range(12):
            assert await one.get(Body.key(f"{n}")) == Body(f"{n}", f"text {n}")


async def test_a_program_that_takes_no_turns_does_no_harm(file: Path) -> None:
    """It may have put something where we were about to."""
    async with await open_store(f"sqlite:///{file}", [bodies]) as store:
        await store.transact(Put(Body("a", "one")))
        with closing(sqlite3.connect(file, isolation_level=None)) as other:
            other.execute("INSERT INTO \"dev-bodies.apart\" VALUES (2, 'theirs')")
        await store.transact(Put(Body("b", "two")))
        assert await store.get(Body.key("b")) == Body("b", "two")
        assert await store.get(Body.key("a")) == Body("a", "one")


async def test_turns_go_round(file: Path) -> None:
    """Whoever has just written does not write again before those who wait."""
    order: list[tuple[int, bool]] = []
    coming: set[int] = set()
    done: set[int] = set()

    def work(number: int) -> None:
        turns = Turns(file)
        for _ in range(30):
            coming.add(number)
            with turns:
                coming.discard(number)
                while len(coming) + len(done) < 2:
                    time.sleep(0.0005)
                time.sleep(0.002)  # until those who come are in line
                order.append((number, bool(coming)))
        done.add(number)
        turns.close()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        await asyncio.to_thread(thread.join)
    waited = [(one, other) for (one, more), (other, _) in itertools.pairwise(order) if more]
    again = sum(one == other for one, other in waited)
    assert len(waited) >= 60
    assert again <= len(waited) / 10  # where the system was slow to put them in line
