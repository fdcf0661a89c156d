from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from svcnode.terminal.explain.durations import format_duration, format_latency, format_time


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.6, "1 s"),
        (59.4, "59 s"),
        (60, "1 min"),
        (252, "4 min 12 s"),
        (3600, "1 h"),
        (3661, "1 h 1 min"),
        (3605, "1 h"),
        (86_400, "1 day"),
        (200_000, "2 days 7 h"),
        (86_460, "1 day"),
    ],
)
def test_a_duration_has_at_most_two_units(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_a_duration_below_half_a_second_is_not_shown_as_zero() -> None:
    assert format_duration(0) == format_duration(0.4)
    assert "0 s" not in format_duration(0)


@pytest.mark.parametrize(
    ("durations_ms", "text"),
    [
        ((0.0,), "0.0 ms"),
        ((0.42,), "0.4 ms"),
        ((12.4,), "12 ms"),
        ((9.97,), "10 ms"),
        ((999.7,), "1.0 s"),
        ((3001.0,), "3.0 s"),
        ((0.41, 0.42), "0.4 ms"),
        ((0.4, 12), "0.4 to 12 ms"),
        ((0.4, 3000), "0.4 ms to 3.0 s"),
        ((12, 1.1, 5), "1.1 to 12 ms"),
    ],
)
def test_latencies_are_shown_as_one_value_or_a_range(durations_ms: tuple[float, ...], text: str) -> None:
    assert format_latency(*durations_ms) == text


def test_a_time_is_in_the_requested_zone_and_has_a_date_if_it_was_not_today() -> None:
    at = datetime(2027, 1, 15, 23, 30, tzinfo=UTC)
    assert format_time(at, at, UTC) == "23:30:00"
    assert format_time(at, at, timezone(timedelta(hours=2))) == "01:30:00"
    assert format_time(at, at + timedelta(hours=1), UTC) == "2027-01-15 23:30:00"
