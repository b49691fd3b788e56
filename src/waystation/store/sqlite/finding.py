"""What lies in many places, found in one step: each step hands the lock of the interpreter back and
forth with the event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from waystation.store import values

if TYPE_CHECKING:
    import sqlite3

    from waystation.store.sqlite.schema import Layout

MOST_ROWS = 64
"""That are read or written in one step."""


class Sought:
    """Places of a table in which something is looked for; if not `whole`, without what is apart."""

    __slots__ = ("keys", "layout", "whole")

    def __init__(self, layout: Layout, *, whole: bool) -> None:
        self.layout = layout
        self.whole = whole and bool(layout.apart)
        self.keys: list[tuple[Any, Any]] = []

    @property
    def asked(self) -> int:
        """How often is asked: the last one several times, so that there are few different
        statements."""
        return 1 << (len(self.keys) - 1).bit_length()

    def add_to(self, asked: list[str], arguments: list[Any]) -> None:
        flat = [part for key in self.keys for part in key]
        flat += self.keys[-1] * (self.asked - len(self.keys))
        for what in (self.layout.sought, self.layout.sought_apart)[: 1 + self.whole]:
            asked += [what] * self.asked
            arguments += flat

    def take_from(self, found: list[Any]) -> list[bytes | None]:
        """The packed items, which are the first in `found`."""
        count, asked = len(self.keys), self.asked
        bodies: list[bytes | None] = found[:count]
        large: list[bytes | None] = found[asked : asked + count] if self.whole else []
        del found[: asked * (1 + self.whole)]
        if not self.whole:
            return bodies
        return [
            body if body is None or more is None else values.joined(body, more)
            for body, more in zip(bodies, large, strict=True)
        ]


def find_all(connection: sqlite3.Connection, sought: list[Sought]) -> list[list[bytes | None]]:
    """The packed items in all these places."""
    asked: list[str] = []
    arguments: list[Any] = []
    for each in sought:
        each.add_to(asked, arguments)
    found: list[Any] = []
    for start in range(0, len(asked), MOST_ROWS):
        sql = "SELECT " + ", ".join(asked[start : start + MOST_ROWS])
        found += connection.execute(sql, arguments[2 * start : 2 * (start + MOST_ROWS)]).fetchone()
    return [each.take_from(found) for each in sought]
