"""Places in a webhook: `body.items[*].id`, `headers.x-github-event`, `$.type`.

A path has one meaning for filters, transforms and dedupe fields.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import msgspec

from waystation.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterator

    from waystation.relay.rules.budget import Budget

ROOTS = frozenset({"body", "headers", "query", "method", "path"})
MAX_PATH = 300
_MAX_PARTS = 32
_MAX_FORM_FIELDS = 5_000
_PART = re.compile(r"\.?([^.\[\]]+)|\[(\d{1,6}|\*)\]")
_WILD = "*"

Part = str | int
Parts = tuple[Part, ...]

UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)
"""What reading JSON that somebody sent may raise."""

MISSING: Any = object()
"""What a path finds where there is nothing."""

UNREAD: Any = object()
"""A body that we cannot read."""

_JSON_LIKE = re.compile(rb"(?:\xef\xbb\xbf|\xff\xfe|\xfe\xff)?[\s\0]*[\[{]")
"""Also after a byte order mark, and in UTF-16 or UTF-32. (curl calls any body a form.)"""


class Webhook:
    """A webhook as rules see it. The body is parsed when a rule first looks at it."""

    def __init__(
        self,
        content: bytes,
        headers: dict[str, str],
        query: str = "",
        method: str = "POST",
        path: str = "",
    ) -> None:
        self.content = content
        self.headers = headers
        self.method = method
        self.path = path
        self.query_string = query
        self._body: Any = MISSING
        self._query: dict[str, Any] | None = None

    @property
    def body(self) -> Any:
        """JSON or form fields as values, any other text as a string; None if it is not readable."""
        return self._parsed() if self.readable else None

    @property
    def readable(self) -> bool:
        """Whether we read the body as any other program would. One that looks like JSON but is not
        valid JSON may mean something to its receiver that we cannot know."""
        return self._parsed() is not UNREAD

    def _parsed(self) -> Any:
        if self._body is MISSING:
            self._body = _parsed(self.content, self.headers.get("content-type", ""))
        return self._body

    def root(self, name: str) -> Any:
        match name:
            case "body":
                return self.body
            case "headers":
                return self.headers
            case "query":
                if self._query is None:
                    self._query = _fields(self.query_string, {})
                return self._query
            case "method":
                return self.method
            case _:
                return self.path

    def find(self, parts: Parts, budget: Budget) -> list[Any]:
        """Everything at a path: one value, or as many as its wildcards match."""
        found = [self.root(str(parts[0]))] if parts[0] != "body" or self.readable else []
        for part in parts[1:]:
            budget.spend(len(found))
            if part == _WILD:
                budget.spend(sum(len(value) for value in found if isinstance(value, list)))
            found = list(_step(found, part))
            if not found:
                break
        return found


def _parsed(content: bytes, content_type: str) -> Any:
    kind = content_type.partition(";")[0].strip().lower()
    looks_like_json = _JSON_LIKE.match(content) is not None
    try:
        if kind == "application/x-www-form-urlencoded" and not looks_like_json:
            return _fields(content.decode(), UNREAD)
        try:
            return msgspec.json.decode(content)
        except UNREADABLE:
            says_json = kind == "application/json" or kind.endswith("+json")
            return UNREAD if looks_like_json or (says_json and content) else content.decode()
    except UnicodeDecodeError:
        return UNREAD


def _fields(text: str, too_many: Any) -> Any:
    """Form fields. One that comes several times is a list."""
    found: dict[str, Any] = {}
    try:
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=_MAX_FORM_FIELDS)
    except ValueError:
        return too_many
    for name, value in pairs:
        if name not in found:
            found[name] = value
        elif isinstance(found[name], list):
            found[name].append(value)
        else:
            found[name] = [found[name], value]
    return found


def _step(values: list[Any], part: Part) -> Iterator[Any]:
    for value in values:
        if part == _WILD and isinstance(value, list):
            yield from value
        elif isinstance(part, int):
            if isinstance(value, list) and part < len(value):
                yield value[part]
        elif isinstance(value, dict) and part in value:
            yield value[part]


@lru_cache(maxsize=4096)
def parse(text: str) -> Parts:
    """The parts of a path; ValueError says what is wrong with it."""
    if len(text) > MAX_PATH:
        raise ValueError(f"a path has at most {MAX_PATH} characters")
    if text == "$" or text.startswith(("$.", "$[")):
        text = "body" + text[1:]
    parts: list[Part] = []
    at = 0
    for match in _PART.finditer(text):
        if match.start() != at:
            break
        name, position = match.groups()
        if name is not None:
            parts.append(name)
        else:
            parts.append(_WILD if position == _WILD else int(position))
        at = match.end()
    if at != len(text) or not parts or text.startswith("."):
        raise ValueError(f"{text!r} is not a path")
    if parts[0] not in ROOTS:
        raise ValueError(f"a path starts at {', '.join(sorted(ROOTS))} or $")
    if parts[0] == "headers" and len(parts) > 1:
        parts[1] = str(parts[1]).lower()
    if len(parts) > _MAX_PARTS:
        raise ValueError(f"a path has at most {_MAX_PARTS} parts")
    return tuple(parts)


def parse_input(text: object, field: str) -> Parts:
    """The parts of a path that a user gave, or a refusal that names the field."""
    if not isinstance(text, str):
        raise InvalidInput(field, "a path must be a string")
    try:
        return parse(text)
    except ValueError as error:
        raise InvalidInput(field, str(error)) from None
