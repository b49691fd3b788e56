"""Filters: which webhooks a connection wants.

Rules are compiled once, when a connection is written; what does not compile is refused there.
Regular expressions run on RE2, whose time grows with the text only.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgspec
import re2

from waystation.errors import InvalidInput
from waystation.relay.rules.budget import Budget
from waystation.relay.rules.paths import Parts, Webhook, parse_input

MAX_RULES = 100
MAX_REGEXES = 20
MAX_DEPTH = 8
_MAX_PATTERN = 1_000
_MAX_PROGRAM = 1_000
_MAX_SEARCHED = 64 * 1024
_MAX_OPTIONS = 500
_REGEX_MEMORY = 1 << 18
_BYTES_A_STEP = 64
"""What searching a string costs, and how much a regex's own size adds to it."""

Test = Callable[[Any, Budget], bool]
Rule = Callable[[Webhook, Budget], bool]


class BodyUnreadable(Exception):
    """A filter looks at a body that we cannot read."""


class Filter:
    """Compiled rules. `weight` is how many there are."""

    def __init__(self, rule: Rule, *, weight: int, looks_at_body: bool) -> None:
        self._rule = rule
        self.weight = weight
        self._looks_at_body = looks_at_body

    def passes(self, webhook: Webhook, budget: Budget) -> bool:
        """Whether a webhook is wanted. Nothing that looks at the body matches one that cannot be
        read, not even a negation: its receiver may read it otherwise."""
        if self._looks_at_body and not webhook.readable:
            raise BodyUnreadable("the body cannot be read, and the filter looks at it")
        return self._rule(webhook, budget)


def compile_filter(rules: object, field: str = "filters") -> Filter:
    """The filter that rules describe, or a refusal that names the part that is wrong."""
    compiler = _Compiler()
    rule = compiler.group(rules, field, 0)
    return Filter(rule, weight=compiler.rules, looks_at_body=compiler.looks_at_body)


@lru_cache(maxsize=256)
def stored_filter(text: str) -> Filter:
    """The filter of a connection, from its stored JSON."""
    return compile_filter(msgspec.json.decode(text))


class _Compiler:
    def __init__(self) -> None:
        self.rules = 0
        self.looks_at_body = False
        self._regexes = 0

    def group(self, rules: object, field: str, depth: int) -> Rule:
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
            return lambda webhook, budget: not inner(webhook, budget)
        if not isinstance(rules[kind], list):
            raise InvalidInput(inside, "must be a list of rules")
        if kind == "all":
            return self._all(rules["all"], inside, depth)
        parts = self._parts(rules["any"], inside, depth)
        return lambda webhook, budget: any(part(webhook, budget) for part in parts)

    def _all(self, rules: list[object], field: str, depth: int) -> Rule:
        parts = self._parts(rules, field, depth)
        return lambda webhook, budget: all(part(webhook, budget) for part in parts)

    def _parts(self, rules: list[object], field: str, depth: int) -> list[Rule]:
        return [self.group(rule, f"{field}[{n}]", depth + 1) for n, rule in enumerate(rules)]

    def _rule(self, rule: dict[str, object], field: str) -> Rule:
        self.rules += 1
        if self.rules > MAX_RULES:
            raise InvalidInput(field, f"a filter has at most {MAX_RULES} rules")
        if unknown := rule.keys() - {"path", "operator", "value"}:
            raise InvalidInput(
                f"{field}.{min(unknown)}", "unknown field: a rule has path, operator and value"
            )
        parts = parse_input(rule.get("path"), f"{field}.path")
        self.looks_at_body |= parts[0] == "body"
        operator = rule.get("operator")
        if operator in ("exists", "not_exists"):
            wanted = operator == "exists"
            return lambda webhook, budget: bool(webhook.find(parts, budget)) is wanted
        if not isinstance(operator, str) or operator not in OPERATORS:
            names = ", ".join([*OPERATORS, "exists", "not_exists"])
            raise InvalidInput(f"{field}.operator", f"must be one of {names}")
        self._regexes += operator == "regex"
        if self._regexes > MAX_REGEXES:
            raise InvalidInput(f"{field}.operator", f"a filter has at most {MAX_REGEXES} regexes")
        if "value" not in rule:
            raise InvalidInput(f"{field}.value", f"{operator} needs a value")
        return _some_or_none(parts, operator, OPERATORS[operator](rule["value"], f"{field}.value"))


def _some_or_none(parts: Parts, operator: str, test: Test) -> Rule:
    """Of several values at a path one must pass; with a negation, none may match."""
    negated = operator.startswith("not_")

    def passes(webhook: Webhook, budget: Budget) -> bool:
        for value in webhook.find(parts, budget):
            budget.spend()
            if test(value, budget):
                return not negated
        return negated

    return passes


def _same(value: Any, wanted: Any) -> bool:
    """Equality as JSON has it: true is not 1."""
    return value == wanted and isinstance(value, bool) == isinstance(wanted, bool)


def _equals(wanted: Any, field: str) -> Test:
    return lambda value, budget: _same(value, wanted)


def _in(wanted: Any, field: str) -> Test:
    if not isinstance(wanted, list) or len(wanted) > _MAX_OPTIONS:
        raise InvalidInput(field, f"must be a list of at most {_MAX_OPTIONS} values")
    plain = {(isinstance(option, bool), option) for option in wanted if _is_plain(option)}
    others = [option for option in wanted if not _is_plain(option)]

    def test(value: Any, budget: Budget) -> bool:
        if _is_plain(value):
            return (isinstance(value, bool), value) in plain
        budget.spend(len(others))
        return any(_same(value, option) for option in others)

    return test


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float | bool)


def _contains(wanted: Any, field: str) -> Test:
    def test(value: Any, budget: Budget) -> bool:
        if isinstance(value, str):
            budget.spend(len(value) // _BYTES_A_STEP)
            return isinstance(wanted, str) and wanted in value
        if isinstance(value, list):
            budget.spend(len(value))
            return any(_same(member, wanted) for member in value)
        return isinstance(value, dict) and isinstance(wanted, str) and wanted in value

    return test


def _text(wanted: Any, field: str) -> str:
    if not isinstance(wanted, str):
        raise InvalidInput(field, "must be a string")
    return wanted


def _starts_with(wanted: Any, field: str) -> Test:
    prefix = _text(wanted, field)
    return lambda value, budget: isinstance(value, str) and value.startswith(prefix)


def _ends_with(wanted: Any, field: str) -> Test:
    suffix = _text(wanted, field)
    return lambda value, budget: isinstance(value, str) and value.endswith(suffix)


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
    weight = 1 + compiled.programsize // 16

    def test(value: Any, budget: Budget) -> bool:
        if not isinstance(value, str):
            return False
        searched = value[:_MAX_SEARCHED]
        budget.spend(1 + len(searched) * weight // _BYTES_A_STEP)
        return compiled.search(searched) is not None

    return test


def _reason(error: Exception) -> str:
    first = error.args[0] if error.args else "it does not compile"
    return first.decode(errors="replace") if isinstance(first, bytes) else str(first)


def _ordered(compare: Callable[[Any, Any], bool]) -> Callable[[Any, str], Test]:
    def build(wanted: Any, field: str) -> Test:
        if isinstance(wanted, bool) or not isinstance(wanted, int | float | str):
            raise InvalidInput(field, "must be a number or a string")
        numeric = not isinstance(wanted, str)

        def test(value: Any, budget: Budget) -> bool:
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
