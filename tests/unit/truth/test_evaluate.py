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


# ---- 200 after the bound


def test_a_down_in_time_is_right() -> None:
    row = evaluate_phase(phase(DOWN), samples_with((102.5, DOWN)))
    assert row.is_correct
    assert row.observed == (DOWN,)
    assert row.detected_s == pytest.approx(2.5, abs=0.05)
    assert row.sample_count == 2 * 6 * 20


def test_each_200_after_the_bound_is_counted_in_list_and_health() -> None:
    row = evaluate_phase(phase(DOWN), samples_with((104.0, DOWN)))
    assert row.false_200s == 39  # twenty of the health and nineteen of the list: the one at the bound does not count
    assert row.observed == (UP, DOWN)
    assert not row.is_correct


@pytest.mark.parametrize("source", [LIST, HEALTH])
def test_a_single_200_after_the_bound_is_found_in_either_source(source: str) -> None:
    samples = [
        sample(each.requested_s, UP, source) if each.source == source and 104.0 <= each.requested_s < 104.05 else each
        for each in samples_with((101.0, DOWN))
    ]
    row = evaluate_phase(phase(DOWN), samples)
    assert row.false_200s == 1
    assert row.observed == (DOWN, UP, DOWN)
    assert not row.is_correct


def test_a_node_that_always_reports_200_is_wrong() -> None:
    row = evaluate_phase(phase(DOWN), samples_with())
    assert row.false_200s == 119
    assert row.observed == (UP,)
    assert row.detected_s is None


def test_a_200_before_the_bound_is_false_only_if_the_service_was_not_up() -> None:
    samples = samples_with((101.0, DOWN))
    assert evaluate_phase(phase(DOWN), samples).false_200s == 0
    assert evaluate_phase(phase(DOWN, was_up=False), samples).false_200s == 40


def test_another_status_than_the_expected_one_is_wrong_even_if_it_is_not_200() -> None:
    row = evaluate_phase(phase(INITIALIZING), samples_with((101.0, DOWN)))
    assert (row.false_200s, row.observed) == (0, (DOWN,))
    assert not row.is_correct


# ---- false Downs


def test_up_from_the_bound_on_is_right() -> None:
    row = evaluate_phase(phase(UP), samples_with((BEGAN_S - 1, DOWN), (102.9, UP)))
    assert row.is_correct
    assert row.detected_s == pytest.approx(2.9, abs=0.05)


def test_each_down_of_a_healthy_server_is_counted() -> None:
    row = evaluate_phase(phase(UP), samples_with((104.0, DOWN), (104.5, UP)))
    assert row.false_downs == 20
    assert row.false_200s == 0
    assert row.observed == (UP, DOWN, UP)
    assert not row.is_correct
    assert row.detected_s == pytest.approx(4.5, abs=0.05)


def test_initializing_of_a_healthy_server_is_wrong_but_not_a_false_down() -> None:
    row = evaluate_phase(phase(UP), samples_with((104.0, INITIALIZING), (104.5, UP)))
    assert row.false_downs == 0
    assert not row.is_correct


# ---- one status after another


def test_the_statuses_before_the_last_one_are_compared_too() -> None:
    never_started = phase(INITIALIZING, DOWN, was_up=False)
    assert evaluate_phase(never_started, samples_with((0.0, INITIALIZING), (102.0, DOWN))).is_correct
    assert evaluate_phase(never_started, samples_with((0.0, DOWN))).observed == (DOWN,)
    assert evaluate_phase(never_started, samples_with((0.0, INITIALIZING))).observed == (INITIALIZING,)


# ---- other errors


def test_a_list_and_a_health_that_disagree_are_found() -> None:
    correct = samples_with((101.0, DOWN))
    samples = [each if each.source == LIST else sample(each.requested_s, UP, HEALTH) for each in correct]
    row = evaluate_phase(phase(DOWN), samples)
    assert row.disagreements == 99  # the last of the hundred has no list after it
    assert row.false_200s == 60
    assert not row.is_correct


def test_a_change_between_list_and_health_is_not_a_disagreement() -> None:
    for change_s in (101.0, 101.005, 101.015):
        assert evaluate_phase(phase(DOWN), samples_with((change_s, DOWN))).disagreements == 0


def test_too_few_samples_are_wrong() -> None:
    correct = samples_with((101.0, DOWN))
    row = evaluate_phase(phase(DOWN), [each for each in correct if each.requested_s < 103.5])
    assert (row.observed, row.false_200s) == ((DOWN,), 0)
    assert not row.is_correct
    assert not evaluate_phase(phase(DOWN), [each for each in correct if each.source == LIST]).is_correct
    assert not evaluate_phase(phase(DOWN), []).is_correct


def test_a_missing_response_is_wrong() -> None:
    row = evaluate_phase(phase(DOWN), samples_with((101.0, DOWN), (104.0, "no answer")))
    assert row.observed == (DOWN, "no answer")
    assert not row.is_correct


def test_only_samples_of_the_service_within_the_phase_count() -> None:
    samples = samples_with((101.0, DOWN), (ENDED_S, UP))
    others = [sample(each.requested_s, UP, each.source, "another") for each in samples]
    assert evaluate_phase(phase(DOWN), [*others, *samples]).is_correct


# ---- the same fault more than once


BASE_ROW = Row(kind="redis", fault="restarted", expected=(UP,), observed=(UP,), detected_s=1.0, bound_s=3.0)


def row(**fields: Any) -> Row:
    return replace(BASE_ROW, **fields)


def test_the_worst_result_of_a_repeated_fault_counts() -> None:
    wrong = row(observed=(UP, DOWN), false_downs=3, detected_s=2.0)
    for rows in ([row(), wrong], [wrong, row()]):
        (found,) = merge_rows(rows)
        assert (found.observed, found.false_downs, found.detected_s) == ((UP, DOWN), 3, 2.0)
    assert merge_rows([row(), row(detected_s=None)])[0].detected_s is None
    assert merge_rows([row(false_200s=1), row(false_200s=2)])[0].false_200s == 3
    assert not merge_rows([row(), row(has_enough_samples=False)])[0].is_correct


def test_each_fault_of_a_kind_has_one_row_in_the_original_order() -> None:
    rows = [row(), row(fault="killed"), row(kind="nats"), row()]
    assert [(found.kind, found.fault) for found in merge_rows(rows)] == [
        ("redis", "restarted"),
        ("redis", "killed"),
        ("nats", "restarted"),
    ]
