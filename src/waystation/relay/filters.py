"""Filters: which webhooks a connection wants.

Rules are compiled once, when a connection is written; what does not compile is refused there.
Regular expressions run on RE2, whose time grows with the text only.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgspec
import re2

from waystation.errors import InvalidInput
from waystation.relay.paths import Parts, Webhook, parse_input

MAX_RULES = 100
MAX_REGEXES = 20
MAX_DEPTH = 8
_MAX_PATTERN = 1_000
_MAX_PROGRAM = 1_000
_MAX_SEARCHED = 64 * 1024
_MAX_OPTIONS = 500
_REGEX_MEMORY = 1 << 18
_MOST_SECONDS = 0.25
"""All rules of a filter together; it runs between everything else that the process does."""

Filter = Callable[[Webhook], bool]
Test = Callable[[Any], bool]


def compile_filter(rules: object, field: str = "filters") -> Filter:
    """The filter that rules describe, or a refusal that names the part that is wrong."""
    compiled = _Compiler().group(rules, field, 0)

    def timed(webhook: Webhook) -> bool:
        webhook.deadline = time.monotonic() + _MOST_SECONDS
        return compiled(webhook)

    return timed


class TooSlow(Exception):
    """A filter takes too long for this webhook."""


@lru_cache(maxsize=256)
def stored_filter(text: str | None) -> Filter:
    """The filter of a connection, from its stored JSON."""
    return _everything if text is None else compile_filter(msgspec.json.decode(text))


def _everything(webhook: Webhook) -> bool:
    return True


class _Compiler:
    def __init__(self) -> None:
        self._rules = 0
        self._regexes = 0

    def group(self, rules: object, field: str, depth: int) -> Filter:
        if depth > MAX_DEPTH:
            raise InvalidInput(field, f"groups may be nested at most {MAX_DEPTH} deep")
        if isinstance(rules, list):
            return self._all(rules, field, depth)
        if not isinstance(rules, dict):
            raise InvalidInput(field, "must be a rule, a list of rules, or one of all, any and not")
        kinds = rules.keys() & {"all", "any", "not"}
        if not kinds:
            return self._rule(rules, field)
        if len(rules) != 1:
            raise InvalidInput(field, "all, any and not cannot stand beside other fields")
        kind = kinds.pop()
        inside = f"{field}.{kind}"
        if kind == "not":
            inner = self.group(rules["not"], inside, depth + 1)
            return lambda webhook: not inner(webhook)
        if not isinstance(rules[kind], list):
            raise InvalidInput(inside, "must be a list of rules")
        if kind == "all":
            return self._all(rules["all"], inside, depth)
        parts = self._parts(rules["any"], inside, depth)
        return lambda webhook: any(part(webhook) for part in parts)

    def _all(self, rules: list[object], field: str, depth: int) -> Filter:
        parts = self._parts(rules, field, depth)
        return lambda webhook: all(part(webhook) for part in parts)

    def _parts(self, rules: list[object], field: str, depth: int) -> list[Filter]:
        return [self.group(rule, f"{field}[{n}]", depth + 1) for n, rule in enumerate(rules)]

    def _rule(self, rule: dict[str, object], field: str) -> Filter:
        self._rules += 1
        if self._rules > MAX_RULES:
            raise InvalidInput(field, f"a filter has at most {MAX_RULES} rules")
        if unknown := rule.keys() - {"path", "operator", "value"}:
            raise InvalidInput(
                f"{field}.{min(unknown)}", "unknown field: a rule has path, operator and value"
            )
        parts = parse_input(rule.get("path"), f"{field}.path")
        operator = rule.get("operator")
        if operator in ("exists", "not_exists"):
            wanted = operator == "exists"
            return lambda webhook: bool(webhook.find(parts)) is wanted
        if not isinstance(operator, str) or operator not in OPERATORS:
            names = ", ".join([*OPERATORS, "exists", "not_exists"])
            raise InvalidInput(f"{field}.operator", f"must be one of {names}")
        self._regexes += operator == "regex"
        if self._regexes > MAX_REGEXES:
            raise InvalidInput(f"{field}.operator", f"a filter has at most {MAX_REGEXES} regexes")
        if "value" not in rule:
            raise InvalidInput(f"{field}.value", f"{operator} needs a value")
        return _some_or_none(parts, operator, OPERATORS[operator](rule["value"], f"{field}.value"))


def _some_or_none(parts: Parts, operator: str, test: Test) -> Filter:
    """Of several values at a path one must pass; with a negation, none may match."""
    negated = operator.startswith("not_")

    def passes(webhook: Webhook) -> bool:
        for n, value in enumerate(webhook.find(parts)):
            if n % 64 == 0 and time.monotonic() > webhook.deadline:
                raise TooSlow("it took too long")
            if test(value):
                return not negated
        return negated

    return passes


def _same(value: Any, wanted: Any) -> bool:
    """Equality as JSON has it: true is not 1."""
    return value == wanted and isinstance(value, bool) == isinstance(wanted, bool)


def _equals(wanted: Any, field: str) -> Test:
    return lambda value: _same(value, wanted)


def _in(wanted: Any, field: str) -> Test:
    if not isinstance(wanted, list) or len(wanted) > _MAX_OPTIONS:
        raise InvalidInput(field, f"must be a list of at most {_MAX_OPTIONS} values")
    plain = {(isinstance(option, bool), option) for option in wanted if _is_plain(option)}
    others = [option for option in wanted if not _is_plain(option)]

    def test(value: Any) -> bool:
        if _is_plain(value):
            return (isinstance(value, bool), value) in plain
        return any(_same(value, option) for option in others)

    return test


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float | bool)


def _contains(wanted: Any, field: str) -> Test:
    def test(value: Any) -> bool:
        if isinstance(value, str):
            return isinstance(wanted, str) and wanted in value
        if isinstance(value, list):
            return any(_same(member, wanted) for member in value)
        return isinstance(value, dict) and isinstance(wanted, str) and wanted in value

    return test


def _text(wanted: Any, field: str) -> str:
    if not isinstance(wanted, str):
        raise InvalidInput(field, "must be a string")
    return wanted


def _starts_with(wanted: Any, field: str) -> Test:
    prefix = _text(wanted, field)
    return lambda value: isinstance(value, str) and value.startswith(prefix)


def _ends_with(wanted: Any, field: str) -> Test:
    suffix = _text(wanted, field)
    return lambda value: isinstance(value, str) and value.endswith(suffix)


def _regex(wanted: Any, field: str) -> Test:
    pattern = _text(wanted, field)
    if len(pattern) > _MAX_PATTERN:
        raise InvalidInput(field, f"a regex has at most {_MAX_PATTERN} characters")
    options = re2.Options()
    options.max_mem = _REGEX_MEMORY
    options.log_errors = False
    try:
        compiled = re2.compile(pattern, options)
    except (re2.error, UnicodeEncodeError) as error:
        raise InvalidInput(
            field, f"this is not a valid regular expression: {_reason(error)}"
        ) from None
    if compiled.programsize > _MAX_PROGRAM:
        raise InvalidInput(field, "this regex is too large: its repetitions multiply")
    return lambda value: (
        isinstance(value, str) and compiled.search(value[:_MAX_SEARCHED]) is not None
    )


def _reason(error: Exception) -> str:
    first = error.args[0] if error.args else "it does not compile"
    return first.decode(errors="replace") if isinstance(first, bytes) else str(first)


def _ordered(compare: Callable[[Any, Any], bool]) -> Callable[[Any, str], Test]:
    def build(wanted: Any, field: str) -> Test:
        if isinstance(wanted, bool) or not isinstance(wanted, int | float | str):
            raise InvalidInput(field, "must be a number or a string")
        numeric = not isinstance(wanted, str)

        def test(value: Any) -> bool:
            if isinstance(value, bool):
                return False
            fits = isinstance(value, int | float) if numeric else isinstance(value, str)
            return fits and compare(value, wanted)

        return test

    return build


OPERATORS: dict[str, Callable[[Any, str], Test]] = {
    "equals": _equals,
    "not_equals": _equals,
    "in": _in,
    "contains": _contains,
    "not_contains": _contains,
    "starts_with": _starts_with,
    "ends_with": _ends_with,
    "regex": _regex,
    "gt": _ordered(lambda a, b: a > b),
    "gte": _ordered(lambda a, b: a >= b),
    "lt": _ordered(lambda a, b: a < b),
    "lte": _ordered(lambda a, b: a <= b),
}
