from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svcnode.history.records import (
    DAYS,
    HOURS,
    MINUTES,
    RESOLUTIONS,
    Bucket,
    Resolution,
    RetentionLimits,
    merge_buckets,
)

NOON = 1_767_268_800


def test_two_bars_add_up() -> None:
    first = Bucket(NOON, 10.0, 5.0, 1.0, 3, 1, 0.5, 0.25)
    second = Bucket(NOON + 20, 20.0, 0.0, 2.0, 4, 2, 1.0, 0.75)
    assert merge_buckets(first, second, 60) == Bucket(NOON, 30.0, 5.0, 3.0, 7, 3, 1.5, 0.75)


def test_a_bar_never_holds_more_time_than_it_is_long() -> None:
    full = Bucket(NOON, up_s=50.0)
    assert merge_buckets(full, Bucket(NOON, down_s=20.0), 60) == full


def test_a_bar_may_become_exactly_full() -> None:
    assert merge_buckets(Bucket(NOON, up_s=59.9), Bucket(NOON, down_s=0.1), 60).known_s == pytest.approx(60)


@pytest.mark.parametrize(
    ("span", "begin_s"), [(MINUTES, NOON + 120), (HOURS, NOON), (DAYS, NOON - 12 * 3600)], ids=["m", "h", "d"]
)
def test_bars_begin_at_whole_minutes_hours_and_days_of_utc(span: Resolution, begin_s: int) -> None:
    assert span.begin_s(NOON + 125.5) == begin_s


@given(st.floats(0, 2**33))
def test_a_moment_falls_into_the_bar_that_is_found_for_it(at_s: float) -> None:
    for span in RESOLUTIONS:
        assert span.begin_s(at_s) <= at_s < span.begin_s(at_s) + span.length_s


def test_more_is_kept_than_is_shown() -> None:
    for span in RESOLUTIONS:
        assert span.retention_s > span.length_s * span.bucket_count


@given(st.integers(1024**2, 2**40))
def test_the_log_leaves_most_of_the_room_to_the_data(max_bytes: int) -> None:
    limits = RetentionLimits(3600.0, max_bytes)
    assert limits.wal_bytes < limits.data_bytes < max_bytes
    assert 2 * limits.wal_bytes + limits.data_bytes == max_bytes
