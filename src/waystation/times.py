"""Times as the tables, the answers and callers write them: ISO 8601, in UTC."""

from __future__ import annotations

from datetime import UTC, datetime

from waystation.errors import InvalidInput

LAST_MS = 9_999_999_999_999
"""The latest time in milliseconds that keys have room for."""


def iso(seconds: float) -> str:
    """A time as the tables and the answers write it."""
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def iso_of_ms(milliseconds: int | None) -> str | None:
    return None if milliseconds is None else iso(milliseconds / 1000)


def seconds_of(text: str) -> float:
    """What a stored time says, or 0 where another service has written something else."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return 0.0


def milliseconds_of(text: str | None, field: str, default: int) -> int:
    """A time that a caller gave; without a zone it is UTC."""
    if text is None:
        return default
    try:
        moment = datetime.fromisoformat(text.strip())
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        found = int(moment.timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        raise InvalidInput(field, "must be a time such as 2026-01-31T12:00:00Z") from None
    return min(LAST_MS, max(0, found))


def hour_of(seconds: float) -> str:
    """The hour that a time is in, such as `2026-01-31T12`."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H")


def day_of(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d")


def month_of(seconds: float) -> str:
    """The first day of the month that a time is in."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-01")


def next_month(seconds: float) -> datetime:
    """When the month after a time begins."""
    month = datetime.fromtimestamp(seconds, UTC).replace(
        day=1, hour=0, minute=0, second=0, microsecond=0
    )
    return month.replace(
        year=month.year + (month.month == 12), month=1 if month.month == 12 else month.month + 1
    )
