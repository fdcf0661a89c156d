"""How the benchmarks judge a figure."""

from __future__ import annotations

import random
from statistics import median

import pytest
from benchmarks.comparison import Candidate, Comparison, Result, Sample, Threshold, median_interval


def result(values: list[float], threshold: Threshold | None) -> Result:
    comparison = Comparison(Candidate("svcnode", lambda: 0.0), threshold=threshold)
    return Result(title="", comparison=comparison, samples=[Sample(0.0, one) for one in values], baseline_samples=[])


@pytest.mark.parametrize(("count", "skipped"), [(1, 0), (7, 0), (8, 1), (15, 3), (27, 8)])
def test_the_interval_leaves_out_as_many_values_at_both_ends_as_it_may(count: int, skipped: int) -> None:
    values = [float(number) for number in range(count)]
    assert median_interval(values) == (values[skipped], values[-1 - skipped])


def test_the_interval_contains_the_true_median_nine_times_out_of_ten() -> None:
    rng = random.Random(1)
    intervals = [median_interval([rng.expovariate(1.0) for _ in range(9)]) for _ in range(2000)]
    hits = sum(low <= 0.693 <= high for low, high in intervals)  # ln 2
    assert hits >= 0.9 * len(intervals)


@pytest.mark.parametrize(
    ("values", "is_floor", "verdict"),
    [
        ([5.0, 6.0, 7.0], True, "met"),
        ([1.0, 2.0, 3.0], True, "not met"),
        ([3.0, 6.0, 7.0], True, "spans it"),
        ([1.0, 2.0, 3.0], False, "met"),
        ([3.0, 6.0, 7.0], False, "spans it"),
        ([4.0, 4.0, 4.0], False, "met"),
    ],
)
def test_a_figure_whose_interval_spans_its_threshold_is_not_judged(
    values: list[float], is_floor: bool, verdict: str
) -> None:
    one = result(values, Threshold(4.0, is_floor=is_floor))
    assert one.verdict == verdict
    assert one.interval[0] <= median(values) <= one.interval[1]


def test_a_figure_without_a_threshold_has_no_verdict() -> None:
    assert result([1.0], None).verdict == ""
