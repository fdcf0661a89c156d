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


def test_two_buckets_add_up() -> None:
    first = Bucket(NOON, 10.0, 5.0, 1.0, 3, 1, 0.5, 0.25, 7.0)
    second = Bucket(NOON + 20, 20.0, 0.0, 2.0, 4, 2, 1.0, 0.75, 8.0)
    assert merge_buckets(first, second, 60) == Bucket(NOON, 30.0, 5.0, 3.0, 7, 3, 1.5, 0.75, 15.0)


def test_a_bucket_may_reach_its_length_and_never_exceeds_it() -> None:
    full = Bucket(NOON, up_s=50.0)
    assert merge_buckets(full, Bucket(NOON, down_s=20.0), 60) == full
    assert merge_buckets(full, Bucket(NOON, maintenance_s=20.0), 60) == full
    assert merge_buckets(full, Bucket(NOON, down_s=10.0), 60).known_s == pytest.approx(60)


@pytest.mark.parametrize(
    ("resolution", "begin_s"), [(MINUTES, NOON + 120), (HOURS, NOON), (DAYS, NOON - 12 * 3600)], ids=["m", "h", "d"]
)
def test_buckets_start_at_full_minutes_hours_and_days_in_utc(resolution: Resolution, begin_s: int) -> None:
    assert resolution.begin_s(NOON + 125.5) == begin_s


@given(st.floats(0, 2**33))
def test_a_time_lies_within_its_bucket(at_s: float) -> None:
    for resolution in RESOLUTIONS:
        assert resolution.begin_s(at_s) <= at_s < resolution.begin_s(at_s) + resolution.length_s


@given(st.integers(1024**2, 2**40))
def test_the_write_ahead_log_has_a_small_part_of_max_size(max_bytes: int) -> None:
    limits = RetentionLimits(3600.0, max_bytes)
    assert limits.wal_bytes < limits.data_bytes < max_bytes
    assert 2 * limits.wal_bytes + limits.data_bytes == max_bytes
