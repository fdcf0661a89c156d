"""Durations, sizes and times."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svcnode.core.errors import InvalidValueError
from svcnode.core.units import (
    format_coarse_duration,
    format_duration,
    format_latency,
    format_limit,
    format_narrow_duration,
    format_short_duration,
    iso_time,
    parse_duration_s,
    parse_size_bytes,
    utc_text,
)

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("500ms", 0.5), ("5s", 5.0), ("2m", 120.0), ("1h", 3600.0), (" 7d ", 604800.0), ("1.5s", 1.5), (0, 0.0)],
)
def test_a_duration_is_a_number_and_a_unit_or_a_number_of_seconds(value: str | float, seconds: float) -> None:
    assert parse_duration_s(value) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "s", "5 s", "-5s", "5S", ".5s", "5.s", "1e3s", "\u0665s", "5s5s", "soon"])
def test_any_other_text_is_not_a_duration(text: str) -> None:
    with pytest.raises(InvalidValueError, match=r'duration.*"500ms"'):
        parse_duration_s(text)
    for number in ("30", " 2.5 "):
        with pytest.raises(InvalidValueError, match=f'"{number.strip()}s"'):
            parse_duration_s(number)


@pytest.mark.parametrize("value", [-0.5, math.nan, math.inf, True, False, "9" * 400 + "s", b"5s", None])
def test_a_duration_must_be_finite_and_not_negative(value: Any) -> None:
    with pytest.raises(InvalidValueError, match="duration"):
        parse_duration_s(value)


def test_a_size_is_a_number_and_a_unit() -> None:
    sizes = {"0B": 0, "1.5B": 1, "1kB": 1000, "1KB": 1000, "1MB": 10**6, "1GB": 10**9, "1TB": 10**12, "1KiB": 1024}
    sizes |= {"1.5KiB": 1536, "1MiB": 1024**2, " 5 GiB ": 5 * 1024**3, "1TiB": 1024**4}
    assert {text: parse_size_bytes(text) for text in sizes} == sizes


@pytest.mark.parametrize("text", ["", "5", "GiB", "-5GiB", "5gib", "5  GiB", ".5GiB", "\u0665B", "5GiB5GiB"])
def test_any_other_text_or_an_infinite_number_is_not_a_size(text: str) -> None:
    with pytest.raises(InvalidValueError, match='"512KiB"'):
        parse_size_bytes(text)
    with pytest.raises(InvalidValueError, match="too large"):
        parse_size_bytes("9" * 400 + "B")


@pytest.mark.parametrize("parse", [parse_duration_s, parse_size_bytes])
@given(text=st.text() | st.from_regex(r"[0-9]{1,400}(\.[0-9]+)? ?([kKMGT]?i?B|s|d)", fullmatch=True))
def test_any_text_is_a_value_or_an_invalid_value(parse: Callable[[str], float], text: str) -> None:
    try:
        assert parse(text) >= 0
    except InvalidValueError:
        return


@pytest.mark.parametrize(
    ("wall_s", "text"),
    [
        (0.0, "1970-01-01T00:00:00.000Z"),
        (1_767_268_800, "2026-01-01T12:00:00.000Z"),
        (1_767_268_800.0625, "2026-01-01T12:00:00.062Z"),
    ],
)
def test_a_time_is_in_utc_with_milliseconds(wall_s: float, text: str, local_time: None) -> None:
    assert iso_time(wall_s) == text


@pytest.mark.parametrize(
    ("style", "texts"),
    [
        (format_duration, {0.4: "less than 1 s", 0.6: "1 s", 60: "1 min", 252: "4 min 12 s", 3661: "1 h 1 min"}),
        (format_duration, {3600: "1 h", 86_400: "1 day", 200_000: "2 days 7 h"}),
        (format_limit, {0.5: "0.5 s", 119: "119 s", 120: "2 min", 150.5: "150.5 s", 3660: "1 h 1 min", 3661: "3661 s"}),
        (format_short_duration, {0.04: "0.0s", 9.94: "9.9s", 10: "10s", 59.6: "1m", 250: "4m 10s", 273_659: "3d 4h"}),
        (format_coarse_duration, {0: "0 s", 59.99: "59 s", 60: "1 min", 3599: "59 min", 86_399: "23 h 59 min"}),
        (format_coarse_duration, {3600: "1 h", 86_400: "1 d"}),
        (format_narrow_duration, {0: "0s", 59.9: "59s", 60: "1m00s", 599: "9m59s", 600: "10m", 3599: "59m"}),
        (format_narrow_duration, {3600: "1h00m", 35_999: "9h59m", 36_000: "10h", 172_799: "47h", 172_800: "2d"}),
    ],
)
def test_each_style_of_a_duration_rounds_and_shortens_as_its_place_needs_it(
    style: Callable[[float], str], texts: dict[float, str]
) -> None:
    assert {seconds: style(seconds) for seconds in texts} == texts


def test_latencies_are_shown_as_one_value_or_a_range() -> None:
    texts = {0.04: "0.0 ms", 9.94: "9.9 ms", 9.95: "10 ms", 999.4: "999 ms", 999.5: "1.0 s"}
    assert {duration_ms: format_latency(duration_ms) for duration_ms in texts} == texts
    assert format_latency(0.4, 12) == "0.4 to 12 ms"
    assert format_latency(0.4, 3000) == "0.4 ms to 3.0 s"
    assert format_latency(12, 1.1, 5) == "1.1 to 12 ms"


@pytest.mark.parametrize(
    ("at", "now", "text"),
    [
        (1_767_268_800.25, None, "2026-01-01 12:00:00 UTC"),
        ("2026-01-01T12:00:00.250Z", None, "2026-01-01 12:00:00 UTC"),
        ("2026-01-01T21:00:00+09:00", None, "2026-01-01 12:00:00 UTC"),
        ("2026-01-01T12:00:00.250Z", 1_767_312_000 - 1, "12:00:00 UTC"),
        ("2026-01-01T12:00:00.250Z", 1_767_312_000, "2026-01-01 12:00:00 UTC"),  # the next day
    ],
)
def test_a_time_that_people_read_is_in_utc_and_says_so(
    at: float | str, now: float | None, text: str, local_time: None
) -> None:
    assert utc_text(at, now) == text
    assert utc_text(at, now, with_ms=True) == text.replace(" UTC", ".000 UTC" if "+" in str(at) else ".250 UTC")
