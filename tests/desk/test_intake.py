"""Who may hand in support events, and what is refused at the door."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tests.desk.counter import PATH, SECRET, TOKEN, desk_at, payload, signed
from waystation.desk.receiving.sealing import Parcel, unseal
from waystation.desk.receiving.texts import normalised, plain
from waystation.errors import QueueUnavailable

if TYPE_CHECKING:
    from tests.desk.counter import Counter
    from waystation.clock import ManualClock


async def queued(counter: Counter) -> int:
    return (await counter.desk.queue.depth()).ready


def body() -> bytes:
    return msgspec.json.encode(payload())


async def handed_in(counter: Counter, content: bytes, headers: dict[str, str]) -> int:
    given = {"Content-Type": "application/json", **headers}
    answer = await counter.hub.server.call("POST", PATH, body=content, headers=given)
    return answer.status


async def test_a_signature_opens_the_door(dry: Counter) -> None:
    content = body()
    assert await handed_in(dry, content, signed(content, dry.clock())) == 200


async def test_a_bare_hex_signature_does_as_well(dry: Counter) -> None:
    content = body()
    headers = signed(content, dry.clock())
    headers["X-Richpanel-Signature"] = headers["X-Richpanel-Signature"].removeprefix("sha256=")
    assert await handed_in(dry, content, headers) == 200


@pytest.mark.parametrize("seconds", [-301, 301])
async def test_an_old_or_early_signature_is_refused(dry: Counter, seconds: int) -> None:
    content = body()
    assert await handed_in(dry, content, signed(content, dry.clock() + seconds)) == 401


@pytest.mark.parametrize("seconds", [-300, 300])
async def test_a_signature_counts_for_five_minutes(dry: Counter, seconds: int) -> None:
    content = body()
    assert await handed_in(dry, content, signed(content, dry.clock() + seconds)) == 200


async def test_a_signature_is_of_one_body(dry: Counter) -> None:
    assert await handed_in(dry, body(), signed(body(), dry.clock())) == 401


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"X-Richpanel-Webhook-Token": "wrong"},
        {"X-Richpanel-Webhook-Token": ""},
        {"X-Richpanel-Webhook-Token": "tök\u00e9n"},
        {"X-Richpanel-Signature": "sha256=00", "X-Richpanel-Timestamp": "x"},
        {"X-Richpanel-Signature": "sha256=" + "0" * 64},
    ],
)
async def test_who_proves_nothing_is_refused(dry: Counter, headers: dict[str, str]) -> None:
    assert await handed_in(dry, body(), headers) == 401
    assert await queued(dry) == 0


async def test_a_token_does_not_make_up_for_a_wrong_signature(dry: Counter) -> None:
    content = body()
    headers = signed(content, dry.clock(), "another secret")
    headers["X-Richpanel-Webhook-Token"] = TOKEN
    assert await handed_in(dry, content, headers) == 401


async def test_tokens_are_rotated_by_having_two(clock: ManualClock) -> None:
    async with desk_at(clock, desk_webhook_tokens=["old", "new"], desk_hmac_secret=None) as desk:
        for token, status in (("old", 200), ("new", 200), ("other", 401)):
            assert await handed_in(desk, body(), {"X-Richpanel-Webhook-Token": token}) == status


async def test_a_desk_without_credentials_refuses_everybody(clock: ManualClock) -> None:
    async with desk_at(clock, desk_webhook_tokens=[], desk_hmac_secret=None) as desk:
        content = body()
        headers = {"X-Richpanel-Webhook-Token": TOKEN, **signed(content, clock(), SECRET)}
        assert await handed_in(desk, content, headers) == 401


BAD: list[tuple[Any, str]] = [
    (b"not json", "body"),
    (b"[1, 2]", "body"),
    (b'"text"', "body"),
    (b"\xff\xfe", "body"),
    (b"[" * 30_000, "body"),
    (b'{"a":' * 6_000, "body"),
    ({"conversation_id": "c"}, "event_type"),
    ({"event_type": "x"}, "conversation_id"),
    ({"event_type": "x", "conversation_id": ""}, "conversation_id"),
    ({"event_type": "x", "conversation_id": True}, "conversation_id"),
    ({"event_type": "x", "conversation_id": {"id": 1}}, "conversation_id"),
    ({"event_type": "x", "conversation_id": "c" * 1_001}, "conversation_id"),
    ({"event_type": {"a": 1}, "conversation_id": "c"}, "event_type"),
    ({"event_type": "x\u0000y", "conversation_id": "c"}, "event_type"),
]


@pytest.mark.parametrize(("given", "field"), BAD, ids=range(len(BAD)))
async def test_what_cannot_be_identified_is_refused(dry: Counter, given: Any, field: str) -> None:
    content = given if isinstance(given, bytes) else msgspec.json.encode(given)
    answer = await dry.raw(content)
    assert (answer.status, answer.fields) == (400, [field])
    assert await queued(dry) == 0


async def test_only_json_is_taken(dry: Counter) -> None:
    answer = await dry.raw(body(), {"Content-Type": "text/xml"})
    assert (answer.status, answer.fields) == (400, ["content-type"])


async def test_32_kilobytes_are_the_most(dry: Counter) -> None:
    at_most = msgspec.json.encode(payload("x"))
    fits = msgspec.json.encode(payload("x" * (32 * 1024 - len(at_most))))
    assert (await dry.raw(fits[: 32 * 1024])).status == 200
    assert (await dry.raw(b" " * (32 * 1024) + at_most)).status == 413


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", PATH, 405),
        ("POST", "/desk/other/webhook", 404),
        ("POST", "/desk", 404),
        ("POST", PATH + "/more", 404),
    ],
)
async def test_there_is_one_door(dry: Counter, method: str, path: str, status: int) -> None:
    headers = {"X-Richpanel-Webhook-Token": TOKEN, "Content-Type": "application/json"}
    content = None if method == "GET" else body()
    answer = await dry.hub.server.call(method, path, body=content, headers=headers)
    assert answer.status == status


ODD = [
    "a:b",
    "c#d",
    "<CAF+x@mail.example.com>",
    "+44 20 7946 0958",
    "ümläut",
    "a b",
    "../../etc",
    "~" + "a" * 40,
    "x" * 500,
    "\u0000",
]


@pytest.mark.parametrize("conversation", ODD)
async def test_odd_ids_are_known_by_their_hash(dry: Counter, conversation: str) -> None:
    """One that could be an address, or that keys have no room for, is found by either name."""
    event_id = await dry.write("please cancel my order", conversation, message_id=conversation)
    kept = event_id.split(":")[2]
    assert event_id == f"evt:rp:{kept}:{kept}"
    assert kept.startswith("~")
    assert conversation not in event_id
    assert (await dry.state(kept))["id"] == kept


async def test_a_hash_is_nobodys_id(dry: Counter) -> None:
    """Whoever sends the hash of another conversation writes to a third one."""
    first = await dry.write("hello", "a b")
    second = await dry.write("hello", first.split(":")[2])
    assert first.split(":")[2] != second.split(":")[2]


async def test_the_sender_has_no_say_in_our_own_fields(dry: Counter) -> None:
    event_id = await dry.write(
        "hello", received_at="1999-01-01T00:00:00Z", group="other", source="forged", event_id="e1"
    )
    event = await dry.event(event_id)
    assert not event["received_at"].startswith("1999")
    assert event["conversation_id"] == "c1"


async def test_nothing_is_acknowledged_before_it_is_queued(dry: Counter) -> None:
    async def failing(*_: Any, **__: Any) -> None:
        raise QueueUnavailable("gone")

    given = payload()
    real, dry.desk.queue.send = dry.desk.queue.send, failing  # type: ignore[method-assign,assignment]
    assert (await dry.send(given)).status == 503
    dry.desk.queue.send = real  # type: ignore[method-assign]
    assert (await dry.send(given)).json["status"] == "queued"


@pytest.mark.parametrize(
    "text",
    [
        "&#" + "9" * 6_000 + ";",
        "\u0f73" * 8_000,
        "<style>" * 4_000,
        "<" * 30_000,
        "On " * 10_000,
        "\n>" * 15_000,
        "a\u0301" * 8_000,
    ],
    ids=range(7),
)
async def test_hostile_texts_are_taken_and_dealt_with(dry: Counter, text: str) -> None:
    event_id = await dry.write(text[:9_000])
    assert (await dry.event(event_id))["status"] == "processed"


@pytest.mark.parametrize("part", ["<style>", "\u0f73", "&#9", "<", "On ", "\n>", "a\u0301", "1 "])
def test_no_text_takes_long(part: str) -> None:
    """Twice the text may not take ten times as long."""

    def seconds(characters: int) -> float:
        text = part * (characters // len(part))
        begun = time.process_time()
        normalised(plain(text))
        return time.process_time() - begun

    shorter = min(seconds(20_000) for _ in range(3))
    assert seconds(40_000) < 10 * shorter + 0.05


async def test_an_event_type_with_a_number_in_it_is_not_kept(dry: Counter) -> None:
    await dry.send(payload("hello", event_type="call 555-010-1234"))
    [message] = await dry.desk.queue.receive()
    opened = unseal(dry.hub.runtime.vault, message.decode(Parcel))
    assert opened.event_type == "other"


@pytest.mark.parametrize("conversation", [".", ".."])
async def test_a_way_up_is_no_conversation(dry: Counter, conversation: str) -> None:
    answer = await dry.send(payload("hello", conversation))
    assert (answer.status, answer.fields) == (400, ["conversation_id"])
