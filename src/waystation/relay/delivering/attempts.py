"""One attempt: sign and send with what the connection is now."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from waystation.errors import SettingsError
from waystation.outbound import Reply
from waystation.patterns import Newest
from waystation.relay import standard
from waystation.relay.delivering.forwarding import with_query
from waystation.relay.delivering.outcomes import KEPT_CHARACTERS, Outcome
from waystation.relay.rules.transforms import TransformFailed

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.hmac import HMAC

    from waystation.relay.delivering.parcels import Parcel
    from waystation.relay.delivering.tools import Tools
    from waystation.relay.keyring import Keyring
    from waystation.relay.tables import Connection

log = logging.getLogger(__name__)

_MOST_OPEN = 10_000
_VOUCHED_FOR = ("x-waystation-", "webhook-")
"""Headers that nobody but us sets."""


class ClaimRanOut(Exception):
    """There is no time left for an attempt under this claim."""


class _Opened:
    """A connection with its secrets, ready for use. It is as old as the connection was read."""

    __slots__ = ("connection", "headers", "secrets", "url")

    def __init__(self, connection: Connection, keyring: Keyring) -> None:
        self.connection = connection
        self.url = keyring.destination(connection)
        given = {n.lower(): v for n, v in keyring.headers(connection).items()}
        self.headers = {n: v for n, v in given.items() if not n.startswith(_VOUCHED_FOR)}
        self.headers["x-waystation-connection"] = connection.connection_id
        self.secrets = [
            (standard.signer(found.secret), found.until)
            for found in keyring.outbound(connection, 0)
        ]

    def signers(self, now: int) -> list[HMAC]:
        return [signer for signer, until in self.secrets if until is None or until > now]


class Attempts:
    def __init__(self, tools: Tools) -> None:
        self._clock = tools.store.clock
        self._outbound = tools.outbound
        self._keyring = tools.keyring
        self._rules = tools.rules
        self._inboxes = tools.inboxes
        self._opened: Newest[str, _Opened] = Newest(_MOST_OPEN)

    async def send(
        self,
        connection: Connection,
        parcel: Parcel,
        message_id: str,
        attempt: int,
        until: int | None = None,
    ) -> Outcome:
        """Send an event to where the connection points, signed with its secrets of now, unless that
        has become later than `until`: then somebody else may be about to."""
        try:
            return await self._send(connection, parcel, message_id, attempt, until)
        except ClaimRanOut:
            raise
        except Exception as error:
            # Whatever another service wrote into the connection: it ends, and shows.
            log.exception("connection %s cannot be used", connection.connection_id)
            reason = f"the connection cannot be used as it is stored: {type(error).__name__}"
            return Outcome(Reply(error=reason), connection)

    async def _send(
        self,
        connection: Connection,
        parcel: Parcel,
        message_id: str,
        attempt: int,
        until: int | None,
    ) -> Outcome:
        try:
            webhook = parcel.webhook
            body, transformed = webhook.content, False
            if (stored := connection.transform) is not None:
                body, transformed = await self._rules.transformed(stored, parcel.event, webhook)
        except SettingsError as error:
            reply = Reply(error=f"the event cannot be opened: {error}"[:300])
            return Outcome(reply, connection, last=True)
        except TransformFailed as error:
            reply = Reply(error=f"the transform failed: {error}"[:300])
            return Outcome(reply, connection, last=True)
        now = self._clock()
        if until is not None and now * 1000 >= until:
            raise ClaimRanOut
        if connection.inbox is not None:
            reply = await self._inboxes.send(
                connection.user_id, connection.inbox, webhook, body, message_id
            )
            return Outcome(reply, connection)
        opened = self._open(connection)
        at = int(now)
        headers = {
            **parcel.headers,
            **opened.headers,
            "webhook-id": message_id,
            "webhook-timestamp": str(at),
            "webhook-signature": standard.sign(opened.signers(at), message_id, at, body),
            "x-waystation-attempt": str(attempt),
        }
        if transformed:
            headers.pop("content-encoding", None)
            if "content-type" not in opened.headers:
                headers["content-type"] = "application/json"
        reply = await self._outbound.request(
            "POST",
            with_query(opened.url, webhook.query_string),
            headers=headers,
            body=body,
            seconds=connection.seconds,
            most=KEPT_CHARACTERS * 4,
        )
        return Outcome(reply, connection)

    def _open(self, connection: Connection) -> _Opened:
        opened = self._opened.get(connection.connection_id)
        if opened is None or opened.connection is not connection:
            opened = _Opened(connection, self._keyring)
            self._opened[connection.connection_id] = opened
        return opened
