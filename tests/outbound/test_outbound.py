"""Where requests may go: the address that is connected to decides."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import pytest

from tests.outbound.servers import OK, Line, serving
from tests.relay.hub import hub_at
from tests.support.receiver import Reaction, receiving
from waystation.errors import InvalidInput
from waystation.outbound import Guard, Outbound
from waystation.relay.tables import Connection
from waystation.store import exists, set_to

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.receiver import Receiver
    from waystation.clock import ManualClock

PRIVATE = [
    "127.0.0.1",
    "127.1.2.3",
    "0.0.0.0",
    "10.0.0.1",
    "172.16.0.1",
    "192.168.1.1",
    "169.254.169.254",
    "100.64.0.1",
    "100.127.255.254",
    "192.0.0.1",
    "198.18.0.1",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "::1",
    "::",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::ffff:a9fe:a9fe",
    "::127.0.0.1",
    "fd00::1",
    "fc00::1",
    "fe80::1",
    "fe80::1%eth0",
    "ff02::1",
    "64:ff9b::7f00:1",
    "2002:7f00:1::1",
    "2001:0:1::1",
    "fd00:ec2::254",
    "::ffff:0:7f00:1",
    "64:ff9b:2::1",
    "4000::1",
]
PUBLIC = [
    "1.1.1.1",
    "8.8.8.8",
    "100.63.255.255",
    "100.128.0.1",
    "2606:4700::1111",
    "::ffff:8.8.8.8",
]


@pytest.mark.parametrize("address", PRIVATE)
def test_private_addresses_are_refused(address: str) -> None:
    assert not Guard().permits(address)
    host = f"[{address}]" if ":" in address else address
    with pytest.raises(InvalidInput):
        Guard().check_url(f"https://{host}/hook", "destination_url")


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_not(address: str) -> None:
    assert Guard().permits(address)


def test_a_network_can_be_allowed() -> None:
    guard = Guard(["10.1.0.0/16", "fd00::/64"])
    assert guard.permits("10.1.2.3")
    assert guard.permits("::ffff:10.1.2.3")
    assert guard.permits("fd00::5")
    assert not guard.permits("10.2.0.1")
    assert not guard.permits("127.0.0.1")


@pytest.mark.parametrize("junk", ["", "x", "1.2.3", "[::1]", "127.0.0.1 "])
def test_what_is_no_address_is_refused(junk: str) -> None:
    assert not Guard(["0.0.0.0/0", "::/0"]).permits(junk)


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as running:
        yield running


@pytest.fixture
async def closed() -> AsyncIterator[Outbound]:
    outbound = Outbound(Guard())
    yield outbound
    await outbound.close()


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "0x7f.1", "2130706433", "[::1]", "[::ffff:127.0.0.1]", "0"]
)
async def test_no_name_for_loopback_gets_through(
    closed: Outbound, receiver: Receiver, host: str
) -> None:
    port = receiver.url.rpartition(":")[2]
    reply = await closed.request("POST", f"http://{host}:{port}/", body=b"x", seconds=5)
    assert (reply.status, bool(reply.error)) == (0, True)
    assert receiver.got == []


async def test_localhost_with_a_dot(closed: Outbound, receiver: Receiver) -> None:
    port = receiver.url.rpartition(":")[2]
    assert (
        await closed.request("POST", f"http://localhost.:{port}/", body=b"x", seconds=5)
    ).status == 0
    assert receiver.got == []
    with pytest.raises(InvalidInput):
        Guard().check_url("http://localhost.:80/", "destination_url")


async def test_a_name_that_changes_its_mind(
    closed: Outbound, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DNS rebinding: a name that was public when it was looked at and is private now."""
    port = int(receiver.url.rpartition(":")[2])

    async def look_up(host: str) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr("waystation.outbound.pool.look_up", look_up)
    closed.guard.check_url(f"http://rebound.example.com:{port}/", "destination_url")
    reply = await closed.request(
        "POST", f"http://rebound.example.com:{port}/", body=b"x", seconds=5
    )
    assert (reply.status, "refused" in (reply.error or "")) == (0, True)
    assert receiver.got == []


async def test_a_redirect_to_a_private_address_is_not_followed(receiver: Receiver) -> None:
    receiver.answers = [Reaction(302, headers={"Location": f"{receiver.url}/secret"})]
    outbound = Outbound(Guard(["127.0.0.0/8"]))
    reply = await outbound.request("POST", receiver.url, body=b"x", seconds=5)
    await outbound.close()
    assert reply.status == 302
    assert [got.path for got in receiver.got] == ["/"]


@pytest.mark.parametrize(
    "url",
    [
        "",
        "ftp://example.com",
        "//example.com",
        "http://",
        "http:///x",
        "http://a b/",
        "http://user:pass@example.com/",
        "http://user@example.com/",
        "http://[::1",
        "http://example.com:99999/",
        "http://example.com/" + "x" * 2000,
        "http://example.com/\r\nX: y",
        "javascript:alert(1)",
        "http://example.com/#there",
    ],
)
def test_urls_that_make_no_sense(url: str) -> None:
    with pytest.raises(InvalidInput):
        Guard(["0.0.0.0/0", "::/0"]).check_url(url, "destination_url")


async def test_in_production_private_destinations_are_refused(
    clock: ManualClock, receiver: Receiver
) -> None:
    async with hub_at(clock, env="prod") as hub:
        source = await hub.source()
        body = {"name": "x", "destination_url": receiver.url}
        answer = await hub.call("POST", f"/v1/sources/{source}/connections", body)
        assert (answer.status, answer.fields) == (400, ["destination_url"])
        port = receiver.url.rpartition(":")[2]
        connection = await hub.connect(source, "http://public.example/")
        private = set_to("destination_url", f"http://0x7f.0.0.1:{port}/")
        key = Connection.key(source, connection["id"])
        await hub.runtime.store.update(key, private, when=exists())
        event = await hub.event(await hub.sent(source))
        assert "refused" in event["deliveries"][0]["error"]
        assert receiver.got == []


async def test_an_operator_can_allow_networks(clock: ManualClock, receiver: Receiver) -> None:
    async with hub_at(clock, env="prod", allow_networks=["127.0.0.0/8"]) as hub:
        source = await hub.source()
        await hub.connect(source, receiver.url)
        assert (await hub.statuses(await hub.sent(source)))[0] == "delivered"


@pytest.mark.parametrize(("method", "times"), [("PUT", 1), ("DELETE", 1), ("POST", 1), ("GET", 2)])
async def test_only_what_does_nothing_is_sent_again(method: str, times: int) -> None:
    """A connection that was kept turns out to be closed, after the request was read."""
    seen: list[bytes] = []

    async def answer(line: Line) -> None:
        while (request := await line.request()) is not None:
            seen.append(request[0])
            if len(seen) == 2:
                return
            await line.send(OK)

    outbound = Outbound(Guard(["127.0.0.0/8"]))
    async with serving(answer) as server:
        assert (await outbound.request(method, server.url)).ok
        again = await outbound.request(method, server.url)
        await outbound.close()
    assert (again.status == 0, again.sent) == (times == 1, True)
    assert len(seen) == 1 + times


async def test_it_is_known_when_nothing_was_sent() -> None:
    outbound = Outbound(Guard(["127.0.0.0/8"]))
    try:
        assert (await outbound.request("PUT", "http://127.0.0.1:9/")).sent is False
        assert (await outbound.request("PUT", "http://10.0.0.1/")).sent is False
    finally:
        await outbound.close()
