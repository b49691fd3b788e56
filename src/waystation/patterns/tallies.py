"""Tallies: additions to counters, which become one update however many want to count."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from waystation.patterns.bounded import Newest
from waystation.store import (
    Condition,
    Key,
    Update,
    Write,
    add,
    prepare,
    set_if_absent,
    set_or_remove,
    with_sums,
)

_MOST_TEMPLATES = 4_096
_MOST_MULTIPLE = 64


class Tally(msgspec.Struct, kw_only=True, gc=False):
    """Additions to one item's counters. Those of many entries become one update.

    `when` makes the update's condition of the sums; `defaults` complete an item that is new.
    """

    key: Key[Any]
    adds: dict[str, int]
    sets: dict[str, object] = msgspec.field(default_factory=dict)
    defaults: dict[str, object] = msgspec.field(default_factory=dict)
    when: Callable[[dict[str, int]], Condition] | None = None
    prepared: Write | None = None
    template: Write | None = None
    """What it is like, but for its sums. What it sets is often of a moment: then nobody but its
    multiples has the same."""

    multiples: dict[int, Tally] = msgspec.field(default_factory=dict)

    def merged(self, other: Tally) -> Tally:
        adds = dict(self.adds)
        for field, number in other.adds.items():
            adds[field] = adds.get(field, 0) + number
        return Tally(
            key=self.key,
            adds=adds,
            sets=self.sets | other.sets,
            defaults=self.defaults | other.defaults,
            when=self.when or other.when,
        )

    def times(self, number: int) -> Tally:
        """This tally `number` times over. Small multiples are kept: they come again and again."""
        if number == 1:
            return self
        multiple = self.multiples.get(number)
        if multiple is None:
            adds = {field: each * number for field, each in self.adds.items()}
            self._take_template()
            multiple = msgspec.structs.replace(self, adds=adds, prepared=None, multiples={})
            if number <= _MOST_MULTIPLE:
                self.multiples[number] = multiple
        return multiple

    def write(self) -> Write:
        """The update, also prepared once. Most differ from others in their sums only."""
        if self.prepared is None:
            condition = self.when(self.adds) if self.when else None
            sums = [n for field, n in self.adds.items() if field not in self.sets]
            self.prepared = with_sums(self._take_template(), sums, condition)
        return self.prepared

    def _take_template(self) -> Write:
        if self.template is None and self.sets:
            self.template = prepare(self._action())
        elif self.template is None:
            shape = (self.key.place, *self.adds, *self.defaults.items())
            self.template = _templates.get(shape)
            if self.template is None:
                self.template = _templates[shape] = prepare(self._action())
        return self.template

    def _action(self) -> Update[Any]:
        added = self.adds.items()  # what is set in the same batch wins over what is added
        changes = [add(field, number) for field, number in added if field not in self.sets]
        changes += [set_or_remove(field, value) for field, value in self.sets.items()]
        given = (pair for pair in self.defaults.items() if pair[0] not in self.sets)
        changes += [set_if_absent(field, value) for field, value in given]
        return Update(self.key, *changes, when=self.when(self.adds) if self.when else None)


_templates: Newest[tuple[Any, ...], Write] = Newest(_MOST_TEMPLATES)


def summed(lists: Iterable[Sequence[Tally]]) -> list[Tally]:
    """Each counter's additions. Most of what is written at once has the very same tallies."""
    same: dict[int, tuple[int, Sequence[Tally]]] = {}
    for tallies in lists:
        number, _ = same.get(id(tallies), (0, ()))
        same[id(tallies)] = (number + 1, tallies)
    times: dict[int, tuple[int, Tally]] = {}
    for number, tallies in same.values():
        for tally in tallies:
            already, _ = times.get(id(tally), (0, None))
            times[id(tally)] = (already + number, tally)
    sums: dict[Key[Any], Tally] = {}
    for number, one in times.values():
        tally = one.times(number)
        before = sums.get(tally.key)
        sums[tally.key] = tally if before is None else before.merged(tally)
    return list(sums.values())
