"""The changes an update can make."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from waystation.errors import InvalidRequest
from waystation.store.expressions import (
    Attr,
    Calculation,
    Constant,
    IfAbsent,
    Joined,
    Operand,
    Path,
    check_operand,
    operand,
    path,
)
from waystation.store.values import type_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from waystation.store.spec import Spec


class Edit:
    """One change of an update. Every right-hand side reads the item as it was before."""

    path: Path

    def resolve(self, spec: Spec) -> Edit:
        raise NotImplementedError


class Assign(Edit):
    __slots__ = ("path", "value")

    def __init__(self, place: Path, value: Operand) -> None:
        self.path = place
        self.value = value

    def resolve(self, spec: Spec) -> Assign:
        check_operand(self.value)
        if len(self.path.parts) == 1:
            for constant in _constants(self.value):
                _check_type(spec, str(self.path.parts[0]), constant)
            _check_source(spec, str(self.path.parts[0]), self.value)
        return Assign(self.path.resolve(spec), self.value.resolve(spec))


def _constants(value: Operand) -> list[Constant]:
    """The values that a right-hand side may put into its attribute."""
    match value:
        case Constant():
            return [value]
        case IfAbsent():
            return _constants(value.default)
        case Joined() | Calculation():
            return _constants(value.left) + _constants(value.right)
    return []


def _check_source(spec: Spec, field: str, value: Operand) -> None:
    """Refuse to copy a field into one of another type."""
    if not isinstance(value, Attr) or len(value.path.parts) > 1:
        return
    source, target = spec.field_types.get(str(value.path.parts[0])), spec.field_types.get(field)
    if source is not None and target not in (None, Any, source):
        raise InvalidRequest(f"{value.path} has another type than {field}", field=field)


def _check_type(spec: Spec, field: str, constant: Constant) -> None:
    kind = spec.field_types.get(field)
    if kind is None:
        return  # resolve refuses it by name
    try:
        msgspec.convert(constant.value, kind)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"{field}: {error}", field=field) from None


def is_by_itself(change: Edit) -> bool:
    """Whether a change looks at no other attribute than its own."""
    if not isinstance(change, Assign):
        return True
    value = change.value
    if isinstance(value, IfAbsent):
        return value.path == change.path and isinstance(value.default, Constant)
    return isinstance(value, Constant)


class Add(Edit):
    """Add to a number, or members to a set; a missing attribute counts as 0 or empty."""

    __slots__ = ("path", "value")

    def __init__(self, place: Path, value: Constant) -> None:
        self.path = place
        self.value = value

    def resolve(self, spec: Spec) -> Add:
        if len(self.path.parts) == 1:
            _check_type(spec, str(self.path.parts[0]), self.value)
        return Add(self.path.resolve(spec), self.value)


class Remove(Edit):
    __slots__ = ("path",)

    def __init__(self, place: Path) -> None:
        self.path = place

    def resolve(self, spec: Spec) -> Remove:
        field = self.path.parts[0]
        if len(self.path.parts) == 1 and field in spec.required:
            raise InvalidRequest(f"{field} is required and cannot be removed", field=str(field))
        return Remove(self.path.resolve(spec))


class Discard(Edit):
    """Remove members from a set; the last one takes the attribute with it."""

    __slots__ = ("path", "value")

    def __init__(self, place: Path, value: Constant) -> None:
        self.path = place
        self.value = value

    def resolve(self, spec: Spec) -> Discard:
        return Discard(self.path.resolve(spec), self.value)


def set_to(place: str | Path, value: object) -> Edit:
    """Set an attribute to a value, or to a calculation such as `attr("a") + 1`."""
    return Assign(_place(place), operand(value))


def set_or_remove(place: str | Path, value: object) -> Edit:
    """Set an attribute, or remove it where there is no value."""
    return remove(place) if value is None else set_to(place, value)


def set_if_absent(place: str | Path, value: object) -> Edit:
    """Set an attribute unless it is there already."""
    return Assign(_place(place), IfAbsent(_place(place), Constant(value)))


def add(place: str | Path, number: object) -> Edit:
    """Add to a number; a missing one counts as 0."""
    constant = Constant(number)
    if type_of(constant.value) != "N":
        raise InvalidRequest("add takes a number", field=str(place))
    return Add(_place(place), constant)


def add_to_set(place: str | Path, members: Iterable[object]) -> Edit:
    """Add members to a set; a missing one counts as empty."""
    return Add(_place(place), Constant(set(members)))


def remove_from_set(place: str | Path, members: Iterable[object]) -> Edit:
    """Take members out of a set."""
    return Discard(_place(place), Constant(set(members)))


def remove(place: str | Path) -> Edit:
    """Remove an attribute, a map key or a list element."""
    return Remove(_place(place))


def append(place: str | Path, values: Sequence[object]) -> Edit:
    """Add to the end of a list; a missing one counts as empty."""
    where = _place(place)
    return Assign(where, Joined(IfAbsent(where, Constant([])), Constant(list(values))))


def prepend(place: str | Path, values: Sequence[object]) -> Edit:
    """Add to the front of a list; a missing one counts as empty."""
    where = _place(place)
    return Assign(where, Joined(Constant(list(values)), IfAbsent(where, Constant([]))))


def _place(place: str | Path) -> Path:
    return place if isinstance(place, Path) else path(place)


def check_overlaps(changes: Iterable[Edit]) -> None:
    """Refuse two changes of one place, or of a place and something inside it."""
    changes = list(changes)
    if len({change.path.parts[0] for change in changes}) == len(changes):
        return  # the usual case: each changes an attribute of its own
    taken: list[tuple[str | int, ...]] = []
    for change in changes:
        parts = change.path.parts
        for other in taken:
            shorter = min(len(parts), len(other))
            if parts[:shorter] == other[:shorter]:
                raise InvalidRequest(
                    f"two changes overlap at {change.path}", field=str(change.path)
                )
            if len(parts) >= shorter and _mixed(parts, other):
                raise InvalidRequest(f"{change.path} is used as a list and as a map")
        taken.append(parts)


def _mixed(left: tuple[str | int, ...], right: tuple[str | int, ...]) -> bool:
    """Whether two paths agree up to a point where one names a key and the other a position."""
    for a, b in zip(left, right, strict=False):
        if a != b:
            return isinstance(a, str) != isinstance(b, str)
    return False
