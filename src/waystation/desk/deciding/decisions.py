"""Decisions, and whoever makes them: any async callable that is given a message."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated

import msgspec
from msgspec import Meta

from waystation.patterns import redact

_MOST_DIGITS = 4
_NAME = r"^[a-z0-9][a-z0-9_-]{0,39}$"
Name = Annotated[str, Meta(pattern=_NAME)]

UNKNOWN_INTENT = "unknown"
CUSTOM = "custom"
"""The template of a reply in a decider's own words."""


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """What a decider is given. `pending` is the question that the conversation waits to have
    answered, if there is one."""

    text: str
    channel: str = "unknown"
    conversation_id: str = ""
    attachments: int = 0
    last_intent: str | None = None
    pending: str | None = None

    @property
    def redacted(self) -> str:
        """The text as others may see it: personal data is masked."""
        return redact(self.text)


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What a message is about and who should have it.

    `reply` names a template of the rules; `reply_text` is a reply in the decider's own words.
    `escalated` keeps every automatic reply away.
    """

    intent: Name
    team: Name | None = None
    confidence: Annotated[float, Meta(ge=0, le=1)]
    intents: Annotated[list[Name], Meta(max_length=20)] = []
    risk_flags: Annotated[list[Name], Meta(max_length=20)] = []
    tags: Annotated[list[Name], Meta(max_length=5)] = []
    escalated: bool = False
    reply: Name | None = None
    reply_text: Annotated[str, Meta(min_length=1, max_length=4_000)] | None = None
    reasons: Annotated[list[Annotated[str, Meta(max_length=500)]], Meta(max_length=20)] = []


Decider = Callable[[Message], Awaitable[Decision]]


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of an order. `status` is put into the reply as it stands."""

    status: Annotated[str, Meta(min_length=1, max_length=200)]
    tracking_url: Annotated[str, Meta(max_length=500)] | None = None


OrderLookup = Callable[[str], Awaitable[Order | None]]
"""Given an order's number, what is known of it, or None."""


def checked(given: object, teams: set[str]) -> Decision:
    """A decider's answer; ValueError when it is not a decision that can be carried out."""
    if not isinstance(given, Decision):
        raise ValueError(f"a decider gives a Decision, not {type(given).__name__}")  # noqa: TRY004
    try:
        decision = msgspec.convert(msgspec.to_builtins(given), Decision)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None
    for name in (decision.intent, *decision.intents, *decision.tags, *decision.risk_flags):
        if redact(name) != name or sum(c.isdigit() for c in name) > _MOST_DIGITS:
            raise ValueError("a name that could be somebody's number")
    if decision.team is not None and decision.team not in teams:
        raise ValueError(f"there is no team {decision.team!r}: use {', '.join(sorted(teams))}")
    return decision
