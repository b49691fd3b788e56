"""Conditions and updates as Python objects.

    attr("status") == "active"
    absent() | (attr("lease_expires_at") <= now)
    set_to("name", "new"), add("read", 1), remove("pending_flow")

Names are the item's fields; the engines see attribute names, after `resolve`.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import msgspec

from waystation.errors import InvalidRequest
from waystation.store.values import TYPE_NAMES, normalise, type_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from waystation.store.spec import Spec

Comparator = Literal["=", "<>", "<", "<=", ">", ">="]
Segment = str | int

_PART = re.compile(r"([^.\[\]]+)|\[(\d+)\]")
MAX_OPTIONS = 100
MAX_OPERATORS = 295
"""Of an expression: DynamoDB takes 300, and those that hide expired items are beside them."""

_MAX_FUNCTIONS = 50
MAX_EXPRESSION = 4_000
"""Characters of an expression as DynamoDB reads it. It takes 4,096, in which the same is said."""

SURELY_SHORT = 60
"""Operators, or changes of an update, that fit into this however they are written."""


class Path(msgspec.Struct, frozen=True):
    """A place in an item: a field or attribute name, then map keys and list positions.

    An empty path stands for the partition key, which every item has.
    """

    parts: tuple[Segment, ...]

    def resolve(self, spec: Spec) -> Path:
        """The same place by attribute name. Map keys below the field stay as they are."""
        if not self.parts:
            return Path((spec.table.pk.name,))
        field = self.parts[0]
        name = spec.names.get(str(field))
        if name is None:
            raise InvalidRequest(
                f"{spec.item.__name__} has no stored field {field}", field=str(field)
            )
        return Path((name, *self.parts[1:]))

    def __str__(self) -> str:
        text = ".".join(str(p) if isinstance(p, str) else f"[{p}]" for p in self.parts)
        return text.replace(".[", "[")


def path(*parts: Segment) -> Path:
    """A path from a string such as `a.b[0]`, or from separate parts taken literally."""
    if not parts or not isinstance(parts[0], str) or "" in parts:
        raise InvalidRequest("a path starts with a field name")
    if any(not isinstance(part, str) and (type(part) is not int or part < 0) for part in parts):
        raise InvalidRequest("a path continues with names and positions from 0")
    return Path(parts) if len(parts) > 1 else _parsed(parts[0])


@lru_cache(maxsize=4096)
def _parsed(text: str) -> Path:
    found: list[Segment] = []
    at = 0
    for match in _PART.finditer(text):
        if match.start() != at or (match[1] is None and not found):
            raise InvalidRequest(f"{text!r} is not a path", field=text)
        found.append(match[1] if match[1] is not None else int(match[2]))
        at = match.end()
        if at < len(text) - 1 and text[at] == ".":
            at += 1
    if at != len(text):
        raise InvalidRequest(f"{text!r} is not a path", field=text)
    return Path(tuple(found))


class Operand:
    """Something with a value: an attribute, its size, or a calculation on the right-hand side."""

    def resolve(self, spec: Spec) -> Operand:
        raise NotImplementedError

    def __add__(self, other: object) -> Calculation:
        return Calculation("+", self, operand(other))

    def __sub__(self, other: object) -> Calculation:
        return Calculation("-", self, operand(other))


class Constant(Operand):
    """A value given by the caller."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        plain = type(value) is str and value.isascii()  # most are
        self.value: Any = value if plain else normalise(value)

    def resolve(self, spec: Spec) -> Constant:
        return self


def operand(value: object) -> Operand:
    return value if isinstance(value, Operand) else Constant(value)


class _Comparable(Operand):
    """What conditions can compare."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> Compare:  # type: ignore[override]
        return Compare("=", self, operand(other))

    def __ne__(self, other: object) -> Compare:  # type: ignore[override]
        return Compare("<>", self, operand(other))

    def __lt__(self, other: object) -> Compare:
        return Compare("<", self, operand(other))

    def __le__(self, other: object) -> Compare:
        return Compare("<=", self, operand(other))

    def __gt__(self, other: object) -> Compare:
        return Compare(">", self, operand(other))

    def __ge__(self, other: object) -> Compare:
        return Compare(">=", self, operand(other))

    def between(self, low: object, high: object) -> Between:
        return Between(self, Constant(low), Constant(high))

    def is_in(self, options: Iterable[object]) -> In:
        return In(self, [Constant(option) for option in options])


class Attr(_Comparable):
    """An attribute, as `attr("field")` or `attr("map.key[0]")`."""

    __slots__ = ("path",)

    def __init__(self, place: Path) -> None:
        self.path = place

    def resolve(self, spec: Spec) -> Attr:
        return Attr(self.path.resolve(spec))

    def size(self) -> Size:
        """The length of a string (in UTF-16 units), binary, list, map or set."""
        return Size(self.path)

    def exists(self) -> Function:
        return Function("attribute_exists", self.path)

    def absent(self) -> Function:
        return Function("attribute_not_exists", self.path)

    def begins_with(self, prefix: str | bytes) -> Function:
        return Function("begins_with", self.path, Constant(prefix))

    def contains(self, part: object) -> Function:
        return Function("contains", self.path, Constant(part))

    def is_type(self, name: str) -> Function:
        """Whether the attribute is of a DynamoDB type: S, N, B, BOOL, NULL, L, M, SS, NS, BS."""
        return Function("attribute_type", self.path, Constant(name))


class Size(_Comparable):
    """The size of an attribute."""

    __slots__ = ("path",)

    def __init__(self, place: Path) -> None:
        self.path = place

    def resolve(self, spec: Spec) -> Size:
        return Size(self.path.resolve(spec))


def attr(*parts: Segment) -> Attr:
    """An attribute to compare, test or calculate with."""
    return Attr(path(*parts))


class Condition:
    """A test of an item. Combine with `&`, `|` and `~`."""

    def resolve(self, spec: Spec) -> Condition:
        """The same by attribute names; InvalidRequest where it makes no sense, or is too long."""
        operators = _operators(self)
        resolved = self._resolve(spec)
        if operators > SURELY_SHORT:
            # Imported here because that module is about these classes.
            from waystation.store.compile import Expressions

            check_length(Expressions().condition(resolved))
        return resolved

    def _resolve(self, spec: Spec) -> Condition:
        raise NotImplementedError

    def __and__(self, other: Condition) -> Condition:
        return Every([*(self.parts if isinstance(self, Every) else [self]), other])

    def __or__(self, other: Condition) -> Condition:
        return Some([*(self.parts if isinstance(self, Some) else [self]), other])

    def __invert__(self) -> Condition:
        return self.part if isinstance(self, Negation) else Negation(self)

    def __bool__(self) -> NoReturn:
        raise TypeError("a condition has no truth value of its own: combine with &, | and ~")


class Compare(Condition):
    __slots__ = ("left", "op", "right")

    def __init__(self, op: Comparator, left: Operand, right: Operand) -> None:
        self.op = op
        self.left = left
        self.right = right

    def _resolve(self, spec: Spec) -> Condition:
        for side in (self.left, self.right):
            if isinstance(side, Constant):
                _check_ordered(side, self.op)
            elif not isinstance(side, _Comparable):
                raise InvalidRequest("a condition compares attributes, sizes and values only")
        if _place_of(self.left) == _place_of(self.right) is not None:
            raise InvalidRequest("a condition compares an attribute with itself")
        return Compare(self.op, self.left.resolve(spec), self.right.resolve(spec))


def _place_of(side: Operand) -> tuple[type, Path] | None:
    return (type(side), side.path) if isinstance(side, Attr | Size) else None


def _check_ordered(constant: Constant, op: str) -> None:
    if op not in ("=", "<>") and type_of(constant.value) not in ("S", "N", "B"):
        raise InvalidRequest(f"{op} compares only strings, numbers and binary values")


class Between(Condition):
    __slots__ = ("high", "low", "subject")

    def __init__(self, subject: Operand, low: Constant, high: Constant) -> None:
        self.subject = subject
        self.low = low
        self.high = high

    def _resolve(self, spec: Spec) -> Condition:
        _check_ordered(self.low, "between")
        _check_ordered(self.high, "between")
        if type_of(self.low.value) != type_of(self.high.value) or self.low.value > self.high.value:
            raise InvalidRequest("the bounds of between are reversed or of different types")
        return Between(self.subject.resolve(spec), self.low, self.high)


class In(Condition):
    __slots__ = ("options", "subject")

    def __init__(self, subject: Operand, options: list[Constant]) -> None:
        self.subject = subject
        self.options = options

    def _resolve(self, spec: Spec) -> Condition:
        if not 0 < len(self.options) <= MAX_OPTIONS:
            raise InvalidRequest(f"is_in takes 1 to {MAX_OPTIONS} options")
        return In(self.subject.resolve(spec), self.options)


class Function(Condition):
    """A function of one attribute, named as DynamoDB names it."""

    __slots__ = ("argument", "name", "path")

    def __init__(self, name: str, place: Path, argument: Constant | None = None) -> None:
        self.name = name
        self.path = place
        self.argument = argument

    def _resolve(self, spec: Spec) -> Condition:
        if self.name == "begins_with":
            assert self.argument is not None
            if type_of(self.argument.value) not in ("S", "B"):
                raise InvalidRequest("begins_with takes a string or a binary value")
        if self.name == "attribute_type":
            assert self.argument is not None
            if self.argument.value not in TYPE_NAMES:
                raise InvalidRequest(f"is_type takes one of {', '.join(sorted(TYPE_NAMES))}")
        return Function(self.name, self.path.resolve(spec), self.argument)


class Every(Condition):
    __slots__ = ("parts",)

    def __init__(self, parts: list[Condition]) -> None:
        self.parts = parts

    def _resolve(self, spec: Spec) -> Condition:
        return Every([part._resolve(spec) for part in self.parts])


class Some(Condition):
    __slots__ = ("parts",)

    def __init__(self, parts: list[Condition]) -> None:
        self.parts = parts

    def _resolve(self, spec: Spec) -> Condition:
        return Some([part._resolve(spec) for part in self.parts])


class Negation(Condition):
    __slots__ = ("part",)

    def __init__(self, part: Condition) -> None:
        self.part = part

    def _resolve(self, spec: Spec) -> Condition:
        return Negation(self.part._resolve(spec))


def _operators(condition: Condition) -> int:
    """How many operators a condition has, counted as DynamoDB counts them. It is looked through
    without recursion, before anything that could go too deep does."""
    count, waiting = 0, [condition]
    while waiting:
        part = waiting.pop()
        match part:
            case Every() | Some():
                count += len(part.parts) - 1
                waiting += part.parts
            case Negation():
                count += 1
                waiting.append(part.part)
            case Compare():
                count += 1 + isinstance(part.left, Size) + isinstance(part.right, Size)
            case Between() | In():
                count += 1 + isinstance(part.subject, Size)
            case _:
                count += 1
        if count > MAX_OPERATORS:
            raise InvalidRequest(f"an expression has at most {MAX_OPERATORS} operators")
    return count


def check_length(expression: str) -> None:
    if len(expression) > MAX_EXPRESSION:
        raise InvalidRequest(
            f"an expression has at most {MAX_EXPRESSION} characters as DynamoDB reads it; this one "
            f"has {len(expression)}"
        )


def roots(condition: Condition) -> set[Segment]:
    """The attributes that a resolved condition looks at."""
    match condition:
        case Every() | Some():
            return set().union(*(roots(part) for part in condition.parts))
        case Negation():
            return roots(condition.part)
        case Function():
            return {condition.path.parts[0]}
        case Compare():
            sides = [condition.left, condition.right]
        case Between() | In():
            sides = [condition.subject]
        case _:
            raise AssertionError(condition)
    return {side.path.parts[0] for side in sides if isinstance(side, Attr | Size)}


_ITSELF = Path(())


def exists() -> Condition:
    """The item is there."""
    return Function("attribute_exists", _ITSELF)


def absent() -> Condition:
    """The item is not there, or has expired."""
    return Function("attribute_not_exists", _ITSELF)


class Calculation(Operand):
    """`attr("a") + 1` on the right-hand side of `set_to`."""

    __slots__ = ("left", "op", "right")

    def __init__(self, op: Literal["+", "-"], left: Operand, right: Operand) -> None:
        self.op = op
        self.left = left
        self.right = right

    def resolve(self, spec: Spec) -> Operand:
        for side in (self.left, self.right):
            if isinstance(side, Constant) and type_of(side.value) != "N":
                raise InvalidRequest(f"{self.op} calculates with numbers only")
        return Calculation(self.op, self.left.resolve(spec), self.right.resolve(spec))


class IfAbsent(Operand):
    """An attribute's value, or another one where it is missing."""

    __slots__ = ("default", "path")

    def __init__(self, place: Path, default: Operand) -> None:
        self.path = place
        self.default = default

    def resolve(self, spec: Spec) -> Operand:
        return IfAbsent(self.path.resolve(spec), self.default.resolve(spec))


def check_operand(value: Operand) -> None:
    """Refuse a right-hand side that DynamoDB would refuse: one calculation at most, around all the
    rest, and not too many functions in each other. It is looked through without recursion."""
    waiting: list[Operand] = [value]
    functions = 0
    while waiting:
        part = waiting.pop()
        match part:
            case Calculation():
                if part is not value:
                    raise InvalidRequest("a calculation has two operands and is part of nothing")
                waiting += [part.left, part.right]
            case IfAbsent():
                functions += 1
                waiting.append(part.default)
            case Joined():
                functions += 1
                waiting += [part.left, part.right]
        if functions > _MAX_FUNCTIONS:
            raise InvalidRequest(f"a value is made by at most {_MAX_FUNCTIONS} functions")


def if_absent(place: str, default: object) -> IfAbsent:
    return IfAbsent(path(place), operand(default))


class Joined(Operand):
    """Two lists, one after the other."""

    __slots__ = ("left", "right")

    def __init__(self, left: Operand, right: Operand) -> None:
        self.left = left
        self.right = right

    def resolve(self, spec: Spec) -> Operand:
        for side in (self.left, self.right):
            if isinstance(side, Constant) and type_of(side.value) != "L":
                raise InvalidRequest("append and prepend take a list")
        return Joined(self.left.resolve(spec), self.right.resolve(spec))
