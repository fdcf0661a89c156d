"""The watched nodes, their changes and their recent past. The caller passes the time; there is no clock here."""

from __future__ import annotations

from collections import Counter
from enum import Enum, IntEnum
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from svcnode.cli.terminal.snapshot import OverallHealth
from svcnode.core.model import Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from svcnode.cli.terminal.snapshot import NodeSnapshot, RegistryEntry
    from svcnode.client import BackingService, Identity

HISTORY_CELLS = 60  # the most that the widest terminal shows
MIN_CELL_S = 10.0
HIGHLIGHT_S = 6.0
MIN_WAIT_NOTICE_S = 2.0


class Severity(IntEnum):
    """How bad a state is; a cell of a timeline holds the highest of its period."""

    NO_DATA = 0
    OK = 1
    WARNING = 2
    NOT_REPORTED = 3
    CRITICAL = 4
    ERROR = 5


class UnreachableStatus(Enum):
    """The status of a service whose node does not respond."""

    UNKNOWN = "unknown"


_HEALTH_SEVERITY = {
    OverallHealth.HEALTHY: Severity.OK,
    OverallHealth.PARTIAL: Severity.WARNING,
    OverallHealth.UNHEALTHY: Severity.CRITICAL,
    OverallHealth.UNKNOWN: Severity.ERROR,
}
_STATUS_SEVERITY: dict[Status | UnreachableStatus | None, Severity] = {
    Status.UP: Severity.OK,
    Status.INITIALIZING: Severity.WARNING,
    Status.DOWN: Severity.CRITICAL,
    None: Severity.NOT_REPORTED,
    UnreachableStatus.UNKNOWN: Severity.ERROR,
}


class Timeline:
    """The last minutes, in cells of equal duration."""

    __slots__ = ("_cell_s", "_cells", "_newest")

    def __init__(self, cell_s: float) -> None:
        self._cell_s = cell_s
        self._cells = bytes(HISTORY_CELLS)
        self._newest = 0

    def add(self, severity: Severity, at_s: float, from_s: float | None = None) -> None:
        """With `from_s`, for the whole period from `from_s` to `at_s`."""
        newest = int(at_s // self._cell_s)
        oldest = newest if from_s is None else int(from_s // self._cell_s)
        cells = bytearray(self._shifted(newest - self._newest))
        for index in range(max(0, HISTORY_CELLS - 1 - (newest - oldest)), HISTORY_CELLS):
            cells[index] = max(cells[index], severity)
        self._cells, self._newest = bytes(cells), newest

    def last(self, count: int, now_s: float) -> list[Severity]:
        """The newest cell is the last one. A new cell without data is not shown: it is not a gap."""
        age = int(now_s // self._cell_s) - self._newest
        cells = self._shifted(age if age > 1 else 0)
        return [Severity(cell) for cell in cells[HISTORY_CELLS - min(count, HISTORY_CELLS) :]]

    def _shifted(self, count: int) -> bytes:
        return (self._cells + bytes(min(count, HISTORY_CELLS)))[-HISTORY_CELLS:]


class StateTracker:
    """The state of a node or a service: since when, and its timeline."""

    __slots__ = ("changed_s", "first_s", "state", "timeline")

    def __init__(self, state: object, at_s: float, cell_s: float, *, is_new: bool = False) -> None:
        self.state = state
        self.first_s = at_s
        self.changed_s = at_s if is_new else None  # None: no change since the watch began
        self.timeline = Timeline(cell_s)

    def update(self, state: object, severity: Severity, at_s: float, from_s: float | None = None) -> None:
        if state != self.state:
            self.state, self.changed_s = state, at_s
        self.timeline.add(severity, at_s, from_s)

    def age_s(self, now_s: float) -> float:
        return max(0.0, now_s - (self.first_s if self.changed_s is None else self.changed_s))


def is_recently_changed(changed_s: float | None, now_s: float) -> bool:
    return changed_s is not None and now_s - changed_s < HIGHLIGHT_S


class ServiceKey(NamedTuple):
    """Tells services with the same id apart: a node may list an id more than once."""

    id: str
    number: int


class WatchedService:
    __slots__ = ("key", "service", "tracker")

    def __init__(self, key: ServiceKey, service: BackingService, tracker: StateTracker) -> None:
        self.key = key
        self.service = service  # as it was last listed
        self.tracker = tracker

    @property
    def status(self) -> Status | UnreachableStatus | None:
        state = self.tracker.state
        assert state is None or isinstance(state, Status | UnreachableStatus)
        return state

    @property
    def severity(self) -> Severity:
        return _STATUS_SEVERITY[self.status]


class WatchedNode:
    def __init__(self, number: int, url: str, cell_s: float, in_registry: RegistryEntry | None = None) -> None:
        self.number = number  # of all nodes so far; identifies it
        self.url = url
        self.in_registry = in_registry
        self.snapshot: NodeSnapshot | None = None
        self.identity: Identity | None = None  # the last one received
        self.identity_changed_s: float | None = None
        self.services: tuple[WatchedService, ...] = ()  # the last ones received
        self.services_changed_s: float | None = None  # the status of one of them, or the set of ids
        self.requested_s: float | None = None  # when the pending request was sent
        self.tracker: StateTracker | None = None
        self._cell_s = cell_s
        self._has_service_list = False

    @property
    def changed_s(self) -> float | None:
        times_s = (self.tracker.changed_s if self.tracker else None, self.identity_changed_s, self.services_changed_s)
        return max((time_s for time_s in times_s if time_s is not None), default=None)

    def update(self, snapshot: NodeSnapshot, at_s: float) -> None:
        requested_s, self.requested_s = self.requested_s, None
        self.snapshot = snapshot
        severity = _HEALTH_SEVERITY[snapshot.overall_health]
        state = (snapshot.overall_health, type(snapshot.errors[0]) if snapshot.errors else None)
        if self.tracker is None:
            self.tracker = StateTracker(state, at_s, self._cell_s)
        self.tracker.update(state, severity, at_s, requested_s if severity is Severity.ERROR else None)
        self._update_identity(snapshot, at_s)
        if snapshot.services is None:
            self._mark_services_unknown(at_s, requested_s)
        else:
            self._update_services(snapshot.services, at_s)

    def _update_identity(self, snapshot: NodeSnapshot, at_s: float) -> None:
        if snapshot.identity is None:
            return
        if self.identity is not None and self.identity != snapshot.identity:
            self.identity_changed_s = at_s
        self.identity = snapshot.identity

    def _mark_services_unknown(self, at_s: float, requested_s: float | None) -> None:
        for service in self.services:
            service.tracker.update(UnreachableStatus.UNKNOWN, Severity.ERROR, at_s, requested_s)

    def _update_services(self, services: Iterable[BackingService], at_s: float) -> None:
        known = {watched.key: watched for watched in self.services}
        has_list = self._has_service_list
        current = []
        numbers: Counter[str] = Counter()
        for service in services:
            key = ServiceKey(service.id, numbers[service.id])
            numbers[service.id] += 1
            tracker = (
                known[key].tracker
                if key in known
                else StateTracker(service.status, at_s, self._cell_s, is_new=has_list)
            )
            tracker.update(service.status, _STATUS_SEVERITY[service.status], at_s)
            current.append(WatchedService(key, service, tracker))
        is_other_set = known.keys() != {watched.key for watched in current}
        if has_list and (is_other_set or any(watched.tracker.changed_s == at_s for watched in current)):
            self.services_changed_s = at_s
        self.services = tuple(current)
        self._has_service_list = True

    def waiting_s(self, now_s: float, notice_s: float) -> float | None:
        """The age of the pending request; None if there is none or it is younger than `notice_s`."""
        if self.requested_s is None or now_s - self.requested_s < notice_s:
            return None
        return now_s - self.requested_s


class WatchModel:
    """All nodes, in the order given."""

    def __init__(self, urls: Sequence[str], interval_s: float) -> None:
        self.interval_s = interval_s
        self.cell_s = max(MIN_CELL_S, 2 * interval_s)  # a node that responds leaves no cell empty
        self.wait_notice_s = max(MIN_WAIT_NOTICE_S, interval_s)
        self.nodes: list[WatchedNode] = []
        self.registry_problem = ""  # why the registry could not be read
        self._numbers = count()
        for url in urls:
            self.add(url)

    def add(self, url: str, in_registry: RegistryEntry | None = None) -> WatchedNode:
        node = WatchedNode(next(self._numbers), url, self.cell_s, in_registry)
        self.nodes.append(node)
        return node
