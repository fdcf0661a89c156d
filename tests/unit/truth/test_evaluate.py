"""The evaluation of the truth campaign finds every kind of false status."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.truth.evaluate import DOWN, HEALTH, INITIALIZING, LIST, UP, Phase, Row, Sample, evaluate_phase, merge_rows

BEGAN_S, BOUND_S, ENDED_S = 100.0, 3.0, 106.0


def phase(*expected: str, was_up: bool = True) -> Phase:
    return Phase(
        kind="redis",
        fault="killed",
        service_id="cache",
        expected=expected,
        began_s=BEGAN_S,
        ended_s=ENDED_S,
        bound_s=BOUND_S,
        was_up=was_up,
    )


def sample(at_s: float, reported: str, source: str = LIST, service_id: str = "cache") -> Sample:
    return Sample(service_id=service_id, source=source, requested_s=at_s, answered_s=at_s + 0.001, reported=reported)


def samples_with(*changes: tuple[float, str]) -> list[Sample]:
    """Samples of list and health, twenty a second, from before the phase until after it.

    Each change is a time and the status from then on.
    """
    samples = []
    for tick in range(int((BEGAN_S - 1) * 20), int((ENDED_S + 1) * 20)):
        at_s = tick / 20
        status = next((status for since_s, status in reversed(changes) if since_s <= at_s), UP)
        samples += [sample(at_s, status), sample(at_s + 0.01, status, HEALTH)]
    return samples


Changes = list[tuple[float, str]]


@pytest.mark.parametrize(
    ("expected", "changes", "detected_s"),
    [
        ((DOWN,), [(102.5, DOWN)], 2.5),
        ((UP,), [(BEGAN_S - 1, DOWN), (102.9, UP)], 2.9),
        ((INITIALIZING, DOWN), [(0.0, INITIALIZING), (102.0, DOWN)], 2.0),
    ],
)
def test_the_expected_statuses_in_time_are_right(
    expected: tuple[str, ...], changes: Changes, detected_s: float
) -> None:
    others = [sample(each.requested_s, INITIALIZING, each.source, "another") for each in samples_with()]
    row = evaluate_phase(phase(*expected, was_up=INITIALIZING not in expected), [*others, *samples_with(*changes)])
    assert row.is_correct
    assert row.observed == expected
    assert row.detected_s == pytest.approx(detected_s, abs=0.05)
    assert row.sample_count == 2 * 6 * 20


@pytest.mark.parametrize(
    ("expected", "changes", "false_200s", "false_downs", "observed"),
    [
        # Twenty of the health and nineteen of the list: the one at the bound does not count.
        ((DOWN,), [(104.0, DOWN)], 39, 0, (UP, DOWN)),
        ((DOWN,), [], 119, 0, (UP,)),
        ((INITIALIZING,), [(101.0, DOWN)], 0, 0, (DOWN,)),
        ((UP,), [(104.0, DOWN), (104.5, UP)], 0, 20, (UP, DOWN, UP)),
        ((UP,), [(104.0, INITIALIZING), (104.5, UP)], 0, 0, (UP, INITIALIZING, UP)),
        ((INITIALIZING, DOWN), [(0.0, DOWN)], 0, 0, (DOWN,)),
        ((INITIALIZING, DOWN), [(0.0, INITIALIZING)], 0, 0, (INITIALIZING,)),
        ((DOWN,), [(101.0, DOWN), (104.0, "no answer")], 0, 0, (DOWN, "no answer")),
    ],
)
def test_every_other_status_is_counted_and_wrong(
    expected: tuple[str, ...], changes: Changes, false_200s: int, false_downs: int, observed: tuple[str, ...]
) -> None:
    row = evaluate_phase(phase(*expected), samples_with(*changes))
    assert not row.is_correct
    assert (row.false_200s, row.false_downs, row.observed) == (false_200s, false_downs, observed)


@pytest.mark.parametrize("source", [LIST, HEALTH])
def test_a_single_200_after_the_bound_is_found_in_either_source(source: str) -> None:
    samples = [
        sample(each.requested_s, UP, source) if each.source == source and 104.0 <= each.requested_s < 104.05 else each
        for each in samples_with((101.0, DOWN))
    ]
    row = evaluate_phase(phase(DOWN), samples)
    assert (row.false_200s, row.observed, row.is_correct) == (1, (DOWN, UP, DOWN), False)


def test_a_200_before_the_bound_is_false_only_if_the_service_was_not_up() -> None:
    samples = samples_with((101.0, DOWN))
    assert evaluate_phase(phase(DOWN), samples).false_200s == 0
    assert evaluate_phase(phase(DOWN, was_up=False), samples).false_200s == 40


def test_a_list_and_a_health_that_disagree_are_found() -> None:
    correct = samples_with((101.0, DOWN))
    samples = [each if each.source == LIST else sample(each.requested_s, UP, HEALTH) for each in correct]
    row = evaluate_phase(phase(DOWN), samples)
    assert row.disagreements == 99  # the last of the hundred has no list after it
    assert not row.is_correct
    for change_s in (101.0, 101.005, 101.015):
        assert evaluate_phase(phase(DOWN), samples_with((change_s, DOWN))).disagreements == 0


def test_too_few_samples_are_wrong() -> None:
    correct = samples_with((101.0, DOWN))
    assert not evaluate_phase(phase(DOWN), [each for each in correct if each.requested_s < 103.5]).is_correct
    assert not evaluate_phase(phase(DOWN), [each for each in correct if each.source == LIST]).is_correct
    assert not evaluate_phase(phase(DOWN), []).is_correct


def row(**fields: Any) -> Row:
    base = Row(kind="redis", fault="restarted", expected=(UP,), observed=(UP,), detected_s=1.0, bound_s=3.0)
    return replace(base, **fields)


def test_each_fault_of_a_kind_has_one_row_and_the_worst_result_counts() -> None:
    wrong = row(observed=(UP, DOWN), false_downs=3, detected_s=2.0)
    for rows in ([row(), wrong], [wrong, row()]):
        (found,) = merge_rows(rows)
        assert (found.observed, found.false_downs, found.detected_s) == ((UP, DOWN), 3, 2.0)
    assert merge_rows([row(), row(detected_s=None)])[0].detected_s is None
    assert merge_rows([row(false_200s=1), row(false_200s=2)])[0].false_200s == 3
    assert not merge_rows([row(), row(has_enough_samples=False)])[0].is_correct
    rows = merge_rows([row(), row(fault="killed"), row(kind="nats"), row()])
    assert [found.kind for found in rows] == ["redis", "redis", "nats"]
