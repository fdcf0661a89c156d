"""Breaks in time: the process stood still, or the clock was set while it ran or before it started.

The monotonic clock says how long something took, also while the machine sleeps. If the wall clock says something else,
it was set. If nobody asked for a while, the process was stopped, or its machine slept.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple

from svcnode.core.units import format_duration
from svcnode.history.aggregator import MAX_GAP_S
from svcnode.history.timeline import CLOCK_SET, STOOD_STILL

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_READING_S = 1.0


class Break(NamedTuple):
    kind: str  # CLOCK_SET or STOOD_STILL
    paused_s: float  # the wall clock before
    resumed_s: float  # and after
    began_at_s: float  # the same moments of the monotonic clock
    ended_at_s: float
    is_before_start: bool = False  # of this process: `paused_s` is the newest record of the one before

    @property
    def text(self) -> str:
        length = format_duration(round(abs(self.resumed_s - self.paused_s), 1))
        if self.is_before_start:
            return f"back by at least {length} before this start"
        if self.kind == STOOD_STILL:
            return f"for {length}; the machine slept, or the process was stopped"
        return f"{'forward' if self.resumed_s > self.paused_s else 'back'} by {length}"

    def is_during(self, at_s: float) -> bool:
        """Of the monotonic clock."""
        return self.began_at_s < at_s <= self.ended_at_s


class BreakFinder:
    """Call `find` at least every second. Thread-safe."""

    def __init__(self, clock: Callable[[], float], wall_clock: Callable[[], float]) -> None:
        self._clock = clock
        self._wall_clock = wall_clock
        self._lock = threading.Lock()
        self._at_s, self._wall_s = clock(), wall_clock()
        self._before_start: list[Break] = []

    def continue_from(self, newest_record_s: float) -> float:
        """If the newest record of the process before is in the future, the clock was set back. Returns how far."""
        at_s, wall_s = self._clock(), self._wall_clock()
        if newest_record_s - wall_s <= MAX_GAP_S:
            return 0.0
        one = Break(CLOCK_SET, newest_record_s, wall_s, at_s, at_s, is_before_start=True)
        with self._lock:
            self._before_start.append(one)
        return newest_record_s - wall_s

    def find(self) -> list[Break]:
        """What has happened since the last call, in order."""
        with self._lock:
            at_s, wall_s = self._clock(), self._wall_clock()
            if self._clock() - at_s > MAX_READING_S:  # it stood still in between; the next call finds that
                return []
            since_s, paused_s = self._at_s, self._wall_s
            self._at_s, self._wall_s = at_s, wall_s
            before_start, self._before_start = self._before_start, []
        resumed_s = paused_s + at_s - since_s
        stood_still = Break(STOOD_STILL, paused_s, resumed_s, since_s, at_s)
        clock_set = Break(CLOCK_SET, resumed_s, wall_s, at_s, at_s)
        found = ((stood_still, at_s - since_s), (clock_set, abs(wall_s - resumed_s)))
        return [*before_start, *(one for one, length_s in found if length_s > MAX_GAP_S)]
