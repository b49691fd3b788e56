"""Killed at any moment while publishing, reading and expiring: the counts equal a recount."""

from __future__ import annotations

import asyncio
import os
import random
import time
import uuid
from typing import TYPE_CHECKING, Any

import aiohttp

from tests.inbox.office import PLACE
from tests.support.lives import process
from tests.support.site import SECRET, settings_with
from waystation.inbox.tables import Publication
from waystation.inbox.tenants import InboxInput, TenantInput
from waystation.server.runtime import running

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

ROUNDS = max(4, int(os.environ.get("CRASH_ROUNDS", "20")) // 4)
CALLERS = 6
UIDS = [f"u{n}" for n in range(40)]
BASE = "/v1/tenants/acme/inboxes/main"


class Caller:
    """Publishes and reads, and remembers what was acknowledged."""

    def __init__(self, key: str, rng: random.Random) -> None:
        self.key = key
        self.rng = rng
        self.published: dict[str, list[str]] = {}
        self.read: set[tuple[str, str]] = set()
        self.answered = 0

    async def keep_going(self, url: str) -> None:
        headers = {"Authorization": f"Bearer {self.key}"}
        async with aiohttp.ClientSession(url, headers=headers) as http:
            await asyncio.gather(*(self._go_on(http) for _ in range(CALLERS)))

    async def _go_on(self, http: aiohttp.ClientSession) -> None:
        try:
            while True:
                await self._act(http)
                self.answered += 1
        except (aiohttp.ClientError, OSError):
            return

    async def _act(self, http: aiohttp.ClientSession) -> None:
        uid = self.rng.choice(UIDS)
        dice = self.rng.random()
        if dice < 0.4:
            await self._publish(http)
        elif dice < 0.8 and self.published:
            id_ = self.rng.choice(list(self.published))
            uids = self.published[id_] or UIDS
            uid = self.rng.choice(uids)
            async with http.post(f"{BASE}/users/{uid}/messages/{id_}/read") as answer:
                if answer.status == 200:
                    self.read.add((uid, id_))
        elif dice < 0.9:
            async with http.post(f"{BASE}/users/{uid}/read-all") as answer:
                await answer.read()
        else:
            async with http.get(f"{BASE}/users/{uid}/counts") as answer:
                assert answer.status in (200, 503), await answer.text()

    async def _publish(self, http: aiohttp.ClientSession) -> None:
        some = self.rng.sample(UIDS, self.rng.choice([1, 3, 30]))
        everyone = self.rng.random() < 0.3
        audience: dict[str, Any] = {"kind": "everyone"} if everyone else {"kind": "users"}
        audience |= {} if everyone else {"uids": some}
        body = {
            "audience": audience,
            "sender": "x",
            "category": self.rng.choice(["a", "b"]),
            "message": {"title": "y"},
            "ttl": self.rng.choice(["90s", "3h", "30d"]),
            "host_system_id": uuid.uuid4().hex,
        }
        async with http.post(f"{BASE}/messages", json=body) as answer:
            if answer.status == 201:
                self.published[(await answer.json())["id"]] = [] if everyone else some


async def prepare(settings: dict[str, Any]) -> str:
    async with running(settings_with(**settings)) as runtime:
        accounts, inboxes = runtime.provided["accounts"], runtime.provided["inboxes"]
        user = await accounts.find_or_open("ann@example.com")
        await inboxes.tenants.put(user.user_id, "acme", TenantInput(title="Acme"))
        await inboxes.tenants.put_inbox(user.user_id, PLACE, InboxInput(title="Main"))
        for uid in UIDS:
            await inboxes.books.load(PLACE.reader(uid))
        _, secret = await accounts.keys.create(user.user_id, "test", "admin")
        return str(secret)


async def crash_test(settings: dict[str, Any], longest: float) -> None:
    caller, rng = Caller(await prepare(settings), random.Random(7)), random.Random(8)
    for n in range(ROUNDS):
        async with process(settings, "all", n * 120.0) as (life, url):
            acting = asyncio.create_task(caller.keep_going(url))
            await asyncio.sleep(rng.uniform(0.1, longest))
            life.kill()
            await acting
    assert caller.answered >= 20
    ahead = ROUNDS * 120.0
    async with process(settings, "all", ahead) as (_, url):
        await finished(settings, caller, url)
    await compare(settings, caller, ahead)


async def finished(settings: dict[str, Any], caller: Caller, url: str) -> None:
    """Wait until everything that was accepted has been given out."""
    headers = {"Authorization": f"Bearer {caller.key}"}
    async with aiohttp.ClientSession(url, headers=headers) as http, asyncio.timeout(120):
        for id_ in caller.published:
            while True:
                async with http.get(f"{BASE}/messages/{id_}") as answer:
                    shown = await answer.json()
                    if answer.status == 404 or shown["status"] == "published":
                        break
                await asyncio.sleep(0.05)


async def compare(settings: dict[str, Any], caller: Caller, ahead: float) -> None:

    def clock() -> float:
        return time.time() + ahead

    async with running(settings_with(**settings), clock=clock) as runtime:
        inboxes, store = runtime.provided["inboxes"], runtime.store
        assert await inboxes.broadcasts.recount(PLACE, fix=False) == {}
        shown: dict[str, set[str]] = {}
        for uid in UIDS:
            reader = PLACE.reader(uid)
            assert await inboxes.books.recount(reader, fix=False) == [], uid
            page, cursor = await inboxes.reading.page(reader, "all", None, 10_000)
            assert cursor is None
            counts = await inboxes.reading.counts(reader)
            assert counts.total == len(page)
            assert counts.unread == sum(not view.read for view in page)
            shown[uid] = {view.id for view in page}
            read = {view.id for view in page if view.read}
            assert {i for u, i in caller.read if u == uid} & shown[uid] <= read
        for id_, uids in caller.published.items():
            publication = await store.get(Publication.key(id_))
            public = await store.get(PLACE.message(id_))
            if publication is None and public is None:
                continue  # it has expired
            for uid in uids or UIDS:
                assert id_ in shown[uid], (id_, uid)


async def test_the_counts_equal_a_recount(tmp_path: Path) -> None:
    files = {"store": f"sqlite:///{tmp_path}/inbox.db", "blobs": f"file:{tmp_path}/blobs"}
    await crash_test({"secret_key": SECRET, **files}, 0.8)


async def test_the_counts_equal_a_recount_on_aws(
    dynamodb_url: str, moto_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", moto_url)
    shared = {
        "store": "dynamodb://us-east-1",
        "queue": "sqs://us-east-1",
        "aws_endpoint_url": dynamodb_url,
        "blobs": "memory:///",
        "env": f"inbox{uuid.uuid4().hex[:6]}",
    }
    await crash_test({"secret_key": SECRET, **shared}, 1.5)
