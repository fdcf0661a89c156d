"""Durations and sizes as people write them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svcnode.core.errors import InvalidValueError
from svcnode.core.units import parse_duration_s, parse_size_bytes


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
def test_a_program_may_pass_seconds_as_a_number(seconds: float) -> None:
    assert parse_duration_s(seconds) == seconds


@pytest.mark.parametrize(
    "text", ["", "s", "5", "5 s", "-5s", "5S", "5sec", ".5s", "5.s", "1e3s", "infs", "\u0665s", "5s5s"]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(InvalidValueError, match="is not a duration"):
        parse_duration_s(text)


def test_a_number_without_a_unit_is_offered_one() -> None:
    with pytest.raises(InvalidValueError, match='such as "30s"'):
        parse_duration_s("30")


def test_what_is_no_number_at_all_is_shown_what_one_looks_like() -> None:
    with pytest.raises(InvalidValueError, match='such as "500ms", "5s" or "2m"'):
        parse_duration_s("soon")


@pytest.mark.parametrize("value", [-1.0, -0.5, math.nan, math.inf, True, False, "9" * 400 + "s"])
def test_a_duration_is_finite_and_not_negative(value: str | float) -> None:
    with pytest.raises(InvalidValueError, match="a duration is a finite number of seconds that is not negative"):
        parse_duration_s(value)


@given(st.text())
def test_any_text_is_a_duration_or_an_error_that_says_so(text: str) -> None:
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
def test_anything_else_is_refused_as_a_size(text: str) -> None:
    with pytest.raises(InvalidValueError, match='is not a size; write a number and a unit, such as "512KiB" or "5GiB"'):
        parse_size_bytes(text)


def test_a_size_beyond_all_sizes_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="a size has fewer digits than that"):
        parse_size_bytes("9" * 400 + "B")


@given(st.text() | st.from_regex(r"[0-9]{1,400}(\.[0-9]+)? ?[kKMGT]?i?B", fullmatch=True))
def test_any_text_is_a_size_or_an_error_that_says_so(text: str) -> None:
    try:
        size = parse_size_bytes(text)
    except InvalidValueError:
        return
    assert size >= 0
