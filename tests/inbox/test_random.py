"""Whatever happens in whatever order, the counts equal a recount, at any instant.

A model keeps every message in plain Python; the inbox keeps them in a table, with an injected
clock, writes that fail before or after they are done, a feed that repeats itself, in two processes.
"""

from __future__ import annotations

import asyncio
import os
import random
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tests.inbox.office import NEEDED, PLACE, Office, office_at
from tests.support.faults import Faults, system_on
from waystation.errors import NotFound, StoreUnavailable, WaystationError
from waystation.inbox.publishing import Everyone, MessageContent, NewMessage, Users
from waystation.inbox.readers import Reader
from waystation.inbox.tables import inbox as table

if TYPE_CHECKING:
    from pathlib import Path

    from waystation.clock import ManualClock
    from waystation.inbox.service import Inbox

UIDS = ["a", "b", "c"]
CATEGORIES = [None, "x", "y"]
STEPS = int(os.environ.get("RANDOM_STEPS", "60"))


class Known(msgspec.Struct):
    """A message as one reader should see it."""

    category: str | None
    expires: int
    everyone: bool
    read: bool = False
    archived: bool = False
    seen: bool = False


class Model:
    """What every reader has: by user, then by id."""

    def __init__(self) -> None:
        self.inboxes: dict[str, dict[str, Known]] = {uid: {} for uid in UIDS}

    def alive(self, uid: str, now: int) -> dict[str, Known]:
        return {id_: m for id_, m in self.inboxes[uid].items() if m.expires > now}

    def counts(self, uid: str, now: int) -> dict[str, Any]:
        found = [m for m in self.alive(uid, now).values() if not m.archived]
        categories: dict[str, dict[str, int]] = {}
        for message in found:
            if message.category is not None:
                named = categories.setdefault(message.category, {"total": 0, "unread": 0})
                named["total"] += 1
                named["unread"] += not message.read
        return {
            "total": len(found),
            "unread": sum(not m.read for m in found),
            "unseen": sum(not m.read and not m.seen for m in found),
            "categories": categories,
        }


class World:
    def __init__(self, offices: list[Office], rng: random.Random, account: str) -> None:
        self.offices = offices
        self.rng = rng
        self.account = account
        self.model = Model()
        self.clock = offices[0].clock

    @property
    def inboxes(self) -> Inbox:
        return self.rng.choice(self.offices).inboxes

    @property
    def now(self) -> int:
        return int(self.clock())

    async def settled(self, work: Any) -> Any:
        """Do something again until it succeeds, as callers do after a failure."""
        for _ in range(50):
            try:
                return await work()
            except WaystationError:
                self.fresh()
        raise AssertionError("it never succeeds")

    def fresh(self) -> None:
        for office in self.offices:
            office.inboxes.broadcasts._known.clear()

    async def publish(self) -> None:
        rng = self.rng
        category, seconds = rng.choice(CATEGORIES), rng.choice([20, 60, 300])
        uids = rng.sample(UIDS, rng.randint(1, 3))
        everyone = rng.random() < 0.4
        given = NewMessage(
            audience=Everyone() if everyone else Users(uids=uids),
            sender="x",
            category=category,
            message=MessageContent("t"),
            ttl=f"{seconds}s",
            host_system_id=str(rng.random()),
        )
        expires = self.now + seconds
        publishing = self.inboxes.publishing
        published = await self.settled(lambda: publishing.publish(self.account, PLACE, given))
        for uid in UIDS if everyone else uids:
            self.model.inboxes[uid][published.id] = Known(category, expires, everyone)

    async def mark(self) -> None:
        uid = self.rng.choice(UIDS)
        alive = self.model.alive(uid, self.now)
        if not alive:
            return
        id_ = self.rng.choice(sorted(alive))
        mark: Any = self.rng.choice(["read", "read", "unread", "archive", "unarchive", "delete"])
        marks = self.inboxes.marks
        self.fresh()
        await self.settled(lambda: marks.mark(PLACE.reader(uid), id_, mark))
        message = alive[id_]
        if mark in ("read", "unread"):
            message.read = mark == "read"
        elif mark in ("archive", "unarchive"):
            message.archived = mark == "archive"
        else:
            del self.model.inboxes[uid][id_]

    async def read_all(self) -> None:
        uid, category = self.rng.choice(UIDS), self.rng.choice([None, None, "x"])
        marks = self.inboxes.marks
        self.fresh()
        await self.settled(lambda: marks.read_all(PLACE.reader(uid), category))
        for message in self.model.alive(uid, self.now).values():
            if category in (None, message.category):
                message.read = True

    async def see(self) -> None:
        uid = self.rng.choice(UIDS)
        marks = self.inboxes.marks
        self.fresh()
        await self.settled(lambda: marks.see(PLACE.reader(uid)))
        for message in self.model.alive(uid, self.now).values():
            message.seen = True

    async def withdraw(self) -> None:
        ids = sorted({id_ for uid in UIDS for id_ in self.model.alive(uid, self.now)})
        if not ids:
            return
        id_ = self.rng.choice(ids)
        publishing = self.inboxes.publishing

        async def once() -> None:
            try:
                await publishing.withdraw(self.account, PLACE, id_)
            except NotFound:
                return  # it was withdrawn by the try before

        await self.settled(once)
        for uid in UIDS:
            self.model.inboxes[uid].pop(id_, None)

    async def tell(self) -> None:
        """What the database removes, and the feed tells, twice."""
        office = self.rng.choice(self.offices)
        with_faults = office.inboxes
        await self.settled(lambda: office.store.sweep())
        feed = office.store.changes(table, "random")
        changes = await feed.read(1_000)
        for change in changes * 2:
            await self.settled(lambda change=change: with_faults.watching.notice(change))
        await feed.commit()

    async def wait(self) -> None:
        self.clock.advance(self.rng.choice([1, 7, 30]))

    async def check(self) -> None:
        self.fresh()
        for uid in UIDS:
            inboxes = self.inboxes
            counts = msgspec.to_builtins(await inboxes.reading.counts(PLACE.reader(uid)))
            assert counts == self.model.counts(uid, self.now), uid
            page, _ = await inboxes.reading.page(PLACE.reader(uid), "unread", None, 100)
            unread = [
                id_
                for id_, m in self.model.alive(uid, self.now).items()
                if not m.read and not m.archived
            ]
            assert sorted(view.id for view in page) == sorted(unread)
            reader = PLACE.reader(uid)
            assert await self.settled(partial(inboxes.books.recount, reader, fix=False)) == []
        recount = self.inboxes.broadcasts.recount
        assert await self.settled(partial(recount, PLACE, fix=False)) == {}


def interrupted(store: Faults, rng: random.Random, share: float) -> None:
    """Some writes fail: half of them before, half of them after they were done."""

    async def around(call: Any, *given: Any, **named: Any) -> Any:
        dice = rng.random()
        if dice < share / 2:
            raise StoreUnavailable("before")
        result = await call(*given, **named)
        if dice < share:
            raise StoreUnavailable("after")
        return result

    for name in ("transact", "update", "put"):
        store.around[name] = around


@pytest.mark.parametrize("seed", range(4))
async def test_counts_equal_a_recount_at_any_instant(
    clock: ManualClock, engine: dict[str, Any], tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    shared = engine or {"store": f"sqlite:///{tmp_path}/way.db"}
    async with AsyncExitStack() as stack:
        offices = []
        for _ in range(2):
            systems = system_on("inbox", NEEDED, store=Faults)
            office = await stack.enter_async_context(office_at(clock, systems=systems, **shared))
            offices.append(office)
        user = await offices[0].server.accounts.find_or_open("ann@example.com")
        world = World(offices, rng, user.user_id)
        for uid in UIDS:
            await offices[0].inboxes.books.load(PLACE.reader(uid))
        for office in offices:
            interrupted(office.inboxes._store, rng, 0.15)  # type: ignore[arg-type]
        steps = [world.publish, world.mark, world.mark, world.read_all, world.see]
        steps += [world.withdraw, world.tell, world.wait, world.wait]
        for _ in range(STEPS if not engine else STEPS // 2):
            await rng.choice(steps)()
            await world.check()


async def test_those_who_act_at_the_same_time_lose_nothing(
    clock: ManualClock, engine: dict[str, Any]
) -> None:
    async with office_at(clock, **engine) as office:
        await office.counts()
        ids = [await office.sent(*(["u"] if n % 2 else []), category="x") for n in range(8)]
        marks, reader = office.inboxes.marks, office.reader()
        work: list[Any] = [marks.mark(reader, id_, "read") for id_ in ids[:4]]
        work += [marks.mark(reader, ids[0], "unread"), marks.mark(reader, ids[5], "archive")]
        work += [
            marks.read_all(reader, None),
            marks.see(reader),
            marks.mark(reader, ids[6], "delete"),
        ]
        work += [office.sent("u", category="x") for _ in range(3)]
        await asyncio.gather(*work)
        assert await office.drift() == []
        counts = await office.counts()
        unread = await office.ids(status="unread")
        assert counts["unread"] == len(unread) == counts["categories"]["x"]["unread"]
        assert isinstance(reader, Reader)
