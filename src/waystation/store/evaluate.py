"""Conditions and updates carried out on an item in memory, with DynamoDB's semantics."""

from __future__ import annotations

import copy
import operator
from typing import TYPE_CHECKING, Any

from waystation.errors import InvalidRequest
from waystation.store import numbers
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
from waystation.store.values import RawItem, Value, same, type_of

if TYPE_CHECKING:
    from collections.abc import Sequence

_MISSING: Any = object()
_ORDER = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_ORDERED = ("S", "N", "B")
_NO_ITEM: RawItem = {}


def holds(condition: Condition, item: RawItem | None) -> bool:
    """Whether a resolved condition holds for an item, or for no item."""
    return _holds(condition, _NO_ITEM if item is None else item)


def _holds(condition: Condition, item: RawItem) -> bool:
    match condition:
        case Compare():
            return _compare(condition.op, _read(condition.left, item), _read(condition.right, item))
        case Function():
            return _test(condition, _at(condition.path, item))
        case Every():
            return all(_holds(part, item) for part in condition.parts)
        case Some():
            return any(_holds(part, item) for part in condition.parts)
        case Negation():
            return not _holds(condition.part, item)
        case Between():
            value = _read(condition.subject, item)
            low, high = condition.low.value, condition.high.value
            return _compare(">=", value, low) and _compare("<=", value, high)
        case In():
            value = _read(condition.subject, item)
            return any(_compare("=", value, option.value) for option in condition.options)
    raise AssertionError(condition)


def _compare(op: str, left: Value, right: Value) -> bool:
    if op == "<>":
        return not _compare("=", left, right)
    if left is _MISSING or right is _MISSING:
        return False
    if op == "=":
        return same(left, right)
    kind = type_of(left)
    if kind != type_of(right) or kind not in _ORDERED:
        return False
    return bool(_ORDER[op](left, right))  # texts by code point, which is UTF-8 order


def _test(test: Function, value: Value) -> bool:
    if test.name == "attribute_not_exists":
        return value is _MISSING
    if value is _MISSING:
        return False
    if test.name == "attribute_exists":
        return True
    assert test.argument is not None
    argument = test.argument.value
    kind = type_of(value)
    if test.name == "attribute_type":
        return bool(kind == argument)
    if test.name == "begins_with":
        return kind == type_of(argument) and bool(value.startswith(argument))
    return _contains(kind, value, argument)


def _contains(kind: str, value: Value, part: Value) -> bool:
    if kind in ("S", "B"):
        return type_of(part) == kind and part in value
    if kind == "L":
        return any(same(member, part) for member in value)
    if kind in ("SS", "NS", "BS"):
        return type_of(part) == kind[0] and part in value
    return False


def _read(source: Operand, item: RawItem) -> Value:
    """An operand of a condition: a missing attribute is _MISSING."""
    if isinstance(source, Constant):
        return source.value
    if isinstance(source, Attr):
        return _at(source.path, item)
    assert isinstance(source, Size)
    value = _at(source.path, item)
    if value is _MISSING:
        return _MISSING
    kind = type_of(value)
    if kind == "S":
        return len(value) if value.isascii() else len(value.encode("utf-16-le")) // 2
    return _MISSING if kind in ("N", "BOOL", "NULL") else len(value)


def _at(place: Path, item: RawItem) -> Value:
    value: Value = item
    for part in place.parts:
        if isinstance(part, str):
            if type(value) is not dict or part not in value:
                return _MISSING
        elif type(value) is not list or part >= len(value):
            return _MISSING
        value = value[part]
    return value


def creates(changes: Sequence[Edit]) -> bool:
    """Whether an update makes an item of nothing. One that only takes away does not."""
    return not changes or not all(isinstance(change, Remove | Discard) for change in changes)


def apply_changes(changes: Sequence[Edit], old: RawItem | None, key: RawItem) -> RawItem:
    """The item after an update of an item, or of nothing."""
    before = _NO_ITEM if old is None else old
    if all(len(change.path.parts) == 1 for change in changes):
        return _replaced(changes, before, key if old is None else old)
    after: RawItem = {**key} if old is None else copy.deepcopy(old)
    removed: list[Path] = []
    for change in sorted(changes, key=_position):
        match change:
            case Assign():
                _store(change.path, after, _value(change.value, before))
            case Add():
                _store(change.path, after, _added(_at(change.path, before), change.value.value))
            case Discard():
                rest = _discarded(_at(change.path, before), change.value.value)
                if rest is _MISSING:
                    _parent(change.path, after)
                elif rest:
                    _store(change.path, after, rest)
                else:
                    removed.append(change.path)
            case Remove():
                removed.append(change.path)
    for place in reversed(removed):  # higher list positions first, so that the lower stay right
        _drop(place, after)
    return after


def _replaced(changes: Sequence[Edit], before: RawItem, start: RawItem) -> RawItem:
    """An update of whole attributes only, which leaves the insides of the others alone."""
    after = dict(start)
    for change in changes:
        name = change.path.parts[0]
        assert isinstance(name, str)
        match change:
            case Assign():
                after[name] = _value(change.value, before)
            case Add():
                after[name] = _added(before.get(name, _MISSING), change.value.value)
            case Discard():
                rest = _discarded(before.get(name, _MISSING), change.value.value)
                if rest is not _MISSING and rest:
                    after[name] = rest
                elif rest is not _MISSING:
                    after.pop(name, None)
            case Remove():
                after.pop(name, None)
    return after


def _position(change: Edit) -> list[tuple[int, str]]:
    """Sorts list positions upwards, whatever order the caller named them in."""
    return [(p, "") if isinstance(p, int) else (0, p) for p in change.path.parts]


def _value(source: Operand, before: RawItem) -> Value:
    match source:
        case Constant():
            return source.value
        case Attr():
            value = _at(source.path, before)
            if value is _MISSING:
                raise InvalidRequest(f"{source.path} does not exist", field=str(source.path))
            return value
        case IfAbsent():
            value = _at(source.path, before)
            return _value(source.default, before) if value is _MISSING else value
        case Calculation():
            left, right = _value(source.left, before), _value(source.right, before)
            if type_of(left) != "N" or type_of(right) != "N":
                raise InvalidRequest(f"{source.op} calculates with numbers only")
            return numbers.add(left, right if source.op == "+" else numbers.negate(right))
        case Joined():
            left, right = _value(source.left, before), _value(source.right, before)
            if type_of(left) != "L" or type_of(right) != "L":
                raise InvalidRequest("append and prepend need a list")
            return left + right
    raise InvalidRequest("a size cannot be stored")


def _added(old: Value, more: Value) -> Value:
    if old is _MISSING:
        return more
    if type_of(old) != type_of(more):
        raise InvalidRequest(f"cannot add {type_of(more)} to {type_of(old)}")
    return old | more if type(old) is set else numbers.add(old, more)


def _discarded(old: Value, members: Value) -> Value:
    if old is _MISSING:
        return _MISSING
    if type_of(old) != type_of(members):
        raise InvalidRequest(f"cannot remove {type_of(members)} from {type_of(old)}")
    return old - members


def _parent(place: Path, item: RawItem) -> Value:
    """The map or list that holds the place's last part."""
    parent = _at(Path(place.parts[:-1]), item)
    wanted = dict if isinstance(place.parts[-1], str) else list
    if type(parent) is not wanted:
        raise InvalidRequest(f"{place} is not a place in this item", field=str(place))
    return parent


def _store(place: Path, item: RawItem, value: Value) -> None:
    parent, last = _parent(place, item), place.parts[-1]
    if isinstance(last, int) and last >= len(parent):
        parent.append(value)
    else:
        parent[last] = value


def _drop(place: Path, item: RawItem) -> None:
    parent, last = _parent(place, item), place.parts[-1]
    if isinstance(last, str):
        parent.pop(last, None)
    elif last < len(parent):
        del parent[last]
