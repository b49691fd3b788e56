"""Handlers for AWS Lambda: API Gateway (payload format 2.0), SQS, DynamoDB Streams, a schedule.

Settings come from the environment, as everywhere. The parts are opened at the first call and stay
open for as long as Lambda keeps the process. The function must report partial batch failures
(`ReportBatchItemFailures`) for SQS and Streams.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from waystation.errors import SettingsError
from waystation.queues.sqs import received
from waystation.seam import settings_of
from waystation.server.app import build_app
from waystation.server.asgi import Capture
from waystation.server.logs import configure_logs
from waystation.server.runtime import running
from waystation.settings import load_settings
from waystation.store.dynamodb import changes_of
from waystation.systems import SYSTEMS

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping, Sequence

    from waystation.queues import Handler, Message
    from waystation.seam import System, Watcher
    from waystation.server.asgi import App, Scope
    from waystation.server.runtime import Runtime

log = logging.getLogger(__name__)

_TEXT = ("text/", "application/json", "application/problem+json", "application/xml")


class Handlers:
    """The handlers of one process, and what stays open between their calls."""

    def __init__(self, systems: Sequence[System] = SYSTEMS, *, logs: bool = True) -> None:
        """`logs` sets up this process's logs at the first call."""
        self._systems = systems
        self._logs = logs
        self._loop: asyncio.AbstractEventLoop | None = None
        self._runtime: Runtime | None = None
        self._app: App | None = None
        self._open = AsyncExitStack()

    def http(self, event: dict[str, Any], context: object) -> dict[str, Any]:
        """API Gateway's HTTP API, or a function URL."""

        async def work() -> dict[str, Any]:
            runtime = await self._opened()
            self._app = self._app or build_app(runtime)
            return await answer(self._app, event)

        return self._run(work())

    def sqs(self, event: dict[str, Any], context: object) -> dict[str, Any]:
        """Messages that Lambda has received for us, and deletes if we do not name them."""

        async def work() -> dict[str, Any]:
            runtime = await self._opened()
            handlers = {
                consumer.queue.spec.scoped(runtime.settings.env): consumer.handle
                for consumer in runtime.consumers
            }
            failures = await work_off(event, handlers)
            await runtime.drain()  # Lambda stops the process after the answer
            return failures

        return self._run(work())

    def streams(self, event: dict[str, Any], context: object) -> dict[str, Any]:
        """Changes of tables, in order."""

        async def work() -> dict[str, Any]:
            runtime = await self._opened()
            watchers: dict[str, list[Watcher]] = {}
            for watcher in runtime.watchers:
                name = runtime.store.table_name(watcher.table)
                watchers.setdefault(name, []).append(watcher)
            failures = await follow(event, watchers)
            await runtime.drain()
            return failures

        return self._run(work())

    def schedule(self, event: dict[str, Any], context: object) -> dict[str, Any]:
        """What is due: delayed messages and expired items. Call it every minute (EventBridge)."""

        async def work() -> dict[str, Any]:
            await (await self._opened()).tend()
            return {}

        return self._run(work())

    async def _opened(self) -> Runtime:
        if self._runtime is None:
            settings = load_settings(settings_of(self._systems))
            opening = running(settings, self._systems)
            self._runtime = await self._open.enter_async_context(opening)
        return self._runtime

    def _run(self, work: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
        if self._loop is None:
            if self._logs:
                configure_logs()
            self._loop = asyncio.new_event_loop()
        return self._loop.run_until_complete(work)

    def close(self) -> None:
        """Lambda never says goodbye; others may."""
        if self._loop is not None:
            self._loop.run_until_complete(self._open.aclose())
            self._loop.close()


_handlers = Handlers()
http, sqs = _handlers.http, _handlers.sqs
streams, schedule = _handlers.streams, _handlers.schedule


async def answer(app: App, event: dict[str, Any]) -> dict[str, Any]:
    """One request through the app."""
    body = event.get("body") or ""
    content = base64.b64decode(body) if event.get("isBase64Encoded") else body.encode()
    messages = [{"type": "http.request", "body": content, "more_body": False}]

    async def receive() -> dict[str, Any]:
        return messages.pop() if messages else {"type": "http.disconnect"}

    capture = Capture()
    await app(_scope(event), receive, capture)
    return _gateway_response(capture)


def _scope(event: dict[str, Any]) -> Scope:
    asked = event["requestContext"]["http"]
    stage = event["requestContext"].get("stage", "$default")
    path = event["rawPath"]
    if ".lambda-url." in event["requestContext"].get("domainName", ""):
        path = unquote(path)  # API Gateway has done so, function URLs have not
    if path == f"/{stage}" or path.startswith(f"/{stage}/"):
        path = path.removeprefix(f"/{stage}") or "/"
    headers = [
        (k.lower().encode(), v.encode("latin-1", "replace")) for k, v in event["headers"].items()
    ]
    if event.get("cookies"):
        headers.append((b"cookie", "; ".join(event["cookies"]).encode("latin-1", "replace")))
    host = event["headers"].get("host", "localhost")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": asked["method"],
        "scheme": event["headers"].get("x-forwarded-proto", "https"),
        "path": path,
        "raw_path": quote(path).encode(),
        "query_string": event.get("rawQueryString", "").encode(),
        "root_path": "",
        "headers": headers,
        "client": (asked["sourceIp"], 0),
        "server": (host, 443),
        "extensions": {},
    }


def _gateway_response(capture: Capture) -> dict[str, Any]:
    headers: dict[str, str] = {}
    cookies = []
    for name, value in capture.headers:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        if key == "set-cookie":
            cookies.append(text)
        else:
            headers[key] = f"{headers[key]}, {text}" if key in headers else text
    kind = headers.get("content-type", "")
    body: str | None = None
    if kind.startswith(_TEXT) and "content-encoding" not in headers:
        with suppress(UnicodeDecodeError):
            body = capture.body.decode()
    return {
        "statusCode": capture.status,
        "headers": headers,
        "cookies": cookies,
        "body": base64.b64encode(capture.body).decode() if body is None else body,
        "isBase64Encoded": body is None,
    }


async def work_off(event: dict[str, Any], handlers: dict[str, Handler]) -> dict[str, Any]:
    """Handle a batch: groups beside each other, each in order and no further than its failure."""
    groups: dict[str, list[tuple[str, Handler, Message]]] = {}
    for record in event["Records"]:
        name = record["eventSourceARN"].rpartition(":")[2].removesuffix(".fifo")
        if name not in handlers:
            raise SettingsError(f"nothing here works off the queue {name}")
        message = received(_as_received(record))
        group = record["attributes"].get("MessageGroupId") or record["messageId"]
        groups.setdefault(group, []).append((record["messageId"], handlers[name], message))
    failed = await asyncio.gather(*(_in_order(group) for group in groups.values()))
    return {"batchItemFailures": [{"itemIdentifier": id_} for ids in failed for id_ in ids]}


async def _in_order(group: list[tuple[str, Handler, Message]]) -> list[str]:
    """The ids of those that were not done."""
    for n, (_, handle, message) in enumerate(group):
        try:
            await handle(message)
        except Exception:
            log.exception("message %s failed", message.id)
            return [id_ for id_, *_ in group[n:]]
    return []


def _as_received(record: dict[str, Any]) -> dict[str, Any]:
    """Lambda writes in lower case what SQS writes in upper case."""
    return {
        "MessageId": record["messageId"],
        "ReceiptHandle": record["receiptHandle"],
        "Body": record["body"],
        "Attributes": record["attributes"],
        "MessageAttributes": {
            name: {"StringValue": attribute.get("stringValue")}
            for name, attribute in record.get("messageAttributes", {}).items()
        },
    }


async def follow(
    event: dict[str, Any], watchers: Mapping[str, Sequence[Watcher]]
) -> dict[str, Any]:
    """Hand changes on, in order; Lambda comes again with those from the first failure on.

    `watchers` are by the name of their table.
    """
    records: dict[str, list[dict[str, Any]]] = {}
    for record in event["Records"]:
        name = record["eventSourceARN"].split(":table/")[1].partition("/")[0]
        records.setdefault(name, []).append(record)
    if unknown := records.keys() - watchers.keys():
        raise SettingsError(f"nothing here follows the table {min(unknown)}")
    failures = []
    for name, some in records.items():
        # One that fails keeps the others from nothing: they hear of the rest now, and once more.
        ends = [await _followed(watcher, some) for watcher in watchers[name]]
        if (first := min(ends)) < len(some):
            number = some[first]["dynamodb"]["SequenceNumber"]
            failures.append({"itemIdentifier": number})
    return {"batchItemFailures": failures}


async def _followed(watcher: Watcher, records: list[dict[str, Any]]) -> int:
    """How many records a watcher has dealt with before it failed."""
    for n, record in enumerate(records):
        try:
            for change in changes_of(watcher.table, record):
                await watcher.handle(change)
        except Exception:
            log.exception("%s failed at a change of %s", watcher.name, watcher.table.name)
            return n
    return len(records)
