"""When the other side wants to be asked again."""

from __future__ import annotations

from email.utils import parsedate_to_datetime


def seconds_asked(header: str | None, now: float) -> float:
    """What a Retry-After header asks for: seconds or a date; 0 for anything else."""
    text = (header or "").strip()[:100]
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - now)
    except (ValueError, TypeError, IndexError, OverflowError):
        return 0.0
