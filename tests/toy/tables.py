"""What the toy keeps."""

from __future__ import annotations

import msgspec

from waystation.queues import QueueSpec
from waystation.store import Condition, Item, Table, attr

letters = Table("toy-letters", pk="pk", sk="sk", stream=True)

OUTBOX = QueueSpec(name="toy-outbox")


class Letter(Item, table=letters, pk="BOX#{box}", sk="LETTER#{letter_id}", kw_only=True):
    box: str
    letter_id: str
    sent: bool = False


class Note(Item, table=letters, pk="BOX#{box}", sk="NOTE", kw_only=True):
    """The letters of a box, as the watcher heard of them."""

    box: str
    letters: list[str] = msgspec.field(default_factory=list)
    last: str | None = None

    @staticmethod
    def holds(letter_id: str) -> Condition:
        return attr("letters").contains(letter_id)
