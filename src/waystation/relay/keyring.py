"""Secrets of sources and connections, as they lie in the tables: sealed."""

from __future__ import annotations

import base64
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from waystation.errors import Conflict
from waystation.relay import standard

if TYPE_CHECKING:
    from waystation.patterns import Vault
    from waystation.relay.tables import Connection, Source

_MARK = "sealed:"
_MOST_OPEN = 4_096
MAX_VALID = 5
OVERLAP_SECONDS = 86_400
"""How long the old secret signs along after a rotation."""


class OutboundSecret(msgspec.Struct):
    """A secret that we sign deliveries with. `until` is None for the current one."""

    secret: str
    until: int | None = None


class Keyring:
    def __init__(self, vault: Vault) -> None:
        self._vault = vault
        self._open = lru_cache(_MOST_OPEN)(self._open_sealed)

    def seal(self, value: object, context: str) -> str:
        sealed = self._vault.seal(msgspec.json.encode(value), context)
        return _MARK + base64.b64encode(sealed).decode()

    def _open_sealed(self, text: str, context: str) -> bytes:
        return self._vault.open(base64.b64decode(text.removeprefix(_MARK)), context)

    # Sources

    def seal_inbound(self, secrets: list[str], source_id: str) -> str | None:
        return self.seal(secrets, source_id) if secrets else None

    def inbound(self, source: Source) -> list[str]:
        """The secrets that a source's webhooks may be signed with."""
        stored = source.signing_secret
        if not stored:
            return []
        if not stored.startswith(_MARK):
            return [stored]  # written by another service, as the seed has it
        return msgspec.json.decode(self._open(stored, source.source_id), type=list[str])

    # Connections

    def new_outbound(self, connection_id: str) -> tuple[str, str]:
        """A new secret, and how it is stored."""
        secret = standard.new_secret()
        return secret, self.seal([OutboundSecret(secret)], connection_id)

    def rotated(self, connection: Connection, now: int) -> tuple[str, str]:
        """A new secret before the one that was current, which is good for another day."""
        old = self.outbound(connection, now)
        if len(old) >= MAX_VALID:
            raise Conflict(
                f"{MAX_VALID} secrets are valid already: rotate again once the oldest has run out"
            )
        for secret in old:
            secret.until = secret.until or now + OVERLAP_SECONDS
        fresh = OutboundSecret(standard.new_secret())
        return fresh.secret, self.seal([fresh, *old], connection.connection_id)

    def outbound(self, connection: Connection, now: int) -> list[OutboundSecret]:
        """The secrets that a delivery is signed with now, the current one first."""
        stored = connection.signing_secret
        if not stored.startswith(_MARK):
            return [OutboundSecret(stored)]
        opened = self._open(stored, connection.connection_id)
        secrets = msgspec.json.decode(opened, type=list[OutboundSecret])
        return [secret for secret in secrets if secret.until is None or secret.until > now]

    def seal_headers(self, headers: dict[str, str], connection_id: str) -> str | None:
        return self.seal(headers, f"{connection_id} headers") if headers else None

    def headers(self, connection: Connection) -> dict[str, str]:
        if connection.headers is None:
            return {}
        opened = self._open(connection.headers, f"{connection.connection_id} headers")
        return msgspec.json.decode(opened, type=dict[str, str])
