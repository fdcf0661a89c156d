"""What a figure is: who is measured, beside whom, and the bar that it is held to; and how one is taken."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from operator import truediv
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.cores import BackgroundLoad

if TYPE_CHECKING:
    from collections.abc import Callable

HIGH_BACKGROUND_LOAD = 0.05


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
    """An entrant beside another one, or by itself."""

    candidate: Candidate
    baseline: Candidate | None = None
    threshold: Threshold | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    title: str
    comparisons: tuple[Comparison, ...]
    samples_per_round: int = 1


class Sample(NamedTuple):
    background_load: float  # the share of the two cores that it took meanwhile
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How one entrant did turn by turn, and the baseline in the same turns."""

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
        """What the bar is about: the ratio to the baseline, turn by turn, or the value where there is none."""
        if self.comparison.baseline is None:
            return self.values
        return list(map(truediv, self.values, self.baseline_values))

    @property
    def background_load(self) -> float:
        return statistics.mean(one.background_load for one in (*self.samples, *self.baseline_samples))


def run_benchmark(figure: Benchmark, rounds: int) -> list[Result]:
    """Measure everybody once in each turn, so that whatever else the machine does meets all of them alike."""
    everybody = _all_candidates(figure)
    measured: dict[str, list[Sample]] = {one.name: [] for one in everybody}
    for _ in range(rounds * figure.samples_per_round):
        for one in everybody:
            measured[one.name].append(_measure(one))
    return [
        Result(
            title=figure.title,
            comparison=one,
            samples=measured[one.candidate.name],
            baseline_samples=measured[one.baseline.name] if one.baseline else [],
        )
        for one in figure.comparisons
    ]


def _all_candidates(figure: Benchmark) -> list[Candidate]:
    """Each once, in whichever comparisons he stands; baselines first."""
    baselines = [one.baseline for one in figure.comparisons if one.baseline]
    entrants = [one.candidate for one in figure.comparisons]
    return list({one.name: one for one in (*baselines, *entrants)}.values())


def _measure(entrant: Candidate) -> Sample:
    """What one attempt gives, or the less disturbed of two when other work took much of the cores."""
    first = _measure_once(entrant)
    return first if first.background_load < HIGH_BACKGROUND_LOAD else min(first, _measure_once(entrant))


def _measure_once(entrant: Candidate) -> Sample:
    watch = BackgroundLoad()
    value = entrant.measure()
    return Sample(watch.share(), value)
