"""A server with a relay that works, an account, and short ways to use them."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from tests.support.site import Answer, Site, site

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from waystation.clock import ManualClock
    from waystation.relay.delivering.worker import Worker
    from waystation.relay.service import Relay


class Hub:
    def __init__(self, server: Site, key: str, clock: ManualClock) -> None:
        self.server = server
        self.key = key
        self.clock = clock
        self.runtime = server.runtime
        self.relay: Relay = server.runtime.provided["relay"]
        self.worker: Worker = self.relay.worker

    async def call(self, method: str, path: str, json: object = None, **more: Any) -> Answer:
        return await self.server.call(method, path, json, token=more.pop("token", self.key), **more)

    async def get(self, path: str) -> Any:
        answer = await self.call("GET", path)
        assert answer.status == 200, answer
        return answer.json

    async def source(self, **given: Any) -> str:
        answer = await self.call("POST", "/v1/sources", {"name": "A source", **given})
        assert answer.status == 201, answer
        found: str = answer.json["id"]
        return found

    async def connect(self, source_id: str, url: str, **given: Any) -> dict[str, Any]:
        body = {"name": "A connection", "destination_url": url, **given}
        answer = await self.call("POST", f"/v1/sources/{source_id}/connections", body)
        assert answer.status == 201, answer
        created: dict[str, Any] = answer.json
        return created

    async def send(
        self, source_id: str, body: bytes = b'{"n": 1}', method: str = "POST", **more: Any
    ) -> Answer:
        headers = {"Content-Type": "application/json"} | (more.pop("headers", None) or {})
        rest = more.pop("rest", "")
        return await self.server.call(
            method, f"/in/{source_id}{rest}", body=body, headers=headers, **more
        )

    async def sent(self, source_id: str, body: bytes = b'{"n": 1}', **more: Any) -> str:
        """Send, let everything be done that is due now, and give back the event's id."""
        answer = await self.send(source_id, body, **more)
        assert answer.status == 200, answer
        await self.settle()
        found: str = answer.json["id"]
        return found

    async def settle(self) -> None:
        """Do everything that is due now."""
        await self.worker.timed.finish()
        await self.worker.timed.tick()
        await self.worker.timed.finish()

    async def later(self, seconds: float) -> None:
        self.clock.advance(seconds)
        await self.settle()

    async def event(self, event_id: str) -> Any:
        return await self.get(f"/v1/events/{event_id}")

    async def statuses(self, event_id: str) -> list[str]:
        """The event's status, then those of its deliveries."""
        event = await self.event(event_id)
        return [event["status"], *(delivery["status"] for delivery in event["deliveries"])]

    async def patch(self, connection: dict[str, Any], **given: Any) -> Any:
        answer = await self.call("PATCH", f"/v1/connections/{connection['id']}", given)
        assert answer.status == 200, answer
        return answer.json


@asynccontextmanager
async def hub_at(clock: ManualClock, *, background: bool = True, **more: Any) -> AsyncIterator[Hub]:
    async with site(clock, background=background, **more) as server:
        hub = Hub(server, await server.api_key(), clock)
        yield hub
        await hub.worker.timed.finish()
