"""The door that a support vendor knocks at: `/desk/richpanel/webhook`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from waystation.errors import InvalidInput, NotFound
from waystation.seam import Response, json_response

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from waystation.desk.receiving.intake import Intake
    from waystation.seam import Headers, Request

PREFIX = "/desk"
MAX_BODY = 32 * 1024
_PATH = f"{PREFIX}/richpanel/webhook"


def desk_door(intake: Intake) -> Callable[[Request], Awaitable[Response]]:
    async def handle(request: Request) -> Response:
        if request.raw_path.decode("latin-1").rstrip("/") != _PATH:
            raise NotFound("there is nothing at this address")
        if request.method != "POST":
            return Response(405, b"", [(b"allow", b"POST")])
        intake.credentials.check(request.headers, request.body, intake.now())
        _check_json(request.headers)
        return json_response(200, await intake.take(request.body))

    return handle


def _check_json(headers: Headers) -> None:
    for name, value in headers:
        if name == b"content-type":
            kind = value.partition(b";")[0].strip().lower()
            if kind != b"application/json" and not kind.endswith(b"+json"):
                raise InvalidInput("content-type", "must be application/json")
