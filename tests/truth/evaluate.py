"""Compare the statuses that a node reported with the known conditions. Pure functions: samples and phases to rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

UP, INITIALIZING, DOWN = "Up", "Initializing", "Down"
STATUS_BY_CODE = {200: UP, 206: INITIALIZING, 503: DOWN}
LIST, HEALTH = "list", "health"
MIN_SAMPLES = 20  # of each source after the bound; fewer are not enough


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One response about one service. `reported` is a status, or for example "404" or "no answer"."""

    service_id: str
    source: str  # the list of services or the health of the service
    requested_s: float
    answered_s: float
    reported: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A time in which a server is in one known condition."""

    kind: str
    fault: str
    service_id: str
    expected: tuple[str, ...]  # in this order; the last one from the bound on
    began_s: float
    ended_s: float
    bound_s: float
    was_up: bool = True  # if False, every 200 is false, also before the bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    kind: str
    fault: str
    expected: tuple[str, ...]
    observed: tuple[str, ...]
    detected_s: float | None  # when the last expected status became permanent; None: not until the end
    bound_s: float
    false_200s: int = 0
    false_downs: int = 0
    disagreements: int = 0
    sample_count: int = 0
    has_enough_samples: bool = True

    @property
    def is_correct(self) -> bool:
        return self.has_enough_samples and self.observed == self.expected and not self.wrong_count

    @property
    def wrong_count(self) -> int:
        return self.false_200s + self.false_downs + self.disagreements


def evaluate_phase(phase: Phase, samples: Iterable[Sample]) -> Row:
    ours = [sample for sample in samples if sample.service_id == phase.service_id and _is_within(phase, sample)]
    late = [sample for sample in ours if sample.requested_s > phase.began_s + phase.bound_s]
    is_healthy = phase.expected == (UP,)
    # Several statuses are compared from the beginning of the phase; a single one only from the bound on.
    relevant = ours if len(phase.expected) > 1 else late
    return Row(
        kind=phase.kind,
        fault=phase.fault,
        expected=phase.expected,
        observed=_observed_statuses(relevant, phase.expected),
        detected_s=_detected_s(phase, ours),
        bound_s=phase.bound_s,
        false_200s=0 if is_healthy else _count(UP, late if phase.was_up else ours),
        false_downs=_count(DOWN, late) if is_healthy else 0,
        disagreements=_disagreements(ours),
        sample_count=len(ours),
        has_enough_samples=all(
            sum(sample.source == source for sample in late) >= MIN_SAMPLES for source in (LIST, HEALTH)
        ),
    )


def _is_within(phase: Phase, sample: Sample) -> bool:
    return phase.began_s <= sample.requested_s and sample.answered_s <= phase.ended_s


def _count(status: str, samples: Sequence[Sample]) -> int:
    return sum(sample.reported == status for sample in samples)


def _observed_statuses(samples: Sequence[Sample], expected: tuple[str, ...]) -> tuple[str, ...]:
    """The statuses without repetitions; if the sources differ, those that are not the expected ones."""
    by_source = [
        tuple(status for status, _ in groupby(sample.reported for sample in samples if sample.source == source))
        for source in (LIST, HEALTH)
    ]
    return next((statuses for statuses in by_source if statuses != expected), expected)


def _detected_s(phase: Phase, samples: Sequence[Sample]) -> float | None:
    last = phase.expected[-1]
    last_wrong = max((index for index, sample in enumerate(samples) if sample.reported != last), default=-1)
    if last_wrong + 1 >= len(samples):
        return None
    return samples[last_wrong + 1].answered_s - phase.began_s if last_wrong >= 0 else 0.0


def _disagreements(samples: Sequence[Sample]) -> int:
    """Health samples that differ from the list before and the list after; a change between them does not count."""
    return sum(
        sample.source == HEALTH and sample.reported not in {before.reported, after.reported}
        for before, sample, after in zip(samples, samples[1:], samples[2:], strict=False)
    )


def merge_rows(rows: Iterable[Row]) -> list[Row]:
    """One row for each fault of a kind: the worst one if the fault occurred more than once."""
    found: dict[tuple[str, str], Row] = {}
    for row in rows:
        key = (row.kind, row.fault)
        found[key] = _worst_of(found[key], row) if key in found else row
    return list(found.values())


def _worst_of(one: Row, other: Row) -> Row:
    times_s = [row.detected_s for row in (one, other)]
    return replace(
        one,
        observed=one.observed if one.observed != one.expected else other.observed,
        detected_s=None if None in times_s else max(time_s for time_s in times_s if time_s is not None),
        bound_s=max(one.bound_s, other.bound_s),
        false_200s=one.false_200s + other.false_200s,
        false_downs=one.false_downs + other.false_downs,
        disagreements=one.disagreements + other.disagreements,
        sample_count=one.sample_count + other.sample_count,
        has_enough_samples=one.has_enough_samples and other.has_enough_samples,
    )
