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
from waystation.server.app import build_app
from waystation.server.asgi import Capture
from waystation.server.logs import configure_logs
from waystation.server.runtime import running
from waystation.settings import load_settings
from waystation.store.dynamodb.feed import changes_of
from waystation.tables import TABLES

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from waystation.queues import Message
    from waystation.queues.consumer import Handler
    from waystation.server.asgi import App, Scope
    from waystation.server.runtime import Runtime, Watcher
    from waystation.store import Table

log = logging.getLogger(__name__)

_TEXT = ("text/", "application/json", "application/problem+json", "application/xml")


class _Process:
    """What stays open between calls."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._runtime: Runtime | None = None
        self._app: App | None = None
        self._open = AsyncExitStack()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        if self._loop is None:
            configure_logs()
            self._loop = asyncio.new_event_loop()
        return self._loop.run_until_complete(work)

    async def runtime(self) -> Runtime:
        if self._runtime is None:
            self._runtime = await self._open.enter_async_context(running(load_settings()))
        return self._runtime

    async def app(self) -> App:
        if self._app is None:
            self._app = build_app(await self.runtime())
        return self._app

    def close(self) -> None:
        """Lambda never says goodbye; others may."""
        if self._loop is not None:
            self._loop.run_until_complete(self._open.aclose())
            self._loop.close()


_process = _Process()


def http(event: dict[str, Any], context: object) -> dict[str, Any]:
    """API Gateway's HTTP API, or a function URL."""

    async def work() -> dict[str, Any]:
        return await answer(await _process.app(), event)

    result: dict[str, Any] = _process.run(work())
    return result


def sqs(event: dict[str, Any], context: object) -> dict[str, Any]:
    """Messages that Lambda has received for us, and deletes if we do not name them."""

    async def work() -> dict[str, Any]:
        runtime = await _process.runtime()
        handlers = {
            consumer.queue.spec.scoped(runtime.settings.env): consumer.handle
            for consumer in runtime.consumers.values()
        }
        done = await work_off(event, handlers)
        await runtime.worker.finish()  # Lambda stops the process after the answer
        return done

    result: dict[str, Any] = _process.run(work())
    return result


def streams(event: dict[str, Any], context: object) -> dict[str, Any]:
    """Changes of tables, in order."""

    async def work() -> dict[str, Any]:
        runtime = await _process.runtime()
        tables = {runtime.store.table_name(table): table for table in TABLES}
        return await follow(event, tables, runtime.watchers)

    result: dict[str, Any] = _process.run(work())
    return result


def schedule(event: dict[str, Any], context: object) -> None:
    """What is due: delayed messages and expired items. Call it every minute (EventBridge)."""

    async def work() -> None:
        await (await _process.runtime()).tend()

    _process.run(work())


async def answer(app: App, event: dict[str, Any]) -> dict[str, Any]:
    """One request through the app."""
    body = event.get("body") or ""
    content = base64.b64decode(body) if event.get("isBase64Encoded") else body.encode()
    messages = [{"type": "http.request", "body": content, "more_body": False}]

    async def receive() -> dict[str, Any]:
        return messages.pop() if messages else {"type": "http.disconnect"}

    capture = Capture()
    await app(_scope(event), receive, capture)
    return _answered(capture)


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


def _answered(capture: Capture) -> dict[str, Any]:
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
            name: {"StringValue": told.get("stringValue")}
            for name, told in record.get("messageAttributes", {}).items()
        },
    }


async def follow(
    event: dict[str, Any], tables: dict[str, Table], watchers: dict[str, Watcher]
) -> dict[str, Any]:
    """Hand changes on, in order; Lambda comes again with those from the first failure on."""
    for record in event["Records"]:
        name = record["eventSourceARN"].split(":table/")[1].partition("/")[0]
        watcher = watchers.get(tables[name].name) if name in tables else None
        if watcher is None:
            raise SettingsError(f"nothing here follows the table {name}")
        try:
            for change in changes_of(tables[name], record):
                await watcher(change)
        except Exception:
            number = record["dynamodb"]["SequenceNumber"]
            log.exception("change %s of %s failed", number, name)
            return {"batchItemFailures": [{"itemIdentifier": number}]}
    return {"batchItemFailures": []}
