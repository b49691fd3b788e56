"""Cursors for lists: opaque, signed, and good for the one list that they came from."""

from __future__ import annotations

import base64
import hmac
from hashlib import sha256
from typing import TYPE_CHECKING

from waystation.errors import InvalidInput

if TYPE_CHECKING:
    from waystation.patterns.vault import Vault

_SIGNATURE_BYTES = 12
MAX_CURSOR = 2_000


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
            raise InvalidInput("cursor", "this is not a cursor of this list")
        try:
            padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
            raw = base64.b64decode(padded, altchars=b"-_", validate=True)
            position = raw[_SIGNATURE_BYTES:].decode()
        except ValueError:
            raise InvalidInput("cursor", "this is not a cursor of this list") from None
        if not hmac.compare_digest(raw[:_SIGNATURE_BYTES], self._signature(position, scope)):
            raise InvalidInput("cursor", "this is not a cursor of this list")
        return position

    def _signature(self, position: str, scope: str) -> bytes:
        told = f"{len(scope)}:{scope}:{position}".encode()
        return hmac.digest(self._key, told, sha256)[:_SIGNATURE_BYTES]
