"""Sources and connections: what is asked for makes sense, or is refused by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.relay.senders import SENDERS
from waystation.relay.tables import Connection, Source
from waystation.times import seconds_of

if TYPE_CHECKING:
    from tests.relay.hub import Hub
    from tests.support.receiver import Receiver

SOURCES: list[tuple[dict[str, Any], str]] = [
    ({}, "name"),
    ({"name": ""}, "name"),
    ({"name": "x" * 101}, "name"),
    ({"name": "x", "provider": "acme"}, "provider"),
    ({"name": "x", "provider": "stripe"}, "signing_secrets"),
    ({"name": "x", "provider": "stripe", "signing_secrets": [""]}, "signing_secrets"),
    ({"name": "x", "signing_secrets": ["a"] * 6}, "signing_secrets"),
    ({"name": "x", "verification": {"mode": "maybe"}}, "verification.mode"),
    ({"name": "x", "verification": {"header": "a b"}}, "verification.header"),
    (
        {
            "name": "x",
            "provider": "github",
            "signing_secrets": ["s"],
            "verification": {"header": "x"},
        },
        "verification.header",
    ),
    ({"name": "x", "dedupe": {"mode": "fields"}}, "dedupe.fields"),
    ({"name": "x", "dedupe": {"mode": "fields", "fields": ["nowhere"]}}, "dedupe.fields[0]"),
    ({"name": "x", "dedupe": {"window": 0}}, "dedupe.window"),
    ({"name": "x", "public_url": "ftp://x"}, "public_url"),
    ({"name": "x", "public_url": "https://[bad"}, "public_url"),
    ({"name": "x", "public_url": "https://"}, "public_url"),
    ({"name": "x", "public_url": "https://a b"}, "public_url"),
    ({"name": "x", "status": "deleted"}, "status"),
    ({"name": "x", "colour": "red"}, "colour"),
]


@pytest.mark.parametrize(("body", "field"), SOURCES)
async def test_a_source_that_makes_no_sense(hub: Hub, body: dict[str, Any], field: str) -> None:
    answer = await hub.call("POST", "/v1/sources", body)
    assert answer.status == 400, answer
    assert answer.fields == [field]
    assert (await hub.get("/v1/sources"))["data"] == []


CONNECTIONS: list[tuple[dict[str, Any], str]] = [
    ({}, "name"),
    ({"name": "x"}, "destination_url"),
    ({"name": "x", "destination_url": "nowhere"}, "destination_url"),
    ({"name": "x", "destination_url": "http://10.0.0.1/"}, "destination_url"),
    ({"name": "x", "inbox": {"tenant": "t"}}, "inbox.inbox"),
    ({"filters": [{"path": "$.a", "operator": "like", "value": 1}]}, "filters[0].operator"),
    (
        {"filters": {"all": [{"path": "$.a", "operator": "regex", "value": "("}]}},
        "filters.all[0].value",
    ),
    ({"transform": {"type": "magic"}}, "transform.type"),
    ({"transform": {"type": "jmespath", "expression": "a["}}, "transform.expression"),
    ({"retry": {"schedule": [0]}}, "retry.schedule"),
    ({"retry": {"schedule": [1] * 20}}, "retry.schedule"),
    ({"retry": {"schedule": [1], "strategy": "linear"}}, "retry.strategy"),
    ({"retry": {"attempts": 21}}, "retry.attempts"),
    ({"retry": {"attempts": 9}}, "retry.attempts"),
    ({"rate_limit": {"count": 0}}, "rate_limit.count"),
    ({"headers": {"Host": "x"}}, "headers.Host"),
    ({"headers": {"Webhook-Id": "x"}}, "headers.Webhook-Id"),
    ({"headers": {"X-A": "b\r\nX-C: d"}}, "headers.X-A"),
    ({"headers": {"a b": "c"}}, "headers.a b"),
    ({"timeout": 31}, "timeout"),
    ({"concurrency": 0}, "concurrency"),
    ({"status": "broken"}, "status"),
    ({"colour": "red"}, "colour"),
]


@pytest.mark.parametrize(("given", "field"), CONNECTIONS)
async def test_a_connection_that_makes_no_sense(
    hub: Hub, given: dict[str, Any], field: str
) -> None:
    """It is refused when it is made and when it is changed, and nothing is written."""
    source = await hub.source()
    path = f"/v1/sources/{source}/connections"
    whole = {"name": "x", "destination_url": "http://example.com/", **given}
    body = given if field in ("name", "destination_url", "inbox.inbox") else whole
    answer = await hub.call("POST", path, body)
    assert (answer.status, answer.fields) == (400, [field]), answer
    assert (await hub.get(path))["data"] == []
    created = await hub.connect(source, "http://example.com/")
    if field not in ("name", "inbox.inbox") and given.get("destination_url") != "nowhere" and given:
        changes = {k: v for k, v in given.items() if k != "name"}
        if changes:
            changed = await hub.call("PATCH", f"/v1/connections/{created['id']}", changes)
            assert (changed.status, changed.fields) == (400, [field]), changed
    shown = await hub.get(f"/v1/connections/{created['id']}")
    assert {k: v for k, v in created.items() if k != "signing_secret"} == shown


async def test_a_connection_is_shown_as_it_was_made(hub: Hub) -> None:
    given: dict[str, Any] = {
        "filters": {"any": [{"path": "$.a", "operator": "exists"}]},
        "transform": {"type": "jmespath", "expression": "a"},
        "retry": {"schedule": [1, 2]},
        "rate_limit": {"count": 5, "seconds": 10},
        "timeout": 5,
        "concurrency": 7,
        "status": "paused",
    }
    created = await hub.connect(await hub.source(), "http://example.com/", **given)
    shown = await hub.get(f"/v1/connections/{created['id']}")
    for name in ("filters", "transform", "rate_limit", "timeout", "concurrency", "status"):
        assert shown[name] == given[name]
    assert shown["retry"]["schedule"] == [1, 2]


async def test_rules_can_be_taken_away(hub: Hub) -> None:
    created = await hub.connect(
        await hub.source(),
        "http://example.com/",
        filters=[{"path": "$.a", "operator": "exists"}],
        transform={"type": "passthrough"},
        retry={"schedule": [1]},
        rate_limit={"count": 1},
        headers={"X-A": "1"},
    )
    nothing: dict[str, Any] = {
        "filters": None,
        "transform": None,
        "rate_limit": None,
        "headers": {},
    }
    changed = await hub.patch(created, **nothing, retry=None)
    assert {name: changed[name] for name in nothing} == nothing
    assert changed["retry"]["schedule"] == [30, 120, 900, 3600, 14400, 43200, 86400]


@pytest.mark.parametrize(
    ("retry", "schedule"),
    [
        (None, [30, 120, 900, 3600, 14400, 43200, 86400]),
        ({"attempts": 3}, [30, 120]),
        ({"schedule": [5, 5]}, [5, 5]),
        ({"schedule": [5, 5], "attempts": 3}, [5, 5]),
        ({"strategy": "exponential", "first": 10, "attempts": 4}, [10, 20, 40]),
        ({"strategy": "linear", "first": 10, "attempts": 3}, [10, 20]),
    ],
)
async def test_the_schedule_that_is_shown_is_the_one_that_is_used(
    hub: Hub, receiver: Receiver, retry: Any, schedule: list[int]
) -> None:
    receiver.fail()
    source = await hub.source()
    created = await hub.connect(source, receiver.url, retry=retry)
    assert created["retry"] == {"schedule": schedule, "attempts": len(schedule) + 1}
    assert (await hub.patch(created, retry=created["retry"]))["retry"] == created["retry"]
    event = await hub.sent(source)
    waits = []
    for _ in schedule:
        begun = hub.clock()
        due = (await hub.event(event))["deliveries"][0]["next_attempt_at"]
        waits.append(seconds_of(due) - begun)
        await hub.later(waits[-1] + 1)
    assert all(s <= w <= s * 1.1 + 1 for s, w in zip(schedule, waits, strict=True)), waits
    assert (await hub.event(event))["deliveries"][0]["next_attempt_at"] is None


async def test_secrets_are_sealed_and_not_shown(hub: Hub, receiver: Receiver) -> None:
    source = await hub.source(signing_secrets=["inbound-secret"])
    created = await hub.connect(source, receiver.url, headers={"X-Token": "header-secret"})
    secrets = ["inbound-secret", "header-secret", created["signing_secret"]]
    store = hub.relay.store
    written = repr((await store.scan(Source)).items) + repr((await store.scan(Connection)).items)
    shown = [
        await hub.get(f"/v1/sources/{source}"),
        await hub.get(f"/v1/connections/{created['id']}"),
    ]
    for secret in secrets:
        assert secret not in written
        assert secret not in repr(shown)
    assert shown[0]["signing_secrets"] == 1
    assert shown[1]["headers"] == {"X-Token": "[hidden]"}


async def test_secrets_are_for_admins(hub: Hub) -> None:
    created = await hub.connect(await hub.source(), "http://example.com/")
    for permissions, status in (("read", 403), ("write", 403), ("admin", 200)):
        key = await hub.server.api_key(permissions)  # type: ignore[arg-type]
        path = f"/v1/connections/{created['id']}/secrets"
        assert (await hub.call("GET", path, token=key)).status == status


async def test_readers_change_nothing(hub: Hub) -> None:
    source = await hub.source()
    key = await hub.server.api_key("read")
    assert (await hub.call("GET", f"/v1/sources/{source}", token=key)).status == 200
    for method, path in (
        ("POST", "/v1/sources"),
        ("PATCH", f"/v1/sources/{source}"),
        ("DELETE", f"/v1/sources/{source}"),
    ):
        body = {"name": "x"} if method != "DELETE" else None
        assert (await hub.call(method, path, body, token=key)).status == 403


async def test_a_test_event(hub: Hub, receiver: Receiver) -> None:
    source = await hub.source()
    created = await hub.connect(source, receiver.url)
    answer = await hub.call("POST", f"/v1/connections/{created['id']}/test")
    assert answer.status == 200
    assert (answer.json["ok"], answer.json["status_code"]) == (True, 200)
    assert b"waystation.test" in receiver.got[0].body
    receiver.fail()
    answer = await hub.call("POST", f"/v1/connections/{created['id']}/test")
    assert (answer.json["ok"], answer.json["status_code"]) == (False, 500)
    assert (await hub.get(f"/v1/sources/{source}/events"))["data"] == []


async def test_secrets_of_a_source_can_be_rotated(hub: Hub) -> None:
    sender = SENDERS["github"]
    source = await hub.source(provider="github", signing_secrets=["old"], dedupe={"mode": "none"})

    async def status(secret: str) -> int:
        what = sender.sign(b"{}", secret, 0)
        return (await hub.send(source, b"{}", headers=what.headers)).status

    assert (await status("old"), await status("new")) == (200, 401)
    path = f"/v1/sources/{source}"
    await hub.call("PATCH", path, {"signing_secrets": ["new", "old"]})
    assert (await status("old"), await status("new")) == (200, 200)
    await hub.call("PATCH", path, {"signing_secrets": ["new"]})
    assert (await status("old"), await status("new")) == (401, 200)
    refused = await hub.call("PATCH", path, {"signing_secrets": []})
    assert (refused.status, refused.fields) == (400, ["signing_secrets"])


async def test_a_deleted_source_takes_its_connections_along(hub: Hub, receiver: Receiver) -> None:
    source = await hub.source()
    created = await hub.connect(source, receiver.url)
    await hub.call("DELETE", f"/v1/sources/{source}")
    assert (await hub.call("GET", f"/v1/connections/{created['id']}")).status == 404


async def test_a_body_that_is_not_utf_8(hub: Hub) -> None:
    headers = {"Content-Type": "application/json"}
    answer = await hub.call("POST", "/v1/sources", body=b'{"name": "\xff"}', headers=headers)
    assert (answer.status, answer.fields) == (400, ["body"])


@pytest.mark.parametrize("host", ["x:99999", "x:abc", "[", ""])
async def test_an_odd_host(hub: Hub, host: str) -> None:
    answer = await hub.call("POST", "/v1/sources", {"name": "x"}, headers={"Host": host})
    assert answer.status in (201, 400)


@pytest.mark.parametrize("id_", ["x", "a%23b", "%00", "x" * 65, "é", "..", "%F0%9F%92%A9"])
async def test_odd_ids_are_not_found(hub: Hub, id_: str) -> None:
    for path in (
        f"/v1/sources/{id_}",
        f"/v1/sources/{id_}/events",
        f"/v1/connections/{id_}",
        f"/v1/events/{id_}",
        f"/v1/replays/{id_}",
    ):
        assert (await hub.call("GET", path)).status in (400, 404), path
