"""The API's description: OpenAPI 3.1, and a page for people that needs nothing from elsewhere."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

import msgspec

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
_METHODS = ("get", "post", "put", "patch", "delete")


def document(app: Litestar) -> dict[str, Any]:
    """Litestar's description, with what all our routes have in common."""
    described: dict[str, Any] = app.openapi_schema.to_schema()
    components = described.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    _, defined = msgspec.json.schema_components(
        [Problem], ref_template="#/components/schemas/{name}"
    )
    schemas |= defined
    components["securitySchemes"] = {
        "bearer": {
            "type": "http",
            "scheme": "bearer",
            "description": "An API key (`ws_live_…`) or an access token.",
        }
    }
    public = {
        (route.path_format, method)
        for route in app.routes
        for handler in getattr(route, "route_handlers", [])
        if handler.opt.get("public")
        for method in handler.http_methods
    }
    for path, method, operation in _operations(described):
        if method == "post":
            operation.setdefault("parameters", []).append(_KEY_HEADER)
        if (path, method.upper()) not in public:
            operation["security"] = [{"bearer": []}]
        responses = operation.setdefault("responses", {})
        responses.pop("400", None)
        responses["default"] = {
            "description": "What went wrong",
            "content": {
                "application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}
            },
        }
    return described


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
