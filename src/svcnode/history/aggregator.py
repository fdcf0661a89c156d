"""Aggregates the current minute: per service the time in each status, and its checks.

The caller passes the time in. A change updates one accumulator; only the end of a minute iterates over all of them, in
steps of a few hundred, and adds the minute to the backlog. An accumulator that is used between two steps is closed
first, so every change counts in its own minute.

Time counts only while this process runs. `tick` is called about once per second; if the calls stop for longer (the
process was stopped, the machine slept) or the clock was set, the time in between counts for no status. Time in
maintenance is counted on its own, so availability leaves it out.
"""

from __future__ import annotations

import threading
from itertools import islice
from typing import TYPE_CHECKING

from svcnode.core.model import Status
from svcnode.history.records import MINUTES, Bucket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from svcnode.history.backlog import Backlog

MAX_GAP_S = 5.0
MAX_SLEW_S = 1.0  # a clock under adjustment may go back by this much; the aggregator waits until it has caught up
SERVICES_PER_LOCK = 200  # limits how long a query holds the lock, to less than a millisecond

_STATUS_INDEX = {Status.UP: 0, Status.INITIALIZING: 1, Status.DOWN: 2}  # as in a bucket


class _Window:
    """Uninterrupted time within one minute."""

    __slots__ = ("begin_s", "buckets", "end_s", "minute_s")

    def __init__(self, begin_s: float) -> None:
        self.begin_s = begin_s
        self.minute_s = MINUTES.begin_s(begin_s)
        self.end_s: float = self.minute_s + MINUTES.length_s
        self.buckets: dict[str, Bucket] = {}  # of the closed accumulators


class _Accumulator:
    """One service in one window."""

    __slots__ = (
        "checks",
        "failures",
        "in_maintenance",
        "is_known",
        "latency_max_s",
        "latency_sum_s",
        "maintenance_s",
        "seconds",
        "since_s",
        "status",
        "window",
    )

    def __init__(self, window: _Window, status: Status | None, *, in_maintenance: bool, is_known: bool) -> None:
        self.window = window
        self.since_s = window.begin_s  # the seconds are counted up to here
        self.status = status  # None: the service is not registered
        self.in_maintenance = in_maintenance
        self.is_known = is_known  # False: there is no evidence yet, and the time counts for no status
        self.seconds = [0.0, 0.0, 0.0]
        self.maintenance_s = 0.0
        self.checks = self.failures = 0
        self.latency_sum_s = self.latency_max_s = 0.0

    def count_to(self, at_s: float) -> None:
        if self.status is not None:
            if self.in_maintenance:
                self.maintenance_s += at_s - self.since_s
            elif self.is_known:
                self.seconds[_STATUS_INDEX[self.status]] += at_s - self.since_s
        self.since_s = at_s

    @property
    def bucket(self) -> Bucket:
        times = (self.window.minute_s, *self.seconds)
        checks = (self.checks, self.failures, self.latency_sum_s, self.latency_max_s)
        return Bucket._make((*times, *checks, self.maintenance_s))


class MinuteAggregator:
    """Thread-safe. A closed minute moves to the backlog."""

    def __init__(self, now_s: float, backlog: Backlog) -> None:
        self._backlog = backlog
        self._lock = threading.RLock()
        self._now_s = now_s  # the time of the last tick
        self._accumulators: dict[str, _Accumulator] = {}
        self._window = _Window(now_s)
        self._closing: _Window | None = None  # the previous window, while some accumulators are still in it
        self._unclosed_ids: Iterator[str] = iter(())

    def tick(self, now_s: float) -> None:
        with self._lock:
            elapsed_s = now_s - self._now_s
            if -MAX_SLEW_S < elapsed_s < 0:
                return
            if not 0 <= elapsed_s <= MAX_GAP_S:
                self._roll_window(end_s=self._now_s, begin_s=now_s)
            elif now_s >= self._window.end_s:
                self._roll_window(end_s=self._window.end_s, begin_s=self._window.end_s)
            self._now_s = now_s

    def set_status(  # noqa: PLR0913  what is known of one service
        self,
        service_id: str,
        status: Status | None,
        since_s: float,
        now_s: float,
        *,
        in_maintenance: bool = False,
        is_known: bool = True,
    ) -> None:
        """`since_s` may be in the past; closed buckets do not change."""
        with self._lock:
            self.tick(now_s)
            accumulator = self._accumulator(service_id)
            if accumulator is None:
                if status is None:
                    return
                accumulator = self._open(service_id)
            # What was not known yet stays unknown, also if the new status has lasted for longer.
            begin_s = since_s if accumulator.is_known else now_s
            accumulator.count_to(min(max(begin_s, accumulator.since_s), self._now_s))
            accumulator.status, accumulator.in_maintenance, accumulator.is_known = status, in_maintenance, is_known

    def set_known(self, service_id: str, wall_clock: Callable[[], float]) -> None:
        """There is evidence from now on, whatever the status is."""
        accumulator = self._accumulators.get(service_id)
        if accumulator is None or accumulator.is_known:  # as for almost all evidence
            return
        with self._lock:
            self.tick(wall_clock())
            accumulator = self._accumulator(service_id)
            if accumulator is not None:
                accumulator.count_to(max(self._now_s, accumulator.since_s))
                accumulator.is_known = True

    def add_check(self, service_id: str, duration_s: float, *, is_failure: bool) -> None:
        with self._lock:
            accumulator = self._accumulator(service_id)
            if accumulator is None:
                return
            accumulator.checks += 1
            accumulator.failures += is_failure
            accumulator.latency_sum_s += duration_s
            accumulator.latency_max_s = max(accumulator.latency_max_s, duration_s)

    def close_some(self, count: int) -> bool:
        """Close up to `count` accumulators of the finished minute; returns whether to call again."""
        with self._lock:
            if self._closing is None:
                return False
            service_ids = list(islice(self._unclosed_ids, count))
            for service_id in service_ids:
                self._accumulator(service_id)
            if service_ids:
                return True
            closed, self._closing = self._closing, None
            if closed.buckets:
                self._backlog.add_minute(closed.minute_s, closed.buckets)
            return False

    def finish(self, now_s: float) -> None:
        """Close the current minute before its end, because the process stops."""
        with self._lock:
            self.tick(now_s)
            self._roll_window(end_s=self._now_s, begin_s=self._now_s)
            self._close_all()

    def unwritten_buckets(self, service_ids: Sequence[str]) -> dict[str, list[Bucket]]:
        """The buckets of each service, up to now, that are in the backlog or not closed yet."""
        buckets = {}
        for first in range(0, len(service_ids), SERVICES_PER_LOCK):
            with self._lock:
                minutes = self._backlog.minutes()
                for service_id in service_ids[first : first + SERVICES_PER_LOCK]:
                    closed = [minute.buckets[service_id] for minute in minutes if service_id in minute.buckets]
                    buckets[service_id] = [*closed, *self._open_buckets(service_id)]
        return buckets

    # ---- private; the caller holds the lock

    def _open_buckets(self, service_id: str) -> list[Bucket]:
        accumulator = self._accumulator(service_id)
        buckets = []
        if self._closing is not None and service_id in self._closing.buckets:
            buckets.append(self._closing.buckets[service_id])
        if accumulator is not None:
            accumulator.count_to(max(self._now_s, accumulator.since_s))
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
        """The accumulator in the current window; if it is still in the previous window, that one is closed first."""
        accumulator = self._accumulators.get(service_id)
        if accumulator is None or accumulator.window is self._window:
            return accumulator
        previous = accumulator.window
        accumulator.count_to(previous.end_s)
        if (bucket := accumulator.bucket).observed_s or bucket.checks:
            previous.buckets[service_id] = bucket
        if accumulator.status is None:
            del self._accumulators[service_id]
            return None
        return self._open(
            service_id, accumulator.status, in_maintenance=accumulator.in_maintenance, is_known=accumulator.is_known
        )

    def _open(
        self,
        service_id: str,
        status: Status | None = None,
        *,
        in_maintenance: bool = False,
        is_known: bool = True,
    ) -> _Accumulator:
        accumulator = _Accumulator(self._window, status, in_maintenance=in_maintenance, is_known=is_known)
        self._accumulators[service_id] = accumulator
        return accumulator
