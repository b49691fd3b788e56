"""Lists as every route gives them: a page, and a cursor that is opaque, signed and its own."""

from __future__ import annotations

import base64
import hmac
from hashlib import sha256
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

from waystation.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from waystation.patterns.vault import Vault
    from waystation.store import Item, Query, Store

T = TypeVar("T")
StoredItem = TypeVar("StoredItem", bound="Item")

_SIGNATURE_BYTES = 12
MAX_CURSOR = 2_000


class Listing(msgspec.Struct, Generic[T]):
    """A page of a list. `cursor` leads to the next one, if there is more."""

    data: list[T]
    cursor: str | None = None
    has_more: bool = False


def listing(data: list[T], cursor: str | None = None) -> Listing[T]:
    return Listing(data, cursor, cursor is not None)


class Cursors:
    """`scope` says which list a cursor belongs to: whose, and by which filters."""

    def __init__(self, vault: Vault) -> None:
        self._key = vault.key("cursors")

    def seal(self, position: str, scope: str) -> str:
        signed = self._signature(position, scope) + position.encode()
        return base64.urlsafe_b64encode(signed).decode().rstrip("=")

    def open(self, cursor: str, scope: str) -> str:
        """The position, or a refusal."""
        if len(cursor) > MAX_CURSOR:
            raise InvalidInput("cursor", "this cursor does not belong to this list")
        try:
            padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
            raw = base64.b64decode(padded, altchars=b"-_", validate=True)
            position = raw[_SIGNATURE_BYTES:].decode()
        except ValueError:
            raise InvalidInput("cursor", "this cursor does not belong to this list") from None
        if not hmac.compare_digest(raw[:_SIGNATURE_BYTES], self._signature(position, scope)):
            raise InvalidInput("cursor", "this cursor does not belong to this list")
        return position

    async def page(
        self,
        store: Store,
        query: Query[StoredItem],
        limit: int,
        cursor: str | None,
        scope: str,
        *,
        reverse: bool = False,
    ) -> tuple[list[StoredItem], str | None]:
        """Up to `limit` items, and the cursor for those after them, if there are any."""
        after = None if cursor is None else self.open(cursor, scope)
        found: list[StoredItem] = []
        while len(found) <= limit:
            page = await store.query(
                query, limit=limit + 1 - len(found), after=after, reverse=reverse
            )
            found += page.items
            after = page.cursor
            if after is None:
                break
        shown = found[:limit]
        if len(found) <= limit:
            return shown, None
        return shown, self.seal(store.cursor(query, shown[-1]), scope)

    def cut(
        self,
        items: Iterable[T],
        limit: int,
        cursor: str | None,
        scope: str,
        place: Callable[[T], str],
    ) -> tuple[list[T], str | None]:
        """The same of a list that is short enough to be read whole; `place` says where in it an
        item belongs, and is not the same for any two."""
        after = None if cursor is None else self.open(cursor, scope)
        found = sorted((item for item in items if after is None or place(item) > after), key=place)
        shown = found[:limit]
        return shown, self.seal(place(shown[-1]), scope) if len(found) > limit else None

    def _signature(self, position: str, scope: str) -> bytes:
        signed = f"{len(scope)}:{scope}:{position}".encode()
        return hmac.digest(self._key, signed, sha256)[:_SIGNATURE_BYTES]
