"""Durations as people write them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svcnode.core.errors import InvalidValueError
from svcnode.core.units import duration_s


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
    assert duration_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize("seconds", [0, 5, 0.25])
def test_a_program_may_pass_seconds_as_a_number(seconds: float) -> None:
    assert duration_s(seconds) == seconds


@pytest.mark.parametrize(
    "text", ["", "s", "5", "5 s", "-5s", "5S", "5sec", ".5s", "5.s", "1e3s", "infs", "\u0665s", "5s5s"]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(InvalidValueError, match="is not a duration"):
        duration_s(text)


def test_a_number_without_a_unit_is_offered_one() -> None:
    with pytest.raises(InvalidValueError, match='such as "30s"'):
        duration_s("30")


def test_what_is_no_number_at_all_is_shown_what_one_looks_like() -> None:
    with pytest.raises(InvalidValueError, match='such as "500ms", "5s" or "2m"'):
        duration_s("soon")


@pytest.mark.parametrize("value", [-1.0, -0.5, math.nan, math.inf, True, False, "9" * 400 + "s"])
def test_a_duration_is_finite_and_not_negative(value: str | float) -> None:
    with pytest.raises(InvalidValueError, match="a duration is a finite number of seconds that is not negative"):
        duration_s(value)


@given(st.text())
def test_any_text_is_a_duration_or_an_error_that_says_so(text: str) -> None:
    try:
        seconds = duration_s(text)
    except InvalidValueError:
        return
    assert seconds >= 0
