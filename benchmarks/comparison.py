"""A benchmark: candidates, baselines and thresholds, and how they are measured."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from operator import truediv
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.cores import BackgroundLoad

if TYPE_CHECKING:
    from collections.abc import Callable

HIGH_BACKGROUND_LOAD = 0.05
CONFIDENCE = 0.9


@dataclass(frozen=True, slots=True)
class Threshold:
    limit: float
    is_floor: bool = True

    def is_met_by(self, value: float) -> bool:
        return value >= self.limit if self.is_floor else value <= self.limit

    def __str__(self) -> str:
        return f"{'>=' if self.is_floor else '<='} {self.limit:g}"


@dataclass(frozen=True, slots=True)
class Candidate:
    name: str
    measure: Callable[[], float]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A candidate, with or without a baseline."""

    candidate: Candidate
    baseline: Candidate | None = None
    threshold: Threshold | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    title: str
    comparisons: tuple[Comparison, ...]
    samples_per_round: int = 1


class Sample(NamedTuple):
    background_load: float  # the share of the two cores that other processes used
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The samples of one candidate, and of its baseline in the same rounds."""

    title: str
    comparison: Comparison
    samples: list[Sample]
    baseline_samples: list[Sample]

    @property
    def values(self) -> list[float]:
        return [one.value for one in self.samples]

    @property
    def baseline_values(self) -> list[float]:
        return [one.value for one in self.baseline_samples]

    @property
    def compared_values(self) -> list[float]:
        """The values for the threshold: the ratio to the baseline per round, or the value without a baseline."""
        if self.comparison.baseline is None:
            return self.values
        return list(map(truediv, self.values, self.baseline_values))

    @property
    def interval(self) -> tuple[float, float]:
        """The interval of the compared median."""
        return median_interval(self.compared_values)

    @property
    def verdict(self) -> str:
        """A figure is judged only if its whole interval is on one side of the threshold."""
        threshold = self.comparison.threshold
        if threshold is None:
            return ""
        sides = {threshold.is_met_by(end) for end in self.interval}
        return "spans it" if len(sides) > 1 else "met" if sides == {True} else "not met"

    @property
    def background_load(self) -> float:
        return statistics.mean(one.background_load for one in (*self.samples, *self.baseline_samples))


def median_interval(values: list[float]) -> tuple[float, float]:
    """Contains the true median with a probability of at least 90 %, whatever the distribution of the values is.

    The true median is below the k-th smallest value only if fewer than k values are below it, each with probability
    1/2. With fewer than five values the interval is their range, and its probability is lower.
    """
    ordered, count = sorted(values), len(values)
    outside, skipped = 2.0 / 2**count, 0
    while (wider := outside + 2.0 * math.comb(count, skipped + 1) / 2**count) <= 1 - CONFIDENCE:
        outside, skipped = wider, skipped + 1
    return ordered[skipped], ordered[-1 - skipped]


def run_benchmark(benchmark: Benchmark, rounds: int) -> list[Result]:
    """Measure every candidate once per round, so that other work on the machine affects all of them alike."""
    candidates = _all_candidates(benchmark)
    measured: dict[str, list[Sample]] = {one.name: [] for one in candidates}
    for _ in range(rounds * benchmark.samples_per_round):
        for one in candidates:
            measured[one.name].append(_measure(one))
    return [
        Result(
            title=benchmark.title,
            comparison=one,
            samples=measured[one.candidate.name],
            baseline_samples=measured[one.baseline.name] if one.baseline else [],
        )
        for one in benchmark.comparisons
    ]


def _all_candidates(benchmark: Benchmark) -> list[Candidate]:
    """Each candidate once; baselines first."""
    baselines = [one.baseline for one in benchmark.comparisons if one.baseline]
    candidates = [one.candidate for one in benchmark.comparisons]
    return list({one.name: one for one in (*baselines, *candidates)}.values())


def _measure(candidate: Candidate) -> Sample:
    """One sample, or the less disturbed of two if other processes used much of the cores."""
    first = _measure_once(candidate)
    return first if first.background_load < HIGH_BACKGROUND_LOAD else min(first, _measure_once(candidate))


def _measure_once(candidate: Candidate) -> Sample:
    background = BackgroundLoad()
    value = candidate.measure()
    return Sample(background.share(), value)
