"""How far a replica is behind, by the positions of its source that it has reached."""

from __future__ import annotations

import math

import pytest

from svcnode.probes.replication import KnownPositions

MAX_LAG_S = 60.0


def recorded(*positions: tuple[float, int]) -> KnownPositions[int]:
    known = KnownPositions[int]()
    for at_s, position in positions:
        known.record(at_s, position, MAX_LAG_S)
    return known


def lag_s(known: KnownPositions[int], now_s: float, reached: int) -> float:
    return known.lag_s(now_s, lambda position: position <= reached)


def test_the_lag_is_infinite_before_a_position_is_known_or_reached() -> None:
    assert lag_s(recorded(), 100.0, reached=10) == math.inf
    assert lag_s(recorded((0.0, 5), (10.0, 6)), 100.0, reached=4) == math.inf


@pytest.mark.parametrize(("reached", "behind_s"), [(5, 30.0), (6, 20.0), (7, 10.0), (8, 10.0)])
def test_a_replica_is_as_far_behind_as_the_newest_position_that_it_has_reached_is_old(
    reached: int, behind_s: float
) -> None:
    assert lag_s(recorded((0.0, 5), (10.0, 6), (20.0, 7)), 30.0, reached) == behind_s


def test_the_last_position_and_those_of_the_last_max_lag_are_known_however_often_they_are_recorded() -> None:
    known = recorded(*((0.001 * number, number) for number in range(1000)))
    assert lag_s(known, 0.999, reached=999) == 0.0
    assert lag_s(known, 0.999, reached=998) == pytest.approx(0.999)  # of the others only those of distant times
    known = recorded(*((float(number), number) for number in range(1000)))
    assert lag_s(known, 999.0, reached=999 - 50) <= 50.0 + 2 * MAX_LAG_S / 32
