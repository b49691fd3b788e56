"""Delivering: signed, retried on schedule, each connection for itself."""

from __future__ import annotations

import asyncio
import gzip
import time
from contextlib import suppress
from email.utils import formatdate
from typing import TYPE_CHECKING, Any

import pytest
import standardwebhooks
import svix

from tests.relay.hub import hub_at
from tests.support.faults import Faults, relay_on
from tests.support.receiver import Reaction, Receiver, receiving
from waystation.relay.tables import Attempt, Connection, Delivery, Event
from waystation.store import exists, set_to
from waystation.times import seconds_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.relay.hub import Hub
    from waystation.clock import ManualClock


@pytest.fixture
def real_time(hub: Hub) -> None:
    """The receivers' libraries look at the real clock."""
    hub.clock.advance(time.time() - hub.clock())


@pytest.mark.usefixtures("real_time")
async def test_receivers_libraries_accept_what_we_sign(hub: Hub, receiver: Receiver) -> None:
    source = await hub.source()
    connection = await hub.connect(source, receiver.url)
    await hub.sent(source, '{"text": "café"}'.encode())
    got = receiver.got[0]
    for library in (standardwebhooks.Webhook, svix.Webhook):
        library(connection["signing_secret"]).verify(got.body, got.headers)
    changed = got.body + b" "
    with pytest.raises(standardwebhooks.WebhookVerificationError):
        standardwebhooks.Webhook(connection["signing_secret"]).verify(changed, got.headers)


@pytest.mark.usefixtures("real_time")
async def test_the_old_secret_signs_along_for_a_day(hub: Hub, receiver: Receiver) -> None:
    source = await hub.source()
    connection = await hub.connect(source, receiver.url)
    path = f"/v1/connections/{connection['id']}"
    rotated = (await hub.call("POST", f"{path}/rotate-secret")).json
    old, new = connection["signing_secret"], rotated["signing_secret"]
    assert old != new
    await hub.sent(source)
    for secret in (old, new):
        standardwebhooks.Webhook(secret).verify(receiver.got[0].body, receiver.got[0].headers)
    shown = await hub.get(f"{path}/secrets")
    assert [s["signing_secret"] for s in shown["data"]] == [new, old]
    await hub.later(86_401)
    await hub.sent(source)
    assert len(receiver.got[-1].headers["webhook-signature"].split(" ")) == 1
    assert len((await hub.get(f"{path}/secrets"))["data"]) == 1


async def test_outbound_headers(hub: Hub, receiver: Receiver) -> None:
    source = await hub.source()
    connection = await hub.connect(source, receiver.url, headers={"X-Token": "t0ken"})
    event_id = await hub.sent(source, headers={"X-GitHub-Event": "push"})
    headers = receiver.got[0].headers
    assert headers["x-waystation-event"] == event_id
    assert headers["x-waystation-connection"] == connection["id"]
    assert headers["x-waystation-attempt"] == "1"
    assert headers["x-token"] == "t0ken"
    assert headers["x-github-event"] == "push"
    assert headers["host"] == receiver.url.removeprefix("http://")


async def test_the_query_travels_along(hub: Hub, receiver: Receiver) -> None:
    source = await hub.source()
    await hub.connect(source, f"{receiver.url}/hook?key=1")
    await hub.sent(source, rest="?a=%2F&b=2")
    assert receiver.got[0].query == "key=1&a=/&b=2"


async def test_an_id_is_fixed_and_the_time_is_not(hub: Hub, receiver: Receiver) -> None:
    source = await hub.source()
    await hub.connect(source, receiver.url)
    receiver.answers = [Reaction(500)]
    await hub.sent(source)
    await hub.later(60)
    first, second = (got.headers for got in receiver.got)
    assert first["webhook-id"] == second["webhook-id"]
    assert int(second["webhook-timestamp"]) == int(first["webhook-timestamp"]) + 60
    assert second["x-waystation-attempt"] == "2"


async def test_the_documented_schedule(hub: Hub, receiver: Receiver) -> None:
    """Eight attempts, after 30 s, 2 m, 15 m, 1 h, 4 h, 12 h and 24 h, and at most a tenth more."""
    receiver.fail()
    source = await hub.source()
    await hub.connect(source, receiver.url)
    event_id = await hub.sent(source)
    for n, delay in enumerate((30, 120, 900, 3600, 14_400, 43_200, 86_400), start=2):
        assert (await hub.statuses(event_id)) == ["retrying", "retrying"]
        await hub.later(delay - 1)
        assert len(receiver.got) == n - 1
        await hub.later(delay * 0.1 + 2)
        assert len(receiver.got) == n
    assert (await hub.statuses(event_id)) == ["failed", "failed"]
    await hub.later(30 * 86_400)
    assert len(receiver.got) == 8


@pytest.mark.parametrize(
    ("retry", "delays"),
    [
        ({"schedule": [5, 10]}, [5, 10]),
        ({"schedule": []}, []),
        ({"strategy": "linear", "first": 10, "attempts": 4}, [10, 20, 30]),
        ({"strategy": "exponential", "first": 10, "attempts": 4}, [10, 20, 40]),
        ({"attempts": 3}, [30, 120]),
    ],
)
async def test_a_schedule_of_ones_own(
    hub: Hub, receiver: Receiver, retry: dict[str, Any], delays: list[int]
) -> None:
    receiver.fail()
    source = await hub.source()
    await hub.connect(source, receiver.url, retry=retry)
    event_id = await hub.sent(source)
    for delay in delays:
        await hub.later(delay * 1.1 + 1)
    assert len(receiver.got) == len(delays) + 1
    assert (await hub.statuses(event_id)) == ["failed", "failed"]


@pytest.mark.parametrize("header", ["300", None])
async def test_retry_after_is_honoured(hub: Hub, receiver: Receiver, header: str | None) -> None:
    asked = header or formatdate(hub.clock() + 300, usegmt=True)
    receiver.answers = [Reaction(429, headers={"Retry-After": asked})]
    source = await hub.source()
    await hub.connect(source, receiver.url)
    event_id = await hub.sent(source)
    await hub.later(298)
    assert len(receiver.got) == 1
    await hub.later(34)
    assert await hub.statuses(event_id) == ["delivered", "delivered"]


@pytest.mark.parametrize("status", [200, 201, 204, 299])
async def test_2xx_is_success(hub: Hub, receiver: Receiver, status: int) -> None:
    receiver.answers = [Reaction(status, b"")]
    source = await hub.source()
    await hub.connect(source, receiver.url)
    assert (await hub.statuses(await hub.sent(source)))[0] == "delivered"


@pytest.mark.parametrize("status", [301, 302, 307, 400, 404, 500, 503])
async def test_anything_else_is_not(hub: Hub, receiver: Receiver, status: int) -> None:
    """Redirects are never followed."""
    receiver.answers = [Reaction(status, headers={"Location": f"{receiver.url}/elsewhere"})]
    source = await hub.source()
    await hub.connect(source, receiver.url)
    assert (await hub.statuses(await hub.sent(source)))[0] == "retrying"
    assert [got.path for got in receiver.got] == ["/"]


async def test_an_attempt_is_written_down(hub: Hub, receiver: Receiver) -> None:
    receiver.answers = [Reaction(503, b"busy" * 1000)]
    source = await hub.source()
    await hub.connect(source, receiver.url)
    event = await hub.event(await hub.sent(source))
    [attempt] = event["deliveries"][0]["attempts"]
    assert attempt["number"] == 1
    assert attempt["status_code"] == 503
    assert attempt["response_body"] == ("busy" * 1000)[:1000]
    assert attempt["destination_url"] == receiver.url
    assert attempt["error"] == "the answer was 503"


async def test_an_endpoint_that_does_not_answer(hub: Hub, receiver: Receiver) -> None:
    receiver.answers = [Reaction(hang=True)]
    source = await hub.source()
    await hub.connect(source, receiver.url, timeout=1)
    event = await hub.event(await hub.sent(source))
    [attempt] = event["deliveries"][0]["attempts"]
    assert (attempt["status_code"], attempt["error"]) == (0, "no answer within 1 seconds")
    assert event["status"] == "retrying"


async def test_an_endpoint_that_is_not_there_is_tried_again(hub: Hub) -> None:
    async with receiving() as gone:
        pass
    source = await hub.source()
    await hub.connect(source, gone.url)
    event_id = await hub.sent(source)
    assert (await hub.statuses(event_id))[0] == "retrying"
    assert "no connection" in (await hub.event(event_id))["deliveries"][0]["error"]


async def test_a_name_that_does_not_resolve_is_tried_again(hub: Hub) -> None:
    source = await hub.source()
    await hub.connect(source, "http://nowhere.invalid/hook")
    event = await hub.event(await hub.sent(source))
    assert event["status"] == "retrying"
    assert event["deliveries"][0]["error"] == "the name could not be resolved"


async def test_a_huge_answer_is_not_read(hub: Hub) -> None:
    """Of an answer without an end, the beginning is kept, and the connection is closed."""
    closed = asyncio.Event()

    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n")
        try:
            while True:
                writer.write(b"x" * 65536)
                await writer.drain()
        except ConnectionError:
            closed.set()

    server = await asyncio.start_server(pour, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    source = await hub.source()
    await hub.connect(source, f"http://127.0.0.1:{port}/")
    event = await hub.event(await hub.sent(source))
    assert event["deliveries"][0]["attempts"][0]["response_body"] == "x" * 1000
    async with asyncio.timeout(10):
        await closed.wait()
    server.close()
    await server.wait_closed()


async def test_a_compressed_body_is_delivered_as_such(hub: Hub, receiver: Receiver) -> None:
    source = await hub.source()
    await hub.connect(source, receiver.url)
    body = gzip.compress(b'{"n": 1}')
    await hub.sent(source, body, headers={"Content-Encoding": "gzip"})
    [got] = receiver.got
    assert got.headers["content-encoding"] == "gzip"
    assert got.body in (body, b'{"n": 1}')  # the receiver's server may have unpacked it


# Several connections


async def test_every_connection_has_its_own_state(hub: Hub, receiver: Receiver) -> None:
    def decide(got: Any) -> Reaction:
        return Reaction(500 if got.path == "/bad" else 200)

    receiver.decide = decide
    source = await hub.source()
    good = await hub.connect(source, f"{receiver.url}/good")
    bad = await hub.connect(source, f"{receiver.url}/bad", retry={"schedule": [30]})
    unwanted = await hub.connect(
        source,
        f"{receiver.url}/never",
        filters=[{"path": "$.n", "operator": "equals", "value": 2}],
    )
    event_id = await hub.sent(source)
    event = await hub.event(event_id)
    assert event["status"] == "retrying"
    assert event["connections"] == {
        good["id"]: "delivered",
        bad["id"]: "retrying",
        unwanted["id"]: "filtered",
    }
    await hub.later(34)
    assert (await hub.event(event_id))["status"] == "failed"
    assert [got.path for got in receiver.got].count("/good") == 1


async def test_attempts_of_connections_do_not_collide(hub: Hub, receiver: Receiver) -> None:
    """The seed numbered them by attempt alone, and the second connection overwrote the first's."""
    receiver.fail()
    source = await hub.source()
    for _ in range(5):
        await hub.connect(source, receiver.url, retry={"schedule": [10, 10]})
    event_id = await hub.sent(source)
    await hub.later(12)
    await hub.later(12)
    event = await hub.event(event_id)
    assert [len(d["attempts"]) for d in event["deliveries"]] == [3] * 5
    assert [a["number"] for a in event["deliveries"][0]["attempts"]] == [1, 2, 3]
    stored = await hub.relay.store.query(Attempt.query(event_id))
    assert {a.sequence for a in stored.items} == set(range(1, 16))


async def test_an_event_that_nobody_wants_is_filtered(hub: Hub, receiver: Receiver) -> None:
    source = await hub.source()
    no = [{"path": "$.n", "operator": "equals", "value": 2}]
    await hub.connect(source, receiver.url, filters=no)
    assert await hub.statuses(await hub.sent(source)) == ["filtered", "filtered"]
    assert receiver.got == []


async def test_an_event_without_connections_is_kept_and_over(hub: Hub, receiver: Receiver) -> None:
    source = await hub.source()
    event = await hub.sent(source)
    assert await hub.statuses(event) == ["filtered"]
    await hub.connect(source, receiver.url)
    assert (await hub.call("POST", f"/v1/events/{event}/replay")).status == 202
    await hub.settle()
    assert await hub.statuses(event) == ["delivered", "delivered"]


async def test_an_event_without_connections_is_over_without_a_worker_too(
    clock: ManualClock,
) -> None:
    async with hub_at(clock, background=False) as hub:
        answer = await hub.send(await hub.source())
        assert (await hub.event(answer.json["id"]))["status"] == "filtered"


async def test_a_transform_that_fails_fails_its_own_delivery_only(
    hub: Hub, receiver: Receiver
) -> None:
    source = await hub.source()
    broken = await hub.connect(
        source, receiver.url, transform={"type": "jmespath", "expression": "sum(n)"}
    )
    good = await hub.connect(source, receiver.url)
    event = await hub.event(await hub.sent(source))
    assert event["connections"] == {broken["id"]: "failed", good["id"]: "delivered"}
    assert event["status"] == "failed"
    [failed] = [d for d in event["deliveries"] if d["status"] == "failed"]
    assert "the transform failed" in failed["error"]
    assert (await hub.get(f"/v1/connections/{broken['id']}"))["failure_streak"] == 0


async def test_a_filter_that_fails_fails_its_own_delivery_only(
    hub: Hub, receiver: Receiver
) -> None:
    """Whatever is wrong with a stored rule, the other connections get their events."""
    source = await hub.source()
    broken = await hub.connect(source, receiver.url)
    good = await hub.connect(source, receiver.url)
    rules = '[{"path": "$.n", "operator": "regex", "value": "("}]'
    key = Connection.key(source, broken["id"])
    await hub.relay.store.update(key, set_to("filters", rules), when=exists())
    hub.relay.directory.forget(source)
    event = await hub.event(await hub.sent(source))
    assert event["connections"] == {broken["id"]: "failed", good["id"]: "delivered"}


async def test_a_transform_makes_the_body(hub: Hub, receiver: Receiver) -> None:
    source = await hub.source()
    rules = [{"from": "$.n", "to": "number"}]
    await hub.connect(source, receiver.url, transform={"type": "field_map", "rules": rules})
    await hub.sent(source, headers={"Content-Type": "text/plain"})
    assert receiver.got[0].body == b'{"number":1}'
    assert receiver.got[0].headers["content-type"] == "application/json"


# Changes while something is on its way


async def test_a_retry_uses_the_url_and_secret_of_now(hub: Hub, receiver: Receiver) -> None:
    receiver.answers = [Reaction(500)]
    source = await hub.source()
    connection = await hub.connect(source, f"{receiver.url}/old")
    await hub.sent(source)
    await hub.patch(connection, destination_url=f"{receiver.url}/new")
    await hub.call("POST", f"/v1/connections/{connection['id']}/rotate-secret")
    await hub.later(34)
    assert [got.path for got in receiver.got] == ["/old", "/new"]
    assert len(receiver.got[1].headers["webhook-signature"].split()) == 2


async def test_a_paused_connection_keeps_its_events(hub: Hub, receiver: Receiver) -> None:
    source = await hub.source()
    connection = await hub.connect(source, receiver.url)
    await hub.patch(connection, status="paused")
    events = [await hub.sent(source) for _ in range(3)]
    await hub.later(3600)
    assert receiver.got == []
    assert await hub.statuses(events[0]) == ["processing", "pending"]
    await hub.patch(connection, status="active")
    await hub.settle()
    assert len(receiver.got) == 3
    assert await hub.statuses(events[0]) == ["delivered", "delivered"]


async def test_a_pause_stops_pending_retries(hub: Hub, receiver: Receiver) -> None:
    receiver.fail()
    source = await hub.source()
    connection = await hub.connect(source, receiver.url)
    event_id = await hub.sent(source)
    await hub.patch(connection, status="paused")
    await hub.later(7200)
    assert len(receiver.got) == 1
    receiver.work()
    await hub.patch(connection, status="active")
    await hub.settle()
    assert await hub.statuses(event_id) == ["delivered", "delivered"]


async def test_a_deleted_connection_ends_its_deliveries(hub: Hub, receiver: Receiver) -> None:
    receiver.fail()
    source = await hub.source()
    connection = await hub.connect(source, receiver.url)
    event_id = await hub.sent(source)
    assert (await hub.call("DELETE", f"/v1/connections/{connection['id']}")).status == 204
    await hub.later(7200)
    assert len(receiver.got) == 1
    assert await hub.statuses(event_id) == ["failed", "failed"]
    assert (await hub.event(event_id))["deliveries"][0]["error"] == "the connection was deleted"


# Retention


async def free_key(hub: Hub) -> str:
    tokens = await hub.server.sign_up("free@example.com")
    created = await hub.call("POST", "/v1/api-keys", {}, token=tokens["access_token"])
    key: str = created.json["key"]
    return key


async def test_an_event_outlives_its_retries(hub: Hub, receiver: Receiver) -> None:
    """Free accounts keep events for a day; the schedule takes almost two."""
    token = await free_key(hub)
    free = await hub.call("POST", "/v1/sources", {"name": "x"}, token=token)
    source = free.json["id"]
    body = {"name": "c", "destination_url": receiver.url}
    await hub.call("POST", f"/v1/sources/{source}/connections", body, token=token)
    receiver.fail()
    event_id = await hub.sent(source)
    for delay in (30, 120, 900, 3600, 14_400, 43_200):
        await hub.later(delay * 1.1 + 1)
    assert len(receiver.got) == 7
    receiver.work()
    await hub.later(86_400 * 1.1 + 1)
    assert len(receiver.got) == 8
    event = (await hub.call("GET", f"/v1/events/{event_id}", token=token)).json
    assert event["status"] == "delivered"
    assert [a["number"] for a in event["deliveries"][0]["attempts"]] == list(range(1, 9))
    store = hub.relay.store
    deliveries = (await store.query(Delivery.query(event_id))).items
    attempts = (await store.query(Attempt.query(event_id))).items
    expiries = {d.expires_at for d in deliveries} | {a.expires_at for a in attempts}
    found = (await hub.relay.store.query(Event.query(event_id, index="GSI1"))).items[0]
    assert expiries == {found.expires_at}


async def test_all_of_an_event_is_kept_while_one_of_its_deliveries_is_retried(
    hub: Hub, receiver: Receiver
) -> None:
    """Also what has ended before it turned out that another takes longer."""
    release = asyncio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await release.wait()
        writer.write(b"HTTP/1.1 500 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(slow, "127.0.0.1", 0)
    bad = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    token = await free_key(hub)
    free = await hub.call("POST", "/v1/sources", {"name": "x"}, token=token)
    for url in (receiver.url, bad):
        body = {"name": "c", "destination_url": url}
        await hub.call("POST", f"/v1/sources/{free.json['id']}/connections", body, token=token)
    async with server:
        event_id = (await hub.send(free.json["id"])).json["id"]
        while not (await hub.relay.store.query(Attempt.query(event_id))).items:
            await asyncio.sleep(0.01)
        release.set()
        await hub.settle()
        await hub.later(1.5 * 86_400)
    event = (await hub.call("GET", f"/v1/events/{event_id}", token=token)).json
    states = sorted((d["status"], len(d["attempts"])) for d in event["deliveries"])
    assert [state for state, _ in states] == ["delivered", "retrying"]
    assert states[0] == ("delivered", 1)


async def test_waits_are_spread(hub: Hub, receiver: Receiver) -> None:
    """Those that failed together are not tried again together."""
    receiver.fail()
    source = await hub.source()
    await hub.connect(source, receiver.url, retry={"schedule": [1_000]})
    waits = []
    for _ in range(9):
        event = await hub.event(await hub.sent(source))
        waits.append(seconds_of(event["deliveries"][0]["next_attempt_at"]) - hub.clock())
    assert min(waits) >= 999
    assert max(waits) <= 1_100
    assert max(waits) - min(waits) >= 10


async def test_of_an_endless_answer_no_more_is_read_than_is_kept(hub: Hub) -> None:
    sent = 0

    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n")
        with suppress(OSError):
            while sent < 100_000_000:
                writer.write(b"x" * 65_536)
                await writer.drain()
                sent += 65_536
        writer.close()

    server = await asyncio.start_server(pour, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        source = await hub.source()
        await hub.connect(source, f"http://127.0.0.1:{port}/")
        event = await hub.event(await hub.sent(source))
    assert event["status"] == "delivered"
    assert event["deliveries"][0]["attempts"][0]["response_body"] == "x" * 1_000
    assert sent < 20_000_000  # what fits into the buffers between us


async def test_what_waits_for_a_paused_connection_outlives_a_days_retention(
    hub: Hub, receiver: Receiver
) -> None:
    token = await free_key(hub)
    source = (await hub.call("POST", "/v1/sources", {"name": "x"}, token=token)).json["id"]
    body = {"name": "c", "destination_url": receiver.url}
    created = await hub.call("POST", f"/v1/sources/{source}/connections", body, token=token)
    path = f"/v1/connections/{created.json['id']}"
    receiver.fail()
    tried = await hub.sent(source)
    await hub.call("PATCH", path, {"status": "paused"}, token=token)
    waiting = await hub.sent(source)
    await hub.later(2 * 86_400)
    receiver.work()
    await hub.call("PATCH", path, {"status": "active"}, token=token)
    await hub.settle()
    for event_id in (tried, waiting):
        event = await hub.call("GET", f"/v1/events/{event_id}", token=token)
        assert event.json["status"] == "delivered"


async def test_what_has_expired_does_not_hide_what_has_not(hub: Hub, receiver: Receiver) -> None:
    """Expired deliveries may lie in the lane's index for a while, before the others."""
    source = await hub.source()
    connection = await hub.connect(source, receiver.url)
    await hub.patch(connection, status="paused")
    for _ in range(60):
        await hub.send(source)
    await hub.settle()
    hub.clock.advance(95 * 86_400)
    live = [await hub.sent(source) for _ in range(3)]
    await hub.patch(connection, status="active")
    await hub.settle()
    assert {(await hub.statuses(e))[0] for e in live} == {"delivered"}


async def test_a_crash_after_a_resume_strands_nothing(
    clock: ManualClock, receiver: Receiver
) -> None:
    """Somebody looks at the lane even if the process that resumed it did not live to say so."""
    async with hub_at(clock, systems=relay_on(store=Faults)) as hub:
        source = await hub.source()
        connection = await hub.connect(source, receiver.url)
        await hub.patch(connection, status="paused")
        event_id = await hub.sent(source)
        for _ in range(5):
            await hub.later(61)
        store: Any = hub.relay.store

        async def dies_after(call: Any, key: Any, *changes: Any, **more: Any) -> Any:
            await call(key, *changes, **more)
            raise RuntimeError("killed")

        store.around["update"] = dies_after
        path = f"/v1/connections/{connection['id']}"
        assert (await hub.call("PATCH", path, {"status": "active"})).status == 500
        del store.around["update"]
        await hub.later(31)
        assert (await hub.statuses(event_id))[0] == "delivered"


async def test_an_expired_event_is_not_brought_back(hub: Hub, receiver: Receiver) -> None:
    """The seed's late status write made a new row without a TTL."""
    source = await hub.source()
    await hub.connect(source, receiver.url)
    receiver.gate = asyncio.Event()
    answer = await hub.send(source)
    while not receiver.got:
        await asyncio.sleep(0.01)
    hub.clock.advance(91 * 86_400)
    receiver.gate.set()
    await hub.settle()
    store = hub.relay.store
    await store.sweep()
    assert (await store.scan(Event, expired=True)).items == []
    assert (await store.scan(Attempt, expired=True)).items == []
    assert (await hub.call("GET", f"/v1/events/{answer.json['id']}")).status == 404


async def test_what_another_process_changes_counts_within_two_seconds(
    clock: ManualClock, receiver: Receiver, tmp_path: Path
) -> None:
    file = f"sqlite:///{tmp_path}/way.db"
    async with hub_at(clock, store=file) as one, hub_at(clock, store=file) as other:
        source = await one.source()
        connection = await one.connect(source, f"{receiver.url}/old")
        await one.sent(source)
        await other.patch(connection, destination_url=f"{receiver.url}/new")
        clock.advance(2)
        await one.sent(source)
        await other.patch(connection, status="paused")
        clock.advance(2)
        await one.sent(source)
    assert [got.path for got in receiver.got] == ["/old", "/new"]
