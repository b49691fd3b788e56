"""Times as they are written and read."""

from __future__ import annotations

import pytest

from waystation.errors import InvalidInput
from waystation.times import (
    LAST_MS,
    day_of,
    hour_of,
    iso,
    iso_of_ms,
    milliseconds_of,
    month_of,
    next_month,
    seconds_of,
)

MOMENT = 1_769_860_800.123  # 2026-01-31T12:00:00.123Z


def test_a_time_is_written_in_utc_to_the_millisecond() -> None:
    assert iso(MOMENT) == "2026-01-31T12:00:00.123Z"
    assert iso_of_ms(1_769_860_800_123) == "2026-01-31T12:00:00.123Z"
    assert iso_of_ms(None) is None


def test_what_was_written_can_be_read() -> None:
    assert seconds_of(iso(MOMENT)) == pytest.approx(MOMENT)


@pytest.mark.parametrize("text", ["", "yesterday", "2026-13-01", "9" * 400])
def test_what_another_service_wrote_never_fails(text: str) -> None:
    assert seconds_of(text) == 0.0


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("2026-01-31T12:00:00Z", 1_769_860_800_000),
        ("2026-01-31T13:00:00+01:00", 1_769_860_800_000),
        (" 2026-01-31T12:00:00 ", 1_769_860_800_000),
        ("2026-01-31", 1_769_817_600_000),
        ("1900-01-01", 0),
        ("0001-01-01T00:00:00+23:59", 0),
        ("9999-12-31", LAST_MS),
        (None, 7),
    ],
)
def test_a_time_that_a_caller_gave(text: str | None, found: int) -> None:
    assert milliseconds_of(text, "from", 7) == found


@pytest.mark.parametrize("text", ["", "now", "1e9"])
def test_a_time_that_makes_no_sense_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        milliseconds_of(text, "from", 0)
    assert refused.value.field == "from"


def test_hours_days_and_months() -> None:
    assert (hour_of(MOMENT), day_of(MOMENT)) == ("2026-01-31T12", "2026-01-31")
    assert month_of(MOMENT) == "2026-01-01"
    assert next_month(MOMENT).isoformat() == "2026-02-01T00:00:00+00:00"
    december = seconds_of("2026-12-31T23:59:59Z")
    assert next_month(december).isoformat() == "2027-01-01T00:00:00+00:00"
