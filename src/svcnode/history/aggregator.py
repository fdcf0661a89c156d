"""Aggregates the current minute: per service the time in each status, and its checks; and its latencies by the hour.

The caller passes the time in. A change updates one accumulator; only the end of a minute iterates over all of them, in
steps of a few hundred, and adds the minute to the backlog. An accumulator that is used between two steps is closed
first, so every change counts in its own minute.

Latencies are counted for an hour before they are added to the backlog, because they are many rows in the file. A
process that is killed loses those of its last hour.

Time counts only while this process runs. `tick` is called about once per second; if the calls stop for longer (the
process was stopped, the machine slept) or the clock was set, the time in between counts for no status. Time in
maintenance is counted on its own, so availability leaves it out.
"""

from __future__ import annotations

import threading
from itertools import chain, islice
from typing import TYPE_CHECKING

from svcnode.core.model import Status
from svcnode.history.latencies import add_to, latency_bucket
from svcnode.history.records import HOURS, MINUTES, Bucket, Stretch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from svcnode.history.backlog import Backlog
    from svcnode.history.latencies import Histogram
    from svcnode.history.records import Resolution

MAX_GAP_S = 5.0
MAX_SLEW_S = 1.0  # a clock under adjustment may go back by this much; the aggregator waits until it has caught up
PRECISION_S = 0.001  # of the times of changes
SERVICES_PER_LOCK = 200  # limits how long a query holds the lock, to less than a millisecond

_STATUS_INDEX = {Status.UP: 0, Status.INITIALIZING: 1, Status.DOWN: 2}  # as in a bucket


class _Window:
    """Uninterrupted time within one minute."""

    __slots__ = ("begin_s", "buckets", "end_s", "ends_hour", "latencies", "minute_s")

    def __init__(self, begin_s: float) -> None:
        self.begin_s = begin_s
        self.minute_s = MINUTES.begin_s(begin_s)
        self.end_s: float = self.minute_s + MINUTES.length_s
        self.ends_hour = False  # whether the latencies of the hour are complete
        # Of the closed accumulators.
        self.buckets: dict[str, Bucket] = {}
        self.latencies: dict[str, Histogram] = {}


class _Accumulator:
    """One service in one window; its latencies are those of the hour."""

    __slots__ = (
        "checks",
        "failures",
        "in_maintenance",
        "is_known",
        "latencies",
        "latency_max_s",
        "latency_sum_s",
        "maintenance_s",
        "seconds",
        "since_s",
        "status",
        "window",
    )

    def __init__(self, window: _Window) -> None:
        self.window = window
        self.since_s = window.begin_s  # the seconds are counted up to here
        self.status: Status | None = None  # None: the service is not registered
        self.in_maintenance = False
        self.is_known = True  # False: there is no evidence yet, and the time counts for no status
        self.seconds = [0.0, 0.0, 0.0]
        self.maintenance_s = 0.0
        self.checks = self.failures = 0
        self.latency_sum_s = self.latency_max_s = 0.0
        self.latencies: Histogram = {}

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
            if begin_s - accumulator.since_s < PRECISION_S:  # a success that is known now has just been recorded
                begin_s = accumulator.since_s
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
            if not is_failure:  # the time until a timeout or a refusal is not one in which the service has answered
                bucket = latency_bucket(duration_s)
                accumulator.latencies[bucket] = accumulator.latencies.get(bucket, 0) + 1

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
            if closed.buckets or closed.begin_s < closed.end_s:  # without a service, the node ran nevertheless
                observed = Stretch(closed.begin_s, closed.end_s)
                self._backlog.add_minute(closed.minute_s, closed.buckets, observed, closed.latencies)
            return False

    def finish(self, now_s: float) -> None:
        """Close the current minute before its end, because the process stops."""
        with self._lock:
            self.tick(now_s)
            self._roll_window(end_s=self._now_s, begin_s=self._now_s, is_last=True)
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

    def service_ids(self) -> list[str]:
        """Those with buckets that are in the backlog or not closed yet."""
        with self._lock:
            closed = [minute.buckets for minute in self._backlog.minutes()]
            closing = {} if self._closing is None else self._closing.buckets
            return list(dict.fromkeys(chain(self._accumulators, closing, *closed)))

    def unwritten_stretches(self) -> list[Stretch]:
        """The times in which the node ran, up to now, that are in the backlog or not closed yet."""
        with self._lock:
            stretches = [minute.observed for minute in self._backlog.minutes() if minute.observed is not None]
            if self._closing is not None:
                stretches.append(Stretch(self._closing.begin_s, self._closing.end_s))
            return [*stretches, Stretch(self._window.begin_s, self._now_s)]

    def unwritten_latencies(self, resolution: Resolution, begin_s: float, end_s: float) -> dict[str, Histogram]:
        """By service, those of the hours or days that begin within this time."""
        found: dict[str, Histogram] = {}

        def add(minute_s: int, latencies: Iterable[tuple[str, Histogram]]) -> None:
            if begin_s <= resolution.begin_s(minute_s) < end_s:
                for service_id, histogram in latencies:
                    add_to(found.setdefault(service_id, {}), histogram)

        with self._lock:
            for minute in self._backlog.minutes():
                add(minute.begin_s, minute.latencies.items())
            if self._closing is not None:
                add(self._closing.minute_s, self._closing.latencies.items())
            service_ids = iter(list(self._accumulators))
        while chunk := list(islice(service_ids, SERVICES_PER_LOCK)):
            with self._lock:
                accumulators = ((one, self._accumulators.get(one)) for one in chunk)
                add(self._window.minute_s, ((key, one.latencies) for key, one in accumulators if one is not None))
        return found

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

    def _roll_window(self, end_s: float, begin_s: float, *, is_last: bool = False) -> None:
        self._close_all()
        self._window.end_s = end_s
        self._window.ends_hour = is_last or HOURS.begin_s(begin_s) != HOURS.begin_s(self._window.minute_s)
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
        is_hour_complete = bool(accumulator.latencies) and (previous.ends_hour or accumulator.status is None)
        if (bucket := accumulator.bucket).observed_s or bucket.checks or is_hour_complete:
            previous.buckets[service_id] = bucket
        if is_hour_complete:
            previous.latencies[service_id], accumulator.latencies = accumulator.latencies, {}
        if accumulator.status is None:
            del self._accumulators[service_id]
            return None
        return self._open(service_id, accumulator)

    def _open(self, service_id: str, previous: _Accumulator | None = None) -> _Accumulator:
        accumulator = self._accumulators[service_id] = _Accumulator(self._window)
        if previous is not None:
            accumulator.status, accumulator.is_known = previous.status, previous.is_known
            accumulator.in_maintenance, accumulator.latencies = previous.in_maintenance, previous.latencies
        return accumulator
