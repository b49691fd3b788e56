"""Pages in memory: no more bytes of them than allowed, and nobody's push out all of another's."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from waystation.pages.keeping.entries import Held
    from waystation.pages.keeping.places import Place

_LARGEST_SHARE = 8
_ROOM = 20
"""When there is no room, a twentieth of all is made at once."""


class Memory:
    """The pages used last, bounded in bytes.

    Where there is no room, those go that were not used for longest of the tenant who has most.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.bytes = 0
        self._tenants: dict[str, OrderedDict[Place, tuple[Held, int]]] = {}
        self._sizes: dict[str, int] = {}

    def __len__(self) -> int:
        return sum(map(len, self._tenants.values()))

    def get(self, place: Place) -> Held | None:
        held = self._tenants.get(place.scope)
        found = None if held is None else held.get(place)
        if held is None or found is None:
            return None
        held.move_to_end(place)
        return found[0]

    def put(self, place: Place, held: Held) -> None:
        """Keep a page, or count again one that has grown."""
        self.drop(place)
        size = held.size()
        if size > self.most // _LARGEST_SHARE:
            return
        self._tenants.setdefault(place.scope, OrderedDict())[place] = (held, size)
        self._count(place.scope, size)
        if self.bytes > self.most:
            self._make_room()

    def drop(self, place: Place) -> None:
        held = self._tenants.get(place.scope)
        found = None if held is None else held.pop(place, None)
        if found is not None:
            self._count(place.scope, -found[1])

    def _make_room(self) -> None:
        """Take from those who have most, until none of them has more than the others."""
        enough = self.most - self.most // _ROOM
        level = _level(list(self._sizes.values()), enough)
        for scope in [scope for scope, size in self._sizes.items() if size > level]:
            held = self._tenants[scope]
            while held and self._sizes.get(scope, 0) > level:
                _, (_, size) = held.popitem(last=False)
                self._count(scope, -size)

    def _count(self, scope: str, size: int) -> None:
        self.bytes += size
        total = self._sizes.get(scope, 0) + size
        if total > 0:
            self._sizes[scope] = total
        else:
            self._sizes.pop(scope, None)
            self._tenants.pop(scope, None)


def _level(sizes: list[int], enough: int) -> int:
    """How much each may have, if nobody is to have more, for all to be no more than `enough`."""
    sizes.sort()
    left = enough
    for n, size in enumerate(sizes):
        share = left // (len(sizes) - n)
        if size > share:
            return share
        left -= size
    return enough
