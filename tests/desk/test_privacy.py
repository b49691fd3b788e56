"""Nothing that a customer wrote is readable anywhere but in the vendor's own hands."""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.desk.counter import desk_at, payload
from tests.desk.test_redaction import CARDS, EMAILS, PHONES, TRACKING
from waystation.desk import Decision, Message
from waystation.server.logs import JsonFormatter

if TYPE_CHECKING:
    from pathlib import Path

    from tests.desk.counter import Counter
    from tests.desk.richpanel_server import Vendor
    from waystation.clock import ManualClock

SECRETS = st.one_of(EMAILS, PHONES, TRACKING, CARDS, st.from_regex(r"#\d{6,9}", fullmatch=True))
WISHES = st.sampled_from(
    [
        "where is my order, I am",
        "please cancel my order, I am",
        "my lawyer will write, I am",
        "the number is",
        "hello from",
    ]
)


async def careless(message: Message) -> Decision:
    """A decider that repeats what it was told, or fails with it."""
    if "lawyer" in message.text:
        raise ValueError(f"cannot decide on {message.text}")
    return Decision(
        intent="refund", team="returns", confidence=0.9, reasons=[f"they said {message.text}"[:500]]
    )


async def failing_lookup(number: str) -> None:
    raise RuntimeError(f"no order {number}")


def dump(file: Path) -> str:
    """Everything in a database, as text."""
    with closing(sqlite3.connect(file)) as database:
        names = [row[0] for row in database.execute("SELECT name FROM sqlite_master")]
        found = []
        for name in names:
            try:
                found += database.execute(f'SELECT * FROM "{name}"').fetchall()
            except sqlite3.OperationalError:
                continue
    return "\n".join(_text(cell) for row in found for cell in row)


def _text(cell: Any) -> str:
    return cell.decode("latin-1") if isinstance(cell, bytes) else str(cell)


def everywhere(secret: str) -> dict[str, Any]:
    """A payload with a secret in all the places that a vendor has for one."""
    return {
        "customer": {"email": secret, "name": secret, "phone": secret},
        "email": secret,
        "subject": secret,
        "ticket": {"subject": secret, "customer": {"email": secret}},
        "comments": [{"body": secret, "sender_type": "customer"}],
        secret: secret,
    }


async def seen_by_operators(counter: Counter, conversation: str) -> str:
    pages = [
        f"/v1/desk/conversations/{conversation}",
        f"/v1/desk/conversations/{conversation}/audit",
        "/v1/desk/dead-letters",
        "/v1/desk/unknown",
        "/metrics",
    ]
    answers = [await counter.hub.call("GET", page) for page in pages]
    letters = msgspec.json.decode(answers[2].body)["data"]
    answers += [
        await counter.hub.call("GET", f"/v1/desk/dead-letters/{each['id']}") for each in letters
    ]
    return "\n".join(answer.body.decode() for answer in answers)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {
            "desk_decider": "tests.desk.test_privacy:careless",
            "desk_orders": "tests.desk.test_privacy:failing_lookup",
            "desk_excerpts": True,
            "desk_archive_days": 1,
        },
    ],
    ids=["as it comes", "careless"],
)
@settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(wish=WISHES, secret=SECRETS)
async def test_nothing_personal_is_kept_or_shown(
    wish: str,
    secret: str,
    more: dict[str, Any],
    vendor: Vendor,
    clock: ManualClock,
    tmp_path_factory: pytest.TempPathFactory,
    caplog: pytest.LogCaptureFixture,
) -> None:
    place = tmp_path_factory.mktemp("desk")
    files = {"store": f"sqlite:///{place}/w.db", "blobs": f"file:{place}/blobs"}
    caplog.clear()
    with caplog.at_level(logging.DEBUG, "waystation"):
        async with desk_at(clock, vendor, **files | more) as counter:
            await counter.automate()
            text = f"{wish} {secret}"
            await counter.send(payload(text, "done", **everywhere(secret)))
            await counter.settle()
            vendor.always = 503
            await counter.send(payload(text, "stuck", **everywhere(secret)))
            for _ in range(25):
                await counter.later(310)
            vendor.always = None
            await counter.send(payload(text, "queued", **everywhere(secret)))
            assert (await counter.desk.queue.depth()).dead == 1
            shown = await seen_by_operators(counter, "done")
            shown += await seen_by_operators(counter, "stuck")
    kept = dump(place / "w.db")
    kept += "".join(
        each.read_bytes().decode("latin-1") for each in place.rglob("*") if each.is_file()
    )
    logs = "\n".join(JsonFormatter().format(record) for record in caplog.records)
    assert "evt:rp:stuck:" in kept
    assert "evt:rp:stuck:" in shown
    bare = secret.lstrip("#")
    for where, content in (("kept", kept), ("shown", shown), ("logged", logs)):
        assert bare not in content, where


async def test_an_excerpt_is_shown_only_where_it_is_switched_on(
    clock: ManualClock, vendor: Vendor
) -> None:
    for on in (False, True):
        async with desk_at(clock, vendor, desk_excerpts=on) as counter:
            vendor.always = 503
            await counter.send(payload("My mail is ann@example.com, where is order 12345?"))
            for _ in range(25):
                await counter.later(310)
            [letter] = (await counter.hub.get("/v1/desk/dead-letters"))["data"]
            wanted = "My mail is ***@***, where is order ***2345?" if on else None
            assert letter["excerpt"] == wanted


async def test_what_waits_in_the_queue_is_sealed(dry: Counter) -> None:
    await dry.send(payload("I am Ann, ann@example.com"))
    [message] = await dry.desk.queue.receive()
    assert set(message.decode()) == {"event_id", "sealed"}
    assert b"example.com" not in message.body  # what is sealed has no full stops


async def test_a_message_sealed_with_another_key_says_so(dry: Counter) -> None:
    await dry.send(payload("hello"))
    [message] = await dry.desk.queue.receive()
    parcel = message.decode()
    parcel["event_id"] = "evt:rp:other:m1"  # it does not open in another event's place
    await dry.desk.queue.ack(message)
    await dry.desk.queue.send(parcel, group="other")
    for _ in range(25):
        await dry.settle()
        await dry.later(310)
    [letter] = (await dry.hub.get("/v1/desk/dead-letters"))["data"]
    assert letter["problem"] == "it cannot be opened with the secret key of this server"
