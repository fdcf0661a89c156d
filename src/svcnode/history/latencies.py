"""Counts latencies in buckets that are 10 % wide, and computes percentiles from the counts. There is no I/O.

Adding the counts of two histograms gives the histogram of both, so SQL can add up hours and days. A percentile is the
middle of its bucket, and is at most 5 % away from the true value.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

GROWTH = 1.1  # each bucket is this much wider than the one before
SHORTEST_S = 1e-5  # the upper end of bucket 0
_PER_UNIT = 1 / math.log(GROWTH)
_MIDDLE = 2 / (1 + GROWTH)  # of a bucket, as a share of its upper end: the same relative error at both ends

Histogram = dict[int, int]  # bucket -> checks


def latency_bucket(duration_s: float) -> int:
    """Bucket n ends at 10 µs times 1.1 to the power of n."""
    return 0 if duration_s <= SHORTEST_S else math.ceil(math.log(duration_s / SHORTEST_S) * _PER_UNIT)


def percentile_s(histogram: Mapping[int, int], share: float) -> float | None:
    """The latency that this share of the checks did not exceed. None: there was no check."""
    rank = share * sum(histogram.values())
    seen = 0
    for bucket in sorted(histogram):
        seen += histogram[bucket]
        if seen >= rank:
            return SHORTEST_S * GROWTH**bucket * _MIDDLE
    return None


def add_to(histogram: Histogram, other: Mapping[int, int]) -> None:
    for bucket, checks in other.items():
        histogram[bucket] = histogram.get(bucket, 0) + checks
