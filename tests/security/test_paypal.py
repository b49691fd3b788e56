"""Somebody who has seen one genuine webhook of PayPal's, and somebody who owns a certificate."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding

from tests.relay.hub import hub_at
from tests.relay.senders import SENDERS, paypal_certificate, paypal_root
from tests.support.faults import Faults, relay_on
from waystation.outbound import Reply

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from tests.relay.hub import Hub
    from tests.support.site import Answer
    from waystation.clock import ManualClock


class Host:
    """PayPal's host, which is not reached from here."""

    def __init__(self) -> None:
        self.asked = 0
        self.reply = Reply(200, paypal_certificate())
        self.before: Callable[[], Awaitable[object]] | None = None

    async def answer(self, call: Any, method: str, url: str, **more: Any) -> Reply:
        self.asked += 1
        if self.before is not None:
            await self.before()
        return self.reply


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.fixture
async def hub(clock: ManualClock, host: Host) -> AsyncIterator[Hub]:
    def instead(outbound: Any) -> Faults:
        faults = Faults(outbound)
        faults.around["request"] = host.answer
        return faults

    systems = relay_on({"paypal_roots": [paypal_root()]}, outbound=instead)
    async with hub_at(clock, systems=systems) as running:
        yield running


async def source_of(hub: Hub) -> str:
    return await hub.source(provider="paypal", signing_secrets=["WH-1"])


async def send(
    hub: Hub, source: str, *, late: float = 0.0, headers: dict[str, str] | None = None
) -> Answer:
    sender = SENDERS["paypal"]
    what = sender.sign(sender.body, sender.secret, hub.clock() - late)
    return await hub.send(source, what.body, headers=what.headers | (headers or {}))


async def test_a_genuine_webhook_is_taken_once(hub: Hub) -> None:
    """Its signature fits other bodies too: a checksum can be forged."""
    source = await source_of(hub)
    first, again = await send(hub, source), await send(hub, source)
    assert (first.status, first.json["status"]) == (200, "received")
    assert again.json == {"id": first.json["id"], "status": "duplicate"}


async def test_an_old_transmission_is_refused(hub: Hub) -> None:
    """Once it is no longer remembered."""
    source = await source_of(hub)
    assert (await send(hub, source, late=4 * 86_400)).status == 401
    assert (await send(hub, source, late=-4 * 86_400)).status == 401


@pytest.mark.parametrize(
    "certificate",
    [
        paypal_certificate("attacker.example"),
        paypal_certificate(issuer=rsa.generate_private_key(65537, 2048)),
        paypal_certificate(valid_days=30),
        paypal_root().public_bytes(Encoding.PEM),
        b"",
        b"not a certificate",
    ],
)
async def test_a_certificate_that_is_not_paypals_is_refused(
    hub: Hub, host: Host, certificate: bytes
) -> None:
    host.reply = Reply(200, certificate)
    assert (await send(hub, await source_of(hub))).status == 401


async def test_a_certificate_that_cannot_be_had_is_remembered_for_a_while(
    hub: Hub, host: Host
) -> None:
    source = await source_of(hub)
    host.reply = Reply(error="no answer")
    for _ in range(5):
        assert (await send(hub, source)).status == 401
    assert host.asked == 1
    host.reply = Reply(200, paypal_certificate())
    hub.clock.advance(61)
    assert (await send(hub, source)).status == 200


async def test_one_that_takes_long_does_not_hold_up_others(hub: Hub, host: Host) -> None:
    source = await source_of(hub)
    assert (await send(hub, source)).status == 200
    go_on = asyncio.Event()
    host.before = go_on.wait
    other = "https://api.paypal.com/v1/notifications/certs/CERT-other"
    waiting = asyncio.create_task(send(hub, source, headers={"PAYPAL-CERT-URL": other}))
    async with asyncio.timeout(5):
        assert (await send(hub, source)).status == 200
    assert not waiting.done()
    go_on.set()
    await waiting


@pytest.mark.parametrize("provider", ["paypal", "mailgun"])
@pytest.mark.parametrize(
    "dedupe",
    [{"mode": "none"}, {"mode": "fields", "fields": ["$.id"]}, {"mode": "default", "window": 60}],
)
async def test_signatures_that_fit_several_bodies_are_always_remembered(
    hub: Hub, provider: str, dedupe: dict[str, Any]
) -> None:
    given = {"name": "x", "provider": provider, "signing_secrets": ["x"], "dedupe": dedupe}
    answer = await hub.call("POST", "/v1/sources", given)
    assert (answer.status, answer.fields) == (400, ["dedupe"])


async def test_invented_certificates_do_not_push_out_the_genuine_one(hub: Hub, host: Host) -> None:
    source = await source_of(hub)
    assert (await send(hub, source)).status == 200
    genuine, host.reply = host.reply, Reply(404)
    base = "https://api.paypal.com/v1/notifications/certs/CERT-"
    for n in range(90):
        await send(hub, source, headers={"PAYPAL-CERT-URL": f"{base}{n}"})
    asked = host.asked
    assert (await send(hub, source)).status == 200
    assert (host.asked, genuine.status) == (asked, 200)
