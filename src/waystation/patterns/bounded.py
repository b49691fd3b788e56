"""Memory with a bound: the newest entries, and no more of them than were asked for."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Newest(OrderedDict[K, V]):
    """A dictionary of at most `most` entries: the one that was set longest ago goes first."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > self._most:
            self.popitem(last=False)
