"""Rows that another service wrote into the shared tables, as the document says or not, through
boto3 and past our types."""

from __future__ import annotations

import time
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import boto3
import pytest

from tests.desk.counter import WHERE, desk_at
from waystation.clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.desk.counter import Counter
    from tests.desk.richpanel_server import Vendor


class Tables:
    """What the other service has in its hands."""

    def __init__(self, url: str, env: str) -> None:
        self._dynamodb = boto3.resource("dynamodb", region_name="eu-west-1", endpoint_url=url)
        self._env = env

    def put(self, table: str, **item: Any) -> None:
        self._dynamodb.Table(f"{self._env}-{table}").put_item(Item=item)

    def get(self, table: str, **key: Any) -> Any:
        return self._dynamodb.Table(f"{self._env}-{table}").get_item(Key=key).get("Item")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(float(int(time.time())))


@pytest.fixture
async def counter(
    clock: ManualClock, vendor: Vendor, shared_aws: dict[str, Any]
) -> AsyncIterator[Counter]:
    async with desk_at(clock, vendor, **shared_aws) as running:
        yield running


@pytest.fixture
def theirs(counter: Counter, dynamodb_url: str, shared_env: str) -> Tables:
    return Tables(dynamodb_url, shared_env)


@pytest.mark.parametrize(
    "row",
    [
        {},
        {"status": "processed", "mode": "route_only"},
        {"status": Decimal(1), "mode": "something", "payload_bytes": "many"},
        {"safe_mode": "yes", "lease_expires_at": "soon", "plan": "odd"},
    ],
)
async def test_an_event_that_another_service_has_seen_is_left_to_it(
    counter: Counter, theirs: Tables, row: dict[str, Any]
) -> None:
    theirs.put("rp_mw_idempotency", event_id="evt:rp:c1:m1", **row)
    answer = await counter.send(
        {"event_type": "x", "conversation_id": "c1", "message_id": "m1", "text": WHERE}
    )
    assert answer.json == {"event_id": "evt:rp:c1:m1", "status": "duplicate"}
    await counter.settle()
    assert await counter.done() == []
    assert (await counter.event("evt:rp:c1:m1"))["status"] != "processing"


async def test_an_action_that_another_service_has_done_is_not_done_again(
    counter: Counter, theirs: Tables, vendor: Vendor
) -> None:
    theirs.put("rp_mw_idempotency", event_id="act:rp_assign:c1:backend:m1", status="processed")
    await counter.write("please cancel my order", message_id="m1")
    assert vendor.tickets["c1"].assigned == []
    assert vendor.tickets["c1"].tags == ["cancel_order"]


@pytest.mark.parametrize(
    "odd",
    [
        {"version": "seven"},
        {"version": None},
        {"risk_flags": "none"},
        {"pending_flow": "waiting"},
        {"pending_flow": {"type": Decimal(1)}},
        {"last_auto_reply": {"sent_at": "yesterday", "type": "x", "source_message_id": "y"}},
        {"last_auto_reply": [Decimal(1)]},
        {"last_routing_confidence": "high"},
        {"closed": "no"},
        {"updated_at": Decimal(5)},
    ],
)
async def test_a_state_of_any_shape_holds_nobody_up(
    counter: Counter, theirs: Tables, odd: dict[str, Any], clock: ManualClock
) -> None:
    expires = Decimal(int(clock()) + 1_000)
    row = {"conversation_id": "c1", "updated_at": "2026-01-01T00:00:00Z", "expires_at": expires}
    theirs.put("rp_mw_conversation_state", **row | {"their_own": "kept"} | odd)
    assert (await counter.hub.call("GET", "/v1/desk/conversations/c1")).status == 200
    await counter.write("please cancel my order")
    assert (await counter.state())["last_intent"] == "cancel_order"
    assert theirs.get("rp_mw_conversation_state", conversation_id="c1")["their_own"] == "kept"


async def test_our_rows_are_as_the_document_says(counter: Counter, theirs: Tables) -> None:
    await counter.automate()
    await counter.write(WHERE, message_id="m1")
    event = theirs.get("rp_mw_idempotency", event_id="evt:rp:c1:m1")
    assert {
        *("created_at", "last_processed_at", "received_at", "expires_at", "status", "mode"),
        *("conversation_id", "safe_mode", "automation_enabled", "source_message_id"),
        *("payload_sha256", "payload_bytes", "intent"),
    } <= event.keys()
    assert event["status"] == "processed"
    assert not {"plan", "lease_token"} & event.keys()
    state = theirs.get("rp_mw_conversation_state", conversation_id="c1")
    assert {"updated_at", "expires_at", "version", "last_auto_reply"} <= state.keys()
    assert set(state["last_auto_reply"]) >= {"type", "sent_at", "source_message_id"}


async def test_an_audit_row_of_any_shape_leaves_the_list_alone(
    counter: Counter, theirs: Tables
) -> None:
    await counter.write("please cancel my order")
    theirs.put("rp_mw_audit_actions", conversation_id="c1", ts_action_id="2026-01-01T00:00:00Z#x")
    theirs.put(
        "rp_mw_audit_actions",
        conversation_id="c1",
        ts_action_id="2026-01-02T00:00:00Z#y",
        action_payload_redacted={"a": Decimal(1)},
        result=Decimal(0),
    )
    assert len(await counter.audit()) == 4
