"""Receiving: everything is kept as it came, acknowledged when durable, once per delivery id."""

from __future__ import annotations

import asyncio
import base64
from typing import TYPE_CHECKING, Any

import pytest

from tests.relay.senders import SENDERS, URL
from tests.support.faults import Faults
from waystation.accounts.tables import User
from waystation.relay.directory import Directory
from waystation.relay.tables import Event, Source
from waystation.store import exists, set_to

if TYPE_CHECKING:
    from tests.relay.hub import Hub
    from tests.support.receiver import Receiver


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "GET", "OPTIONS"])
async def test_any_method_is_received(hub: Hub, method: str) -> None:
    answer = await hub.send(await hub.source(), method=method)
    assert answer.status == 200
    assert answer.json["status"] == "received"
    assert (await hub.event(answer.json["id"]))["method"] == method


async def test_query_path_and_headers_are_kept(hub: Hub) -> None:
    source = await hub.source()
    event_id = await hub.sent(source, rest="/eu/orders?a=1&a=2&b=%20", headers={"X-Kind": "new"})
    event = await hub.event(event_id)
    assert event["query"] == "a=1&a=2&b=%20"
    assert event["path"] == "/eu/orders"
    assert event["headers"]["x-kind"] == "new"


async def test_a_binary_body_survives(hub: Hub, receiver: Receiver) -> None:
    """It is kept and delivered as bytes, not as base64 text."""
    source = await hub.source()
    await hub.connect(source, receiver.url)
    body = bytes(range(256)) * 4
    event_id = await hub.sent(source, body, headers={"Content-Type": "application/octet-stream"})
    event = await hub.event(event_id)
    assert event["body_encoding"] == "base64"
    assert base64.b64decode(event["body"]) == body
    assert receiver.got[0].body == body
    assert receiver.got[0].headers["content-type"] == "application/octet-stream"


async def test_a_form_is_received(hub: Hub, receiver: Receiver) -> None:
    source = await hub.source()
    await hub.connect(source, receiver.url)
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    await hub.sent(source, b"From=%2B1415&Body=hi+there", headers=headers)
    assert receiver.got[0].body == b"From=%2B1415&Body=hi+there"


async def test_credentials_in_headers_are_not_kept(hub: Hub, receiver: Receiver) -> None:
    source = await hub.source()
    await hub.connect(source, receiver.url)
    event_id = await hub.sent(source, headers={"Authorization": "Bearer s3cret", "Cookie": "a=b"})
    event = await hub.event(event_id)
    assert event["headers"]["authorization"] == event["headers"]["cookie"] == "[redacted]"
    assert "authorization" not in receiver.got[0].headers
    assert "cookie" not in receiver.got[0].headers


async def test_a_body_has_a_limit(hub: Hub) -> None:
    source = await hub.source()
    assert (await hub.send(source, b"x" * 256 * 1024)).status == 200
    assert (await hub.send(source, b"x" * (256 * 1024 + 1))).status == 413


@pytest.mark.parametrize("source_id", ["src_nobody", "", "a#b", "%00", "x" * 65, "é"])
async def test_an_unknown_source_is_not_found(hub: Hub, source_id: str) -> None:
    """It is never acknowledged: the sender tries again."""
    assert (await hub.send(source_id)).status == 404


async def test_a_source_is_found_without_the_index(hub: Hub) -> None:
    """A lookup in an index that lags would miss a source that was created a moment ago."""
    source = await hub.source()
    faults: Any = Faults(hub.relay.store)

    async def no_index(*_: Any, **__: Any) -> Any:
        raise AssertionError("the index was asked")

    faults.around["query"] = no_index
    assert await Directory(faults, hub.relay.keyring).source(source) is not None


async def test_a_source_that_another_service_wrote_is_found_by_the_index(hub: Hub) -> None:
    user = (await hub.relay.store.scan(User)).items[0]
    await hub.relay.store.put(
        Source(
            source_id="src_theirs",
            user_id=user.user_id,
            name="Theirs",
            provider="github",
            signing_secret=SENDERS["github"].secret,
            created_at="2026-01-01T00:00:00Z",
        )
    )
    what = SENDERS["github"].sign(b"{}", SENDERS["github"].secret, 0)
    assert (await hub.send("src_theirs", b"{}", headers=what.headers)).status == 200
    assert (await hub.send("src_theirs", b"{ }", headers=what.headers)).status == 401


async def test_a_paused_source_takes_nothing(hub: Hub) -> None:
    source = await hub.source()
    await hub.call("PATCH", f"/v1/sources/{source}", {"status": "paused"})
    assert (await hub.send(source)).status == 404
    await hub.call("PATCH", f"/v1/sources/{source}", {"status": "active"})
    assert (await hub.send(source)).status == 200


async def test_a_pause_in_another_process_holds_at_once(hub: Hub) -> None:
    """What is remembered for speed may be old; the transaction looks at the source itself."""
    source = await hub.source()
    assert (await hub.send(source)).status == 200
    user = (await hub.relay.store.scan(User)).items[0]
    paused = set_to("status", "paused")
    await hub.relay.store.update(Source.key(user.user_id, source), paused, when=exists())
    assert (await hub.send(source)).status == 404


async def test_a_deleted_source_takes_nothing_and_is_gone(hub: Hub) -> None:
    source = await hub.source()
    assert (await hub.call("DELETE", f"/v1/sources/{source}")).status == 204
    assert (await hub.send(source)).status == 404
    assert (await hub.call("GET", f"/v1/sources/{source}")).status == 404
    assert source not in [s["id"] for s in (await hub.get("/v1/sources"))["data"]]


# Challenges


async def test_slacks_challenge_is_answered_and_not_kept(hub: Hub) -> None:
    sender = SENDERS["slack"]
    source = await hub.source(provider="slack", signing_secrets=[sender.secret])
    body = b'{"type": "url_verification", "challenge": "abc", "token": "x"}'
    what = sender.sign(body, sender.secret, hub.clock())
    answer = await hub.send(source, body, headers=what.headers)
    assert (answer.status, answer.json) == (200, {"challenge": "abc"})
    assert (await hub.get(f"/v1/sources/{source}/events"))["data"] == []


async def test_an_unsigned_challenge_is_refused(hub: Hub) -> None:
    source = await hub.source(provider="slack", signing_secrets=["x"])
    body = b'{"type": "url_verification", "challenge": "abc"}'
    assert (await hub.send(source, body)).status == 401


async def test_a_subscription_is_confirmed_with_the_right_token(hub: Hub) -> None:
    source = await hub.source(signing_secrets=["token-1"])
    rest = "?hub.mode=subscribe&hub.challenge=1158201444&hub.verify_token="
    answer = await hub.send(source, b"", "GET", rest=rest + "token-1")
    assert (answer.status, answer.body) == (200, b"1158201444")
    assert answer.headers["content-type"].startswith("text/plain")
    assert (await hub.send(source, b"", "GET", rest=rest + "other")).status == 401


async def test_intercom_asks_with_head(hub: Hub) -> None:
    source = await hub.source(provider="intercom", signing_secrets=["x"])
    assert (await hub.send(source, b"", "HEAD")).status == 200


@pytest.mark.parametrize(
    "query",
    [
        "hub.challenge=1&" + "&".join(f"a{n}=1" for n in range(21)),
        "hub.mode=subscribe&hub.challenge=&hub.verify_token=x",
        "hub.challenge=%FF",
    ],
)
async def test_odd_challenges_are_no_error_of_ours(hub: Hub, query: str) -> None:
    source = await hub.source(signing_secrets=["token-1"])
    assert (await hub.send(source, b"", "GET", rest=f"?{query}")).status == 401


@pytest.mark.parametrize("provider", ["stripe", "slack", "mailgun", "paddle"])
@pytest.mark.parametrize(
    "body",
    [b'{"id": "\xff"}', b'{"type": "url_verification", "challenge": "\xff"}', b"[" * 50_000, b""],
)
async def test_a_body_that_cannot_be_read_is_kept(hub: Hub, provider: str, body: bytes) -> None:
    source = await hub.source(provider=provider, verification={"mode": "none"})
    answer = await hub.send(source, body)
    assert (answer.status, answer.json["status"]) == (200, "received")


async def test_large_bodies_at_once_are_all_taken(hub: Hub) -> None:
    """They do not fit into one transaction, whose size counts in bytes and not in characters."""
    source = await hub.source()
    body = ('{"text": "' + "汉" * 80_000 + '"}').encode()
    answers = await asyncio.gather(*(hub.send(source, body) for _ in range(40)))
    assert {a.status for a in answers} == {200}


async def test_headers_in_other_languages_survive(hub: Hub, receiver: Receiver) -> None:
    source = await hub.source()
    await hub.connect(source, receiver.url)
    event_id = await hub.sent(source, headers={"X-Name": "café"})
    assert (await hub.event(event_id))["headers"]["x-name"] == "café"
    assert receiver.got[0].headers["x-name"].encode("utf-8", "surrogateescape") == "café".encode()


# Duplicates

IDS: list[tuple[str, dict[str, str], bytes]] = [
    ("stripe", {}, b'{"id": "evt_1", "type": "x"}'),
    ("github", {"X-GitHub-Delivery": "guid-1"}, b"{}"),
    ("shopify", {"X-Shopify-Webhook-Id": "wh-1"}, b"{}"),
    ("slack", {}, b'{"event_id": "Ev1"}'),
    ("square", {}, b'{"event_id": "sq-1"}'),
    ("paddle", {}, b'{"event_id": "evt_01"}'),
    ("linear", {"Linear-Delivery": "lin-1"}, b'{"a": 1}'),
    ("zendesk", {"X-Zendesk-Webhook-Invocation-Id": "z-1"}, b"{}"),
    ("intercom", {}, b'{"id": "notif_1"}'),
    ("paypal", {"PAYPAL-TRANSMISSION-ID": "t-1"}, b"{}"),
    ("twilio", {"I-Twilio-Idempotency-Token": "tok"}, b"a=1"),
    ("standard-webhooks", {"webhook-id": "msg_1"}, b"{}"),
]


@pytest.mark.parametrize(("provider", "headers", "body"), IDS, ids=[i[0] for i in IDS])
async def test_a_delivery_id_is_taken_once(
    hub: Hub, provider: str, headers: dict[str, str], body: bytes
) -> None:
    source = await hub.source(provider=provider, verification={"mode": "none"})
    first = await hub.send(source, body, headers=headers)
    again = await hub.send(source, body, headers=headers)
    assert first.json["status"] == "received"
    assert (again.status, again.json) == (200, {"id": first.json["id"], "status": "duplicate"})
    assert len((await hub.get(f"/v1/sources/{source}/events"))["data"]) == 1


async def test_duplicates_at_the_same_moment_are_taken_once(hub: Hub, receiver: Receiver) -> None:
    source = await hub.source(provider="github", verification={"mode": "none"})
    await hub.connect(source, receiver.url)
    headers = {"X-GitHub-Delivery": "guid-1"}
    answers = await asyncio.gather(*(hub.send(source, b"{}", headers=headers) for _ in range(40)))
    await hub.settle()
    assert [a.json["status"] for a in answers].count("received") == 1
    assert len({a.json["id"] for a in answers}) == 1
    assert len(receiver.got) == 1


async def test_a_duplicate_does_not_hold_up_others_of_its_batch(hub: Hub) -> None:
    source = await hub.source(provider="github", verification={"mode": "none"})
    await hub.send(source, b"{}", headers={"X-GitHub-Delivery": "3"})
    ids = [str(n) for n in range(8)] * 3
    answers = await asyncio.gather(
        *(hub.send(source, b"{}", headers={"X-GitHub-Delivery": id_}) for id_ in ids)
    )
    assert [a.json["status"] for a in answers].count("received") == 7
    assert {a.status for a in answers} == {200}


async def test_sources_do_not_share_delivery_ids(hub: Hub) -> None:
    for _ in range(2):
        source = await hub.source(provider="github", verification={"mode": "none"})
        answer = await hub.send(source, b"{}", headers={"X-GitHub-Delivery": "guid-1"})
        assert answer.json["status"] == "received"


async def test_chosen_fields_and_a_window(hub: Hub) -> None:
    dedupe = {"mode": "fields", "fields": ["headers.x-id", "$.order.id"], "window": 60}
    source = await hub.source(dedupe=dedupe)
    body, other = b'{"order": {"id": 1}, "n": 1}', b'{"order": {"id": 2}}'

    async def status(what: bytes, id_: str = "a") -> str:
        answer = await hub.send(source, what, headers={"X-Id": id_})
        found: str = answer.json["status"]
        return found

    assert await status(body) == "received"
    assert await status(b'{"order": {"id": 1}, "n": 2}') == "duplicate"
    assert await status(other) == "received"
    assert await status(body, "b") == "received"
    hub.clock.advance(61)
    assert await status(body) == "received"


async def test_without_the_fields_every_webhook_is_new(hub: Hub) -> None:
    source = await hub.source(dedupe={"mode": "fields", "fields": ["$.id"]})
    for _ in range(2):
        assert (await hub.send(source, b"not json")).json["status"] == "received"


async def test_deduplication_can_be_turned_off(hub: Hub) -> None:
    source = await hub.source(
        provider="github", verification={"mode": "none"}, dedupe={"mode": "none"}
    )
    for _ in range(2):
        answer = await hub.send(source, b"{}", headers={"X-GitHub-Delivery": "1"})
        assert answer.json["status"] == "received"


# What is written


async def test_events_expire_by_the_plan(hub: Hub) -> None:
    tokens = await hub.server.sign_up("free@example.com")
    answer = await hub.call("POST", "/v1/sources", {"name": "x"}, token=tokens["access_token"])
    event_id = (await hub.send(answer.json["id"])).json["id"]
    found = await hub.relay.store.query(Event.query(event_id, index="GSI1"))
    assert found.items[0].expires_at == int(hub.clock()) + 86_400


async def test_the_url_of_a_source_is_where_it_receives(hub: Hub) -> None:
    source = await hub.source()
    shown = await hub.get(f"/v1/sources/{source}")
    assert shown["url"] == f"{hub.server.url}/in/{source}"


async def test_a_public_url_is_needed_by_those_who_sign_it(hub: Hub) -> None:
    given = {"name": "x", "provider": "twilio", "signing_secrets": ["x"]}
    answer = await hub.call("POST", "/v1/sources", given)
    assert (answer.status, answer.fields) == (400, ["public_url"])
    assert (await hub.call("POST", "/v1/sources", {**given, "public_url": URL})).status == 201
