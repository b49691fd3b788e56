"""A server with an inbox `main` of the tenant `acme`, and short ways to use it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from tests.support.site import Answer, Site, site
from waystation.inbox.readers import Place
from waystation.inbox.tables import inbox as table
from waystation.systems import SYSTEMS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from waystation.clock import ManualClock
    from waystation.inbox.readers import Reader
    from waystation.inbox.service import Inbox

PLACE = Place("acme", "main")
NEEDED = [each for each in SYSTEMS if each.name in ("accounts", "relay", "inbox", "base")]
"""Every other system's tables take time to create on DynamoDB."""


class Office:
    """`u` is the user unless another is named."""

    def __init__(self, server: Site, key: str, clock: ManualClock) -> None:
        self.server = server
        self.key = key
        self.clock = clock
        self.runtime = server.runtime
        self.store = server.runtime.store
        self.inboxes: Inbox = server.runtime.provided["inboxes"]
        self.base = "/v1/tenants/acme/inboxes/main"

    async def call(self, method: str, path: str, json: object = None, **more: Any) -> Answer:
        return await self.server.call(method, path, json, token=more.pop("token", self.key), **more)

    async def publish(
        self, *uids: str, title: str = "Hello", status: int = 201, **more: Any
    ) -> Any:
        """Send a message to some users, or else to everyone."""
        given: dict[str, Any] = {"kind": "users", "uids": list(uids)}
        if not uids:
            given = {"kind": "everyone", "backfill": more.pop("backfill", False)}
        message = {"title": title, "body": "A body"} | more.pop("message", {})
        body = {"audience": given, "sender": "tests", "message": message, **more}
        answer = await self.call("POST", f"{self.base}/messages", body)
        assert answer.status == status, answer
        return answer.json

    async def sent(self, *uids: str, **more: Any) -> str:
        return str((await self.publish(*uids, **more))["id"])

    def user(self, uid: str, rest: str) -> str:
        return f"{self.base}/users/{quote(uid, safe='')}/{rest}"

    async def counts(self, uid: str = "u") -> Any:
        answer = await self.call("GET", self.user(uid, "counts"))
        assert answer.status == 200, answer
        return answer.json

    async def numbers(self, uid: str = "u") -> tuple[int, int]:
        """A user's total and unread."""
        counts = await self.counts(uid)
        return counts["total"], counts["unread"]

    async def messages(self, uid: str = "u", **query: Any) -> list[dict[str, Any]]:
        return (await self.page(uid, **query))["data"]  # type: ignore[no-any-return]

    async def page(self, uid: str = "u", **query: Any) -> Any:
        answer = await self.call("GET", self.user(uid, f"messages?{urlencode(query)}"))
        assert answer.status == 200, answer
        return answer.json

    async def ids(self, uid: str = "u", **query: Any) -> list[str]:
        return [message["id"] for message in await self.messages(uid, **query)]

    async def mark(self, id_: str, mark: str, uid: str = "u", status: int = 200) -> Any:
        path = self.user(uid, f"messages/{quote(id_, safe='')}/{mark}")
        answer = await self.call("POST", path)
        assert answer.status == status, answer
        return answer.json

    async def delete(self, id_: str, uid: str = "u", status: int = 204) -> None:
        answer = await self.call("DELETE", self.user(uid, f"messages/{id_}"))
        assert answer.status == status, answer

    async def withdraw(self, id_: str, status: int = 204) -> None:
        answer = await self.call("DELETE", f"{self.base}/messages/{id_}")
        assert answer.status == status, answer

    async def token(self, uid: str = "u", **given: Any) -> str:
        answer = await self.call("POST", self.user(uid, "token"), given or None)
        assert answer.status == 201, answer
        return str(answer.json["token"])

    def reader(self, uid: str = "u") -> Reader:
        return PLACE.reader(uid)

    async def drift(self, uid: str = "u") -> list[Any]:
        """Where a user's counters differ from a recount."""
        return await self.inboxes.books.recount(self.reader(uid), fix=False)

    async def heard(self) -> None:
        """Let the inbox hear of every change there has been."""
        feed = self.store.changes(table, "inbox")
        while changes := await feed.read():
            for change in changes:
                await self.inboxes.watching.notice(change)
            await feed.commit()

    async def settle(self) -> None:
        """Do everything that is due now."""
        timed = self.inboxes.distribution.timed
        await timed.finish()
        await timed.tick()
        await timed.finish()


@asynccontextmanager
async def office_at(clock: ManualClock, **more: Any) -> AsyncIterator[Office]:
    more.setdefault("systems", NEEDED)
    async with site(clock, **more) as server:
        office = Office(server, await server.api_key(), clock)
        for path, body in (
            ("/v1/tenants/acme/settings", {"title": "Acme", "ttl": "30d"}),
            (office.base, {"title": "Main"}),
        ):
            answer = await office.call("PUT", path, body)
            assert answer.status == 200, answer
        yield office
        await office.inboxes.distribution.timed.finish()
