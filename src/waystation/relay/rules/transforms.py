"""Transforms: what a connection makes of a body before it is sent."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from waystation.errors import InvalidInput
from waystation.relay.rules import jmes
from waystation.relay.rules.budget import RulesTooCostly
from waystation.relay.rules.paths import MISSING, Parts, Webhook, parse, parse_input

if TYPE_CHECKING:
    from waystation.relay.rules.budget import Budget

MAX_RULES = 200
MAX_OUTPUT = 256 * 1024
_MAX_DEPTH = 32
_UNKNOWN_WEIGHT = 1 << 30
"""Of what costs as much on the smallest body."""

_TOO_LARGE = f"the result has more than {MAX_OUTPUT} bytes"


class TransformFailed(Exception):
    """A transform could not be carried out on this body."""


class MapRule(msgspec.Struct, forbid_unknown_fields=True, rename={"source": "from"}):
    source: str
    to: str
    default: Any = msgspec.UNSET


class Step(msgspec.Struct, forbid_unknown_fields=True, rename={"source": "from"}, kw_only=True):
    """`set` path and value, `remove` path, `rename` from and to. Places are in the body."""

    op: Literal["set", "remove", "rename"]
    path: str | None = None
    value: Any = msgspec.UNSET
    source: str | None = None
    to: str | None = None


class Passthrough(msgspec.Struct, tag="passthrough", forbid_unknown_fields=True):
    """The body as it came."""


class FieldMap(msgspec.Struct, tag="field_map", forbid_unknown_fields=True):
    """A new object from places in the webhook."""

    rules: list[MapRule]


class Steps(msgspec.Struct, tag="steps", forbid_unknown_fields=True):
    """Changes to the body, one after the other."""

    steps: list[Step]


class JmesPath(msgspec.Struct, tag="jmespath", forbid_unknown_fields=True):
    """What an expression makes of the body."""

    expression: str


Transform = Passthrough | FieldMap | Steps | JmesPath


def check_transform(transform: Transform) -> None:
    """Refuse what could never work, naming the field."""
    match transform:
        case FieldMap(rules):
            _check_count(rules, "transform.rules")
            for n, rule in enumerate(rules):
                parse_input(rule.source, f"transform.rules[{n}].from")
                _target(rule.to, f"transform.rules[{n}].to")
        case Steps(steps):
            _check_count(steps, "transform.steps")
            for n, step in enumerate(steps):
                _check_step(step, f"transform.steps[{n}]")
        case JmesPath(expression):
            try:
                jmes.compile_expression(expression)
            except ValueError as error:
                raise InvalidInput("transform.expression", str(error)) from None


def _check_count(rules: list[Any], field: str) -> None:
    if len(rules) > MAX_RULES:
        raise InvalidInput(field, f"at most {MAX_RULES} rules are allowed")


def _check_step(step: Step, field: str) -> None:
    wanted = {"set": ["path", "value"], "remove": ["path"], "rename": ["source", "to"]}[step.op]
    for name in ("path", "value", "source", "to"):
        place = f"{field}.{'from' if name == 'source' else name}"
        if (getattr(step, name) in (None, msgspec.UNSET)) == (name in wanted) and not (
            name == "value" and step.op == "set" and step.value is None
        ):
            what = "needs" if name in wanted else "does not take"
            raise InvalidInput(place, f"the step {step.op} {what} this field")
        if name in wanted and name != "value":
            _target(getattr(step, name), place)


def _target(text: str, field: str) -> tuple[str, ...]:
    """A dotted place in an object. `$.` or `body.` may stand before it."""
    plain = text.removeprefix("$.").removeprefix("body.")
    parts = tuple(plain.split("."))
    if not all(parts) or len(parts) > _MAX_DEPTH or len(text) > 300 or "[" in text:
        raise InvalidInput(field, "must be names separated by dots, such as customer.id")
    return parts


@lru_cache(maxsize=4096)
def stored_transform(text: str | None) -> Transform:
    return Passthrough() if text is None else msgspec.json.decode(text, type=Transform)


def weight_of(transform: Transform) -> int:
    """About how many passes over the body a transform makes."""
    match transform:
        case FieldMap(rules):
            return len(rules)
        case Steps(steps):
            return 1 + len(steps)
        case JmesPath(expression):
            return 1 + len(expression) // 8 if jmes.is_plain(expression) else _UNKNOWN_WEIGHT
    return 0


def apply(transform: Transform, webhook: Webhook, budget: Budget) -> tuple[bytes, bool]:
    """The body to send, and whether it is new JSON. TransformFailed when there is no result."""
    if isinstance(transform, Passthrough):
        return webhook.content, False
    try:
        result = _result(transform, webhook, budget)
        _check_size(result, budget)
        return msgspec.json.encode(result), True
    except (TransformFailed, RulesTooCostly) as error:
        if isinstance(error, RulesTooCostly) and not budget.trial:
            raise TransformFailed(str(error)) from error
        raise
    except Exception as error:
        raise TransformFailed(str(error) or type(error).__name__) from error


def _result(transform: Transform, webhook: Webhook, budget: Budget) -> Any:
    match transform:
        case FieldMap(rules):
            return _mapped(rules, webhook, budget)
        case Steps(steps):
            _check_readable(webhook)
            body = _copied(webhook.body, _Room(MAX_OUTPUT * 4, budget))
            if not isinstance(body, dict):
                raise TransformFailed("the body is not a JSON object")
            for step in steps:
                _step(body, step, budget)
            return body
        case JmesPath(expression):
            _check_readable(webhook)
            return jmes.search(expression, webhook.body, budget)
    raise AssertionError(transform)


def _mapped(rules: list[MapRule], webhook: Webhook, budget: Budget) -> dict[str, Any]:
    result: dict[str, Any] = {}
    room = _Room(MAX_OUTPUT, budget)
    for rule in rules:
        parts = parse(rule.source)
        if parts[0] == "body":
            _check_readable(webhook)
        value = _found(webhook, parts, budget)
        if value is MISSING:
            if rule.default is msgspec.UNSET:
                continue
            value = rule.default
        _put(result, _target(rule.to, "to"), _copied(value, room))
    return result


def _check_readable(webhook: Webhook) -> None:
    if not webhook.readable:
        raise TransformFailed("the body cannot be read")


def _found(webhook: Webhook, parts: Parts, budget: Budget) -> Any:
    """The value at a path; with wildcards the list of all."""
    found = webhook.find(parts, budget)
    if "*" in parts:
        return found
    return found[0] if found else MISSING


def _step(body: dict[str, Any], step: Step, budget: Budget) -> None:
    budget.spend()
    if step.op == "set":
        value = _copied(step.value, _Room(MAX_OUTPUT, budget))
        _put(body, _target(step.path or "", "path"), value)
    elif step.op == "remove":
        _take(body, _target(step.path or "", "path"))
    else:
        value = _take(body, _target(step.source or "", "from"))
        if value is not MISSING:
            _put(body, _target(step.to or "", "to"), value)


def _put(target: dict[str, Any], parts: tuple[str, ...], value: Any) -> None:
    for part in parts[:-1]:
        inner = target.get(part)
        if not isinstance(inner, dict):
            inner = target[part] = {}
        target = inner
    target[parts[-1]] = value


def _take(target: dict[str, Any], parts: tuple[str, ...]) -> Any:
    for part in parts[:-1]:
        inner = target.get(part)
        if not isinstance(inner, dict):
            return MISSING
        target = inner
    return target.pop(parts[-1], MISSING)


class _Room:
    """How large what is copied may become, as JSON."""

    __slots__ = ("_budget", "_left")

    def __init__(self, size: int, budget: Budget) -> None:
        self._left = size
        self._budget = budget

    def take(self, size: int, steps: int) -> None:
        self._budget.spend(steps)
        self._left -= size
        if self._left < 0:
            raise TransformFailed(_TOO_LARGE)


def _copied(value: Any, room: _Room) -> Any:
    """A copy that nothing else holds: the original may be in use elsewhere."""
    if isinstance(value, dict):
        room.take(sum(len(name) + 4 for name in value), len(value))
        return {name: _copied(member, room) for name, member in value.items()}
    if isinstance(value, list):
        room.take(2 * len(value), len(value))
        return [_copied(member, room) for member in value]
    if isinstance(value, str):
        room.take(len(value), 0)
    return value


def _check_size(value: Any, budget: Budget) -> None:
    """Refuse what would be too long as JSON, without writing it out."""
    size = 0
    stack = [value]
    while stack and size <= MAX_OUTPUT:
        found = stack.pop()
        size += 2
        if isinstance(found, str):
            size += len(found)
        elif isinstance(found, dict):
            budget.spend(len(found))
            size += sum(len(name) + 3 for name in found)
            stack.extend(found.values())
        elif isinstance(found, list):
            budget.spend(len(found))
            stack.extend(found)
    if size > MAX_OUTPUT:
        raise TransformFailed(_TOO_LARGE)
