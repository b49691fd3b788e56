"""The API's description: OpenAPI 3.1, and a page for people that needs nothing from elsewhere."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any, get_args, get_origin

import msgspec
from litestar import Response
from litestar.response import ServerSentEvent, Stream

from waystation.server.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from litestar import Litestar

_KEY_HEADER = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "Repeating a request with the same key repeats its answer, not its effect.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255},
}
_STREAMS = {ServerSentEvent: "text/event-stream", Stream: "text/event-stream"}
_METHODS = ("get", "post", "put", "patch", "delete")


def document(app: Litestar) -> dict[str, Any]:
    """Litestar's description, with bodies and answers as they are really read and written, and what
    all our routes have in common."""
    described: dict[str, Any] = app.openapi_schema.to_schema()
    handlers = {
        (route.path_format, method.lower()): handler
        for route in app.routes
        for handler in getattr(route, "route_handlers", [])
        for method in handler.http_methods
    }
    bodies, answers = _types(handlers)
    schemas, components = _schemas([Problem, *bodies.values(), *answers.values()])
    shown = dict(zip([None, *bodies, *answers], schemas, strict=True))
    described["components"] = {
        "schemas": {name: _dated(schema) for name, schema in components.items()},
        "securitySchemes": {
            "bearer": {
                "type": "http",
                "scheme": "bearer",
                "description": "An API key (`ws_live_…`) or an access token.",
            }
        },
    }
    for path, method, operation in _operations(described):
        handler = handlers[path, method]
        _complete(operation, handler.opt, method)
        if ("body", path, method) in shown:
            data = handler.parsed_fn_signature.parameters["data"]
            content = {"application/json": {"schema": shown["body", path, method]}}
            operation["requestBody"] = {"content": content, "required": not data.has_default}
        media = _STREAMS.get(handler.parsed_fn_signature.return_type.annotation)
        for status, answer in operation["responses"].items():
            if status == "200" and media is not None:
                answer["content"] = {media: {}}
            if status.startswith("2") and ("answer", path, method) in shown:
                schema = shown["answer", path, method]
                answer["content"] = {"application/json": {"schema": schema}}
    return described


def _types(handlers: dict[tuple[str, str], Any]) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """What routes take and give, by path and method."""
    bodies: dict[Any, Any] = {}
    answers: dict[Any, Any] = {}
    for place, handler in handlers.items():
        signature = handler.parsed_fn_signature
        if "data" in signature.parameters:
            bodies["body", *place] = signature.parameters["data"].annotation
        given = signature.return_type.annotation
        if get_origin(given) is Response:
            given = get_args(given)[0]
        if _is_document(given):
            answers["answer", *place] = given
    return bodies, answers


def _is_document(kind: Any) -> bool:
    plain = get_origin(kind) or kind
    return isinstance(plain, type) and issubclass(plain, msgspec.Struct)


def _schemas(types: list[Any]) -> tuple[tuple[dict[str, Any], ...], dict[str, Any]]:
    return msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")


def _dated(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema whose times are said to be such. By our names, they are what ends in `_at`."""
    for name, field in schema.get("properties", {}).items():
        if name == "at" or name.endswith("_at"):
            for option in field.get("anyOf", [field]):
                if option.get("type") == "string":
                    option["format"] = "date-time"
    return schema


def _complete(operation: dict[str, Any], opt: dict[str, Any], method: str) -> None:
    """Add what all operations have."""
    parameters = operation.setdefault("parameters", [])
    for parameter in parameters:
        parameter["schema"] = _without_null(parameter["schema"])
    if method == "post":
        parameters.append(_KEY_HEADER)
    if not opt.get("public"):
        operation["security"] = [{"bearer": []}]
    responses = operation.setdefault("responses", {})
    responses.pop("400", None)
    responses["default"] = {
        "description": "What went wrong",
        "content": {
            "application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}
        },
    }


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """What a parameter may be where it is given: then it is never null."""
    rest = {name: value for name, value in schema.items() if name != "oneOf"}
    options = [option for option in schema.get("oneOf", []) if option.get("type") != "null"]
    if len(options) == 1:
        rest = {**options[0], **rest}
    if isinstance(rest.get("type"), list):
        [rest["type"]] = [kind for kind in rest["type"] if kind != "null"]
    if "enum" in rest:
        rest["enum"] = [value for value in rest["enum"] if value is not None]
    return rest


def _operations(described: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in (described.get("paths") or {}).items():
        for method in _METHODS:
            if method in item:
                yield path, method, item[method]


_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}
h2{margin-top:2.5rem;border-bottom:1px solid #ddd}details{border:1px solid #ddd;border-radius:6px;
margin:.5rem 0;padding:.5rem .8rem}summary{cursor:pointer}code{font-family:ui-monospace,monospace}
.m{display:inline-block;min-width:4.5rem;font-weight:700}table{border-collapse:collapse;width:100%}
td,th{text-align:left;padding:.25rem .6rem;border-bottom:1px solid #eee;vertical-align:top}
@media(prefers-color-scheme:dark){body{background:#161616;color:#ddd}details,h2,td,th{border-color:#333}
a{color:#8bf}}
"""


def welcome() -> bytes:
    """What this server is, for whoever opens it in a browser."""
    links = (
        ("/docs", "API docs", "every call, with its fields"),
        ("/openapi.json", "openapi.json", "the same for programs"),
        ("/readyz", "readyz", "how the server is doing"),
        ("/metrics", "metrics", "figures for Prometheus"),
    )
    rows = "".join(f"<li><a href='{path}'>{name}</a>: {about}" for path, name, about in links)
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><title>Waystation</title>"
        "<meta name=viewport content='width=device-width,initial-scale=1'>"
        f"<style>{_STYLE}</style><h1>Waystation</h1>"
        "<p>Where events stop on their way: webhooks, notifications, support messages, Slack "
        "events and page renders come in, are checked, remembered just long enough, sent on, "
        f"counted and forgotten.<ul>{rows}</ul>"
        "<p>Calls need a key, which <code>waystation keys create you@example.com</code> prints."
        "</html>"
    ).encode()


def page(described: dict[str, Any]) -> bytes:
    """The description as HTML: no script, no file from elsewhere."""
    info = described["info"]
    groups: dict[str, list[str]] = {}
    for path, method, operation in _operations(described):
        tag = (operation.get("tags") or ["Other"])[0]
        groups.setdefault(tag, []).append(_operation(path, method, operation, described))
    sections = "".join(
        f"<h2>{escape(tag)}</h2>{''.join(shown)}" for tag, shown in sorted(groups.items())
    )
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(info['title'])}</title>"
        "<meta name=viewport content='width=device-width,initial-scale=1'>"
        f"<style>{_STYLE}</style><h1>{escape(info['title'])} API</h1>"
        f"<p>{escape(info.get('description') or '')}</p>"
        "<p>For programs: <a href='/openapi.json'>openapi.json</a>.</p>"
        f"{sections}</html>"
    ).encode()


def _operation(path: str, method: str, operation: dict[str, Any], described: dict[str, Any]) -> str:
    rows = [
        (p["name"], p["in"], p.get("schema", {}), p.get("required", False), p.get("description"))
        for p in operation.get("parameters", [])
    ]
    body = _content(operation.get("requestBody", {}))
    rows += list(_fields("body", body, described))
    answers = []
    for status, answer in operation.get("responses", {}).items():
        fields = ", ".join(name for name, *_ in _fields("", _content(answer), described))
        answers.append((status, answer.get("description", ""), fields))
    return (
        f"<details id='{escape(operation.get('operationId', ''))}'><summary><span class=m>"
        f"{method.upper()}</span> <code>{escape(path)}</code> "
        f"{escape(operation.get('summary') or '')}</summary>"
        + _table(
            ("name", "in", "type", "required", "about"),
            [(n, i, _kind(s), "yes" if r else "", d or "") for n, i, s, r, d in rows],
        )
        + _table(("answer", "meaning", "fields"), answers)
        + "</details>"
    )


def _content(part: dict[str, Any]) -> dict[str, Any]:
    for media in (part.get("content") or {}).values():
        return dict(media.get("schema") or {})
    return {}


def _fields(
    place: str, schema: dict[str, Any], described: dict[str, Any]
) -> Iterator[tuple[str, str, dict[str, Any], bool, str | None]]:
    resolved = _resolve(schema, described)
    required = resolved.get("required", [])
    for name, field in resolved.get("properties", {}).items():
        yield name, place, field, name in required, field.get("description")


def _resolve(schema: dict[str, Any], described: dict[str, Any]) -> dict[str, Any]:
    reference = schema.get("$ref")
    if reference is None:
        return schema
    found = described["components"]["schemas"].get(reference.rpartition("/")[2], {})
    return dict(found)


def _kind(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    options = schema.get("oneOf") or schema.get("anyOf")
    if options:
        return " | ".join(_kind(option) for option in options)
    kind = schema.get("type", "any")
    return " | ".join(kind) if isinstance(kind, list) else str(kind)


def _table(heads: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    if not rows:
        return ""
    head = "".join(f"<th>{escape(name)}" for name in heads)
    lines = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}" for cell in row) for row in rows)
    return f"<table><tr>{head}{lines}</table>"
