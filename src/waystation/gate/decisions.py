"""What becomes of a request: the reasons to refuse it, and the names that it goes by."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from waystation.gate.payloads import Asked
from waystation.gate.slack import ABSENT
from waystation.patterns import Limit

if TYPE_CHECKING:
    from waystation.gate.requests import SlackRequest
    from waystation.gate.tables import Workspace

_PART_OF = "-"
"""Between an organisation and one of its teams, where only the organisation has a token."""

_FROM = "~"
"""Before a team that shares a channel with this one."""

UNREAD = Asked(kind="event", type="")
_STATUS = {
    "signature_missing": 401,
    "signature_wrong": 401,
    "signature_old": 401,
    "no_secret": 401,
    "unreadable": 400,
    "rate_limited": 429,
    "source_unavailable": 503,
    "relay_unavailable": 503,
    "too_slow": 503,
    "failed": 503,
}
"""All others are 403. Slack tries again only after 503."""


def status_of(reason: str) -> int:
    return _STATUS.get(reason, 403)


class Decision(msgspec.Struct, frozen=True):
    """What to answer. `reason` is empty when it passed."""

    status: int
    body: bytes = b""
    reason: str = ""
    retry_after: float | None = None

    @property
    def final(self) -> bool:
        """Whether Slack should not try again."""
        return bool(self.reason) and self.status != 503


class No(Exception):
    """A refusal, with everything that the owner should know about it."""

    def __init__(
        self,
        reason: str,
        detail: str = "",
        *,
        asked: Asked | None = None,
        owner: Workspace | None = None,
        wait: float | None = None,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.detail = detail
        self.asked = asked
        self.owner = owner
        self.wait = wait


def subject(asked: Asked, owner: str) -> tuple[str, str, str]:
    """The ids to check: the seed's, and more in the first where more than one team has a part.
    `owner` is whose the token is."""
    first = asked.team or owner
    if first != owner:
        first = f"{owner}{_PART_OF}{first}"
    if asked.origin is not None:
        first = f"{first}{_FROM}{asked.origin}"
    return first, asked.user or ABSENT, asked.channel or ABSENT


def teams_of(first: str) -> tuple[str, str | None]:
    """The team that is asked about, and the one that shares a channel with it."""
    place, _, origin = first.partition(_FROM)
    return place.partition(_PART_OF)[2] or place, origin or None


def organisation_of(first: str) -> str | None:
    """The organisation that the team is said to be part of, if one is named."""
    owner, named, _ = first.partition(_FROM)[0].partition(_PART_OF)
    return owner if named else None


def dedupe_name(asked: Asked, request: SlackRequest, workspace: Workspace) -> str:
    """The same for the same event. What has no id comes once, and has a signature of its own. What
    passes with one key cannot take the place of what needs both."""
    keys = "one" if exempt(asked, workspace) else "two"
    what = asked.event_id or request.signature
    return f"slack {workspace.team_id} {workspace.app_id} {keys} {what}"


def exempt(asked: Asked, workspace: Workspace) -> bool:
    """Whether the owner lets this type of event pass where there is nothing to check, or nothing
    to check it with."""
    nothing = workspace.token is None or (asked.user is None and asked.channel is None)
    return nothing and asked.kind == "event" and asked.type in workspace.allowed_event_types


def rate_of(asked: Asked, workspace: Workspace) -> tuple[str, Limit]:
    limit = Limit(workspace.rate_count, workspace.rate_seconds)
    return f"{asker(workspace)} {asked.team or workspace.team_id} {asked.user}", limit


def asker(workspace: Workspace) -> str:
    return f"{workspace.team_id} {workspace.app_id}"
