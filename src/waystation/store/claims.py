"""Claims: a row that one process at a time works on, and that others take over from a dead one.

A row is free when its time has come. Whoever takes it moves that time ahead, and signs it with a
token that everything it writes afterwards is conditional on.
"""

from __future__ import annotations

import msgspec

from waystation.store.expressions import Condition, attr
from waystation.store.updates import Edit, remove, set_to


class Claims(msgspec.Struct, frozen=True):
    """The two fields of a row that hold a claim: whose it is, and until when."""

    token: str
    until: str

    def free(self, now: int, token: str | None = None) -> Condition:
        """The condition that the row is free now, or held under `token`."""
        until = attr(self.until)
        free = until.absent() | (until <= now)
        return free if token is None else free | self.owned(token)

    def owned(self, token: str | None) -> Condition:
        return attr(self.token) == token

    def take(self, token: str, until: int) -> tuple[Edit, Edit]:
        return set_to(self.token, token), set_to(self.until, until)

    def give_up(self) -> tuple[Edit, Edit]:
        return remove(self.token), remove(self.until)
