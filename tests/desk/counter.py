"""A server with a desk that works, and short ways to write to it as a support vendor does."""

from __future__ import annotations

import hmac
import itertools
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from tests.desk.richpanel_server import KEY
from tests.relay.hub import Hub, hub_at
from waystation.desk import Order

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.desk.richpanel_server import Vendor
    from tests.support.site import Answer
    from waystation.clock import ManualClock
    from waystation.desk.service import Desk
    from waystation.queues import Consumer

TOKEN = "a-token-for-tests"
SECRET = "a secret for tests"
PATH = "/desk/richpanel/webhook"
WHERE = "Where is my order #12345?"
_numbers = itertools.count(1)


async def find_order(number: str) -> Order | None:
    """The orders of tests: those that begin with 9 do not exist."""
    if number.startswith("9"):
        return None
    return Order(status="on its way", tracking_url="https://track.example/abc")


def payload(text: str = WHERE, conversation: str = "c1", **more: Any) -> dict[str, Any]:
    given: dict[str, Any] = {
        "event_type": "message_created",
        "conversation_id": conversation,
        "message_id": f"m{next(_numbers)}",
        "channel": "email",
        "customer_message": text,
        "created_at": "2026-11-18T12:00:00Z",
    }
    return {name: value for name, value in (given | more).items() if value is not None}


class Counter:
    """Where support events are handed in."""

    def __init__(self, hub: Hub, vendor: Vendor | None) -> None:
        self.hub = hub
        self.vendor = vendor
        self.clock = hub.clock
        self.desk: Desk = hub.runtime.provided["desk"]
        self.consumer: Consumer = next(
            each for each in hub.runtime.consumers if each.queue is self.desk.queue
        )

    async def raw(self, body: bytes, headers: dict[str, str] | None = None) -> Answer:
        given = {"Content-Type": "application/json", "X-Richpanel-Webhook-Token": TOKEN}
        return await self.hub.server.call("POST", PATH, body=body, headers=given | (headers or {}))

    async def send(self, given: dict[str, Any]) -> Answer:
        return await self.raw(msgspec.json.encode(given))

    async def write(self, text: str = WHERE, conversation: str = "c1", **more: Any) -> str:
        """Send an event, let it be dealt with, and give back its id."""
        answer = await self.send(payload(text, conversation, **more))
        assert answer.status == 200, answer
        await self.settle()
        found: str = answer.json["event_id"]
        return found

    async def send_only(self, text: str, conversation: str) -> None:
        """Send an event, and leave it in the queue."""
        assert (await self.send(payload(text, conversation))).status == 200

    async def settle(self, rounds: int = 50) -> None:
        """Deal with everything that can be dealt with now."""
        for _ in range(rounds):
            messages = await self.desk.queue.receive()
            if not messages:
                return
            for message in messages:
                await self.consumer.process(message)

    async def later(self, seconds: float) -> None:
        self.clock.advance(seconds)
        await self.settle()

    async def set(self, **switches: Any) -> Any:
        answer = await self.hub.call("PUT", "/v1/desk/switches", switches)
        assert answer.status == 200, answer
        return answer.json

    async def automate(self) -> None:
        """Switch everything on."""
        await self.set(safe_mode=False, automation_enabled=True)

    async def state(self, conversation: str = "c1") -> Any:
        return await self.hub.get(f"/v1/desk/conversations/{conversation}")

    async def audit(self, conversation: str = "c1") -> list[Any]:
        """What was done, in order."""
        found = await self.hub.get(f"/v1/desk/conversations/{conversation}/audit?limit=100")
        return list(reversed(found["data"]))

    async def done(self, conversation: str = "c1") -> list[tuple[str, str]]:
        """What was done and what came of it, in order."""
        return [(each["action_type"], each["result"]) for each in await self.audit(conversation)]

    async def event(self, event_id: str) -> Any:
        return await self.hub.get(f"/v1/desk/events/{event_id}")


def signed(body: bytes, at: float, secret: str = SECRET) -> dict[str, str]:
    stamp = str(int(at))
    digest = hmac.digest(secret.encode(), f"{stamp}.".encode() + body, "sha256").hex()
    return {"X-Richpanel-Timestamp": stamp, "X-Richpanel-Signature": f"sha256={digest}"}


@asynccontextmanager
async def desk_at(
    clock: ManualClock, vendor: Any = None, **settings: Any
) -> AsyncIterator[Counter]:
    """A desk. With a vendor it may act."""
    given: dict[str, Any] = {
        "desk_webhook_tokens": [TOKEN],
        "desk_hmac_secret": SECRET,
        "desk_orders": "tests.desk.counter:find_order",
    }
    if vendor is not None:
        acting = {"richpanel_url": vendor.url, "richpanel_api_key": KEY, "desk_outbound": True}
        given |= acting
        vendor.clock = clock
    async with hub_at(clock, **given | settings) as hub:
        yield Counter(hub, vendor)
