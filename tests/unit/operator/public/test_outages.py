"""Transitions become outages: from Down to Up, whatever happens in between."""

from __future__ import annotations

from typing import Any

import pytest

from svcnode.history.records import Stretch, Transition
from svcnode.operator.public.outages import Outage, Past, past_of


def change(at_s: float, after: str | None, service_id: str | None = "db", kind: str = "status") -> Transition:
    return Transition(int(at_s * 1e6), at_s, kind, service_id, None, after, "why", "refused", 200, 200)


def node(at_s: float, kind: str) -> Transition:
    return change(at_s, None, None, kind)


def past(*transitions: Transition, runs: tuple[tuple[float, float], ...] = ((0, 20),)) -> Past:
    return past_of(transitions, [Stretch(*run) for run in runs], ["db", "api"], 0, 20)


def outages(*transitions: Transition, **options: Any) -> list[tuple[float, float | None]]:
    return [(outage.begin_s, outage.end_s) for outage in past(*transitions, **options).outages]


def test_an_outage_lasts_from_down_to_up() -> None:
    assert outages(change(1, "Down"), change(5, "Up"), change(7, "Down")) == [(1, 5), (7, None)]


def test_initializing_and_a_restart_do_not_end_an_outage() -> None:
    before = (change(1, "Down"), change(2, "Initializing"), node(4, "stopped"), node(5, "started"))
    assert outages(*before, runs=((0, 4), (5, 20))) == [(1, None)]
    assert outages(*before, change(6, "Down"), change(8, "Up"), runs=((0, 4), (5, 20))) == [(1, 8)]


def test_an_outage_that_the_next_process_does_not_confirm_ends_with_the_one_that_saw_it() -> None:
    restarted = (node(9, "started"), change(10, "Up"))
    runs = ((0, 4), (9, 20))
    assert outages(change(1, "Down"), node(4, "stopped"), *restarted, runs=runs) == [(1, 4)]
    assert outages(change(1, "Down"), *restarted, runs=runs) == [(1, 4)], "it was killed"


def test_if_the_clock_is_set_an_outage_is_two_with_their_real_lengths() -> None:
    down, again = change(1, "Down"), change(15, "Down")._replace(before="Down")
    forward = (node(4, "paused"), node(15, "clock_set"), again, change(19, "Up"))
    assert outages(down, *forward, runs=((0, 4), (15, 20))) == [(1, 4), (15, 19)]


def test_an_outage_from_before_the_period_and_one_in_the_future_are_left_out() -> None:
    assert outages(change(3, "Up")._replace(before="Down"), change(30, "Down")) == []


def test_services_have_outages_of_their_own_and_others_have_none() -> None:
    found = past(change(1, "Down", "api"), change(2, "Down"), change(3, "Up"), change(4, "Down", "x"))
    assert found.outages == (Outage("db", 2, 3), Outage("api", 1))


def test_a_service_that_is_removed_has_no_outage_any_more() -> None:
    assert outages(change(1, "Down"), change(3, None, kind="deregistered")) == [(1, 3)]


def test_a_clock_that_is_set_back_makes_no_negative_outage() -> None:
    assert outages(change(9, "Down"), change(5, "Up")) == [(9, 9)]


@pytest.mark.parametrize("subject", ["db", None])
def test_down_in_maintenance_is_no_outage_before_the_maintenance_ends(subject: str | None) -> None:
    begin = change(1, "Up" if subject else None, subject, "maintenance")
    end = change(9, "Down" if subject else None, subject, "maintenance_ended")
    assert outages(begin, change(2, "Down"), change(4, "Up")) == []
    assert outages(begin, change(2, "Down")) == []
    assert outages(begin, change(2, "Down"), end) == [(9, None)]


def test_maintenance_does_not_end_an_outage_and_up_does() -> None:
    begin, end = change(1, "Down", kind="maintenance"), change(9, "Up", kind="maintenance_ended")
    assert outages(change(0, "Down"), begin) == [(0, None)]
    assert outages(change(0, "Down"), begin, change(3, "Up"), end) == [(0, 3)]


def test_the_maintenance_of_a_process_that_has_ended_is_not_that_of_the_next() -> None:
    before = [change(1, "Up", kind="maintenance"), change(2, "Down"), node(3, "started")]
    assert past(*before) == Past((), {})
    assert past(*before, change(4, "Down")).outages == (Outage("db", 4),)
    assert past(*before, node(5, "maintenance"), node(6, "maintenance")).maintenance_since_s == {None: 5}
