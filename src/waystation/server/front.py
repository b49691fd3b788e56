"""The front: every request passes here, and the hot doors go no further.

It gives a request its id, bounds its body, answers what goes wrong with a problem document, adds
the headers that every answer has, counts and logs.
"""

from __future__ import annotations

import logging
import re
import time
from email.utils import formatdate
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from waystation.errors import Overloaded
from waystation.ids import nanoid
from waystation.seam import Headers, Response
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
    read_body,
    request_of,
    send_response,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, MutableMapping

    from waystation.seam import Door, Request
    from waystation.server.metrics import Metrics

log = logging.getLogger("waystation.access")
errors_log = logging.getLogger(__name__)

API_BODY = 1024 * 1024
_NOBODY_HEARD = 499
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


class Front:
    """Sends requests to a door by their path, or else to the API."""

    def __init__(self, doors: Mapping[str, Door], api: App, metrics: Metrics) -> None:
        """`doors` are by the first segment of their prefix."""
        self._doors = doors
        self._api = api
        self._metrics = metrics

    def door(self, raw_path: str) -> Door | None:
        """The door that a path leads to, if it leads to one. It has one spelling: with parts of it
        percent-encoded, others on the way would see another path than we do."""
        parts = raw_path.split("/", 2)
        door = self._doors.get(parts[1]) if len(parts) > 1 else None
        return door if door is not None and door.leads_to(raw_path) else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"{scope['type']} is not served here")
        door = self.door(scope["raw_path"].decode("latin-1"))
        if door is None:
            await self._pass_on(scope, receive, send)
            return
        limited = bounded(receive, door.max_body)
        response = await self.answer(door, request_of(scope), lambda: read_body(limited))
        try:
            await send_response(response, send, scope["method"])
        finally:
            if response.sent is not None:
                response.sent()

    async def answer(
        self,
        door: Door,
        request: Request,
        read: Callable[[], Awaitable[bytes]] | None = None,
    ) -> Response:
        """A door's answer. `read` gets the request's body if it has none yet."""
        begun = time.perf_counter()
        request.id, length = _id_and_length(request.headers)
        common = _common(door)
        try:
            if length > door.max_body:
                raise BodyTooLarge  # noqa: TRY301 - as when it turns out later
            if read is not None:
                request.body = await read()
            response = await door.handle(request)
        except CallerGone:
            response = Response(_NOBODY_HEARD)
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets an answer
            document, headers = problem_for(error, request.id, request.path, door.max_body)
            response = problem_response(document, request.id, headers)
            common = common or _FOR_BROWSERS
        seconds = time.perf_counter() - begun
        self._metrics.requests.observe(request.method, door.prefix, response.status, seconds)
        if not door.programs and not door.pages:
            _log(request.method, request.path, response.status, seconds, request.id, None)
        shown = _with_common(response.headers, common, request.id)
        return Response(response.status, response.body, shown, response.sent)

    def at_once(self, door: Door, request: Request) -> Response | None:
        """A door's answer, if it has one without waiting for anything."""
        if door.at_once is None:
            return None
        begun = time.perf_counter()
        response = door.at_once(request)
        if response is None:
            return None
        request.id, _ = _id_and_length(request.headers)
        seconds = time.perf_counter() - begun
        self._metrics.requests.observe(request.method, door.prefix, response.status, seconds)
        shown = _with_common(response.headers, _common(door), request.id)
        return Response(response.status, response.body, shown, response.sent)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Have the API answer."""
        begun = time.perf_counter()
        scope["request_id"], length = _id_and_length(scope["headers"])
        answer = _Answer(scope, send)
        try:
            if length > API_BODY:
                raise BodyTooLarge  # noqa: TRY301 - as when it turns out later
            await self._api(scope, bounded(receive, API_BODY), answer)
        except CallerGone:
            pass
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets an answer
            id_ = scope["request_id"]
            document, headers = problem_for(error, id_, scope["path"], API_BODY)
            if answer.status is None:
                await send_response(problem_response(document, id_, headers), answer)
        finally:
            seconds = time.perf_counter() - begun
            route = scope.get("path_template") or "other"
            status = answer.status or _NOBODY_HEARD
            self._metrics.requests.observe(scope["method"], route, status, seconds)
            account = scope.get("account")
            _log(scope["method"], scope["path"], status, seconds, scope["request_id"], account)


def _common(door: Door) -> Headers:
    if door.pages:
        return []
    return _FOR_PROGRAMS if door.programs else _FOR_BROWSERS


def _log(
    method: str, path: str, status: int, seconds: float, request_id: str, account: str | None
) -> None:
    fields: dict[str, Any] = {
        "method": method,
        "path": path[:500],
        "status": status,
        "ms": round(seconds * 1000, 2),
        "request_id": request_id,
        "account": account,
    }
    log.info("request", extra={"fields": fields})


def _with_common(given: Headers, common: Headers, request_id: str) -> Headers:
    """An answer's headers with those that every answer has."""
    date, id_ = (b"date", _date(int(time.time()))), (b"x-request-id", request_id.encode())
    if len(given) == 1 and given[0][0] == b"content-type":
        return [*given, *common, date, id_]
    names = {name for name, _ in given}
    more = [header for header in (*common, date) if header[0] not in names]
    return [*given, *more, id_]


@lru_cache(maxsize=2)
def _date(moment: int) -> bytes:
    return formatdate(moment, usegmt=True).encode()


class _Answer:
    """A `send` that adds the headers which every answer has, and remembers the status."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self.status: int | None = None
        self._scope = scope
        self._send = send

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            given = list(message.get("headers", []))
            message["headers"] = _with_common(given, _FOR_BROWSERS, self._scope["request_id"])
        await self._send(message)


def _id_and_length(headers: Headers) -> tuple[str, int]:
    """The request's id and the length of its body, as far as its headers say.

    The id is the caller's own, if it is one that can be trusted in a log; or else a new one.
    """
    id_, length = "", 0
    for name, value in headers:
        if name == b"content-length" and value.isdigit():
            length = int(value.lstrip(b"0") or b"0")  # Python refuses thousands of digits
        elif name == b"x-request-id":
            given = value.decode("latin-1")
            id_ = given if _REQUEST_ID.fullmatch(given) else ""
    return id_ or nanoid(21), length


def problem_for(
    error: Exception, request_id: str, path: str, max_body: int = 0
) -> tuple[problems.Problem, dict[str, str]]:
    """The answer to a request that failed. Our own faults are logged, and answered without
    detail."""
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
        entry = problems.FieldError("body", "the body is not valid UTF-8")
        return problems.problem(400, entry.message, code="invalid_input", errors=[entry]), {}
    if isinstance(error, RecursionError):
        errors_log.warning("a body was nested too deeply", exc_info=error)
        entry = problems.FieldError("body", "the body is nested too deeply")
        return problems.problem(400, entry.message, code="invalid_input", errors=[entry]), {}
    if isinstance(error, Overloaded):
        errors_log.warning("a request was refused: %s", error)
        return found or (problems.problem(503, "try again in a moment"), {})
    fields = {"request_id": request_id, "path": path[:500]}
    errors_log.error("a request failed", exc_info=error, extra={"fields": fields})
    return found or (problems.problem(500, "something went wrong on our side"), {})
