"""A tenant whose rules cost as much as they can, on bodies made for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tests.security.onlookers import megabytes, watching

if TYPE_CHECKING:
    from tests.relay.hub import Hub
    from tests.support.receiver import Receiver

NUMBERS = msgspec.json.encode({"a": [1] * 87_000})
NESTED = msgspec.json.encode({"a": [[0] * 100] * 1_200})
TEXTS = msgspec.json.encode({"a": ["x" * 60_000] * 4})

TRANSFORMS: list[tuple[dict[str, Any], bytes]] = [
    (
        {"type": "field_map", "rules": [{"from": "$.a", "to": f"b{n}"} for n in range(200)]},
        NUMBERS,
    ),
    (
        {
            "type": "steps",
            "steps": [{"op": "rename", "from": "ab"[n % 2], "to": "ba"[n % 2]} for n in range(200)],
        },
        NUMBERS,
    ),
    ({"type": "jmespath", "expression": f"[{','.join(['max(a)'] * 280)}]"}, NUMBERS),
    ({"type": "jmespath", "expression": f"[{','.join(['a'] * 280)}][]"}, NUMBERS),
    ({"type": "jmespath", "expression": f"[{','.join(['sort(a)'] * 200)}]"}, NUMBERS),
    ({"type": "jmespath", "expression": "a[*].[*]" + ".[*]" * 50}, NESTED),
]


NUMBER_LIST = ",".join(["0.1"] * 60)
TRANSFORMS += [
    (
        {"type": "jmespath", "expression": f"`[{NUMBER_LIST}]`[?`[{NUMBER_LIST}]`[?`[1,2,3,4]`]]"},
        b"{}",
    ),
    (
        {"type": "jmespath", "expression": f"[{','.join(['to_string([@,@])'] * 10)}]"},
        msgspec.json.encode([0.123456] * 20_000),
    ),
]


@pytest.mark.parametrize(("transform", "body"), TRANSFORMS)
async def test_no_transform_holds_up_anybody(
    hub: Hub, receiver: Receiver, transform: dict[str, Any], body: bytes
) -> None:
    source = await hub.source()
    await hub.connect(source, receiver.url, transform=transform)
    before = megabytes()
    async with watching(hub.server):
        event = await hub.event(await hub.sent(source, body))
    assert event["status"] in ("failed", "delivered")
    if event["status"] == "failed":
        assert "the transform failed" in event["deliveries"][0]["error"]
    assert megabytes() - before < 200


FILTERS: list[tuple[list[dict[str, Any]], bytes]] = [
    ([{"path": "$.a[*].x", "operator": "exists"}] * 100, NUMBERS),
    ([{"path": "$.a[*][*]", "operator": "equals", "value": 1}] * 100, NESTED),
    (
        [{"path": "$.a[*]", "operator": "in", "value": [{"x": n} for n in range(400)]}] * 4,
        NESTED,
    ),
    ([{"path": "$.a[*]", "operator": "regex", "value": "(x.{0,9}){9}y"}] * 20, TEXTS),
]


@pytest.mark.parametrize(("rules", "body"), FILTERS)
async def test_no_filter_holds_up_anybody(
    hub: Hub, receiver: Receiver, rules: list[dict[str, Any]], body: bytes
) -> None:
    """Two connections share one event's budget, and the sender does not wait for it."""
    source = await hub.source()
    for _ in range(2):
        await hub.connect(source, receiver.url, filters={"any": rules})
    async with watching(hub.server):
        event = await hub.event(await hub.sent(source, body))
    assert event["status"] in ("failed", "filtered")
    assert receiver.got == []


async def test_long_rules_of_one_account_do_not_delay_anothers_delivery(
    hub: Hub, receiver: Receiver
) -> None:
    hostile = await hub.source()
    for _ in range(5):
        await hub.connect(hostile, receiver.url, transform=TRANSFORMS[2][0])
    other = await hub.server.api_key(email="bob@example.com")
    body = {"name": "quiet"}
    quiet = (await hub.call("POST", "/v1/sources", body, token=other)).json["id"]
    body = {"name": "quiet", "destination_url": f"{receiver.url}/quiet"}
    await hub.call("POST", f"/v1/sources/{quiet}/connections", body, token=other)
    async with watching(hub.server):
        for _ in range(10):
            assert (await hub.send(hostile, NUMBERS)).status == 200
        assert (await hub.send(quiet, b'{"n": 1}')).status == 200
        await hub.settle()
    assert [got.path for got in receiver.got] == ["/quiet"]


@pytest.mark.parametrize(
    "body",
    [
        b'{"type": "internal", "n": NaN}',
        b'{"type": "internal", "n": 1e400}',
        b'\xef\xbb\xbf{"type": "internal"}',
        '{"type": "internal"}'.encode("utf-16"),
        b'{"type": "internal", "x": "\\ud800"}',
    ],
)
async def test_a_body_that_only_others_can_read_passes_no_negative_filter(
    hub: Hub, receiver: Receiver, body: bytes
) -> None:
    source = await hub.source()
    rules = {"not": {"path": "$.type", "operator": "equals", "value": "internal"}}
    await hub.connect(source, receiver.url, filters=rules)
    event = await hub.event(await hub.sent(source, body))
    [delivery] = event["deliveries"]
    assert (event["status"], delivery["status"]) == ("filtered", "filtered")
    assert "cannot be read" in delivery["error"]
    assert receiver.got == []


async def test_fields_that_are_dear_to_find_refuse_no_event(hub: Hub) -> None:
    """What cannot be compared in time is compared as a whole."""
    fields = [f"body[*].{name}" for name in "abcd"]
    source = await hub.source(dedupe={"mode": "fields", "fields": fields})
    body = msgspec.json.encode([{}] * 60_000)
    async with watching(hub.server):
        first, again = await hub.send(source, body), await hub.send(source, body)
        other = await hub.send(source, msgspec.json.encode([{}] * 60_001))
    assert [a.json["status"] for a in (first, again, other)] == [
        "received",
        "duplicate",
        "received",
    ]


async def test_events_whose_rules_take_long_do_not_pile_up_in_memory(
    hub: Hub, receiver: Receiver
) -> None:
    source = await hub.source()
    await hub.connect(source, receiver.url, filters={"any": FILTERS[0][0]})
    for _ in range(60):
        assert (await hub.send(source, NUMBERS)).status == 200
    assert len(hub.worker.processing) <= 20
    for _ in range(5):
        await hub.settle()
    events = (await hub.get(f"/v1/sources/{source}/events?limit=100"))["data"]
    assert {event["status"] for event in events} == {"failed"}
    assert len(events) == 60
