"""One thing happens just before another is written: whoever comes second sees it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.inbox.office import NEEDED, PLACE, Office, office_at
from tests.support.faults import Faults, system_on
from waystation.errors import StoreUnavailable
from waystation.inbox.tables import Publication

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from waystation.clock import ManualClock


@asynccontextmanager
async def meddled(clock: ManualClock, **engine: Any) -> AsyncIterator[Office]:
    async with office_at(
        clock, systems=system_on("inbox", NEEDED, store=Faults), **engine
    ) as office:
        await office.counts()
        yield office


def just_before(office: Office, name: str, work: Callable[[], Awaitable[Any]]) -> None:
    """Do something before the next call of the store."""
    store: Any = office.inboxes._store

    async def around(call: Any, *given: Any, **named: Any) -> Any:
        del store.around[name]
        await work()
        return await call(*given, **named)

    store.around[name] = around


@pytest.mark.parametrize("audience", [["u"], []])
@pytest.mark.parametrize("other", ["read", "archive", "delete"])
async def test_a_mark_before_a_mark(
    clock: ManualClock, engine: dict[str, Any], audience: list[str], other: str
) -> None:
    async with meddled(clock, **engine) as office:
        id_ = await office.sent(*audience, category="x")
        await office.sent("u", category="x")
        marks, reader = office.inboxes.marks, office.reader()
        just_before(office, "transact", lambda: marks.mark(reader, id_, other))  # type: ignore[arg-type]
        path = office.user("u", f"messages/{id_}/read")
        answer = await office.call("POST", path)
        assert answer.status == (404 if other == "delete" else 200)
        assert await office.numbers() == ((2, 1) if other == "read" else (1, 1))
        assert await office.drift() == []


@pytest.mark.parametrize("category", [None, "x"])
async def test_all_is_read_before_a_message_arrives(
    clock: ManualClock, engine: dict[str, Any], category: str | None
) -> None:
    async with meddled(clock, **engine) as office:
        await office.sent("u", category="x")
        marks = office.inboxes.marks
        just_before(office, "transact", lambda: marks.read_all(office.reader(), category))
        new = await office.sent("u", category="x")
        assert await office.ids(status="unread") == [new]
        assert await office.numbers() == (2, 1)
        assert await office.drift() == []


async def test_a_message_arrives_before_all_is_read(
    clock: ManualClock, engine: dict[str, Any]
) -> None:
    async with meddled(clock, **engine) as office:
        await office.sent("u", category="x")
        just_before(office, "transact", lambda: office.sent("u", category="x"))
        await office.call("POST", office.user("u", "read-all"))
        assert await office.numbers() == (2, 0)
        assert await office.drift() == []


async def test_a_message_arrives_before_the_bell_is_opened(clock: ManualClock) -> None:
    async with meddled(clock) as office:
        await office.sent("u", category="x")
        just_before(office, "transact", lambda: office.sent("u", category="y"))
        answer = await office.call("POST", office.user("u", "seen"))
        assert answer.json["unseen"] == 0
        assert await office.drift() == []


async def test_two_take_the_same_out_of_the_counters(
    clock: ManualClock, engine: dict[str, Any]
) -> None:
    async with meddled(clock, **engine) as office:
        await office.sent("u", ttl="10s", category="x")
        await office.sent("u", category="x")
        clock.advance(11)
        books = office.inboxes.books
        just_before(office, "transact", lambda: books.fold(office.reader()))
        await books.fold(office.reader())
        assert await office.numbers() == (1, 1)
        assert await office.drift() == []


async def test_what_expires_is_taken_out_while_somebody_counts(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with meddled(clock) as office:
        await office.sent("u", ttl="10s")
        clock.advance(11)
        books = office.inboxes.books
        original = books.passed

        async def folded_first(reader: Any) -> Any:
            await books.fold(reader)
            return await original(reader)

        monkeypatch.setattr(books, "passed", folded_first)
        assert await office.numbers() == (0, 0)


async def test_a_message_is_withdrawn_while_it_is_given_out(
    clock: ManualClock, engine: dict[str, Any]
) -> None:
    async with meddled(clock, **engine) as office:
        published = await office.publish(*(f"u{n}" for n in range(30)))
        distribution = office.inboxes.distribution
        publication = await office.store.get(Publication.key(published["id"]))
        assert publication is not None
        publication.status = "publishing"
        await office.store.put(publication)
        just_before(office, "transact", lambda: office.withdraw(published["id"]))
        await distribution._give(publication, ["late"])
        await office.settle()
        assert await office.numbers("late") == (0, 0)
        assert await office.store.get(office.reader("late").message(published["id"])) is None


async def test_users_are_added_while_a_publication_ends(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with meddled(clock) as office:
        published = await office.publish(*(f"u{n}" for n in range(30)))
        publication = await office.store.get(Publication.key(published["id"]))
        assert publication is not None
        publication.status = "publishing"
        await office.store.put(publication)

        async def added() -> None:
            monkeypatch.setattr(office.inboxes.distribution, "hurry", never)
            path = f"{office.base}/messages/{published['id']}/users"
            assert (await office.call("POST", path, {"uids": ["late"]})).status == 202

        async def never(_: str) -> None: ...

        just_before(office, "update", added)
        await office.inboxes.distribution._end(publication)
        clock.advance(61)
        await office.settle()
        assert await office.numbers("late") == (1, 1)


async def test_a_public_message_is_withdrawn_while_it_is_read(
    clock: ManualClock, engine: dict[str, Any]
) -> None:
    async with meddled(clock, **engine) as office:
        id_ = await office.sent()
        just_before(office, "transact", lambda: office.inboxes.broadcasts.withdraw(PLACE, id_))
        await office.mark(id_, "read", status=404)
        assert await office.numbers() == (0, 0)
        assert await office.drift() == []


async def test_a_total_that_is_older_than_its_category_is_read_again(clock: ManualClock) -> None:
    """As two reads may show them, while all of a category is being read."""
    async with meddled(clock) as office:
        id_ = await office.sent("u", category="x")
        store: Any = office.inboxes._store
        key = office.reader().stats()
        stale = await office.store.get(key)
        await office.call("POST", office.user("u", "read-all"), {"category": "x"})

        async def torn(call: Any, keys: Any, **named: Any) -> Any:
            found = await call(keys, **named)
            if key in keys:
                del store.around["batch_get"]
                found[keys.index(key)] = stale
            return found

        store.around["batch_get"] = torn
        await office.mark(id_, "unread")
        assert await office.numbers() == (1, 1)
        assert await office.drift() == []


async def test_many_broadcasts_at_once_all_go_out(
    clock: ManualClock, engine: dict[str, Any]
) -> None:

    async with meddled(clock, **engine) as office:
        await asyncio.gather(*(office.sent() for _ in range(30)))
        assert await office.numbers() == (30, 30)


async def test_what_was_accepted_is_acknowledged_whatever_comes_then(clock: ManualClock) -> None:
    async with meddled(clock) as office:
        store: Any = office.inboxes._store
        begun: list[bool] = []

        async def once(call: Any, *given: Any, **named: Any) -> Any:
            if begun:
                raise StoreUnavailable("no")
            begun.append(True)
            return await call(*given, **named)

        store.around["transact"] = once
        await office.publish(*(f"u{n}" for n in range(30)))
        store.around.clear()
        clock.advance(61)
        await office.settle()
        await office.settle()
        assert await office.numbers("u29") == (1, 1)
