"""Writes: what callers ask for, and the resolved form that engines carry out."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

import msgspec

from waystation.errors import InvalidRequest
from waystation.store import evaluate
from waystation.store.compile import Expressions
from waystation.store.expressions import (
    SURELY_SHORT,
    Condition,
    Constant,
    Path,
    absent,
    attr,
    check_length,
    roots,
)
from waystation.store.items import Item
from waystation.store.spec import Key, check_index_keys
from waystation.store.updates import (
    Add,
    Assign,
    Edit,
    Remove,
    add,
    check_overlaps,
    is_by_itself,
    set_if_absent,
)
from waystation.store.values import RawItem, check_depth

if TYPE_CHECKING:
    from waystation.store.spec import IndexTemplates, Spec

I_co = TypeVar("I_co", bound="Item", covariant=True)


class Put(Generic[I_co]):
    """Write a whole item."""

    __slots__ = ("item", "when")

    def __init__(self, item: I_co, *, when: Condition | None = None) -> None:
        self.item = item
        self.when = when


class Update(Generic[I_co]):
    """Change some attributes of an item, creating it when absent."""

    __slots__ = ("changes", "key", "when")

    def __init__(self, key: Key[I_co], *changes: Edit, when: Condition | None = None) -> None:
        self.key = key
        self.changes = changes
        self.when = when


class Delete(Generic[I_co]):
    """Remove an item; removing an absent one succeeds."""

    __slots__ = ("key", "when")

    def __init__(self, key: Key[I_co], *, when: Condition | None = None) -> None:
        self.key = key
        self.when = when


class Check(Generic[I_co]):
    """Write nothing, but cancel the transaction unless the condition holds."""

    __slots__ = ("key", "when")

    def __init__(self, key: Key[I_co], when: Condition) -> None:
        self.key = key
        self.when = when


class Revise(Generic[I_co]):
    """Make of an item that was read what it is to be: only what differs is written, so that what
    others have put beside it stays. An absent item is not created.

    This is the quick way to change an item again and again: where SQLite finds it just as it was
    read, nothing is worked out but the new row. `since` is the write that has made `before` what it
    is, where the caller has it and has changed nothing of it meanwhile: then even less.
    """

    __slots__ = ("after", "before", "since", "when")

    def __init__(
        self, before: I_co, after: I_co, *, when: Condition, since: Write | None = None
    ) -> None:
        self.before = before
        self.after = after
        self.when = when
        self.since = since


Action = Put[Any] | Update[Any] | Delete[Any] | Check[Any] | Revise[Any]


class Write(msgspec.Struct, eq=False, gc=False):
    """An action with attribute names for field names, checked as far as it can be beforehand.

    A put has the typed item as its `source`, and what is stored for it as its `item` once
    somebody asks. A `revision` has the item before and after it, and its `changes` likewise.
    """

    kind: Literal["put", "update", "delete", "check"]
    key: Key[Any]
    condition: Condition | None
    given: tuple[Edit, ...] = ()
    """What an update changes, unless it is a revision."""

    source: Item | None = None
    creates: bool = False
    """Whether the write makes an item of nothing."""

    revision: tuple[Item, Item] | None = None
    makes: Item | None = None
    """The caller's own item that this makes."""

    state: bytes | None = None
    """How an engine has packed that, once one has."""

    packed: Any = None
    """How another process gets it, once one has."""

    like: tuple[Write, Sequence[int]] | None = None
    """The update that it is like, but for these numbers and its condition."""

    was: bytes | None = None
    """How it has packed what a revision begins with, where that is known."""

    _changes: tuple[Edit, ...] | None = None
    _item: RawItem | None = None
    _avoids: bool | None = None

    @property
    def place(self) -> tuple[str, Any, Any]:
        return self.key.place

    @property
    def changes(self) -> tuple[Edit, ...]:
        """What an update changes."""
        if self.revision is None:
            return self.given
        if self._changes is None:
            self._changes = _differences(*self.revision)
        return self._changes

    def avoids(self, names: frozenset[str]) -> bool:
        """Whether an update neither reads nor writes attributes that its table keeps apart."""
        if self._avoids is None:
            read = set() if self.condition is None else roots(self.condition)
            self._avoids = names.isdisjoint(read) and all(
                change.path.parts[0] not in names and is_by_itself(change)
                for change in self.changes
            )
        return self._avoids

    @property
    def item(self) -> RawItem | None:
        """What a put stores."""
        if self._item is None and self.source is not None:
            spec = self.key.spec
            self._item = spec.encode(self.key, self.source)
            if spec.version is not None:
                self._item[spec.names[spec.version]] = getattr(self.source, spec.version) + 1
        return self._item

    def allows_absent(self) -> bool:
        """Whether the condition holds for an item that is not there."""
        return self.condition is None or evaluate.holds(self.condition, None)

    def outcome(self, old: RawItem | None) -> RawItem | None:
        """The item after this write, given the item before it."""
        if self.kind == "put":
            return self.item
        if self.kind == "check":
            return old
        if self.kind == "delete":
            return None
        if old is None and not self.creates:
            return None
        new = evaluate.apply_changes(self.changes, old, self.key.attributes())
        check_index_keys(self.key.spec.table, new)
        check_depth(new)
        return new


def with_sums(template: Write, sums: Sequence[int], condition: Condition | None) -> Write:
    """An update like another one whose first changes are additions, with other numbers in them."""
    return like(
        template, sums, None if condition is None else resolved(condition, template.key.spec)
    )


def like(template: Write, sums: Sequence[int], condition: Condition | None) -> Write:
    """The same with a condition that is resolved."""
    adds = [Add(c.path, Constant(n)) for c, n in zip(template.changes, sums, strict=False)]
    write = Write(
        "update",
        template.key,
        condition,
        given=(*adds, *template.changes[len(sums) :]),
        creates=template.creates,
    )
    write.like = template, sums
    return write


def prepare(action: Action | Write) -> Write:
    """The resolved form of an action, which may have been prepared before."""
    if isinstance(action, Write):
        return action
    if isinstance(action, Put):
        return prepare_put(action.item, action.when)
    if isinstance(action, Revise):
        return _prepare_revision(action)
    spec = action.key.spec
    condition = action.when.resolve(spec) if action.when is not None else None
    if isinstance(action, Update):
        changes = _resolve_changes(spec, action, condition)
        creates = evaluate.creates(action.changes)
        return Write("update", action.key, condition, given=changes, creates=creates)
    return Write("check" if isinstance(action, Check) else "delete", action.key, condition)


def prepare_put(item: Item, when: Condition | None) -> Write:
    spec = item.spec
    spec.check_index_fields(item)
    condition = when.resolve(spec) if when is not None else None
    if spec.version is not None:
        seen = getattr(item, spec.version)
        written = attr(spec.version) == seen if seen else absent()
        unchanged = written.resolve(spec)
        condition = unchanged if condition is None else condition & unchanged
    return Write("put", spec.key_of(item), condition, source=item, creates=True, makes=item)


def _prepare_revision(action: Revise[Any]) -> Write:
    before, after, since = action.before, action.after, action.since
    spec = after.spec
    key = spec.key_of(after)
    if spec.version is not None:
        raise InvalidRequest(f"{spec.item.__name__} is versioned: put it")
    if spec.parts_of(before) != spec.parts_of(after):
        raise InvalidRequest("a revision does not move an item to another key")
    condition = resolved(action.when, spec)
    spec.check_index_fields(after)
    if not spec.packing.fits(after):
        spec.encode(key, after)  # which says what is wrong with it
        return Write("update", key, condition, given=_differences(before, after))
    copies = msgspec.structs.replace(before), msgspec.structs.replace(after)
    write = Write("update", key, condition, revision=copies, makes=after)
    if since is not None and since.makes is before:
        write.was = since.state
    return write


def _differences(before: Item, after: Item) -> tuple[Edit, ...]:
    """The changes that make one item of the other. There may be none: an update is an update still,
    and its condition is looked at."""
    spec = after.spec
    changed: set[str] = set()
    changes: list[Edit] = []
    old = msgspec.structs.astuple(before)
    for field, was, new in zip(
        spec.item.__struct_fields__, old, msgspec.structs.astuple(after), strict=True
    ):
        if new != was and field in spec.names:
            changed.add(field)
            stays = field in spec.nulls
            changes.append(_changed(spec.names[field], new, stays=stays))
    for templates in spec.indexes:
        if changed.isdisjoint(templates.fields):
            continue
        keys: RawItem = {}
        templates.add_to(keys, after)
        changes += [_changed(name, keys.get(name)) for name in templates.computed]
    return tuple(changes)


def holds_unless_changed(write: Write) -> bool:
    """Whether the condition of a revision is certain to hold if the item lies just as it was
    read."""
    assert write.revision is not None
    assert write.condition is not None
    before = write.revision[0]
    looked_at = _looked_at(write.condition, before.spec)
    if looked_at is None:
        return False
    found = [getattr(before, field) for _, field in looked_at]
    if not _SIMPLE.issuperset(map(type, found)):
        return False
    return _holds_for(write.condition, before.spec, tuple(found))


_SIMPLE = frozenset({str, int, type(None)})
"""Of these, equal values are the same."""


@lru_cache(maxsize=256)
def _looked_at(condition: Condition, spec: Spec) -> list[tuple[str, str]] | None:
    """The attributes that a condition is about, and their fields; None if some are no fields, or
    apart."""
    apart = spec.table.apart
    fields = {name: field for field, name in spec.names.items() if name not in apart}
    names = {str(name) for name in roots(condition)}
    return [(n, fields[n]) for n in names] if names <= fields.keys() else None


@lru_cache(maxsize=1024)
def _holds_for(condition: Condition, spec: Spec, found: tuple[object, ...]) -> bool:
    """Whether a condition holds for an item that has these values where it looks at."""
    names = [name for name, _ in _looked_at(condition, spec) or []]
    raw: RawItem = {n: v for n, v in zip(names, found, strict=True) if v is not None}
    return evaluate.holds(condition, raw)


def _changed(name: str, value: object, *, stays: bool = False) -> Edit:
    """`stays` says that no value is stored as NULL."""
    gone = value is None and not stays
    return Remove(_top(name)) if gone else Assign(_top(name), Constant(value))


@lru_cache(maxsize=4096)
def _top(name: str) -> Path:
    return Path((name,))


@lru_cache(maxsize=256)
def resolved(when: Condition, spec: Spec) -> Condition:
    """A condition that is used again and again is resolved once."""
    return when.resolve(spec)


def _resolve_changes(
    spec: Spec, action: Update[Any], condition: Condition | None
) -> tuple[Edit, ...]:
    for change in action.changes:
        field = change.path.parts[0]
        if field in spec.key_fields:
            raise InvalidRequest(f"{field} is part of the key and cannot change", field=str(field))
    changes = list(action.changes)
    if spec.version is not None:
        changes.append(add(spec.version, 1))
    may_create = evaluate.creates(action.changes)
    if condition is not None:
        may_create = may_create and evaluate.holds(condition, None)
    key_fields = spec.key_parts(action.key.pk, action.key.sk)
    if may_create:
        changes += _completing(spec, key_fields)
        _check_complete(spec, changes)
    resolved = [change.resolve(spec) for change in changes]
    taken = {change.path.parts[0] for change in resolved}
    taken |= {key.name for key in (spec.table.pk, spec.table.sk) if key}
    for templates in spec.indexes:
        for change in _index_changes(spec, templates, action.changes, key_fields, may_create):
            if change.path.parts[0] not in taken:
                taken.add(change.path.parts[0])
                resolved.append(change)
    check_overlaps(resolved)
    if len(resolved) > SURELY_SHORT:
        check_length(Expressions().update(resolved))
    return tuple(resolved)


def _check_complete(spec: Spec, changes: list[Edit]) -> None:
    """Refuse an update that could create an item which cannot be read back."""
    covered = {str(c.path.parts[0]) for c in changes if len(c.path.parts) == 1}
    if missing := spec.required - covered - set(spec.key_fields):
        name = min(missing)
        what = f"if this creates a {spec.item.__name__}, {name} is missing"
        raise InvalidRequest(f"{what}: set it, or say when=exists()", field=name)


def _completing(spec: Spec, key_fields: dict[str, object]) -> list[Edit]:
    """What makes a new item complete: its constants, and the fields that its key is made of."""
    keys = {key.name for key in spec.table.key_attributes()}
    return [
        set_if_absent(field, value)
        for field, value in (key_fields | spec.constants).items()
        if field in spec.names and spec.names[field] not in keys
    ]


def _index_changes(
    spec: Spec,
    templates: IndexTemplates,
    changes: tuple[Edit, ...],
    key_fields: dict[str, object],
    creates: bool,
) -> list[Edit]:
    """The changes to index keys that follow from changes to their fields."""
    touched = {str(change.path.parts[0]): change for change in changes}
    affected = templates.fields & touched.keys()
    if not affected:
        if creates and templates.fields <= key_fields.keys():
            keys = templates.render(key_fields)
            return [set_if_absent(Path((name,)), value) for name, value in keys.items()]
        return []
    fields = dict(key_fields)
    for field in affected:
        fields[field] = _new_value(templates, field, touched[field])
    names = [key.name for key in (templates.index.pk, templates.index.sk) if key]
    if None in fields.values():
        # An index key that is a field itself goes or stays with the field.
        stored = spec.names.values()
        return [Remove(Path((name,))) for name in names if name not in stored]
    if missing := templates.fields - fields.keys():
        name = min(missing)
        raise InvalidRequest(f"index {templates.index.name} needs {name} too: set it", field=name)
    keys = templates.render(fields)
    return [Assign(Path((name,)), Constant(keys[name])) for name in names]


def _new_value(templates: IndexTemplates, field: str, change: Edit) -> object:
    """What a change makes of an index field; None when it goes."""
    if isinstance(change, Remove):
        return None
    if isinstance(change, Assign) and isinstance(change.value, Constant):
        return change.value.value
    raise InvalidRequest(
        f"{field} is in index {templates.index.name}: set it to a value", field=field
    )
