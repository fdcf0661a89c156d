"""Percentiles from counts."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from svcnode.history.latencies import SHORTEST_S, add_to, latency_bucket, percentile_s

durations_s = st.floats(SHORTEST_S, 86_400.0)


@given(st.lists(durations_s, min_size=1, max_size=200), st.sampled_from([0.5, 0.95, 0.99, 1.0]))
def test_a_percentile_is_within_five_percent_of_the_true_one(latencies_s: list[float], share: float) -> None:
    histogram: dict[int, int] = {}
    for latency_s in latencies_s:
        add_to(histogram, {latency_bucket(latency_s): 1})
    true_s = sorted(latencies_s)[math.ceil(share * len(latencies_s)) - 1]
    found_s = percentile_s(histogram, share)
    assert found_s is not None
    assert abs(found_s - true_s) <= 0.05 * true_s


def test_what_is_shorter_than_the_first_bucket_is_in_it() -> None:
    assert [latency_bucket(one) for one in (0.0, -1.0, 1e-9, SHORTEST_S)] == [0, 0, 0, 0]


def test_without_a_check_there_is_no_percentile() -> None:
    assert percentile_s({}, 0.5) is None
