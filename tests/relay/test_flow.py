"""A webhook's way, from its sender to its receiver."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.relay.hub import Hub
    from tests.support.receiver import Receiver


async def test_a_webhook_comes_in_and_goes_out(hub: Hub, receiver: Receiver) -> None:
    source = await hub.source()
    await hub.connect(source, receiver.url + "/hook")
    event_id = await hub.sent(source, b'{"type": "order.created"}')
    assert [(got.method, got.path, got.body) for got in receiver.got] == [
        ("POST", "/hook", b'{"type": "order.created"}')
    ]
    event = await hub.event(event_id)
    assert event["status"] == "delivered"
    [delivery] = event["deliveries"]
    assert delivery["status"] == "delivered"
    assert [attempt["status_code"] for attempt in delivery["attempts"]] == [200]
