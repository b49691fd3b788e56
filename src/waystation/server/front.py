"""The front: every request passes here, and the hot doors go no further.

It gives a request its id, bounds its body, answers what goes wrong with a problem document, adds
the headers that every answer has, counts and logs.
"""

from __future__ import annotations

import logging
import re
import time
from typing import TYPE_CHECKING, Any

import msgspec

from waystation.errors import Overloaded
from waystation.ids import nanoid
from waystation.server import problems
from waystation.server.asgi import (
    App,
    BodyTooLarge,
    BodyTooSlow,
    CallerGone,
    Receive,
    Scope,
    Send,
    bounded,
    problem_response,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

    from waystation.server.metrics import Metrics

log = logging.getLogger("waystation.access")
errors_log = logging.getLogger(__name__)

API_BODY = 1024 * 1024
_REQUEST_ID = re.compile(r"[\w.-]{1,64}")

_FOR_PROGRAMS = [
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
]
_FOR_BROWSERS = [
    *_FOR_PROGRAMS,
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
]


class Door(msgspec.Struct, frozen=True):
    """A bare ASGI handler for all paths that begin with one segment.

    One for `programs` is used so often that its requests are not logged, and its answers have no
    headers that only browsers heed.
    """

    app: App
    max_body: int = 0
    programs: bool = False


class Front:
    """Sends requests to a door by their first segment, or else to the API."""

    def __init__(self, doors: Mapping[str, Door], api: App, metrics: Metrics) -> None:
        self._doors = doors
        self._api = Door(api, API_BODY)
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"{scope['type']} is not served here")
        begun = time.perf_counter()
        segment = scope["path"].split("/", 2)[1] if "/" in scope["path"] else ""
        door = self._doors.get(segment, self._api)
        scope["request_id"], length = _told(scope)
        answer = _Answer(scope, send, _FOR_PROGRAMS if door.programs else _FOR_BROWSERS)
        try:
            await self._enter(door, length, scope, receive, answer)
        finally:
            self._account(scope, segment, door, answer, time.perf_counter() - begun)

    async def _enter(
        self, door: Door, length: int, scope: Scope, receive: Receive, answer: _Answer
    ) -> None:
        try:
            if length > door.max_body:
                raise BodyTooLarge  # noqa: TRY301 - as when it turns out later
            if length < 0 or not scope.get("whole"):
                receive = bounded(receive, door.max_body)
            await door.app(scope, receive, answer)
        except CallerGone:
            pass
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets an answer
            document, headers = explained(error, scope, door.max_body)
            if answer.status is None:
                await problem_response(document, scope, headers)(answer)

    def _account(
        self, scope: Scope, segment: str, door: Door, answer: _Answer, seconds: float
    ) -> None:
        route = f"/{segment}" if door is not self._api else scope.get("path_template") or "other"
        status = answer.status or 499
        self._metrics.requests.observe(scope["method"], route, status, seconds)
        if not door.programs:
            fields: dict[str, Any] = {
                "method": scope["method"],
                "path": scope["path"][:500],
                "status": status,
                "ms": round(seconds * 1000, 2),
                "request_id": scope["request_id"],
                "account": scope.get("account"),
            }
            log.info("request", extra={"fields": fields})


class _Answer:
    """A `send` that adds the headers which every answer has, and remembers the status."""

    __slots__ = ("_headers", "_scope", "_send", "status")

    def __init__(self, scope: Scope, send: Send, headers: list[tuple[bytes, bytes]]) -> None:
        self.status: int | None = None
        self._scope = scope
        self._send = send
        self._headers = headers

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            given = list(message.get("headers", []))
            names = {name for name, _ in given}
            given += [header for header in self._headers if header[0] not in names]
            given.append((b"x-request-id", self._scope["request_id"].encode()))
            message["headers"] = given
        await self._send(message)


def _told(scope: Scope) -> tuple[str, int]:
    """The request's id and the length of its body, or -1 when its headers do not say.

    The id is the caller's own, if it is one that can be trusted in a log; or else a new one.
    """
    id_, length = "", 0
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            length = int(value)
        elif name == b"transfer-encoding":
            length = -1
        elif name == b"x-request-id":
            given = value.decode("latin-1")
            id_ = given if _REQUEST_ID.fullmatch(given) else ""
    return id_ or nanoid(21), length


def explained(
    error: Exception, scope: Scope, max_body: int = 0
) -> tuple[problems.Problem, dict[str, str]]:
    """The answer to a request that failed. Our own faults are logged, and told without detail."""
    close = {"connection": "close"}
    if isinstance(error, BodyTooLarge):
        detail = f"a body has at most {max_body} bytes here"
        return problems.problem(413, detail, code="body_too_large"), close
    if isinstance(error, BodyTooSlow):
        return problems.problem(408, "the body did not arrive in time"), close
    found = problems.problem_of(error)
    if found is not None and found[0].status < 500:
        return found
    if isinstance(error, UnicodeDecodeError):
        entry = problems.FieldError("body", "it is not UTF-8")
        return problems.problem(400, entry.message, code="invalid_input", errors=[entry]), {}
    if isinstance(error, RecursionError):
        errors_log.warning("a body was nested too deeply", exc_info=error)
        entry = problems.FieldError("body", "it is nested too deeply")
        return problems.problem(400, entry.message, code="invalid_input", errors=[entry]), {}
    if isinstance(error, Overloaded):
        errors_log.warning("a request was refused: %s", error)
        return found or (problems.problem(503, "try again in a moment"), {})
    fields = {"request_id": scope["request_id"], "path": scope["path"][:500]}
    errors_log.error("a request failed", exc_info=error, extra={"fields": fields})
    return found or (problems.problem(500, "something went wrong on our side"), {})
