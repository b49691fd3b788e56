"""A hostile sender: odd paths, forged signatures, and what is not for senders to set."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tests.relay.senders import SENDERS
from waystation.errors import TooManyRequests, Unauthenticated
from waystation.relay.receiving.checking import Checking
from waystation.relay.rules.paths import Webhook

if TYPE_CHECKING:
    from tests.relay.hub import Hub
    from tests.support.receiver import Receiver


async def asked(hub: Hub, target: str) -> int:
    """The status that a request target gets, sent byte for byte."""
    host, port = hub.server.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"POST {target} HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nConnection: close"
    writer.write(f"{head}\r\n\r\n{{}}".encode())
    line = await asyncio.wait_for(reader.readline(), 10)
    writer.close()
    await writer.wait_closed()
    return int(line.split()[1])


async def test_the_door_has_one_spelling(hub: Hub) -> None:
    source = await hub.source()
    assert await asked(hub, f"/in/{source}") == 200
    assert await asked(hub, f"/in/{source}/a%2fb") == 200
    for target in (
        f"/in%2f{source}",
        f"/in%2F{source}",
        f"/%69n/{source}",
        f"/in/%73{source[1:]}",
        f"/in/{source}%2fa",
        f"/in/{source}%00",
        f"//in/{source}",
        f"/in//{source}",
        f"/in/./{source}",
        f"/x/../in/{source}",
        f"/IN/{source}",
        f"/in;x/{source}",
        f"/in/{source};x",
        f"/healthz/../in/{source}",
    ):
        assert await asked(hub, target) in (400, 404, 413), target
    assert (await hub.get(f"/v1/sources/{source}"))["event_count"] == 2


async def test_a_source_connected_to_itself_does_not_multiply(hub: Hub) -> None:
    source = await hub.source()
    for _ in range(3):
        await hub.connect(source, f"{hub.server.url}/in/{source}")
    first = await hub.sent(source)
    for _ in range(10):
        await hub.settle()
    events = (await hub.get(f"/v1/sources/{source}/events"))["data"]
    assert len(events) == 4
    assert (await hub.event(first))["status"] == "delivered"
    [other, *_] = [event for event in events if event["id"] != first]
    stopped = await hub.event(other["id"])
    assert stopped["status"] == "failed"
    assert "loop" in stopped["deliveries"][0]["error"]


async def test_two_sources_connected_to_each_other_do_not_multiply(hub: Hub) -> None:
    one, other = await hub.source(), await hub.source()
    await hub.connect(one, f"{hub.server.url}/in/{other}")
    await hub.connect(other, f"{hub.server.url}/in/{one}")
    await hub.sent(one)
    for _ in range(10):
        await hub.settle()
    counts = [(await hub.get(f"/v1/sources/{id_}"))["event_count"] for id_ in (one, other)]
    assert counts == [2, 1]


async def test_an_event_comes_through_ten_sources_and_no_more(hub: Hub, receiver: Receiver) -> None:
    source = await hub.source()
    await hub.connect(source, receiver.url)
    for hops, status in ((9, "delivered"), (10, "failed"), (1_000, "failed")):
        trail = ",".join(f"{n:012d}" for n in range(hops))
        event_id = await hub.sent(source, headers={"X-Waystation-Trail": trail})
        assert (await hub.statuses(event_id)) == [status, status]
    assert len(receiver.got) == 1


async def test_a_chain_of_sources_is_no_loop(hub: Hub, receiver: Receiver) -> None:
    chain = [await hub.source() for _ in range(5)]
    for here, there in pairwise(chain):
        await hub.connect(here, f"{hub.server.url}/in/{there}")
    await hub.connect(chain[-1], receiver.url)
    await hub.sent(chain[0])
    for _ in range(10):
        await hub.settle()
    [got] = receiver.got
    assert chain[0] not in str(got.headers)  # ids are for senders only


async def test_headers_that_we_vouch_for_are_not_the_senders(hub: Hub, receiver: Receiver) -> None:
    source = await hub.source()
    connection = await hub.connect(source, receiver.url)
    forged = {
        "X-Waystation-Event": "evt_forged",
        "X-Waystation-Admin": "yes",
        "Webhook-Id": "forged",
        "Svix-Id": "forged",
        "Svix-Signature": "v1,forged",
        "Proxy-Authorization": "Basic x",
        "X-Forwarded-For": "10.0.0.1",
        "Connection": "close, X-Secret-Hop",
        "X-Secret-Hop": "forged",
        "X-Shop": "kept",
    }
    event_id = await hub.sent(source, headers=forged)
    [got] = receiver.got
    assert got.headers["x-shop"] == "kept"
    assert got.headers["x-waystation-event"] == event_id
    assert got.headers["x-waystation-connection"] == connection["id"]
    assert "forged" not in str(got.headers)
    for name in ("x-waystation-admin", "svix-id", "x-forwarded-for", "x-secret-hop"):
        assert name not in got.headers


@pytest.mark.parametrize(
    ("sent", "arrives"),
    [
        ("a=1", "token=own&a=1"),
        ("token=forged", "token=own"),
        ("a=1&token=forged&b=2", "token=own&a=1&b=2"),
        ("TOKEN=forged", "token=own"),
        ("%74oken=forged", "token=own"),
        ("token[]=forged&+token=forged", "token=own"),
    ],
)
async def test_parameters_of_the_destination_are_not_the_senders(
    hub: Hub, receiver: Receiver, sent: str, arrives: str
) -> None:
    source = await hub.source()
    await hub.connect(source, f"{receiver.url}/hook?token=own")
    await hub.sent(source, rest=f"?{sent}")
    assert receiver.got[0].query == arrives


@pytest.mark.parametrize("provider", ["mailgun", "sendgrid", "zendesk"])
async def test_an_old_signature_is_refused(hub: Hub, provider: str) -> None:
    sender = SENDERS[provider]
    source = await hub.source(provider=provider, signing_secrets=[sender.secret])
    for late, status in ((0, 200), (24 * 3600, 401), (-24 * 3600, 401)):
        signed = sender.sign(sender.body, sender.secret, hub.clock() - late)
        assert (await hub.send(source, signed.body, headers=signed.headers)).status == status


async def test_one_mailgun_signature_is_one_event(hub: Hub) -> None:
    """The timestamp and the token are signed in a row: the boundary between them is not free."""
    sender = SENDERS["mailgun"]
    source = await hub.source(provider="mailgun", signing_secrets=[sender.secret])
    signed = sender.sign(sender.body, sender.secret, hub.clock())
    body: Any = msgspec.json.decode(signed.body)
    whole = body["signature"]["timestamp"] + body["signature"]["token"]
    taken = 0
    for cut in range(1, len(whole)):
        moved = {**body["signature"], "timestamp": whole[:cut], "token": whole[cut:]}
        answer = await hub.send(source, msgspec.json.encode(body | {"signature": moved}))
        taken += answer.status == 200
    assert taken == 1


async def signed_source(hub: Hub) -> str:
    """A source of an account that may receive 100 events a minute."""
    token = (await hub.server.sign_up("free@example.com"))["access_token"]
    given = {"name": "x", "provider": "github", "signing_secrets": [SENDERS["github"].secret]}
    created = await hub.call("POST", "/v1/sources", given, token=token)
    return str(created.json["id"])


async def test_forged_requests_do_not_lock_the_genuine_sender_out(hub: Hub) -> None:
    """Nor one that comes from the same address: providers send for everybody."""
    source, sender = await signed_source(hub), SENDERS["github"]
    forged = {"X-Hub-Signature-256": "sha256=" + "0" * 64}
    for _ in range(150):
        assert (await hub.send(source, headers=forged)).status == 401
    signed = sender.sign(sender.body, sender.secret, hub.clock())
    assert (await hub.send(source, signed.body, headers=signed.headers)).status == 200


async def test_what_was_accepted_counts_towards_the_minute(hub: Hub) -> None:
    source, sender = await signed_source(hub), SENDERS["github"]
    signed = sender.sign(sender.body, sender.secret, hub.clock())
    answers = [
        (await hub.send(source, signed.body, headers=signed.headers)).status for _ in range(101)
    ]
    assert answers == [200] * 100 + [429]


async def test_forgers_are_throttled_by_where_they_are(hub: Hub) -> None:
    source, sender = await signed_source(hub), SENDERS["github"]
    relay = hub.relay
    checking = Checking(relay.directory, relay.intake, relay.outbound, hub.clock)

    async def take(address: str, headers: dict[str, str], body: bytes = b"{}") -> object:
        lower = {name.lower(): value for name, value in headers.items()}
        return await checking.take(source, Webhook(body, lower), address, "http://x/in")

    forged = {"X-Hub-Signature-256": "sha256=" + "0" * 64}
    for _ in range(3_000):
        with pytest.raises(Unauthenticated):
            await take("198.51.100.7", forged)
    with pytest.raises(TooManyRequests):
        await take("198.51.100.7", forged)
    signed = sender.sign(sender.body, sender.secret, hub.clock())
    assert await take("203.0.113.9", signed.headers, signed.body)


@pytest.mark.parametrize(
    "host",
    [
        "0",
        "127.1",
        "2130706433",
        "0x7f.1",
        "0x7f000001",
        "0177.0.0.1",
        "①②⑦.0.0.1",
        "127.0.0.1.",
        "127。0。0。1",
        "127%2e1",
    ],
)
async def test_numbers_that_are_no_plain_address_are_refused_at_once(hub: Hub, host: str) -> None:
    source = await hub.source()
    body = {"name": "x", "destination_url": f"http://{host}:8080/"}
    answer = await hub.call("POST", f"/v1/sources/{source}/connections", body)
    assert (answer.status, answer.fields) == (400, ["destination_url"])
