"""For how long each service has had which status in the minute that is running, and what its checks were like.

The time is told by the caller. Whatever happens adds to an accumulator; nothing walks over all of them but the turn of a
minute, and that may be taken a few hundred at a time: an accumulator that is touched meanwhile is closed first, so each
change counts in its own minute, however long the walk takes.

Time counts only while somebody is there. `tick` says so about once a second. After a longer silence (this process was
stopped, or the machine slept), or when the clock was set, what lies between is nobody's.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from svcnode.core.model import Status
from svcnode.history.records import MINUTES, Bucket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MAX_GAP_S = 5.0
MAX_SLEW_S = 1.0  # a clock that is being adjusted may go back by so much; it is waited for

_STATUS_INDEX = {Status.UP: 0, Status.INITIALIZING: 1, Status.DOWN: 2}  # as in a bar


class _Window:
    """Time without a break within one minute."""

    __slots__ = ("begin_s", "buckets", "end_s", "minute_s")

    def __init__(self, begin_s: float) -> None:
        self.begin_s = begin_s
        self.minute_s = MINUTES.begin_s(begin_s)
        self.end_s: float = self.minute_s + MINUTES.length_s
        self.buckets: dict[str, Bucket] = {}  # of the accumulators that are closed


class _Accumulator:
    __slots__ = (
        "checks",
        "failures",
        "latency_max_s",
        "latency_sum_s",
        "seconds",
        "since_s",
        "status",
        "window",
    )

    def __init__(self, window: _Window) -> None:
        self.status: Status | None = None  # None: nobody knows of the service (any more)
        self.reset(window)

    def reset(self, window: _Window) -> None:
        self.window = window
        self.since_s = window.begin_s  # up to here, the seconds are counted
        self.seconds = [0.0, 0.0, 0.0]
        self.checks = self.failures = 0
        self.latency_sum_s = self.latency_max_s = 0.0

    def count_to(self, moment_s: float) -> None:
        if self.status is not None:
            self.seconds[_STATUS_INDEX[self.status]] += moment_s - self.since_s
        self.since_s = moment_s

    @property
    def bucket(self) -> Bucket:
        return Bucket(
            self.window.minute_s,
            self.seconds[0],
            self.seconds[1],
            self.seconds[2],
            self.checks,
            self.failures,
            self.latency_sum_s,
            self.latency_max_s,
        )


class MinuteAggregator:
    """Not safe for several threads at once."""

    def __init__(self, now_s: float, when_over: Callable[[int, dict[str, Bucket]], None]) -> None:
        """`when_over` gets the beginning of each minute that is over, and its buckets."""
        self.now_s = now_s  # the last time that somebody was there
        self._on_minute_closed = when_over
        self._accumulators: dict[str, _Accumulator] = {}
        self._window = _Window(now_s)
        self._closing: _Window | None = None  # the one before, while some accumulators are still in it
        self._unclosed_ids: Iterator[str] = iter(())  # those that may be

    def tick(self, now_s: float) -> None:
        """Somebody is there."""
        ahead_s = now_s - self.now_s
        if -MAX_SLEW_S < ahead_s < 0:
            return
        if not 0 <= ahead_s <= MAX_GAP_S:
            self._roll_window(end_s=self.now_s, begin_s=now_s)
        elif now_s >= self._window.end_s:
            self._roll_window(end_s=self._window.end_s, begin_s=self._window.end_s)
        self.now_s = now_s

    def set_status(self, service_id: str, status: Status | None, since_s: float, now_s: float) -> None:
        """`since_s` may be in the past; what is closed by then stays as it is."""
        self.tick(now_s)
        accumulator = self._accumulator(service_id)
        if accumulator is None:
            if status is None:
                return
            accumulator = self._accumulators[service_id] = _Accumulator(self._window)
        accumulator.count_to(min(max(since_s, accumulator.since_s), self.now_s))
        accumulator.status = status

    def add_check(self, service_id: str, duration_s: float, *, is_failure: bool) -> None:
        accumulator = self._accumulator(service_id)
        if accumulator is None:
            return
        accumulator.checks += 1
        accumulator.failures += is_failure
        accumulator.latency_sum_s += duration_s
        accumulator.latency_max_s = max(accumulator.latency_max_s, duration_s)

    def close_some(self, count: int) -> bool:
        """Close some more accumulators of the minute that is over; returns whether there may be more to do."""
        if self._closing is None:
            return False
        some = list(islice(self._unclosed_ids, count))
        for service_id in some:
            self._accumulator(service_id)
        if some:
            return True
        over, self._closing = self._closing, None
        if over.buckets:
            self._on_minute_closed(over.minute_s, over.buckets)
        return False

    def finish(self, now_s: float) -> None:
        """Nobody will be there any more."""
        self.tick(now_s)
        self._roll_window(end_s=self.now_s, begin_s=self.now_s)
        self._close_all()

    def open_buckets(self, service_id: str) -> list[Bucket]:
        """What has not been handed over of a service, up to now."""
        accumulator = self._accumulator(service_id)
        buckets = []
        if self._closing is not None and service_id in self._closing.buckets:
            buckets.append(self._closing.buckets[service_id])
        if accumulator is not None:
            accumulator.count_to(max(self.now_s, accumulator.since_s))
            buckets.append(accumulator.bucket)
        return buckets

    def _roll_window(self, end_s: float, begin_s: float) -> None:
        self._close_all()
        self._window.end_s = end_s
        self._closing, self._window = self._window, _Window(begin_s)
        self._unclosed_ids = iter(list(self._accumulators))

    def _close_all(self) -> None:
        while self.close_some(len(self._accumulators) + 1):
            pass

    def _accumulator(self, service_id: str) -> _Accumulator | None:
        """In the window that is running; first it is closed in the one before, where it still was."""
        accumulator = self._accumulators.get(service_id)
        if accumulator is None or accumulator.window is self._window:
            return accumulator
        over = accumulator.window
        accumulator.count_to(over.end_s)
        if (bar := accumulator.bucket).known_s or bar.checks:
            over.buckets[service_id] = bar
        if accumulator.status is None:
            del self._accumulators[service_id]
            return None
        accumulator.reset(self._window)
        return accumulator
