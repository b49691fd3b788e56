"""A new system works everywhere, though nothing but its own folder knows of it."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tests.server.events import http_event, sqs_record, stream_record
from tests.support.receiver import receiving
from tests.support.site import SECRET, Answer, site
from tests.toy.system import TOY
from tests.toy.tables import Letter, letters
from waystation.cli import main
from waystation.errors import DeclarationError, NotFound
from waystation.patterns import limits
from waystation.seam import Door, Running, System, Watcher
from waystation.server.aws_lambda import Handlers
from waystation.server.doctor import examine
from waystation.store.dynamodb.wire import item_to_wire
from waystation.systems import DESK, GATE, RELAY, SYSTEMS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from tests.support.site import Site
    from waystation.clock import ManualClock
    from waystation.seam import Parts

WITH_TOY = (*SYSTEMS, TOY)


@pytest.fixture
async def server(clock: ManualClock) -> AsyncIterator[Site]:
    async with site(
        clock, systems=WITH_TOY, background=True, toy_greeting="good morning"
    ) as running:
        yield running


async def write(server: Site, *ids: str, token: str) -> None:
    for id_ in ids:
        answer = await server.post("/v1/toy/letters", {"box": "ann", "letter_id": id_}, token=token)
        assert answer.status == 201, answer


async def eventually(server: Site, token: str, wanted: list[str]) -> None:
    async with asyncio.timeout(20):
        while (await server.get("/v1/toy/boxes/ann", token=token)).json["letters"] != wanted:
            await asyncio.sleep(0.02)


# In the server


async def test_its_door_is_open(server: Site) -> None:
    answer = await server.call("POST", "/toy/bob", body=b"12345")
    assert (answer.status, answer.body) == (200, b"good morning, bob: 5 bytes")
    assert (await server.call("POST", "/toy/bob", body=b"x" * 101)).status == 413
    assert (await server.get("/toys")).status == 404


async def test_its_routes_are_guarded_and_described(server: Site) -> None:
    letter = {"box": "ann", "letter_id": "1"}
    assert (await server.post("/v1/toy/letters", letter)).status == 401
    token = await server.api_key("read")
    assert (await server.post("/v1/toy/letters", letter, token=token)).status == 403
    described = (await server.get("/openapi.json")).json
    assert "/v1/toy/letters" in described["paths"]


async def test_its_watcher_consumer_job_and_metric_work(server: Site) -> None:
    token = await server.api_key()
    server.runtime.supervisor.start()
    await write(server, "1", "2", "3", token=token)
    await eventually(server, token, ["1", "2", "3"])
    async with asyncio.timeout(20):
        key = Letter.key("ann", "3")
        while not (letter := await server.runtime.store.get(key)) or not letter.sent:
            await asyncio.sleep(0.02)
    assert server.runtime.provided["toy"].looked_after >= 1
    jobs = [job["name"] for job in (await server.get("/readyz")).json["jobs"]]
    assert {"toy", "toy-outbox", "watch toy-notes"} <= set(jobs)
    page = (await server.get("/metrics")).body.decode()
    assert "waystation_toy_letters_total 3.0" in page
    assert 'waystation_feed_lag_seconds{watcher="toy-notes"}' in page
    assert 'waystation_queue_messages{queue="toy-outbox",state="ready"}' in page
    await server.runtime.supervisor.stop()


async def test_it_hands_over_to_another_system(server: Site) -> None:
    token = await server.api_key()
    source = (await server.post("/v1/sources", {"name": "toy"}, token=token)).json["id"]
    async with receiving() as receiver:
        connection = {"name": "toy", "destination_url": receiver.url}
        await server.post(f"/v1/sources/{source}/connections", connection, token=token)
        body = {"source_id": source, "text": "dear Bob"}
        first = await server.post("/v1/toy/hand-over", body, token=token)
        again = await server.post("/v1/toy/hand-over", body, token=token)
        assert (first.status, again.json["id"]) == (201, first.json["id"])
        await server.runtime.drain(20)
        assert [got.body for got in receiver.got] == [b"dear Bob"]


async def test_it_cannot_hand_over_to_somebody_elses_source(server: Site) -> None:
    token = await server.api_key()
    source = (await server.post("/v1/sources", {"name": "toy"}, token=token)).json["id"]
    other = await server.api_key(email="bob@example.com")
    body = {"source_id": source, "text": "dear Bob"}
    assert (await server.post("/v1/toy/hand-over", body, token=other)).status == 404


def without_id(answer: Answer) -> Any:
    return {name: value for name, value in answer.json.items() if name != "request_id"}


async def test_what_belongs_to_the_installation_is_for_operators(server: Site) -> None:
    path = "/v1/toy/everything"
    tenant = (await server.sign_up("bob@example.com"))["access_token"]
    assert (await server.get(path, token=await server.api_key())).status == 200
    hidden = await server.get(path, token=tenant)
    nowhere = await server.get("/v1/toy/nothing", token=tenant)
    assert without_id(hidden) == without_id(nowhere)
    assert hidden.status == 404
    assert (await server.get(path)).status == 401


# Through Lambda


@pytest.fixture
def handlers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Handlers]:
    monkeypatch.setenv("WAYSTATION_STORE", f"sqlite:///{tmp_path / 'w.db'}")
    monkeypatch.setenv("WAYSTATION_BLOBS", f"file:{tmp_path / 'blobs'}")
    monkeypatch.setenv("WAYSTATION_SECRET_KEY", SECRET)
    monkeypatch.setenv("WAYSTATION_TOY_GREETING", "welcome")
    handlers = Handlers(WITH_TOY, logs=False)
    yield handlers
    handlers.close()


def operator_key(capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["keys", "create", "ann@example.com"], WITH_TOY) == 0
    return capsys.readouterr().out.strip()


def written(handlers: Handlers, key: str, id_: str) -> None:
    body = json.dumps({"box": "ann", "letter_id": id_})
    named = {"content_type": "application/json", "authorization": f"Bearer {key}"}
    assert (
        handlers.http(http_event("POST", "/v1/toy/letters", body, **named), None)["statusCode"]
        == 201
    )


def box(handlers: Handlers, key: str) -> Any:
    event = http_event("GET", "/v1/toy/boxes/ann", authorization=f"Bearer {key}")
    return json.loads(handlers.http(event, None)["body"])["letters"]


def test_it_works_through_lambda(handlers: Handlers, capsys: pytest.CaptureFixture[str]) -> None:
    key = operator_key(capsys)
    got = handlers.http(http_event("GET", "/toy/bob"), None)
    assert (got["statusCode"], got["body"]) == (200, "welcome, bob: 0 bytes")
    written(handlers, key, "1")
    message = sqs_record(1, queue="dev-toy-outbox", body={"box": "ann", "letter_id": "1"})
    assert handlers.sqs({"Records": [message]}, None) == {"batchItemFailures": []}
    image = item_to_wire(
        {"pk": "BOX#ann", "sk": "LETTER#1", "box": "ann", "letter_id": "1", "sent": False}
    )
    change = stream_record(1, table="dev-toy-letters", image=image)
    for _ in range(2):  # at least once
        assert handlers.streams({"Records": [change]}, None) == {"batchItemFailures": []}
    assert box(handlers, key) == ["1"]
    handlers.schedule({"source": "aws.events"}, None)
    metrics = handlers.http(http_event("GET", "/metrics"), None)["body"]
    assert "waystation_toy_rounds_total 1.0" in metrics


# On the command line


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_its_commands_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "waystation.toml").write_text('toy_greeting = "ahoy"')
    assert main(["toy", "greet", "Ann"], WITH_TOY) == 0
    assert capsys.readouterr().out == "ahoy, Ann\n"
    assert main(["toy", "greet", "Ann", "--json"], WITH_TOY) == 0
    assert json.loads(capsys.readouterr().out) == {"greeting": "ahoy"}
    assert main(["toy", "write", "ann"], WITH_TOY) == 0
    assert main(["toy", "read", "ann"], WITH_TOY) == 1
    assert "API key" in capsys.readouterr().err


async def test_a_command_reaches_a_server(
    server: Site, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    token = await server.api_key()
    server.runtime.supervisor.start()
    await write(server, "1", token=token)
    await eventually(server, token, ["1"])
    arguments = ["toy", "read", "ann", "--url", server.url, "--key", token]
    assert await asyncio.to_thread(main, arguments, WITH_TOY) == 0
    assert capsys.readouterr().out == "1\n"
    await server.runtime.supervisor.stop()


def test_its_setting_is_known_and_no_other(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WAYSTATION_TOY_GREETINGS", "x")
    assert main(["toy", "greet", "Ann"], WITH_TOY) == 1
    assert "did you mean toy_greeting?" in capsys.readouterr().err


def test_its_table_and_queue_are_shown_and_deployed(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tables"], WITH_TOY) == 0
    assert "dev-toy-letters  (toy, stream)" in capsys.readouterr().out
    assert main(["tables", "--cloudformation"], WITH_TOY) == 0
    resources = json.loads(capsys.readouterr().out)["Resources"]
    assert {"ToyLettersTable", "ToyOutboxQueue", "ToyOutboxDeadLetters"} <= resources.keys()


def test_the_doctor_checks_it(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["doctor"], WITH_TOY) == 0
    assert "ok    toy       visitors are greeted with 'hello'" in capsys.readouterr().out
    monkeypatch.setenv("WAYSTATION_TOY_GREETING", "go away")
    assert main(["doctor"], WITH_TOY) == 1
    shown = capsys.readouterr().out
    assert "FAIL  toy       that is no greeting" in shown
    assert "something kind" in shown


async def test_one_systems_trouble_keeps_no_other_from_its_work(clock: ManualClock) -> None:
    async def trouble(*_: object) -> None:
        raise ZeroDivisionError

    broken = System(
        name="broken", open=lambda parts: Running(tend=trouble, drain=trouble, close=trouble)
    )
    stack = AsyncExitStack()
    server = await stack.enter_async_context(site(clock, systems=[broken, *WITH_TOY]))
    with pytest.raises(ZeroDivisionError):
        await server.runtime.tend()
    assert server.runtime.provided["toy"].looked_after == 1
    with pytest.raises(ZeroDivisionError):
        await stack.aclose()


async def test_a_system_that_cannot_be_opened_is_a_finding(here: Path) -> None:
    def broken(parts: Parts) -> Running:
        raise ValueError("no luck")

    found = await examine(None, [*SYSTEMS, System(name="broken", open=broken)])
    assert [(one.name, one.detail) for one in found if not one.ok] == [("systems", "no luck")]


async def test_systems_do_not_wait_for_each_others_sockets(clock: ManualClock) -> None:
    ways: list[object] = []

    def opened(parts: Parts) -> Running:
        ways.append(parts.outbound)
        return Running()

    systems = [System(name=name, open=opened) for name in ("one", "other")]
    async with site(clock, systems=[*SYSTEMS, *systems]):
        assert ways[0] is not ways[1]


# What does not fit together


def bringing(**what: Any) -> System:
    return System(name="other", open=lambda parts: Running(**what))


async def nowhere(*_: object) -> Any:
    raise NotFound("nothing")


@pytest.mark.parametrize(
    ("system", "named"),
    [
        (bringing(provide={"toy": 1}), "toy"),
        (bringing(doors=[Door("/toy/too", nowhere)]), "toy"),
        (bringing(jobs={"toy": nowhere}), "toy"),
        (bringing(jobs={"sweep": nowhere}), "sweep"),
        (bringing(jobs={"toy-outbox": nowhere}), "toy-outbox"),
        (bringing(watchers=[Watcher("toy-notes", letters, nowhere)]), "toy-notes"),
        (
            bringing(watchers=[Watcher("silent", limits, nowhere)]),
            "silent watches waystation-limits",
        ),
        (replace(bringing(), name="toy"), "two systems are called toy"),
        (bringing(offers={"relay.receive": nowhere}), "relay.receive"),
        (replace(TOY, name="twin", tables=[], queues=[], open=None, commands=None), "toy_greeting"),
    ],
)
async def test_two_systems_do_not_bring_the_same(
    clock: ManualClock, system: System, named: str
) -> None:
    with pytest.raises(DeclarationError, match=named):
        async with site(clock, systems=(*WITH_TOY, system), background=True):
            pass


async def test_an_offer_that_nobody_makes_is_named_at_the_start(clock: ManualClock) -> None:
    def opened(parts: Parts) -> Running:
        parts.offer("pigeons.send")
        return Running()

    needy = System(name="needy", open=opened)
    with pytest.raises(DeclarationError, match=r"needy needs pigeons\.send"):
        async with site(clock, systems=(*SYSTEMS, needy)):
            pass


async def test_a_house_without_the_relay_stands(clock: ManualClock) -> None:
    """No system is needed by the server itself, but one that knows who calls."""
    without = [system for system in SYSTEMS if system not in (RELAY, GATE, DESK)]
    async with site(clock, systems=without) as server:
        assert (await server.get("/v1/me", token=await server.api_key())).status == 200
        assert (await server.post("/in/src_1", {})).status == 404
