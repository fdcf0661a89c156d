"""Times of the node's clock as wall-clock times."""

from __future__ import annotations

import pytest

from svcnode.net.clock import EXPIRY_TRUSTED_AFTER_S, MAX_OFFSETS, RetentionClock, WallTimes, next_tick_s
from tests.support.virtual_time import VirtualClock

NOON_S = 1_767_268_800.0


class Clocks:
    """A monotonic clock, and a wall clock that can be set."""

    def __init__(self) -> None:
        self.monotonic = VirtualClock(1000.0)
        self.set_by_s = 0.0
        self.times = WallTimes(self.monotonic, self.wall)

    def wall(self) -> float:
        return NOON_S - 1000.0 + self.monotonic.now_s + self.set_by_s


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


def test_a_time_is_converted_in_whole_milliseconds(clocks: Clocks) -> None:
    assert clocks.times.wall_s(1000.0) == NOON_S
    assert clocks.times.wall_s(1001.23449) == NOON_S + 1.234
    assert clocks.times.wall_s(990.0) == NOON_S - 10.0


def test_small_differences_between_the_clocks_do_not_change_a_time(clocks: Clocks) -> None:
    found = set()
    for _ in range(100):
        clocks.set_by_s = 0.004 - clocks.set_by_s
        found.add(clocks.times.wall_s(1000.0))
    assert found == {NOON_S}


@pytest.mark.parametrize("set_by_s", [3600.0, -3600.0, 0.5])
def test_a_time_that_was_shown_does_not_change_when_the_wall_clock_is_set(clocks: Clocks, set_by_s: float) -> None:
    clocks.monotonic.advance(10.0)
    shown = clocks.times.wall_s(1005.0)
    clocks.set_by_s = set_by_s
    clocks.monotonic.advance(10.0)
    assert clocks.times.wall_s(1020.0) == NOON_S + 20.0 + set_by_s
    assert clocks.times.wall_s(1005.0) == shown == NOON_S + 5.0


def test_a_time_after_the_last_conversion_follows_the_clock_that_was_set(clocks: Clocks) -> None:
    """It may be from before the change or after it; every conversion gives the same result."""
    clocks.times.wall_s(1000.0)
    clocks.monotonic.advance(10.0)
    clocks.set_by_s = 3600.0
    assert clocks.times.wall_s(1005.0) == NOON_S + 3605.0
    clocks.monotonic.advance(10.0)
    assert clocks.times.wall_s(1005.0) == NOON_S + 3605.0


def test_a_wall_clock_that_is_set_again_and_again_needs_bounded_memory(clocks: Clocks) -> None:
    for number in range(1000):
        clocks.monotonic.advance(1.0)
        clocks.set_by_s = number * 3600.0
        clocks.times.wall_s(clocks.monotonic.now_s)
    assert len(clocks.times._offsets) == MAX_OFFSETS
    assert clocks.times.wall_s(clocks.monotonic.now_s) == clocks.wall()
    assert clocks.times.wall_s(0.0) < clocks.wall()


def test_an_interrupted_measurement_does_not_count() -> None:
    """Another thread ran between reading the two clocks."""
    steps = [0.0, 0.0, 0.0, 0.0, 5.0, 5.0]
    clock, walls = iter(steps), iter([NOON_S, NOON_S, NOON_S + 5.0])
    times = WallTimes(lambda: next(clock), lambda: next(walls))
    assert times.wall_s(0.0) == NOON_S
    assert times.wall_s(0.0) == NOON_S


@pytest.mark.parametrize(
    ("now_s", "tick_s"),
    [(0.0, 1.0), (0.5, 1.0), (0.9, 1.0), (0.999, 2.0), (1.0, 2.0), (1.001, 2.0), (7e6 + 0.25, 7e6 + 1)],
)
def test_ticks_are_at_whole_seconds_and_a_timer_that_fires_early_does_not_fire_twice(
    now_s: float, tick_s: float
) -> None:
    assert next_tick_s(now_s) == tick_s
    assert next_tick_s(0.0999, 0.1) == pytest.approx(0.2)


class ExpiryClocks:
    def __init__(self) -> None:
        self.monotonic, self.wall = VirtualClock(1000.0), VirtualClock(NOON_S)
        self.expiry = RetentionClock(self.wall, self.monotonic)

    def advance(self, seconds: float) -> float:
        """How far the expiry clock is ahead of the wall clock then."""
        self.monotonic.advance(seconds)
        self.wall.advance(seconds)
        return self.expiry.now_s() - self.wall.now_s

    def set_wall(self, seconds: float) -> float:
        self.wall.now_s += seconds
        return self.expiry.now_s() - self.wall.now_s


def test_a_wall_clock_that_is_set_ahead_is_trusted_after_an_hour_and_one_that_is_set_back_at_once() -> None:
    clocks = ExpiryClocks()
    assert clocks.set_wall(1e9) == -1e9
    assert clocks.advance(EXPIRY_TRUSTED_AFTER_S - 1) == -1e9
    assert clocks.set_wall(-1e9) == 0.0, "a jump and back does not move it"
    clocks = ExpiryClocks()
    clocks.set_wall(1e9)
    assert clocks.advance(EXPIRY_TRUSTED_AFTER_S) == 0.0
    assert clocks.set_wall(-1e6) == 0.0
    assert clocks.set_wall(1e6) == -1e6


def test_after_a_start_the_newest_record_is_trusted_first() -> None:
    clocks = ExpiryClocks()
    clocks.expiry.continue_from(clocks.wall.now_s - 1e6)
    assert clocks.advance(0.0) == -1e6
    assert clocks.advance(EXPIRY_TRUSTED_AFTER_S) == 0.0
    clocks.expiry.continue_from(clocks.wall.now_s + 1e6)
    assert clocks.advance(1.0) == 0.0
