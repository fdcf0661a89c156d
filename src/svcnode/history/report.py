"""What a period was like for the node and each service: the time in each status, outages and latencies. No I/O.

It follows from the transitions and from the runs, the times in which the node ran. Only time in a run counts, so what
was not known (a restart, a machine that slept) lowers nobody's availability. Neither does time in maintenance count.

An outage begins when a service is Down, and ends when it is Up or removed. A Down that lasts over a restart is one
outage. Its length is the time of it that counts.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

from svcnode.core.model import ChangeKind, Health, Status
from svcnode.history.latencies import percentile_s
from svcnode.history.records import Stretch

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from svcnode.history.latencies import Histogram

UP, INITIALIZING, DOWN = Status.UP.value, Status.INITIALIZING.value, Status.DOWN.value
STARTED = "started"
_NODE_STATUS = {int(Health.HEALTHY): UP, int(Health.PARTIAL): INITIALIZING, int(Health.UNHEALTHY): DOWN}
PERCENTILES = (0.5, 0.95, 0.99)


class Move(NamedTuple):
    """What the report needs of a transition."""

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
    """Of a service or of the node."""

    known_s: float  # that counts
    up_s: float
    healthy_s: float  # of the node: without 206; of a service: as `up_s`
    maintenance_s: float
    outages: tuple[Outage, ...]
    latencies: Histogram

    @property
    def availability(self) -> float | None:
        return self.up_s / self.known_s if self.known_s > 0 else None

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
        allowed_s = self.known_s * (100 - slo_percent) / 100
        return Budget(allowed_s, allowed_s - (self.known_s - self.up_s))


class Budget(NamedTuple):
    """How long a service may be not Up, of the time that counts, and what is left of it; negative if it is spent."""

    allowed_s: float
    left_s: float

    @property
    def left_share(self) -> float | None:
        return self.left_s / self.allowed_s if self.allowed_s > 0 else None


class PeriodReport(NamedTuple):
    from_s: float
    to_s: float
    data_from_s: float | None  # what is older was deleted, or never recorded; None: there is no data of the period
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
        """When the node ran last, at this time or before."""
        index = bisect_right(self._begins_s, at_s) - 1
        return at_s if index < 0 else min(at_s, self._merged[index].end_s)

    def _length_to_s(self, at_s: float) -> float:
        index = bisect_right(self._begins_s, at_s) - 1
        if index < 0:
            return 0.0
        begin_s, end_s = self._merged[index]
        return self._lengths_s[index] + min(at_s, end_s) - begin_s


class _Subject:
    """A service or the node, up to the last change."""

    __slots__ = ("begun_s", "good", "is_held", "lengths_s", "maintenance_s", "outage_s", "outages", "since_s", "status")

    def __init__(self, since_s: float, good: Collection[str]) -> None:
        self.since_s = since_s
        self.good = good  # the statuses that end an outage
        self.status: str | None = None  # None: not registered, or not known
        self.is_held = False  # in maintenance
        self.lengths_s = dict.fromkeys((UP, INITIALIZING, DOWN), 0.0)
        self.maintenance_s = 0.0
        self.begun_s: float | None = None  # of the outage that has not ended
        self.outage_s = 0.0  # its length so far
        self.outages: list[Outage] = []

    def count_to(self, at_s: float, runs: Runs) -> None:
        """A change is never before the last one: it may be recorded late, or the clock was set."""
        at_s = max(at_s, self.since_s)
        if self.status is not None:
            length_s = runs.length_s(self.since_s, at_s)
            if self.is_held:
                self.maintenance_s += length_s
            else:
                self.lengths_s[self.status] += length_s
                self.outage_s += length_s if self.begun_s is not None else 0.0
        self.since_s = at_s

    def judge(self, from_s: float) -> None:
        """Begin or end an outage, after the status or the maintenance has changed."""
        if self.status in self.good:
            self.end_outage(self.since_s, from_s, is_recovered=True)
        elif self.status == DOWN and not self.is_held and self.begun_s is None:
            self.begun_s = self.since_s

    def end_outage(self, end_s: float, from_s: float, *, is_recovered: bool = False, is_open: bool = False) -> None:
        if self.begun_s is not None and self.outage_s > 0:
            begin_s = max(self.begun_s, from_s)
            is_before = self.begun_s < from_s
            self.outages.append(Outage(begin_s, end_s, self.outage_s, is_before, is_open, is_recovered))
        self.begun_s, self.outage_s = None, 0.0


class ReportBuilder:
    """Takes the transitions in the order in which they were recorded, also those before the period."""

    def __init__(self, from_s: float, to_s: float, data_from_s: float, stretches: Iterable[Stretch]) -> None:
        self._from_s, self._to_s = from_s, to_s
        self._runs = Runs(stretches, max(from_s, data_from_s), to_s)
        self._started_s = data_from_s  # of the process
        self._node = _Subject(data_from_s, good=(UP, INITIALIZING))
        self._services: dict[str, _Subject] = {}
        self._held: set[str | None] = set()  # services in maintenance; None: the node

    def start(self, at_s: float, statuses: Mapping[str, str]) -> None:
        """A process has started. `statuses`: of the services without a transition while it ran."""
        for subject in (self._node, *self._services.values()):
            subject.count_to(at_s, self._runs)
            subject.status, subject.is_held = None, False
        self._held.clear()  # what is still in maintenance is recorded again
        self._started_s = max(at_s, self._started_s)
        for service_id, status in statuses.items():
            subject = self._service(service_id)
            subject.status = status
            subject.judge(self._from_s)

    def add(self, move: Move) -> None:
        if move.service_id is None:
            self._change(self._node, move.at_s, _NODE_STATUS[move.health_before], _NODE_STATUS[move.health])
        else:
            self._add_service(move, self._service(move.service_id))
            if move.health != move.health_before or self._node.status is None:
                self._change(self._node, move.at_s, _NODE_STATUS[move.health_before], _NODE_STATUS[move.health])
        if move.kind == ChangeKind.MAINTENANCE.value:
            self._hold(move, {*self._held, move.service_id})
        elif move.kind == ChangeKind.MAINTENANCE_ENDED.value:
            self._hold(move, self._held - {move.service_id})

    def finish(self, latencies: Mapping[str, Histogram], node_latencies: Histogram) -> PeriodReport:
        services = {
            service_id: self._subject_report(subject, latencies.get(service_id, {}))
            for service_id, subject in self._services.items()
        }
        node = self._subject_report(self._node, node_latencies)
        # Without those that were removed before the period, or came after it.
        known = {key: one for key, one in services.items() if one.known_s or one.maintenance_s or one.latencies}
        return PeriodReport(self._from_s, self._to_s, self._runs.first_s, node, known)

    def _service(self, service_id: str) -> _Subject:
        subject = self._services.get(service_id)
        if subject is None:
            subject = self._services[service_id] = _Subject(self._started_s, good=(UP,))
            subject.is_held = not self._held.isdisjoint((None, service_id))
        return subject

    def _add_service(self, move: Move, subject: _Subject) -> None:
        if move.kind == ChangeKind.DEREGISTERED.value:
            self._change(subject, move.at_s, move.before, None)
            subject.end_outage(subject.since_s, self._from_s)
        elif move.after is not None:
            self._change(subject, move.at_s, move.before, move.after)

    def _change(self, subject: _Subject, at_s: float, before: str | None, after: str | None) -> None:
        if subject.status is None and before is not None:  # since the start: nothing was recorded until now
            subject.status = before
            subject.judge(self._from_s)
        subject.count_to(at_s, self._runs)
        subject.status = after
        subject.judge(self._from_s)

    def _hold(self, move: Move, held: set[str | None]) -> None:
        self._held = held
        changed = self._services if move.service_id is None else (move.service_id,)
        if move.service_id is None:
            self._set_held(self._node, move.at_s, is_held=None in held)
        for service_id in changed:
            is_held = not held.isdisjoint((None, service_id))
            self._set_held(self._service(service_id), move.at_s, is_held=is_held)

    def _set_held(self, subject: _Subject, at_s: float, *, is_held: bool) -> None:
        subject.count_to(at_s, self._runs)
        subject.is_held = is_held
        subject.judge(self._from_s)

    def _subject_report(self, subject: _Subject, latencies: Histogram) -> SubjectReport:
        subject.count_to(self._to_s, self._runs)
        is_open = subject.status is not None
        subject.end_outage(self._to_s if is_open else self._runs.last_s(self._to_s), self._from_s, is_open=is_open)
        lengths_s = subject.lengths_s
        return SubjectReport(
            known_s=sum(lengths_s.values()),
            up_s=sum(lengths_s[status] for status in subject.good),
            healthy_s=lengths_s[UP],
            maintenance_s=subject.maintenance_s,
            outages=tuple(subject.outages),
            latencies=latencies,
        )
