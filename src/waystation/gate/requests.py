"""Requests as Slack signs them, and the first key: the signing secret."""

from __future__ import annotations

import re

import msgspec

from waystation.patterns import slack_signed

_SIGNATURE = re.compile(r"v0=[0-9a-f]{64}")
_TOLERANCE_SECONDS = 300


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


def flaw(request: SlackRequest, now: float) -> str | None:
    """What is wrong with a request before any secret is tried; None if nothing is."""
    if not request.timestamp or not request.signature:
        return "signature_missing"
    at = request.timestamp
    if not at.isascii() or not at.isdigit() or not _SIGNATURE.fullmatch(request.signature):
        return "signature_wrong"
    if len(at) > 15 or abs(now - int(at)) > _TOLERANCE_SECONDS:
        return "signature_old"
    return None


def is_signed(secret: str | None, request: SlackRequest, now: float) -> bool:
    """The first key. Doubt is a no, and so is a missing secret or header."""
    if not secret or not request.timestamp or not request.signature:
        return False
    return slack_signed(secret, request.timestamp, request.signature, request.body, now)
