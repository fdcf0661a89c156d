from __future__ import annotations

import pytest

from svcnode.terminal.explain.durations import consecutive_text, format_duration, format_latency


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "less than a second"),
        (0.4, "less than a second"),
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
def test_how_long_is_said_in_two_units_at_most(seconds: float, said: str) -> None:
    assert format_duration(seconds) == said


@pytest.mark.parametrize(
    ("durations_ms", "said"),
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
def test_what_looks_took_is_said_as_one_or_from_the_least_to_the_most(
    durations_ms: tuple[float, ...], said: str
) -> None:
    assert format_latency(*durations_ms) == said


def test_one_is_not_in_a_row() -> None:
    assert consecutive_text(1, "failure", "failures") == "one failure"
    assert consecutive_text(3, "failure", "failures") == "3 failures in a row"
