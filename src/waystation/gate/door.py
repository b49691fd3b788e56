"""The door that Slack knocks at: `/slack/events`, or `/slack/events/{team_id}`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from waystation.gate.payloads import is_slack_id
from waystation.gate.requests import request_of
from waystation.seam import Request, Response

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from waystation.gate.decisions import Decision
    from waystation.gate.service import Gate

PREFIX = "/slack/events"
MAX_BODY = 256 * 1024
_JSON = (b"content-type", b"application/json")
_NO_RETRY = (b"x-slack-no-retry", b"1")


def slack_door(gate: Gate) -> Callable[[Request], Awaitable[Response]]:
    async def handle(request: Request) -> Response:
        if request.method != "POST":
            return Response(405, b"", [(b"allow", b"POST")])
        rest = request.raw_path.decode("latin-1").removeprefix(PREFIX).strip("/")
        if rest and not is_slack_id(rest):
            return Response(404, b"", [_NO_RETRY])
        asked = request_of(request.headers, request.body, rest or None, request.client)
        return _response(await gate.take(asked))

    return handle


def _response(decision: Decision) -> Response:
    headers = [_JSON] if decision.body else []
    if decision.final:
        headers.append(_NO_RETRY)
    if decision.retry_after is not None:
        headers.append((b"retry-after", str(math.ceil(decision.retry_after)).encode()))
    return Response(decision.status, decision.body, headers)
