"""Stripe's subscription events change plans, through the relay itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import stripe

from tests.relay.hub import Hub, hub_at
from tests.support.site import settings_with
from waystation.errors import SettingsError
from waystation.relay.directory import Directory
from waystation.relay.sources import billing_source
from waystation.relay.tables import Event

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.site import Answer
    from waystation.clock import ManualClock

SECRET = "whsec_billing"


@pytest.fixture
async def paid(clock: ManualClock) -> AsyncIterator[Hub]:
    async with hub_at(
        clock,
        stripe_webhook_secrets=[SECRET],
        stripe_prices=["price_starter=starter", "price_pro=pro"],
    ) as hub:
        yield hub


class Customer:
    def __init__(self, hub: Hub, user_id: str, token: str) -> None:
        self.hub = hub
        self.user_id = user_id
        self.token = token
        self._count = 0

    async def plan(self) -> str:
        answer = await self.hub.call("GET", "/v1/me", token=self.token)
        found: str = answer.json["plan"]
        return found

    async def tell(self, kind: str, created: int, secret: str = SECRET, **about: Any) -> Answer:
        self._count += 1
        event = {
            "id": about.pop("event_id", f"evt_{self._count}"),
            "object": "event",
            "type": kind,
            "created": created,
            "data": {"object": {"id": "sub_1", "customer": "cus_1"} | about},
        }
        body = msgspec.json.encode(event)
        header = stripe.WebhookSignature.generate_signature_header(
            payload=body.decode(), secret=secret, timestamp=int(self.hub.clock())
        )
        answer = await self.hub.send("billing", body, headers={"Stripe-Signature": header})
        await self.hub.settle()
        return answer

    async def subscribe(self, price: str, created: int, status: str = "active") -> Answer:
        return await self.tell(
            "customer.subscription.updated",
            created,
            status=status,
            items={"data": [{"price": {"id": price}}]},
        )


@pytest.fixture
async def ann(paid: Hub) -> Customer:
    tokens = await paid.server.sign_up("ann@stripe.example")
    created = await paid.call("POST", "/v1/api-keys", {}, token=tokens["access_token"])
    key = created.json["key"]
    me = await paid.call("GET", "/v1/me", token=key)
    customer = Customer(paid, me.json["id"], key)
    answer = await customer.tell(
        "checkout.session.completed", 1, client_reference_id=me.json["id"], subscription="sub_1"
    )
    assert answer.status == 200
    return customer


async def test_a_subscription_changes_the_plan(ann: Customer) -> None:
    assert await ann.plan() == "free"
    await ann.subscribe("price_starter", 10)
    assert await ann.plan() == "starter"
    await ann.subscribe("price_pro", 20)
    assert await ann.plan() == "pro"
    await ann.tell("customer.subscription.deleted", 30, status="canceled")
    assert await ann.plan() == "free"


async def test_events_out_of_order(ann: Customer) -> None:
    await ann.subscribe("price_pro", 20)
    await ann.subscribe("price_starter", 10)
    assert await ann.plan() == "pro"


async def test_a_repeated_event_is_a_duplicate(ann: Customer) -> None:
    about: dict[str, Any] = {
        "status": "active",
        "items": {"data": [{"price": {"id": "price_pro"}}]},
    }
    first = await ann.tell("customer.subscription.created", 10, event_id="evt_same", **about)
    again = await ann.tell("customer.subscription.created", 10, event_id="evt_same", **about)
    assert (first.json["status"], again.json["status"]) == ("received", "duplicate")


@pytest.mark.parametrize("status", ["unpaid", "canceled", "incomplete_expired", "paused"])
async def test_what_is_not_paid_is_free(ann: Customer, status: str) -> None:
    await ann.subscribe("price_pro", 10)
    await ann.subscribe("price_pro", 20, status)
    assert await ann.plan() == "free"


async def test_an_unknown_price_changes_nothing(ann: Customer) -> None:
    await ann.subscribe("price_pro", 10)
    await ann.subscribe("price_other", 20)
    assert await ann.plan() == "pro"


async def test_metadata_can_name_the_account(paid: Hub, ann: Customer) -> None:
    await ann.tell(
        "customer.subscription.created",
        10,
        customer="cus_unknown",
        status="active",
        metadata={"user_id": ann.user_id},
        items={"data": [{"price": {"id": "price_pro"}}]},
    )
    assert await ann.plan() == "pro"


async def test_a_subscription_may_come_before_its_checkout(paid: Hub) -> None:
    tokens = await paid.server.sign_up("early@stripe.example")
    created = await paid.call("POST", "/v1/api-keys", {}, token=tokens["access_token"])
    me = await paid.call("GET", "/v1/me", token=created.json["key"])
    early = Customer(paid, me.json["id"], created.json["key"])
    await early.subscribe("price_pro", 10)
    assert await early.plan() == "free"
    await early.tell(
        "checkout.session.completed", 9, client_reference_id=early.user_id, subscription="sub_1"
    )
    await paid.later(40)
    assert await early.plan() == "pro"


async def test_an_upgrade_survives_the_end_of_the_old_subscription(ann: Customer) -> None:
    about: dict[str, Any] = {"items": {"data": [{"price": {"id": "price_pro"}}]}}
    await ann.tell("customer.subscription.created", 10, id="sub_old", status="active", **about)
    await ann.tell("customer.subscription.created", 20, id="sub_new", status="active", **about)
    await ann.tell("customer.subscription.deleted", 30, id="sub_old", status="canceled", **about)
    assert await ann.plan() == "pro"
    await ann.tell("customer.subscription.deleted", 40, id="sub_new", status="canceled", **about)
    assert await ann.plan() == "free"


async def test_a_subscription_that_is_not_complete_changes_nothing(ann: Customer) -> None:
    await ann.subscribe("price_pro", 10)
    await ann.subscribe("price_pro", 10, "incomplete")
    assert await ann.plan() == "pro"


async def test_the_billing_source_is_not_forgotten(ann: Customer) -> None:
    relay = ann.hub.relay
    directory = Directory(relay.store, relay.keyring, most_kept=2)
    directory.install(billing_source(), ["whsec_x"])
    for _ in range(4):
        assert await directory.source(await ann.hub.source()) is not None
    assert await directory.source("billing") is not None


async def test_a_forged_event_is_refused(ann: Customer) -> None:
    answer = await ann.tell("customer.subscription.deleted", 10, secret="whsec_other")
    assert answer.status == 401


async def test_what_is_not_about_a_subscription_is_kept_and_passed_over(ann: Customer) -> None:
    assert (await ann.tell("invoice.paid", 10)).status == 200
    assert (await ann.tell("customer.subscription.updated", 10, items="junk")).status == 200
    assert await ann.plan() == "free"
    events = (await ann.hub.relay.store.query(Event.query("billing"))).items
    assert all(event.todo is None for event in events)


async def test_a_plan_that_was_not_applied_yet_is_applied_after_a_restart(
    paid: Hub, ann: Customer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nobody(plan: object) -> None:
        """The process ends here."""

    monkeypatch.setattr(paid.worker, "written", nobody)
    await ann.subscribe("price_pro", 10)
    assert await ann.plan() == "free"
    await paid.later(31)
    assert await ann.plan() == "pro"


async def test_it_is_off_until_configured(hub: Hub) -> None:
    assert (await hub.send("billing", b"{}")).status == 404


@pytest.mark.parametrize(
    "given",
    [
        {"stripe_webhook_secrets": ["x"]},
        {"stripe_prices": ["price_1=pro"]},
        {"stripe_webhook_secrets": ["x"], "stripe_prices": ["price_1=gold"]},
        {"stripe_webhook_secrets": ["x"], "stripe_prices": ["price_1"]},
        {"stripe_webhook_secrets": [""], "stripe_prices": ["price_1=pro"]},
    ],
)
def test_settings_that_make_no_sense(given: dict[str, Any]) -> None:
    with pytest.raises(SettingsError):
        settings_with(**given)
