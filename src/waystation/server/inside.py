"""What we rely on inside uvicorn. Its version is pinned, and one that looks different is refused at
the start."""

from __future__ import annotations

import asyncio
from typing import Any

import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from waystation.errors import SettingsError

_PROTOCOL_PARTS = (
    *("app", "cycle", "connections", "flow", "headers", "limit_concurrency", "loop", "parser"),
    *("pipeline", "server_state", "tasks", "transport", "connection_lost", "connection_made"),
    *("on_body", "on_header", "on_headers_complete", "on_message_begin", "on_message_complete"),
    *("on_response_complete", "send_400_response", "_unset_keepalive_if_required"),
    *("timeout_keep_alive", "timeout_keep_alive_handler", "_start_asgi_task"),
)
_FLOW_PARTS = ("drain", "pause_reading", "resume_reading", "resume_writing")


def check_uvicorn(protocol: type[HttpToolsProtocol] = HttpToolsProtocol) -> None:
    """Refuse a uvicorn that does not have inside what this module relies on."""
    config = uvicorn.Config(_nothing, ws="none", lifespan="off", log_config=None)
    instance = protocol(config, ServerState(), {}, asyncio.get_running_loop())
    absent = [name for name in _PROTOCOL_PARTS if not hasattr(instance, name)]
    absent += [name for name in _FLOW_PARTS if not hasattr(FlowControl, name)]
    if absent:
        raise SettingsError(
            f"uvicorn {uvicorn.__version__} is not one that this version runs on: it has no "
            f"{', '.join(absent)}; install the one that waystation's package asks for"
        )


async def _nothing(scope: Any, receive: Any, send: Any) -> None:
    """An app for looking at a protocol without serving."""
