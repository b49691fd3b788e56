"""JMESPath with bounds.

An expression is refused when what it could make of its input grows too far, and stopped when it
has used up its budget: a few characters such as `[@,@]|[@,@]|…` would otherwise fill the memory.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import jmespath
import msgspec
from jmespath.exceptions import JMESPathError
from jmespath.functions import Functions
from jmespath.parser import Parser
from jmespath.visitor import TreeInterpreter

if TYPE_CHECKING:
    from waystation.relay.rules.budget import Budget

MAX_EXPRESSION = 2_000
_VISIT_STEPS = 3
_FUNCTION_STEPS = 4
"""What they cost in comparison with a step of a filter."""

_MAX_GROWTH = 1_000
_MAX_SPELT_OUT = 2
"""Growth of what is written out or compared as a whole, rather than referred to."""

_MAX_GLUE = 16
_ONE_TO_ONE = (1, 0)
_WRITTEN = frozenset({"to_string", "join"})
_MAX_WRITTEN = 30_000
_PLAIN = frozenset(
    {
        *("field", "subexpression", "index", "index_expression", "identity", "current", "pipe"),
        *("multi_select_list", "multi_select_dict", "key_val_pair"),
    }
)


class TooMuch(ValueError):
    """The expression would do more than it may."""


@lru_cache(maxsize=1024)
def compile_expression(text: str) -> dict[str, Any]:
    """A parsed expression; ValueError says what is wrong with it."""
    if not 0 < len(text) <= MAX_EXPRESSION:
        raise ValueError(f"an expression has 1 to {MAX_EXPRESSION} characters")
    try:
        parsed: Any = Parser().parse(text).parsed
        growth = _growth(parsed)[0]
    except JMESPathError as error:
        raise ValueError(
            f"this is not a valid JMESPath expression: {str(error).splitlines()[0]}"
        ) from None
    except RecursionError:
        raise TooMuch("the expression is nested too deeply") from None
    if growth > _MAX_GROWTH:
        raise TooMuch("the expression repeats its input too often")
    tree: dict[str, Any] = parsed
    return tree


def search(text: str, value: Any, budget: Budget) -> Any:
    """What an expression finds; ValueError when it fails."""
    try:
        return _Paying(budget).visit(compile_expression(text), value)
    except (JMESPathError, RecursionError, TypeError) as error:
        raise ValueError(f"jmespath: {error}") from None


class _Paying(TreeInterpreter):
    """An interpreter that pays for its steps, also those that are hidden in functions."""

    def __init__(self, budget: Budget) -> None:
        self._functions: Functions = Functions()
        super().__init__(jmespath.Options(custom_functions=self._functions))
        self._budget = budget

    def visit(self, node: Any, *args: Any, **kwargs: Any) -> Any:
        self._budget.spend(_VISIT_STEPS)
        return super().visit(node, *args, **kwargs)

    def visit_function_expression(self, node: Any, value: Any) -> Any:
        """A function looks at everything it is given, and checks the type of each element."""
        arguments = [self.visit(child, value) for child in node["children"]]
        if node["value"] in _WRITTEN:
            self._budget.spend(sum(_depth_size(argument) for argument in arguments))
        self._budget.spend(sum(map(_length, arguments)) * _FUNCTION_STEPS)
        result = self._functions.call_function(node["value"], arguments)
        self._budget.look()
        return result

    def visit_flatten(self, node: Any, value: Any) -> Any:
        base = self.visit(node["children"][0], value)
        if not isinstance(base, list):
            return None
        self._budget.spend(sum(map(_length, base)) + len(base))
        flat: list[Any] = []
        for element in base:
            if isinstance(element, list):
                flat.extend(element)
            else:
                flat.append(element)
        return flat

    def visit_slice(self, node: Any, value: Any) -> Any:
        self._budget.spend(_length(value))
        return super().visit_slice(node, value)


def _depth_size(value: Any) -> int:
    """About how many values are written out; TooMuch when they are too many for one piece of work
    that nothing else can interrupt."""
    size, stack = 0, [value]
    while stack:
        found = stack.pop()
        size += 1 + (len(found) // 8 if isinstance(found, str) else 0)
        if size > _MAX_WRITTEN:
            raise TooMuch("jmespath: too much is turned into text")
        if isinstance(found, list):
            stack.extend(found)
        elif isinstance(found, dict):
            stack.extend(found.values())
    return size


def is_plain(text: str) -> bool:
    """Whether an expression only picks from its input: no literals, loops or functions, whose cost
    does not follow from the size of the body."""
    return _is_plain(compile_expression(text))


def _is_plain(node: Any) -> bool:
    if node["type"] == "slice":
        return False
    return node["type"] in _PLAIN and all(_is_plain(child) for child in node.get("children", []))


def _length(value: Any) -> int:
    """How many elements there are to look at."""
    if isinstance(value, str):
        return 1 + len(value) // 64
    return len(value) if isinstance(value, list | dict) else 1


def _growth(node: dict[str, Any]) -> tuple[int, int]:
    """How large a result can get: a multiple of its input, and a constant on top."""
    kind = node["type"]
    if kind == "slice":
        return _ONE_TO_ONE
    parts = [_growth(child) for child in node.get("children", [])]
    if kind == "literal":
        return 0, len(msgspec.json.encode(node["value"]))
    if kind in ("multi_select_list", "multi_select_dict"):
        return sum(a for a, _ in parts), sum(b for _, b in parts) + 2 * len(parts)
    if kind in ("projection", "value_projection", "filter_projection"):
        return _for_each(parts[0], parts[1])
    if kind in ("pipe", "subexpression", "index_expression"):
        times, more = _ONE_TO_ONE
        for a, b in parts:
            times, more = times * a, more * a + b
        return times, more
    if kind == "comparator":
        _spelt_out(parts)
        return 0, 5
    if kind == "function_expression":
        return _function(node, parts)
    if not parts:
        return _ONE_TO_ONE
    return max(a for a, _ in parts), max(b for _, b in parts)


def _for_each(listed: tuple[int, int], element: tuple[int, int]) -> tuple[int, int]:
    each = max(1, element[0] + element[1])  # an element has at least one character
    return listed[0] * each, listed[1] * each


def _function(node: dict[str, Any], parts: list[tuple[int, int]]) -> tuple[int, int]:
    name = node["value"]
    _check_call(name, len(parts))
    if name == "map" and len(parts) == 2:
        return _for_each(parts[1], parts[0])
    if name in _WRITTEN:
        _spelt_out(parts)
    if name == "join":
        glue = node["children"][0] if node["children"] else {}
        if glue.get("type") != "literal" or len(str(glue.get("value"))) > _MAX_GLUE:
            raise TooMuch(f"join takes a literal of at most {_MAX_GLUE} characters")
        return _MAX_GLUE * sum(a for a, _ in parts), sum(b for _, b in parts) * _MAX_GLUE
    return max(1, sum(a for a, _ in parts)), sum(b for _, b in parts)


def _check_call(name: str, arguments: int) -> None:
    known = Functions.FUNCTION_TABLE.get(name)
    if known is None:
        raise ValueError(f"there is no function {name}")
    wanted = known["signature"]
    several = bool(wanted) and wanted[-1].get("variadic", False)
    if arguments < len(wanted) or (arguments > len(wanted) and not several):
        raise ValueError(f"{name} takes {len(wanted)} arguments")


def _spelt_out(parts: list[tuple[int, int]]) -> None:
    if any(a > _MAX_SPELT_OUT for a, _ in parts):
        raise TooMuch("what is compared or turned into text repeats its input too often")
