"""Who sent a support event: one who has the secret that it is signed with, or one of the tokens."""

from __future__ import annotations

import hmac
import re
from typing import TYPE_CHECKING

from waystation.errors import Unauthenticated

if TYPE_CHECKING:
    from collections.abc import Sequence

    from waystation.seam import Headers

TOKEN = b"x-richpanel-webhook-token"
SIGNATURE = b"x-richpanel-signature"
TIMESTAMP = b"x-richpanel-timestamp"
TOLERANCE = 300

_SECONDS = re.compile(rb"\d{1,12}")
_ENDS = re.compile(r"(?:sha256=)?([0-9a-f]{64})")


class Credentials:
    """What a sender must show. Where nothing is set, nobody can show it."""

    def __init__(self, secret: str | None, tokens: Sequence[str]) -> None:
        self._secret = secret.encode() if secret else None
        self._tokens = [token.encode() for token in tokens]

    @property
    def any(self) -> bool:
        return self._secret is not None or bool(self._tokens)

    def check(self, headers: Headers, body: bytes, now: float) -> None:
        """Refuse a request that proves nothing. A signature that is there must be right: a token
        beside it does not make up for one that is wrong."""
        if not self.any:
            raise Unauthenticated("the desk has neither a secret nor a token to know senders by")
        if self._secret is not None and _found(headers, SIGNATURE):
            self._check_signature(self._secret, headers, body, now)
        else:
            self._check_token(headers)

    def _check_signature(self, secret: bytes, headers: Headers, body: bytes, now: float) -> None:
        stamps, signatures = _found(headers, TIMESTAMP), _found(headers, SIGNATURE)
        if len(stamps) != 1 or not _SECONDS.fullmatch(stamps[0]):
            raise Unauthenticated("X-Richpanel-Timestamp must be the time in seconds")
        if abs(now - int(stamps[0])) > TOLERANCE:
            raise Unauthenticated(f"the signature is more than {TOLERANCE} seconds old, or early")
        wanted = hmac.digest(secret, stamps[0] + b"." + body, "sha256").hex()
        given = _ENDS.fullmatch(signatures[0].decode("latin-1"))
        if len(signatures) != 1 or given is None or not hmac.compare_digest(given[1], wanted):
            raise Unauthenticated("the signature is wrong")

    def _check_token(self, headers: Headers) -> None:
        given = _found(headers, TOKEN)
        if len(given) != 1:
            raise Unauthenticated("a signature or one X-Richpanel-Webhook-Token is needed")
        right = [hmac.compare_digest(given[0], token) for token in self._tokens]
        if not any(right):
            raise Unauthenticated("the token is wrong")


def _found(headers: Headers, wanted: bytes) -> list[bytes]:
    return [value for name, value in headers if name == wanted]
