"""The API: Litestar, with our errors, our guard and our description."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from litestar import Litestar, Request, Response, Router
from litestar.di import Provide
from litestar.exceptions import HTTPException
from litestar.openapi.config import OpenAPIConfig

import waystation
from waystation.errors import NotFound
from waystation.server import problems
from waystation.server.checking import check_request
from waystation.server.front import problem_for

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from litestar.connection import ASGIConnection
    from litestar.handlers import BaseRouteHandler

    from waystation.seam import Callers, Permission


_NOTHING = "there is nothing at this address"
_BY_METHOD: dict[str, Permission] = {"GET": "read", "HEAD": "read"}


def build_api(
    callers: Callers, routers: Sequence[Router], dependencies: Mapping[str, object]
) -> Litestar:
    """The API of all systems. Every route is guarded; what is public says so itself, and what is
    for operators does not exist to others."""

    async def guard(
        connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler
    ) -> None:
        if handler.opt.get("public") or handler.opt.get("users"):
            return
        scope: Any = connection.scope
        principal = scope.get("principal")
        if principal is None:
            principal = await callers.authenticate(connection.headers.get("authorization"))
        scope["account"] = principal.user_id
        if handler.opt.get("operators") and await callers.role(principal.user_id) != "operator":
            raise NotFound(_NOTHING)
        principal.require(handler.opt.get("needs") or _BY_METHOD.get(scope["method"], "write"))
        scope["user"] = principal

    return Litestar(
        route_handlers=list(routers),
        guards=[guard],
        before_request=check_request,
        dependencies={
            name: Provide(_constant(value), sync_to_thread=False)
            for name, value in dependencies.items()
        },
        exception_handlers={HTTPException: _refused, Exception: _failed},
        openapi_config=OpenAPIConfig(
            title="Waystation",
            version=waystation.__version__,
            description="Where events stop on their way.",
            use_handler_docstrings=True,
            openapi_router=_hidden(),
        ),
        logging_config=None,
        debug=False,
    )


def _constant(value: object) -> Any:
    return lambda: value


def _hidden() -> Router:
    """Litestar would serve the description itself; ours is at /openapi.json and /docs."""

    def gone(*_: object) -> None:
        raise NotFound(_NOTHING)

    return Router(
        path="/schema",
        route_handlers=[],
        opt={"public": True},
        guards=[gone],
        include_in_schema=False,
    )


def _failed(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    scope: Any = request.scope
    document, headers = problem_for(error, scope.get("request_id", ""), scope["path"])
    return _response(request, document, headers)


def _refused(request: Request[Any, Any, Any], error: HTTPException) -> Response[bytes]:
    """What Litestar itself refuses: no such route or method, a body that is not as declared."""
    found = problems.validation_errors(error.extra)
    status = error.status_code
    if status == 404:  # as where something is hidden
        return _failed(request, NotFound(_NOTHING))
    if found:
        detail = "; ".join(f"{entry.field}: {entry.message}" for entry in found)
        document = problems.problem(status, detail, code="invalid_input", errors=found)
    elif status == 400:
        entry = problems.FieldError("body", str(error.detail))
        document = problems.problem(400, str(error.detail), code="invalid_input", errors=[entry])
    else:
        document = problems.problem(status, str(error.detail))
    return _response(request, document, dict(error.headers or {}))


def _response(
    request: Request[Any, Any, Any], document: problems.Problem, headers: dict[str, str]
) -> Response[bytes]:
    scope: Any = request.scope
    return Response(
        problems.encode(document, scope.get("request_id")),
        status_code=document.status,
        media_type=problems.JSON.decode(),
        headers=headers,
    )
