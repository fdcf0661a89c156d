"""What a figure is: who is measured, beside whom, and the bar that it is held to; and how one is taken."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from operator import truediv
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.cores import OtherWork

if TYPE_CHECKING:
    from collections.abc import Callable

MUCH_OTHER_WORK = 0.05


@dataclass(frozen=True, slots=True)
class Bar:
    limit: float
    is_floor: bool = True

    def is_met_by(self, value: float) -> bool:
        return value >= self.limit if self.is_floor else value <= self.limit

    def __str__(self) -> str:
        return f"{'>=' if self.is_floor else '<='} {self.limit:g}"


@dataclass(frozen=True, slots=True)
class Entrant:
    name: str
    measure: Callable[[], float]


@dataclass(frozen=True, slots=True)
class Comparison:
    """An entrant beside another one, or by itself."""

    entrant: Entrant
    baseline: Entrant | None = None
    bar: Bar | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    title: str
    comparisons: tuple[Comparison, ...]
    turns_per_round: int = 1


class Measured(NamedTuple):
    other_work: float  # the share of the two cores that it took meanwhile
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How one entrant did turn by turn, and the baseline in the same turns."""

    title: str
    comparison: Comparison
    measured: list[Measured]
    baseline_measured: list[Measured]

    @property
    def values(self) -> list[float]:
        return [one.value for one in self.measured]

    @property
    def baseline_values(self) -> list[float]:
        return [one.value for one in self.baseline_measured]

    @property
    def judged(self) -> list[float]:
        """What the bar is about: the ratio to the baseline, turn by turn, or the value where there is none."""
        if self.comparison.baseline is None:
            return self.values
        return list(map(truediv, self.values, self.baseline_values))

    @property
    def other_work(self) -> float:
        return statistics.mean(one.other_work for one in (*self.measured, *self.baseline_measured))


def take(figure: Figure, rounds: int) -> list[Outcome]:
    """Measure everybody once in each turn, so that whatever else the machine does meets all of them alike."""
    everybody = _everybody(figure)
    measured: dict[str, list[Measured]] = {one.name: [] for one in everybody}
    for _ in range(rounds * figure.turns_per_round):
        for one in everybody:
            measured[one.name].append(_measure(one))
    return [
        Outcome(
            title=figure.title,
            comparison=one,
            measured=measured[one.entrant.name],
            baseline_measured=measured[one.baseline.name] if one.baseline else [],
        )
        for one in figure.comparisons
    ]


def _everybody(figure: Figure) -> list[Entrant]:
    """Each once, in whichever comparisons he stands; baselines first."""
    baselines = [one.baseline for one in figure.comparisons if one.baseline]
    entrants = [one.entrant for one in figure.comparisons]
    return list({one.name: one for one in (*baselines, *entrants)}.values())


def _measure(entrant: Entrant) -> Measured:
    """What one attempt gives, or the less disturbed of two when other work took much of the cores."""
    first = _attempt(entrant)
    return first if first.other_work < MUCH_OTHER_WORK else min(first, _attempt(entrant))


def _attempt(entrant: Entrant) -> Measured:
    watch = OtherWork()
    value = entrant.measure()
    return Measured(watch.share(), value)
