"""Lambda handlers, with events as AWS documents them."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.contract import model
from tests.server.events import http_event, sqs_record, stream_record
from waystation.errors import SettingsError
from waystation.seam import Response, Watcher
from waystation.server import aws_lambda
from waystation.server.app import build_app
from waystation.server.asgi import send_response
from waystation.server.aws_lambda import Handlers, answer, follow, work_off

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tests.support.site import Site
    from waystation.queues import Message
    from waystation.store import Change


async def test_a_request_is_answered(server: Site) -> None:
    app = build_app(server.runtime)
    token = await server.api_key()
    event = http_event("GET", "/v1/me", authorization=f"Bearer {token}")
    got = await answer(app, event)
    assert got["statusCode"] == 200
    assert json.loads(got["body"])["email"] == "ann@example.com"
    assert got["headers"]["content-type"] == "application/json"
    assert got["isBase64Encoded"] is False


async def test_a_body_arrives_plain_or_encoded(server: Site) -> None:
    app = build_app(server.runtime)
    account = {"password": "correct horse", "name": "Ann"}
    plain = json.dumps({**account, "email": "ann@example.com"})
    event = http_event("POST", "/v1/auth/signup", plain, content_type="application/json")
    assert (await answer(app, event))["statusCode"] == 201
    encoded = base64.b64encode(json.dumps({**account, "email": "bob@example.com"}).encode())
    event = http_event("POST", "/v1/auth/signup", encoded.decode(), content_type="application/json")
    event["isBase64Encoded"] = True
    assert (await answer(app, event))["statusCode"] == 201


async def test_the_stage_is_not_part_of_the_path(server: Site) -> None:
    app = build_app(server.runtime)
    got = await answer(app, http_event("GET", "/prod/healthz", stage="prod"))
    assert (got["statusCode"], got["body"]) == (200, '{"status":"ok"}')


@pytest.mark.parametrize(
    ("path", "stage", "seen"),
    [
        ("/production/x", "prod", "/production/x"),
        ("/prod", "prod", "/"),
        ("/prod/x", "prod", "/x"),
        ("/users/ann@example.com", "$default", "/users/ann@example.com"),
    ],
)
async def test_paths(path: str, stage: str, seen: str) -> None:
    found: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        found.append(scope["path"])
        await send_response(Response(204), send)

    await answer(app, http_event("GET", path, stage=stage))
    assert found == [seen]


async def test_a_function_url_gives_its_path_encoded() -> None:
    found: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        found.append((scope["path"], scope["raw_path"]))
        await send_response(Response(204), send)

    event = http_event("GET", "/users/ann%40example.com")
    event["requestContext"]["domainName"] = "abc.lambda-url.eu-west-1.on.aws"
    await answer(app, event)
    assert found == [("/users/ann@example.com", b"/users/ann%40example.com")]


async def test_text_in_another_encoding_is_encoded() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        kind = (b"content-type", b"text/html; charset=latin-1")
        await send_response(Response(200, b"caf\xe9", [kind]), send)

    got = await answer(app, http_event("GET", "/menu"))
    assert got["isBase64Encoded"] is True
    assert base64.b64decode(got["body"]) == b"caf\xe9"


async def test_a_problem_is_a_document_here_too(server: Site) -> None:
    got = await answer(build_app(server.runtime), http_event("GET", "/v1/me"))
    assert got["statusCode"] == 401
    assert json.loads(got["body"])["code"] == "unauthenticated"


async def test_what_is_not_text_is_encoded() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert scope["query_string"] == b"limit=5"
        assert dict(scope["headers"])[b"cookie"] == b"a=1; b=2"
        assert scope["client"][0] == "203.0.113.7"
        headers = [
            (b"content-type", b"image/png"),
            (b"set-cookie", b"x=1"),
            (b"set-cookie", b"y=2"),
            (b"vary", b"a"),
            (b"vary", b"b"),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"\x89PNG", "more_body": True})
        await send({"type": "http.response.body", "body": b"\xff"})

    got = await answer(app, http_event("GET", "/picture"))
    assert got["isBase64Encoded"] is True
    assert base64.b64decode(got["body"]) == b"\x89PNG\xff"
    assert got["cookies"] == ["x=1", "y=2"]
    assert got["headers"]["vary"] == "a, b"


async def test_messages_are_handled_and_failures_named() -> None:
    handled: list[Message] = []

    async def handle(message: Message) -> None:
        if message.decode() == 2:
            raise ValueError("not this one")
        handled.append(message)

    event = {"Records": [sqs_record(n) for n in (1, 2, 3)]}
    got = await work_off(event, {"dev-jobs": handle})
    assert got == {"batchItemFailures": [{"itemIdentifier": "0000-2"}]}
    assert [message.id for message in handled] == ["id-1", "id-3"]
    assert (handled[0].receives, handled[0].sent_at, handled[0].group) == (2, 1794787200, None)


async def test_a_group_goes_no_further_than_its_failure() -> None:
    handled: list[int] = []

    async def handle(message: Message) -> None:
        if message.decode() == 2:
            raise ValueError("not this one")
        handled.append(message.decode())

    records = [sqs_record(n, "a") for n in (1, 2, 3)] + [sqs_record(n, "b") for n in (4, 5)]
    got = await work_off({"Records": records}, {"dev-jobs": handle})
    assert [failed["itemIdentifier"] for failed in got["batchItemFailures"]] == ["0000-2", "0000-3"]
    assert sorted(handled) == [1, 4, 5]


async def test_a_queue_that_nobody_works_off_loses_nothing() -> None:
    with pytest.raises(SettingsError, match="dev-jobs"):
        await work_off({"Records": [sqs_record(1)]}, {})


def watched(handle: Callable[[Change], Awaitable[None]]) -> dict[str, list[Watcher]]:
    return {"dev-things": [Watcher("test", model.things, handle)]}


async def test_changes_are_handed_on_in_order() -> None:
    seen: list[Change] = []

    async def watch(change: Change) -> None:
        seen.append(change)

    event = {"Records": [stream_record(1), stream_record(2, by_ttl=True)]}
    assert await follow(event, watched(watch)) == {"batchItemFailures": []}
    assert [(change.kind, change.expired) for change in seen] == [
        ("insert", False),
        ("remove", True),
    ]
    assert seen[0].new == model.Thing("ann", "1")


async def test_changes_come_again_from_the_first_failure_on() -> None:
    seen: list[str] = []

    async def watch(change: Change) -> None:
        if change.id == "102":
            raise ValueError("not this one")
        seen.append(change.id)

    event = {"Records": [stream_record(n) for n in (1, 2, 3)]}
    got = await follow(event, watched(watch))
    assert got == {"batchItemFailures": [{"itemIdentifier": "102"}]}
    assert seen == ["101"]


async def test_a_watcher_that_fails_keeps_no_other_from_the_changes() -> None:
    seen: list[str] = []

    async def fail(change: Change) -> None:
        raise ValueError("not this one")

    async def watch(change: Change) -> None:
        seen.append(change.id)

    both = [Watcher("a", model.things, fail), Watcher("b", model.things, watch)]
    event = {"Records": [stream_record(n) for n in (1, 2)]}
    got = await follow(event, {"dev-things": both})
    assert got == {"batchItemFailures": [{"itemIdentifier": "101"}]}
    assert seen == ["101", "102"]


@pytest.mark.parametrize("table", ["dev-things", "prod-things"])
async def test_a_table_that_nobody_follows_loses_nothing(table: str) -> None:
    with pytest.raises(SettingsError, match=table):
        await follow({"Records": [stream_record(1, table=table)]}, {})


def test_the_handlers_as_lambda_calls_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One process, settings from the environment, parts that stay open between calls."""
    monkeypatch.setenv("WAYSTATION_STORE", f"sqlite:///{tmp_path / 'w.db'}")
    monkeypatch.setenv("WAYSTATION_BLOBS", f"file:{tmp_path / 'blobs'}")
    handlers = Handlers(logs=False)
    for _ in range(2):
        got = handlers.http(http_event("GET", "/readyz"), None)
        assert got["statusCode"] == 200
    with pytest.raises(SettingsError, match="dev-jobs"):
        handlers.sqs({"Records": [sqs_record(7)]}, None)
    with pytest.raises(SettingsError, match="dev-things"):
        handlers.streams({"Records": [stream_record(1)]}, None)
    handlers.schedule({"source": "aws.events"}, None)
    handlers.close()


def test_lambda_finds_the_handlers_by_name() -> None:
    for name in ("http", "sqs", "streams", "schedule"):
        assert callable(getattr(aws_lambda, name))
