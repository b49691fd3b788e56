"""The desk in its house: who sees it, what it hands to the relay, its archive, commands, doctor."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.desk.counter import WHERE, desk_at, payload
from tests.desk.richpanel_server import KEY
from tests.support.receiver import receiving
from tests.support.site import settings_with
from waystation.cli import main
from waystation.errors import SettingsError, TooManyRequests
from waystation.times import day_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.desk.counter import Counter
    from tests.desk.richpanel_server import Vendor
    from waystation.clock import ManualClock

ROUTES = [
    ("GET", "/v1/desk/conversations/c1"),
    ("GET", "/v1/desk/conversations/c1/audit"),
    ("GET", "/v1/desk/events/evt:rp:c1:m1"),
    ("GET", "/v1/desk/switches"),
    ("PUT", "/v1/desk/switches"),
    ("GET", "/v1/desk/switches/changes"),
    ("GET", "/v1/desk/dead-letters"),
    ("GET", "/v1/desk/dead-letters/x"),
    ("POST", "/v1/desk/dead-letters/redrive"),
    ("GET", "/v1/desk/dead-letters/redrive"),
    ("GET", "/v1/desk/unknown"),
    ("POST", "/v1/desk/unknown/x"),
]


@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_the_desk_does_not_exist_for_tenants(dry: Counter, method: str, path: str) -> None:
    tenant = await dry.hub.server.sign_up("tenant@example.com")
    body: dict[str, Any] | None = None if method == "GET" else {}
    answer = await dry.hub.call(method, path, body, token=tenant["access_token"])
    assert answer.status == 404
    assert (await dry.hub.server.call(method, path, body)).status == 401


async def test_a_key_that_may_only_read_sets_no_switch(dry: Counter) -> None:
    key = await dry.hub.server.api_key("read")
    answer = await dry.hub.call("PUT", "/v1/desk/switches", {"safe_mode": False}, token=key)
    assert answer.status == 403
    assert (await dry.hub.call("GET", "/v1/desk/switches", token=key)).status == 200


async def test_what_is_not_there_is_404(dry: Counter) -> None:
    assert (await dry.hub.call("GET", "/v1/desk/conversations/none")).status == 404
    assert (await dry.hub.call("GET", "/v1/desk/events/evt:rp:c:m")).status == 404
    assert (await dry.hub.get("/v1/desk/conversations/none/audit"))["data"] == []


async def test_the_audit_is_read_in_pages(dry: Counter) -> None:
    for _ in range(3):
        await dry.write("please cancel my order")
        dry.clock.advance(1)
    place = "/v1/desk/conversations/c1/audit?limit=4"
    first = await dry.hub.get(place)
    second = await dry.hub.get(f"{place}&cursor={first['cursor']}")
    ids = [each["action_id"] for each in first["data"] + second["data"]]
    assert len(ids) == len(set(ids)) == 6
    assert first["data"][0]["at"] > second["data"][-1]["at"]
    assert (await dry.hub.call("GET", f"{place}&cursor=x")).status == 400
    other = f"/v1/desk/conversations/c2/audit?cursor={first['cursor']}"
    assert (await dry.hub.call("GET", other)).status == 400


# The relay


async def test_what_is_decided_travels_through_the_relay(counter: Counter) -> None:
    async with receiving() as receiver:
        source = await counter.hub.source()
        await counter.hub.connect(source, receiver.url)
        await counter.set(source_id=source)
        await counter.write("please cancel my order", message_id="m1")
        await counter.hub.settle()
        [got] = receiver.got
        event = json.loads(got.body)
        assert (event["type"], event["conversation_id"]) == ("desk.decided", "c1")
        assert (event["intent"], event["team"]) == ("cancel_order", "backend")
        assert "please" not in got.body.decode()
    assert ("hand_over", "success") in await counter.done()


async def test_a_dry_run_still_tells_the_relay(dry: Counter) -> None:
    source = await dry.hub.source()
    await dry.set(source_id=source)
    await dry.write("please cancel my order")
    events = (await dry.hub.get(f"/v1/sources/{source}/events"))["data"]
    assert len(events) == 1
    assert await dry.done() == [
        ("route", "dry_run"),
        ("tag", "dry_run"),
        ("hand_over", "success"),
    ]


async def test_a_source_that_is_gone_holds_nothing_up(dry: Counter) -> None:
    source = await dry.hub.source()
    await dry.set(source_id=source)
    await dry.hub.call("DELETE", f"/v1/sources/{source}")
    dry.clock.advance(10)
    event_id = await dry.write("please cancel my order")
    assert (await dry.event(event_id))["status"] == "processed"
    done = dict(await dry.done())
    assert done["hand_over"].startswith("failed:")
    assert done["route"] == "dry_run"


async def test_a_relay_that_is_full_for_long_holds_nothing_up(
    dry: Counter, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: Any, **__: Any) -> None:
        raise TooManyRequests("the month is full", retry_after=86_400.0)

    await dry.set(source_id=await dry.hub.source())
    monkeypatch.setattr(dry.desk.carrier, "_hand_over", full)
    event_id = await dry.write("please cancel my order")
    assert (await dry.event(event_id))["status"] == "processed"
    assert dict(await dry.done())["hand_over"].startswith("failed:")


# The archive


async def test_the_archive_is_off_unless_it_is_set(clock: ManualClock, tmp_path: Path) -> None:
    files = {"store": f"sqlite:///{tmp_path}/w.db", "blobs": f"file:{tmp_path}/blobs"}
    async with desk_at(clock, **files) as counter:
        await counter.write("hello")
    assert list((tmp_path / "blobs").rglob("*")) == []


async def test_archived_events_that_were_never_dealt_with_are_queued_again(
    clock: ManualClock, tmp_path: Path
) -> None:
    files = {"store": f"sqlite:///{tmp_path}/w.db", "blobs": f"file:{tmp_path}/blobs"}
    async with desk_at(clock, desk_archive_days=3, **files) as counter:
        await counter.write("please cancel my order", "c1")
        await counter.send(payload("please cancel my order", "c2"))
        [lost] = await counter.desk.queue.receive()
        await counter.desk.queue.ack(lost)
        clock.advance(301)
        day = day_of(clock())
        assert await counter.desk.replay(day, day) == (1, 2)
        await counter.settle()
        assert len(await counter.done("c1")) == len(await counter.done("c2")) == 2
        assert await counter.desk.replay(day, day) == (0, 2)
        assert await counter.desk.replay("2020-01-01", "2020-01-02") == (0, 0)


async def test_the_archive_forgets(clock: ManualClock, tmp_path: Path) -> None:
    files = {"store": f"sqlite:///{tmp_path}/w.db", "blobs": f"file:{tmp_path}/blobs"}
    async with desk_at(clock, desk_archive_days=3, **files) as counter:
        await counter.write("hello")
        clock.advance(3 * 86_400)
        assert await counter.desk.archive.sweep() == 0
        clock.advance(86_400)
        assert await counter.desk.archive.sweep() == 1


# What is kept, and for how long


async def test_rows_live_as_long_as_they_are_set_to(clock: ManualClock) -> None:
    async with desk_at(clock, desk_event_days=1, desk_audit_days=2, desk_state_days=3) as counter:
        given = payload("please cancel my order")
        event_id = (await counter.send(given)).json["event_id"]
        await counter.settle()
        clock.advance(86_400)
        assert (await counter.hub.call("GET", f"/v1/desk/events/{event_id}")).status == 404
        assert len(await counter.done()) == 2
        clock.advance(86_400)
        assert await counter.done() == []
        assert (await counter.state())["last_intent"] == "cancel_order"
        clock.advance(86_400)
        assert (await counter.hub.call("GET", "/v1/desk/conversations/c1")).status == 404


# Commands


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = main(["desk", *words])
    return code, capsys.readouterr().out


def test_decide_shows_what_and_why(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, shown = run(capsys, "decide", "My lawyer will write. Where is my order?")
    assert code == 0
    assert shown.splitlines()[:2] == [
        "legal_threat  0.92  team leadership",
        "escalated: legal_threat",
    ]
    assert "because legal_threat: the words “lawyer*”" in shown
    code, shown = run(capsys, "decide", "--json", WHERE)
    assert json.loads(shown)["reply"] == "order_status"


def test_evaluate_scores_a_decider(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "labelled.jsonl").write_text(
        '{"text": "please cancel my order", "intent": "cancel_order"}\n'
        '{"text": "qwerty", "intent": "refund"}\n'
    )
    code, shown = run(capsys, "evaluate", "labelled.jsonl")
    assert code == 0
    assert "50.0% of 2 right" in shown
    assert "refund taken for unknown: 1" in shown
    (tmp_path / "mine.py").write_text(
        "from waystation.desk import Decision\n"
        "async def decide(message):\n"
        '    return Decision(intent="refund", confidence=1.0)\n'
    )
    code, shown = run(capsys, "evaluate", "labelled.jsonl", "--decider", "mine:decide", "--json")
    assert json.loads(shown)["accuracy"] == 0.5


async def command(counter: Counter, *words: str) -> tuple[int, str]:
    """A command as typed in another process, against the running server."""
    import asyncio
    import os
    import sys

    environment = {k: v for k, v in os.environ.items() if not k.startswith("WAYSTATION_")}
    started = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "waystation.cli", "desk", *words),
        *("--url", counter.hub.server.url, "--key", counter.hub.key),
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, _ = await started.communicate()
    return started.returncode or 0, out.decode()


async def test_switches_are_shown_and_set_by_a_command(dry: Counter) -> None:
    code, shown = await command(dry, "switches", "--safe-mode", "off", "--channels", "email,sms")
    assert code == 0
    assert shown.splitlines()[:3] == [
        "safe mode    off",
        "automation   off",
        "channels     email, sms",
    ]
    _, shown = await command(dry, "switches", "--template", "order_status=off", "--json")
    assert json.loads(shown)["templates"] == {"order_status": False}
    assert (await command(dry, "switches", "--template", "order_status"))[0] == 1


async def test_the_audit_is_shown_by_a_command(dry: Counter) -> None:
    await dry.write("please cancel my order")
    code, shown = await command(dry, "audit", "c1")
    assert code == 0
    assert "route" in shown
    assert "team backend" in shown
    assert (await command(dry, "audit", "c2"))[1] == "nothing was done in this conversation\n"


async def test_dead_letters_are_redriven_by_a_command(local: Counter) -> None:
    assert (await command(local, "dead-letters"))[1] == "there are no dead letters\n"
    assert (await command(local, "redrive"))[1] == "0 of 0 dead letters were sent again\n"


def test_replay_needs_no_server(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, shown = run(capsys, "replay", "--from", "2026-01-01", "--to", "2026-01-02")
    assert (code, shown) == (0, "0 of 0 archived events were queued again\n")
    assert run(capsys, "replay", "--from", "yesterday", "--to", "2026-01-02")[0] == 1


# The doctor, and settings


async def test_the_doctor_asks_the_vendor(clock: ManualClock, vendor: Vendor) -> None:
    async with desk_at(clock, vendor) as counter:
        assert await counter.desk.check_vendor() == "Richpanel answers"
    async with desk_at(clock) as counter:
        assert (await counter.desk.check_vendor()).startswith("not set up")


def test_acting_needs_somewhere_to_act() -> None:
    with pytest.raises(SettingsError, match="desk_outbound: needs richpanel_url"):
        settings_with(desk_outbound=True)
    with pytest.raises(SettingsError, match="desk_decider: must be module:function"):
        settings_with(desk_decider="mine")
    with pytest.raises(SettingsError, match="desk_archive_days"):
        settings_with(desk_archive_days=31)
    assert settings_with(desk_outbound=True, richpanel_url="http://x", richpanel_api_key=KEY)


async def test_metrics_count_what_happens(local: Counter) -> None:
    await local.write("please cancel my order")
    shown = (await local.hub.call("GET", "/metrics")).body.decode()
    assert 'waystation_desk_received_total{status="queued"} 1.0' in shown
    assert 'waystation_desk_processed_total{outcome="processed"} 1.0' in shown
    assert 'waystation_desk_actions_total{result="success",type="route"} 1.0' in shown
    assert 'waystation_desk_decisions_total{intent="cancel_order"} 1.0' in shown
