"""A server with the few calls of Richpanel's API that the desk uses, on a real socket.

`GET /tickets/{id}` answers with the ticket and its comments, `PUT /tickets/{id}` assigns it or adds
a comment, `PUT /tickets/{id}/add-tags` adds tags, and the key is in `x-richpanel-key`.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from waystation.times import iso

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

KEY = "rp-key-1"


class Ticket(msgspec.Struct):
    assigned: list[str] = msgspec.field(default_factory=list)
    tags: list[str] = msgspec.field(default_factory=list)
    said: list[str] = msgspec.field(default_factory=list)
    said_at: list[float] = msgspec.field(default_factory=list)


class Vendor:
    """`troubles` are used up in turn, one for each call that they are for.

    A trouble is a status, or `hang`, `cut` (nothing is done), `done_then_cut`, `done_then_hang`,
    `done_then_500`.
    """

    def __init__(self) -> None:
        self.url = ""
        self.tickets: dict[str, Ticket] = defaultdict(Ticket)
        self.calls: Counter[str] = Counter()
        self.order: list[tuple[str, str, str]] = []
        self.troubles: dict[str, list[int | str]] = {
            "assign": [],
            "tag": [],
            "reply": [],
            "look": [],
        }
        self.retry_after: str | None = None
        self.always: int | str | None = None
        self.delay = 0.0
        self.clock: Callable[[], float] = time.time

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("x-richpanel-key") != KEY:
            return web.json_response({"error": "unauthorized"}, status=401)
        id_, rest = request.match_info["id"], request.match_info.get("rest", "")
        body = msgspec.json.decode(await request.read()) if request.method == "PUT" else {}
        what, value = _meant(request.method, rest, body)
        self.calls[what] += 1
        if self.delay:
            await asyncio.sleep(self.delay)
        trouble = self.troubles[what].pop(0) if self.troubles[what] else self.always
        if trouble is None or str(trouble).startswith("done"):
            self._do(id_, what, value)
        if trouble is not None:
            return await self._trouble(request, trouble)
        return web.json_response({"ticket": self._shown(id_)})

    def _do(self, id_: str, what: str, value: str) -> None:
        ticket = self.tickets[id_]
        self.order.append((id_, what, value))
        if what == "assign":
            ticket.assigned.append(value)
        elif what == "tag":
            ticket.tags.append(value)
        elif what == "reply":
            ticket.said.append(value)
            ticket.said_at.append(self.clock())

    def _shown(self, id_: str) -> dict[str, Any]:
        ticket = self.tickets[id_]
        said = [
            {"body": text, "sender_type": "operator", "created_at": iso(at)}
            for text, at in zip(ticket.said, ticket.said_at, strict=True)
        ]
        return {"id": id_, "comments": [{"body": "hello", "sender_type": "customer"}, *said]}

    async def _trouble(self, request: web.Request, trouble: int | str) -> web.StreamResponse:
        if isinstance(trouble, int):
            headers = {} if self.retry_after is None else {"Retry-After": self.retry_after}
            return web.json_response({"error": "no"}, status=trouble, headers=headers)
        if trouble[-3:].isdigit():
            return web.Response(status=int(trouble[-3:]))
        if trouble.endswith("hang"):
            await asyncio.sleep(60)
        assert request.transport is not None
        request.transport.close()
        return web.Response()


def _meant(method: str, rest: str, body: dict[str, Any]) -> tuple[str, str]:
    if method == "GET":
        return "look", ""
    if rest == "add-tags":
        return "tag", body["tags"][0]
    ticket = body["ticket"]
    if "assignee_id" in ticket:
        return "assign", ticket["assignee_id"]
    assert ticket["comment"]["sender_type"] == "operator"
    return "reply", ticket["comment"]["body"]


@asynccontextmanager
async def vendor_server() -> AsyncIterator[Vendor]:
    vendor = Vendor()
    app = web.Application()
    app.router.add_get("/v1/tags", _tags)
    app.router.add_route("*", "/v1/tickets/{id}", vendor.handle)
    app.router.add_route("*", "/v1/tickets/{id}/{rest}", vendor.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        listener = web.TCPSite(runner, "127.0.0.1", 0)
        await listener.start()
        host, port = runner.addresses[0][:2]
        vendor.url = f"http://{host}:{port}/v1"
        yield vendor
    finally:
        await runner.cleanup()


async def _tags(_: web.Request) -> web.Response:
    return web.json_response({"tag": []})
