"""Slack's signature: an HMAC of the body and the time, good for five minutes."""

from __future__ import annotations

import hmac

TOLERANCE_SECONDS = 300
_MOST_DIGITS = 15


def slack_signed(secret: str, timestamp: str, signature: str, body: bytes, now: float) -> bool:
    """Whether a request was signed with the secret, lately. Doubt is a no."""
    if not secret or not timestamp.isascii() or not timestamp.isdigit():
        return False
    if len(timestamp) > _MOST_DIGITS or abs(now - int(timestamp)) > TOLERANCE_SECONDS:
        return False
    wanted = slack_signature(secret, timestamp, body)
    return hmac.compare_digest(signature.encode("utf-8", "replace"), wanted.encode())


def slack_signature(secret: str, timestamp: str, body: bytes) -> str:
    content = b"v0:" + timestamp.encode() + b":" + body
    return "v0=" + hmac.digest(secret.encode(), content, "sha256").hex()
