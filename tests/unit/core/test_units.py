"""Durations, sizes and times."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svcnode.core.errors import InvalidValueError
from svcnode.core.units import iso_time, parse_duration_s, parse_size_bytes


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5),
        ("5s", 5.0),
        ("2m", 120.0),
        ("1h", 3600.0),
        ("7d", 604800.0),
        ("1.5s", 1.5),
        (" 5s ", 5.0),
        ("0s", 0),
    ],
)
def test_a_duration_is_a_number_and_a_unit(text: str, seconds: float) -> None:
    assert parse_duration_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize("seconds", [0, 5, 0.25])
def test_a_duration_may_be_a_number_of_seconds(seconds: float) -> None:
    assert parse_duration_s(seconds) == seconds


@pytest.mark.parametrize(
    "text", ["", "s", "5", "5 s", "-5s", "5S", "5sec", ".5s", "5.s", "1e3s", "infs", "\u0665s", "5s5s"]
)
def test_any_other_text_is_not_a_duration(text: str) -> None:
    with pytest.raises(InvalidValueError, match="duration"):
        parse_duration_s(text)


def test_for_a_number_without_a_unit_seconds_are_suggested() -> None:
    with pytest.raises(InvalidValueError, match='"30s"'):
        parse_duration_s("30")


def test_for_other_text_examples_are_given() -> None:
    with pytest.raises(InvalidValueError, match='"500ms"'):
        parse_duration_s("soon")


@pytest.mark.parametrize("value", [-1.0, -0.5, math.nan, math.inf, True, False, "9" * 400 + "s"])
def test_a_duration_must_be_finite_and_not_negative(value: str | float) -> None:
    with pytest.raises(InvalidValueError, match="duration"):
        parse_duration_s(value)


@given(st.text())
def test_any_text_is_a_duration_or_an_invalid_value(text: str) -> None:
    try:
        seconds = parse_duration_s(text)
    except InvalidValueError:
        return
    assert seconds >= 0


# ---- sizes


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0B", 0),
        ("512B", 512),
        ("1kB", 1000),
        ("1KB", 1000),
        ("2MB", 2_000_000),
        ("3GB", 3_000_000_000),
        ("1TB", 10**12),
        ("1KiB", 1024),
        ("2MiB", 2 * 1024**2),
        ("5GiB", 5 * 1024**3),
        ("1TiB", 1024**4),
        ("1.5KiB", 1536),
        ("1.5B", 1),
        (" 5 GiB ", 5 * 1024**3),
    ],
)
def test_a_size_is_a_number_and_a_unit(text: str, size: int) -> None:
    assert parse_size_bytes(text) == size


@pytest.mark.parametrize(
    "text", ["", "5", "GiB", "-5GiB", "5gib", "5G", "5  GiB", ".5GiB", "1e3B", "\u0665B", "5GiB5GiB"]
)
def test_any_other_text_is_not_a_size(text: str) -> None:
    with pytest.raises(InvalidValueError, match='"512KiB"'):
        parse_size_bytes(text)


def test_a_size_must_be_finite() -> None:
    with pytest.raises(InvalidValueError, match="size"):
        parse_size_bytes("9" * 400 + "B")


@given(st.text() | st.from_regex(r"[0-9]{1,400}(\.[0-9]+)? ?[kKMGT]?i?B", fullmatch=True))
def test_any_text_is_a_size_or_an_invalid_value(text: str) -> None:
    try:
        size = parse_size_bytes(text)
    except InvalidValueError:
        return
    assert size >= 0


# ---- times


@pytest.mark.parametrize(
    ("wall_s", "text"),
    [
        (0.0, "1970-01-01T00:00:00.000Z"),
        (1_767_268_800, "2026-01-01T12:00:00.000Z"),
        (1_767_268_800.0625, "2026-01-01T12:00:00.062Z"),
    ],
)
def test_a_time_is_in_utc_with_milliseconds(wall_s: float, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    assert iso_time(wall_s) == text
