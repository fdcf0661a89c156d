"""What was seen of nodes over time. Whoever calls says when it is: there is no clock here."""

from __future__ import annotations

from collections import Counter
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, NamedTuple

from svcnode.core.model import Status
from svcnode.terminal.snapshot import OverallHealth

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from svcnode.client import BackingService, Identity
    from svcnode.terminal.snapshot import NodeSnapshot

HISTORY_CELLS = 60  # of a history; as many as the widest terminal shows
MIN_CELL_S = 10.0
HIGHLIGHT_S = 6.0
MIN_WAIT_NOTICE_S = 2.0


class Severity(IntEnum):
    """How something was; of all that was seen within one cell of a history, the highest is kept."""

    NO_DATA = 0
    OK = 1
    WARNING = 2
    NOT_REPORTED = 3
    CRITICAL = 4
    ERROR = 5


class UnknownStatus(Enum):
    """What a service is when its node tells nothing of it."""

    UNKNOWN = "unknown"


_HEALTH_SEVERITY = {
    OverallHealth.HEALTHY: Severity.OK,
    OverallHealth.PARTIAL: Severity.WARNING,
    OverallHealth.UNHEALTHY: Severity.CRITICAL,
    OverallHealth.UNKNOWN: Severity.ERROR,
}
_STATUS_SEVERITY: dict[Status | UnknownStatus | None, Severity] = {
    Status.UP: Severity.OK,
    Status.INITIALIZING: Severity.WARNING,
    Status.DOWN: Severity.CRITICAL,
    None: Severity.NOT_REPORTED,
    UnknownStatus.UNKNOWN: Severity.ERROR,
}


class Timeline:
    """The last minutes, in cells of equal length."""

    __slots__ = ("_cell_s", "_cells", "_newest")

    def __init__(self, cell_s: float) -> None:
        self._cell_s = cell_s
        self._cells = bytes(HISTORY_CELLS)
        self._newest = 0

    def add(self, level: Severity, at_s: float, from_s: float | None = None) -> None:
        """With `from_s`, it was like that for all of the time from then on."""
        newest = int(at_s // self._cell_s)
        oldest = newest if from_s is None else int(from_s // self._cell_s)
        cells = bytearray(self._shifted(newest - self._newest))
        for place in range(max(0, HISTORY_CELLS - 1 - (newest - oldest)), HISTORY_CELLS):
            cells[place] = max(cells[place], level)
        self._cells, self._newest = bytes(cells), newest

    def last(self, count: int, now_s: float) -> list[Severity]:
        """The newest is the last one. A cell that has just begun and holds nothing yet is no gap, and not shown."""
        age = int(now_s // self._cell_s) - self._newest
        cells = self._shifted(age if age > 1 else 0)
        return [Severity(cell) for cell in cells[HISTORY_CELLS - min(count, HISTORY_CELLS) :]]

    def _shifted(self, count: int) -> bytes:
        return (self._cells + bytes(min(count, HISTORY_CELLS)))[-HISTORY_CELLS:]


class StateTracker:
    """One thing that has a state: which, since when, and how it was before."""

    __slots__ = ("changed_s", "first_s", "history", "state")

    def __init__(self, state: object, at_s: float, cell_s: float, *, is_new: bool = False) -> None:
        self.state = state
        self.first_s = at_s
        self.changed_s = at_s if is_new else None  # None: not since we began to look
        self.history = Timeline(cell_s)

    def update(self, state: object, level: Severity, at_s: float, from_s: float | None = None) -> None:
        if state != self.state:
            self.state, self.changed_s = state, at_s
        self.history.add(level, at_s, from_s)

    def age_s(self, now_s: float) -> float:
        return max(0.0, now_s - (self.first_s if self.changed_s is None else self.changed_s))

    def is_recently_changed(self, now_s: float) -> bool:
        return is_recently_changed(self.changed_s, now_s)


def is_recently_changed(changed_s: float | None, now_s: float) -> bool:
    return changed_s is not None and now_s - changed_s < HIGHLIGHT_S


class ServiceKey(NamedTuple):
    """A node may list an id more than once."""

    id: str
    number: int


class WatchedService:
    __slots__ = ("key", "service", "tracker")

    def __init__(self, key: ServiceKey, service: BackingService, track: StateTracker) -> None:
        self.key = key
        self.service = service  # as it was last listed
        self.tracker = track

    @property
    def status(self) -> Status | UnknownStatus | None:
        state = self.tracker.state
        assert state is None or isinstance(state, Status | UnknownStatus)
        return state

    @property
    def severity(self) -> Severity:
        return _STATUS_SEVERITY[self.status]


class WatchedNode:
    def __init__(self, number: int, url: str, cell_s: float) -> None:
        self.number = number  # its place among those given
        self.url = url
        self.snapshot: NodeSnapshot | None = None
        self.identity: Identity | None = None  # the last one told
        self.identity_changed_s: float | None = None
        self.services: tuple[WatchedService, ...] = ()  # the last ones told
        self.services_changed_s: float | None = None  # one of them, or which there are
        self.requested_s: float | None = None  # when the question was put that is not answered yet
        self.tracker: StateTracker | None = None
        self._cell_s = cell_s
        self._has_service_list = False

    @property
    def changed_s(self) -> float | None:
        times_s = (self.tracker.changed_s if self.tracker else None, self.identity_changed_s, self.services_changed_s)
        return max((time_s for time_s in times_s if time_s is not None), default=None)

    def update(self, look: NodeSnapshot, at_s: float) -> None:
        asked_s, self.requested_s = self.requested_s, None
        self.snapshot = look
        level = _HEALTH_SEVERITY[look.overall_health]
        state = (look.overall_health, type(look.errors[0]) if look.errors else None)
        if self.tracker is None:
            self.tracker = StateTracker(state, at_s, self._cell_s)
        self.tracker.update(state, level, at_s, asked_s if level is Severity.ERROR else None)
        self._update_identity(look, at_s)
        if look.services is None:
            self._mark_services_unknown(at_s, asked_s)
        else:
            self._update_services(look.services, at_s)

    def _update_identity(self, look: NodeSnapshot, at_s: float) -> None:
        if look.identity is None:
            return
        if self.identity is not None and self.identity != look.identity:
            self.identity_changed_s = at_s
        self.identity = look.identity

    def _mark_services_unknown(self, at_s: float, asked_s: float | None) -> None:
        for seen in self.services:
            seen.tracker.update(UnknownStatus.UNKNOWN, Severity.ERROR, at_s, asked_s)

    def _update_services(self, services: Iterable[BackingService], at_s: float) -> None:
        known = {seen.key: seen for seen in self.services}
        has_list = self._has_service_list
        now = []
        numbers: Counter[str] = Counter()
        for service in services:
            key = ServiceKey(service.id, numbers[service.id])
            numbers[service.id] += 1
            track = (
                known[key].tracker
                if key in known
                else StateTracker(service.status, at_s, self._cell_s, is_new=has_list)
            )
            track.update(service.status, _STATUS_SEVERITY[service.status], at_s)
            now.append(WatchedService(key, service, track))
        if has_list and (known.keys() != {seen.key for seen in now} or any(s.tracker.changed_s == at_s for s in now)):
            self.services_changed_s = at_s
        self.services = tuple(now)
        self._has_service_list = True

    def waiting_s(self, now_s: float, patience_s: float) -> float | None:
        """How long the node has kept us waiting, once that is longer than it should."""
        if self.requested_s is None or now_s - self.requested_s < patience_s:
            return None
        return now_s - self.requested_s


class WatchModel:
    """All the nodes, in the order given."""

    def __init__(self, urls: Sequence[str], interval_s: float) -> None:
        self.interval_s = interval_s
        self.cell_s = max(MIN_CELL_S, 2 * interval_s)  # so that no cell stays empty while a node is asked and answers
        self.wait_notice_s = max(MIN_WAIT_NOTICE_S, interval_s)
        self.nodes = [WatchedNode(number, url, self.cell_s) for number, url in enumerate(urls)]

    def mark_requested(self, number: int, now_s: float) -> None:
        self.nodes[number].requested_s = now_s

    def update(self, number: int, look: NodeSnapshot, now_s: float) -> None:
        self.nodes[number].update(look, now_s)
