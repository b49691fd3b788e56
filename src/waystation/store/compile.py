"""Resolved conditions and updates in DynamoDB's expression language."""

from __future__ import annotations

from typing import TYPE_CHECKING

from waystation.store.expressions import (
    Attr,
    Between,
    Calculation,
    Compare,
    Condition,
    Constant,
    Every,
    Function,
    IfAbsent,
    In,
    Joined,
    Negation,
    Operand,
    Path,
    Size,
    Some,
)
from waystation.store.updates import Add, Assign, Discard, Edit, Remove

if TYPE_CHECKING:
    from collections.abc import Sequence

    from waystation.store.values import Value


class Expressions:
    """Collects the names and values that a request's expressions use."""

    __slots__ = ("_placeholders", "names", "values")

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self.values: dict[str, Value] = {}
        self._placeholders: dict[str, str] = {}

    def name(self, attribute: str) -> str:
        placeholder = self._placeholders.get(attribute)
        if placeholder is None:
            placeholder = self._placeholders[attribute] = f"#{len(self.names)}"
            self.names[placeholder] = attribute
        return placeholder

    def value(self, value: Value) -> str:
        placeholder = f":{len(self.values)}"
        self.values[placeholder] = value
        return placeholder

    def path(self, place: Path) -> str:
        text = ""
        for part in place.parts:
            if isinstance(part, int):
                text += f"[{part}]"
            else:
                text += ("." if text else "") + self.name(part)
        return text

    def condition(self, condition: Condition) -> str:
        match condition:
            case Compare():
                left, right = self._operand(condition.left), self._operand(condition.right)
                return f"{left} {condition.op} {right}"
            case Function():
                return self._test(condition)
            case Every():
                return " AND ".join(self._part(part) for part in condition.parts)
            case Some():
                return " OR ".join(self._part(part) for part in condition.parts)
            case Negation():
                return f"NOT {self._part(condition.part)}"
            case Between():
                low, high = self.value(condition.low.value), self.value(condition.high.value)
                return f"{self._operand(condition.subject)} BETWEEN {low} AND {high}"
            case In():
                options = ", ".join(self.value(option.value) for option in condition.options)
                return f"{self._operand(condition.subject)} IN ({options})"
        raise AssertionError(condition)

    def _part(self, condition: Condition) -> str:
        """Parentheses only where they are needed: DynamoDB refuses redundant ones."""
        text = self.condition(condition)
        return f"({text})" if isinstance(condition, Every | Some) else text

    def _test(self, test: Function) -> str:
        if test.argument is None:
            return f"{test.name}({self.path(test.path)})"
        return f"{test.name}({self.path(test.path)}, {self.value(test.argument.value)})"

    def update(self, changes: Sequence[Edit]) -> str:
        clauses: dict[str, list[str]] = {}
        for change in changes:
            place = self.path(change.path)
            match change:
                case Assign():
                    clauses.setdefault("SET", []).append(f"{place} = {self._operand(change.value)}")
                case Add():
                    clauses.setdefault("ADD", []).append(
                        f"{place} {self.value(change.value.value)}"
                    )
                case Discard():
                    members = self.value(change.value.value)
                    clauses.setdefault("DELETE", []).append(f"{place} {members}")
                case Remove():
                    clauses.setdefault("REMOVE", []).append(place)
        return " ".join(f"{verb} {', '.join(parts)}" for verb, parts in clauses.items())

    def _operand(self, source: Operand) -> str:
        match source:
            case Constant():
                return self.value(source.value)
            case Attr():
                return self.path(source.path)
            case Size():
                return f"size({self.path(source.path)})"
            case IfAbsent():
                return f"if_not_exists({self.path(source.path)}, {self._operand(source.default)})"
            case Calculation():
                return f"{self._operand(source.left)} {source.op} {self._operand(source.right)}"
            case Joined():
                return f"list_append({self._operand(source.left)}, {self._operand(source.right)})"
        raise AssertionError(source)
