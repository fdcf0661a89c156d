"""What a period was like for the node and each service: time in each status, outages and latencies. There is no I/O.

The time in each status comes from the buckets of a service, so a period begins and ends where buckets do. Time in which
the status was not known (a restart, a machine that slept) is in no bucket, so it lowers nobody's availability. Neither
does maintenance.

Outages and the health of the node come from the transitions, and from the runs: the times in which the node ran. An
outage begins when a service is Down, and ends when it is Up or removed. An outage that outlasts a restart is still one
outage. Its length counts only the time in which the node ran, without maintenance.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, NamedTuple

from svcnode.core.model import STATUS_CHANGES, ChangeKind, Health, Status
from svcnode.history.latencies import add_to, percentile_s
from svcnode.history.records import DAYS, HOURS, LATENCY_DAYS, LATENCY_HOURS, MINUTES, Stretch
from svcnode.history.timeline import BEGINS, PAUSED, STARTED, STOPPED

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from svcnode.history.latencies import Histogram
    from svcnode.history.records import Resolution

UP, INITIALIZING, DOWN = Status.UP.value, Status.INITIALIZING.value, Status.DOWN.value
_NODE_STATUS = {int(Health.HEALTHY): UP, int(Health.PARTIAL): INITIALIZING, int(Health.UNHEALTHY): DOWN}
_STATUS_KINDS = {kind.value for kind in STATUS_CHANGES}
NOW_WITHIN_S = 10.0  # a request for a period until now comes here a moment later
OPEN_WITHIN_S = 120.0  # what is read from the file alone may be a minute old
AHEAD_S = 1.0  # a start is recorded at once, unless earlier ids are in the future
PERCENTILES = (0.5, 0.95, 0.99)


class ReportPeriod(NamedTuple):
    """From the beginning of one bucket to the beginning of another, or until now."""

    from_s: float
    to_s: float
    resolution: Resolution
    latency_resolution: Resolution = LATENCY_DAYS

    @classmethod
    def around(cls, from_s: float, to_s: float, now_s: float) -> ReportPeriod:
        """The period nearest to these times that the history has buckets for: minutes, hours or days."""
        found = (one for one in (MINUTES, HOURS) if from_s >= now_s - one.retention_s)
        resolution = next(found, DAYS)
        begin_s = resolution.begin_s(from_s + resolution.length_s / 2)
        if begin_s > now_s:
            begin_s -= resolution.length_s
        end_s = max(resolution.begin_s(to_s + resolution.length_s / 2), begin_s + resolution.length_s)
        has_hours = from_s >= now_s - LATENCY_HOURS.retention_s
        latency_resolution = LATENCY_HOURS if has_hours else LATENCY_DAYS
        return cls(begin_s, now_s if to_s > now_s - NOW_WITHIN_S else min(end_s, now_s), resolution, latency_resolution)

    @property
    def latency_range(self) -> tuple[float, float]:
        """The hours or days of which latencies are counted, by their begin."""
        return self.latency_resolution.begin_s(self.from_s), self.to_s


class Times(NamedTuple):
    """The time that counts, by status, and the time in maintenance."""

    up_s: float = 0.0
    initializing_s: float = 0.0
    down_s: float = 0.0
    maintenance_s: float = 0.0

    @property
    def known_s(self) -> float:
        return self.up_s + self.initializing_s + self.down_s

    def plus(self, other: Times) -> Times:
        return Times(*(one + another for one, another in zip(self, other, strict=True)))


class Move(NamedTuple):
    """What the report needs of a transition."""

    recorded_s: float
    at_s: float
    kind: str
    service_id: str | None
    before: str | None
    after: str | None
    health_before: int
    health: int


class Outage(NamedTuple):
    begin_s: float  # within the period
    end_s: float
    length_s: float  # that counts
    is_begun_before: bool  # before the period
    is_open: bool  # at the end of the period
    is_recovered: bool  # False too if the service was removed, or is not known any more


class SubjectReport(NamedTuple):
    """What the report says about a service, or about the node."""

    times: Times
    up_s: float  # of the node: with 206
    outages: tuple[Outage, ...]
    latencies: Histogram

    @property
    def availability(self) -> float | None:
        return self.up_s / self.times.known_s if self.times.known_s > 0 else None

    @property
    def longest_s(self) -> float | None:
        return max((outage.length_s for outage in self.outages), default=None)

    @property
    def mean_recovery_s(self) -> float | None:
        """Of the outages that ended with a recovery."""
        lengths = [outage.length_s for outage in self.outages if outage.is_recovered]
        return sum(lengths) / len(lengths) if lengths else None

    @property
    def percentiles_s(self) -> tuple[float | None, ...]:
        return tuple(percentile_s(self.latencies, share) for share in PERCENTILES)

    def budget(self, slo_percent: float) -> Budget:
        known_s = self.times.known_s
        allowed_s = known_s * (100 - slo_percent) / 100
        return Budget(allowed_s, allowed_s - (known_s - self.up_s))


class Budget(NamedTuple):
    """For how much of the time that counts a service may be not Up, and what is left; negative if it is overspent."""

    allowed_s: float
    left_s: float

    @property
    def left_share(self) -> float | None:
        return self.left_s / self.allowed_s if self.allowed_s > 0 else None


class PeriodReport(NamedTuple):
    period: ReportPeriod
    data_from_s: float | None  # within the period; None: there is no data
    outages_from_s: float | None  # of outages and of the node: transitions may be deleted earlier than buckets
    node: SubjectReport
    services: dict[str, SubjectReport]


class Runs:
    """The times in which the node ran, within a period."""

    def __init__(self, stretches: Iterable[Stretch], from_s: float, to_s: float) -> None:
        self._merged: list[Stretch] = []
        for begin_s, end_s in sorted(stretches):
            begin_s, end_s = max(begin_s, from_s), min(end_s, to_s)  # noqa: PLW2901
            if end_s <= begin_s:
                continue
            if self._merged and begin_s <= self._merged[-1].end_s:
                last = self._merged.pop()
                begin_s, end_s = last.begin_s, max(last.end_s, end_s)  # noqa: PLW2901
            self._merged.append(Stretch(begin_s, end_s))
        self._begins_s = [one.begin_s for one in self._merged]
        self._lengths_s = [0.0]  # of all before each
        for begin_s, end_s in self._merged:
            self._lengths_s.append(self._lengths_s[-1] + end_s - begin_s)

    @property
    def first_s(self) -> float | None:
        return self._begins_s[0] if self._begins_s else None

    def length_s(self, begin_s: float, end_s: float) -> float:
        """How long the node ran between two times."""
        return max(0.0, self._length_to_s(end_s) - self._length_to_s(begin_s))

    def last_s(self, at_s: float) -> float:
        """When the node ran last before this time."""
        index = bisect_left(self._begins_s, at_s) - 1
        return at_s if index < 0 else min(at_s, self._merged[index].end_s)

    def _length_to_s(self, at_s: float) -> float:
        index = bisect_right(self._begins_s, at_s) - 1
        if index < 0:
            return 0.0
        begin_s, end_s = self._merged[index]
        return self._lengths_s[index] + min(at_s, end_s) - begin_s


class _Outages:
    """The outages of a service, or of the node, up to the last change."""

    __slots__ = ("begun_s", "ended", "good", "is_held", "known_to_s", "length_s", "since_s", "status")

    def __init__(self, since_s: float, good: tuple[str, ...]) -> None:
        self.since_s = since_s
        self.good = good  # the statuses that end an outage
        self.status: str | None = None  # None: not registered, or not known
        self.is_held = False  # in maintenance
        self.begun_s: float | None = None  # of the outage that has not ended
        self.length_s = 0.0  # its length so far
        self.known_to_s = since_s  # the last time at which the status was known
        self.ended: list[Outage] = []

    def move_to(self, at_s: float, runs: Runs) -> float:
        """Returns the length. A change is never before the last one: the clock may have been set."""
        at_s = max(at_s, self.since_s)
        length_s = 0.0
        if self.status is not None:
            length_s = runs.length_s(self.since_s, at_s)
            self.known_to_s = runs.last_s(at_s)
        if self.begun_s is not None and not self.is_held:
            self.length_s += length_s
        self.since_s = at_s
        return length_s

    def judge(self, from_s: float) -> None:
        """Begin or end an outage, after the status or the maintenance has changed."""
        if self.status in self.good:  # if the node did not run before, it ended with what was last known
            self.end(self.known_to_s, from_s, is_recovered=True)
        elif self.status == DOWN and not self.is_held and self.begun_s is None:
            self.begun_s = self.since_s

    def set_back(self, at_s: float, from_s: float) -> None:
        """If the clock was set back to this time, the times so far are not of the clock that counts from now on."""
        if at_s < self.since_s:
            self.end(self.known_to_s, from_s)
            self.since_s = self.known_to_s = at_s

    def end(self, end_s: float, from_s: float, *, is_recovered: bool = False, is_open: bool = False) -> None:
        is_before = self.begun_s is not None and self.begun_s < from_s
        # One that began in the period counts, even if nothing is known of its length.
        if self.begun_s is not None and (self.length_s > 0 or not is_before):
            begin_s = max(self.begun_s, from_s)
            self.ended.append(Outage(begin_s, max(begin_s, end_s), self.length_s, is_before, is_open, is_recovered))
        self.begun_s, self.length_s = None, 0.0


class OutageFinder:
    """Takes the transitions in the order in which they were recorded, also those before the period."""

    def __init__(self, period: ReportPeriod, known_from_s: float, stretches: Iterable[Stretch]) -> None:
        """Transitions before `known_from_s` are deleted."""
        self._from_s, self._to_s = period.from_s, period.to_s
        self.runs = Runs(stretches, max(self._from_s, known_from_s), self._to_s)
        self._started_s = known_from_s  # of the process
        self._is_over = False  # the process started after the period
        self._is_ahead = False  # the clock was ahead before the process started: its ids are no times
        self._node = _Outages(known_from_s, good=(UP, INITIALIZING))
        self._node_lengths_s = dict.fromkeys((UP, INITIALIZING, DOWN), 0.0)
        self._node_maintenance_s = 0.0
        self._down_before_drain_s: float | None = None  # if it is 503 by itself, not because of a service
        self._services: dict[str, _Outages] = {}
        self._held: set[str | None] = set()  # services in maintenance; None: the node

    def add(self, move: Move) -> None:
        move = self._with_known_times(move)
        if move.kind in BEGINS:
            self._is_over = move.at_s >= self._to_s
            if not self._is_over:
                self._start(move)
        if self._is_over or move.at_s >= self._to_s:
            return
        if move.kind == STOPPED:
            self._stop(move.at_s)
            return
        if move.kind == PAUSED:
            self._forget(move.at_s)
            return
        if move.recorded_s < self._to_s:  # otherwise it may be the health after later changes
            self._add_health(move)
        if move.service_id is not None:
            self._add_status(move, self._service(move.service_id))
        if move.kind == ChangeKind.MAINTENANCE.value:
            self._hold(move, self._held | {move.service_id})
        elif move.kind == ChangeKind.MAINTENANCE_ENDED.value:
            self._hold(move, self._held - {move.service_id})

    def _with_known_times(self, move: Move) -> Move:
        if move.kind in BEGINS:
            self._is_ahead = move.recorded_s - move.at_s > AHEAD_S
        if self._is_ahead:
            move = move._replace(recorded_s=move.at_s)
        if move.kind not in BEGINS and move.at_s < self._started_s:
            # It has lasted since before the restart; that is known when it is recorded.
            move = move._replace(at_s=max(move.recorded_s, self._started_s))
        return move

    def of_services(self) -> dict[str, tuple[Outage, ...]]:
        return {service_id: self._finish(one) for service_id, one in self._services.items()}

    def of_node(self) -> tuple[Times, tuple[Outage, ...]]:
        self._move_node(self._to_s)
        up_s, initializing_s, down_s = self._node_lengths_s.values()
        return Times(up_s, initializing_s, down_s, self._node_maintenance_s), self._finish(self._node)

    def _start(self, move: Move) -> None:
        self._forget(move.at_s)
        self._started_s = move.at_s
        for one in (self._node, *self._services.values()):
            one.set_back(move.at_s, self._from_s)
            one.is_held = one.is_held and move.kind != STARTED
        if move.kind == STARTED:
            self._held = set()  # what is still in maintenance is recorded again

    def _stop(self, at_s: float) -> None:
        """While a node drains before it stops, it is 503. That belongs to the restart, and is no outage."""
        self._move_node(at_s)
        if self._down_before_drain_s is not None:
            self._node_lengths_s[DOWN] = self._down_before_drain_s
            self._node.begun_s, self._node.length_s = None, 0.0
        self._forget(at_s)

    def _forget(self, at_s: float) -> None:
        self._move_node(at_s)
        self._down_before_drain_s = None
        for one in (self._node, *self._services.values()):
            one.move_to(at_s, self.runs)
            one.status = None

    def _service(self, service_id: str) -> _Outages:
        one = self._services.get(service_id)
        if one is None:
            one = self._services[service_id] = _Outages(self._started_s, good=(UP,))
            one.is_held = not self._held.isdisjoint((None, service_id))
        return one

    def _add_status(self, move: Move, one: _Outages) -> None:
        if one.status is None and move.before == DOWN and move.after != INITIALIZING:
            one.status = DOWN  # since the start: it was so before the first transition
            one.judge(self._from_s)
        if move.kind in _STATUS_KINDS:
            one.move_to(move.at_s, self.runs)
            one.status = move.after
            if move.after is None:  # if it was not known before, as in `judge`
                one.end(one.known_to_s, self._from_s)
            one.judge(self._from_s)

    def _add_health(self, move: Move) -> None:
        before, after = _NODE_STATUS[move.health_before], _NODE_STATUS[move.health]
        if self._node.status is None:
            self._node.status = before
            self._node.judge(self._from_s)
        if self._node.status != after:
            self._move_node(move.at_s)
            is_drain = after == DOWN and move.kind == ChangeKind.NODE.value
            self._down_before_drain_s = self._node_lengths_s[DOWN] if is_drain else None
            self._node.status = after
            self._node.judge(self._from_s)

    def _move_node(self, at_s: float) -> None:
        length_s = self._node.move_to(at_s, self.runs)
        if self._node.is_held:
            self._node_maintenance_s += length_s
        elif self._node.status is not None:
            self._node_lengths_s[self._node.status] += length_s

    def _hold(self, move: Move, held: set[str | None]) -> None:
        self._held = held
        if move.service_id is None:
            self._move_node(move.at_s)
            self._node.is_held = None in held
            self._node.judge(self._from_s)
        for service_id in self._services if move.service_id is None else (move.service_id,):
            one = self._service(service_id)
            one.move_to(move.at_s, self.runs)
            one.is_held = not held.isdisjoint((None, service_id))
            one.judge(self._from_s)

    def _finish(self, one: _Outages) -> tuple[Outage, ...]:
        one.move_to(self._to_s, self.runs)
        is_open = one.status is not None and self._to_s - one.known_to_s < OPEN_WITHIN_S
        one.end(self._to_s if is_open else one.known_to_s, self._from_s, is_open=is_open)
        return tuple(one.ended)


def make_report(
    period: ReportPeriod,
    data_from_s: float | None,
    outages: OutageFinder,
    times: Mapping[str, Times],
    latencies: Mapping[str, Histogram],
) -> PeriodReport:
    found = outages.of_services()
    services = {
        service_id: SubjectReport(one, one.up_s, found.get(service_id, ()), latencies.get(service_id, {}))
        for service_id, one in times.items()
    }
    node_times, node_outages = outages.of_node()
    all_latencies: Histogram = {}
    for histogram in latencies.values():
        add_to(all_latencies, histogram)
    node = SubjectReport(node_times, node_times.up_s + node_times.initializing_s, node_outages, all_latencies)
    return PeriodReport(period, data_from_s, outages.runs.first_s, node, services)
