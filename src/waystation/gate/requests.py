"""Requests as Slack signs them, and the first key: the signing secret."""

from __future__ import annotations

import msgspec

from waystation.patterns import slack_signed


class SlackRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request as it came, and what its headers say."""

    body: bytes
    content_type: str
    timestamp: str | None
    signature: str | None
    retry: str | None = None
    retry_reason: str | None = None
    named_team: str | None = None
    """By the path, for requests that name none."""

    sender: str = ""


def request_of(
    headers: list[tuple[bytes, bytes]], body: bytes, named_team: str | None, sender: str
) -> SlackRequest:
    found: dict[bytes, str | None] = {}
    for name, value in headers:
        # What comes twice could be read in two ways, and counts as missing.
        found[name] = None if name in found else value.decode("latin-1")
    return SlackRequest(
        body=body,
        content_type=found.get(b"content-type") or "",
        timestamp=found.get(b"x-slack-request-timestamp"),
        signature=found.get(b"x-slack-signature"),
        retry=found.get(b"x-slack-retry-num"),
        retry_reason=found.get(b"x-slack-retry-reason"),
        named_team=named_team,
        sender=sender,
    )


def signature_flaw(secret: str, request: SlackRequest, now: float) -> str | None:
    """What is wrong with a signature; None when it is good."""
    if not request.timestamp or not request.signature:
        return "signature_missing"
    if slack_signed(secret, request.timestamp, request.signature, request.body, now):
        return None
    signed_at = request.timestamp
    if slack_signed(secret, signed_at, request.signature, request.body, _time(signed_at)):
        return "signature_old"
    return "signature_wrong"


def _time(text: str) -> float:
    return float(text) if text.isascii() and text.isdigit() and len(text) < 16 else 0.0
