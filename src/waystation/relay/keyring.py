"""Secrets of sources, connections and events, as they lie in the tables: sealed."""

from __future__ import annotations

import base64
import re
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from waystation.errors import Conflict, InvalidInput, SettingsError
from waystation.relay import standard

if TYPE_CHECKING:
    from waystation.patterns import Vault
    from waystation.relay.tables import Connection, Event, Source

_MARK = "sealed:"
_UNREADABLE = "[unreadable]"
_CREDENTIAL = re.compile(r"key|token|secret|pass|pwd|auth|bearer|credential|session|jwt|\bpin\b")
_TARGET = re.compile(r"referer|.*[-_](?:uri|url|path)")
"""Headers in which proxies repeat the whole of what was asked for."""

_NEVER_KEPT = frozenset({"authorization", "proxy-authorization", "cookie"})
_MOST_OPEN = 4_096
REDACTED = "[redacted]"
MAX_VALID = 5
OVERLAP_SECONDS = 86_400
"""How long the old secret signs along after a rotation."""


class OutboundSecret(msgspec.Struct):
    """A secret that we sign deliveries with. `until` is None for the current one."""

    secret: str
    until: int | None = None


class Confidential(msgspec.Struct):
    """What of a request is not kept in clear."""

    query: str = ""
    headers: dict[str, str] = {}


@lru_cache(_MOST_OPEN)
def _is_confidential(name: str) -> bool:
    """Whether a header may hold a credential, or the query."""
    by_name = _CREDENTIAL.search(name) or _TARGET.fullmatch(name)
    return by_name is not None or name in _NEVER_KEPT


_SHORTEST_QUERY = 8


class Keyring:
    def __init__(self, vault: Vault) -> None:
        self._vault = vault
        self._open = lru_cache(_MOST_OPEN)(self._open_sealed)

    def seal(self, value: object, context: str) -> str:
        sealed = self._vault.seal(msgspec.json.encode(value), context)
        return _MARK + base64.b64encode(sealed).decode()

    def _open_sealed(self, text: str, context: str) -> bytes:
        """SettingsError when it was not sealed with our key for this place."""
        try:
            sealed = base64.b64decode(text.removeprefix(_MARK))
        except ValueError:
            raise SettingsError(f"{context} is not readable") from None
        return self._vault.open(sealed, context)

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

    def count(self, source: Source) -> int:
        """How many of them can be used."""
        try:
            return len(self.inbound(source))
        except SettingsError:
            return 0

    # Connections

    def new_outbound(self, connection_id: str) -> tuple[str, str]:
        """A new secret, and how it is stored."""
        secret = standard.new_secret()
        return secret, self.seal([OutboundSecret(secret)], connection_id)

    def rotated(self, connection: Connection, now: int) -> tuple[str, str]:
        """A new secret before the one that was current, which is good for another day."""
        try:
            old = self.outbound(connection, now)
        except SettingsError:  # it signs nothing any more
            old = []
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

    def header_names(self, connection: Connection) -> list[str]:
        try:
            return list(self.headers(connection))
        except SettingsError:
            return [_UNREADABLE]

    def split_destination(self, url: str, connection_id: str) -> tuple[str, str | None]:
        """A destination as it is stored: without its query, and that sealed."""
        address, _, query = url.partition("?")
        if query == _UNREADABLE:
            raise InvalidInput("destination_url", "give the whole URL: its query was unreadable")
        if not query:
            return url, None
        return address, self.seal([address, query], f"{connection_id} query")

    def destination(self, connection: Connection) -> str:
        stored = connection.destination_query
        if stored is None:
            return connection.destination_url
        opened = self._open(stored, f"{connection.connection_id} query")
        address, query = msgspec.json.decode(opened, type=tuple[str, str])
        if address != connection.destination_url:
            return connection.destination_url  # somebody else changed it: the query is not for it
        return f"{address}?{query}"

    def shown_destination(self, connection: Connection) -> str:
        try:
            return self.destination(connection)
        except SettingsError:
            return f"{connection.destination_url}?{_UNREADABLE}"

    # Events

    def split_request(
        self, headers: dict[str, str], query: str, event_id: str
    ) -> tuple[dict[str, str], str | None]:
        """Headers as they may be kept in clear, and what is sealed of the request."""
        hidden = [name for name in headers if _is_confidential(name)]
        if len(query) >= _SHORTEST_QUERY:  # a referrer repeats it; a short one proves nothing
            hidden += [n for n, value in headers.items() if query in value and n != "content-type"]
        if not hidden:
            return headers, self.seal(Confidential(query), event_id) if query else None
        shown = headers | dict.fromkeys(hidden, REDACTED)
        kept = {name: headers[name] for name in hidden if name not in _NEVER_KEPT}
        if not kept and not query:
            return shown, None
        return shown, self.seal(Confidential(query, kept), event_id)

    @staticmethod
    def without_credentials(headers: dict[str, str]) -> dict[str, str]:
        """Headers as they are read back from an event: some are never kept."""
        if _NEVER_KEPT.isdisjoint(headers):
            return headers
        return {n: REDACTED if n in _NEVER_KEPT else v for n, v in headers.items()}

    def confidential(self, event: Event) -> Confidential:
        if event.sealed is None:
            return Confidential()
        opened = self._open_sealed(event.sealed, event.event_id)
        return msgspec.json.decode(opened, type=Confidential)
