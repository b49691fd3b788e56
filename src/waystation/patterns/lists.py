"""Lists as every route gives them: a page, and a cursor that is opaque, signed and its own."""

from __future__ import annotations

import base64
import hmac
from hashlib import sha256
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

from waystation.errors import InvalidInput

if TYPE_CHECKING:
    from waystation.patterns.vault import Vault

T = TypeVar("T")

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

    def _signature(self, position: str, scope: str) -> bytes:
        signed = f"{len(scope)}:{scope}:{position}".encode()
        return hmac.digest(self._key, signed, sha256)[:_SIGNATURE_BYTES]
