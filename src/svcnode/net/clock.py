"""The monotonic clock that evidence is dated with, and its times as wall-clock times.

The clock also counts the time that the machine sleeps. `time.monotonic` stops during sleep on Linux and macOS: after a
laptop wakes up, a success from the night before would count as fresh.
"""

from __future__ import annotations

import math
import time
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

CLOCK_STEP_S = 0.01  # a larger difference means that the wall clock was set
MAX_MEASURING_S = 0.001
MAX_OFFSETS = 16
EXPIRY_CLOCK_STEP_S = 1.0  # between two calls, which may be hours apart: the clocks differ by parts per million
EXPIRY_TRUSTED_AFTER_S = 3600.0


def _select_clock() -> Callable[[], float]:
    if hasattr(time, "CLOCK_BOOTTIME"):
        return partial(time.clock_gettime, time.CLOCK_BOOTTIME)
    if hasattr(time, "CLOCK_MONOTONIC"):  # on macOS, time.monotonic reads another clock
        return partial(time.clock_gettime, time.CLOCK_MONOTONIC)
    return time.monotonic


monotonic_s = _select_clock()


def next_tick_s(now_s: float, interval_s: float = 1.0) -> float:
    """The next multiple of the interval: all periodic work of an event loop is due at the same times.

    So an idle process wakes up once for all of it. A timer may fire a little early, which is not the next tick.
    """
    return (math.floor(now_s / interval_s + 0.05) + 1) * interval_s


class WallTimes:
    """Converts times of a monotonic clock to wall-clock times, in whole milliseconds.

    The same time always gives the same result, wherever it is shown. So the difference between the clocks is measured
    at each conversion, but a new difference is used only after the wall clock was set, and only for times after the
    previous conversion.
    """

    __slots__ = ("_clock", "_measured_at_s", "_offsets", "_wall_clock")

    def __init__(self, clock: Callable[[], float], wall_clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._wall_clock = wall_clock
        # The newest first: the difference, and the time after which it holds.
        self._offsets: tuple[tuple[float, float], ...] = ((wall_clock() - clock(), -math.inf),)
        self._measured_at_s = -math.inf

    def wall_s(self, at_s: float) -> float:
        self._measure()
        offsets = self._offsets
        return round(at_s + next((offset_s for offset_s, after_s in offsets if at_s > after_s), offsets[-1][0]), 3)

    def offset_s(self) -> float:
        """From the monotonic clock to the wall clock, as it is set now."""
        self._measure()
        return self._offsets[0][0]

    def _measure(self) -> None:
        before_s = self._clock()
        wall_s = self._wall_clock()
        after_s = self._clock()
        if after_s - before_s > MAX_MEASURING_S:  # another thread ran in between
            return
        if abs(wall_s - before_s - self._offsets[0][0]) > CLOCK_STEP_S:
            self._offsets = ((wall_s - before_s, self._measured_at_s), *self._offsets[: MAX_OFFSETS - 1])
        self._measured_at_s = max(after_s, self._measured_at_s)


class RetentionClock:
    """The time by which stored records expire: the wall clock, once it has run evenly for an hour.

    Until then, it does not jump ahead. Otherwise a clock that is wrong for a moment, or when the machine starts, would
    make all records look old.
    """

    __slots__ = ("_clock", "_even_since_s", "_offset_s", "_trusted_offset_s", "_wall_clock")

    def __init__(self, wall_clock: Callable[[], float], clock: Callable[[], float] = monotonic_s) -> None:
        self._wall_clock = wall_clock
        self._clock = clock
        # From the monotonic clock to the wall clock.
        self._offset_s = self._trusted_offset_s = wall_clock() - clock()
        self._even_since_s = clock()

    def continue_from(self, newest_record_s: float) -> None:
        """The time of the newest record is the last one that is known to be right."""
        self._trusted_offset_s = min(self._trusted_offset_s, newest_record_s - self._clock())

    def now_s(self) -> float:
        clock_s = self._clock()
        offset_s = self._wall_clock() - clock_s
        if abs(offset_s - self._offset_s) > EXPIRY_CLOCK_STEP_S:
            self._even_since_s = clock_s
        self._offset_s = offset_s
        if offset_s < self._trusted_offset_s or clock_s - self._even_since_s >= EXPIRY_TRUSTED_AFTER_S:
            self._trusted_offset_s = offset_s
        return clock_s + self._trusted_offset_s
