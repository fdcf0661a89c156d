"""What was seen of nodes over time. Whoever calls says when it is: there is no clock here."""

from __future__ import annotations

from collections import Counter
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, NamedTuple

from svcnode.core.model import Status
from svcnode.terminal.looking import Finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from svcnode.client import BackingService, Identity
    from svcnode.terminal.looking import Look

CELLS = 60  # of a history; as many as the widest terminal shows
MIN_CELL_S = 10.0
HIGHLIGHT_S = 6.0
MIN_PATIENCE_S = 2.0


class Level(IntEnum):
    """How something was; of all that was seen within one cell of a history, the highest is kept."""

    UNSEEN = 0
    GOOD = 1
    SOON = 2
    UNTOLD = 3
    BAD = 4
    LOST = 5


class Unknown(Enum):
    """What a service is when its node tells nothing of it."""

    UNKNOWN = "unknown"


_FINDING_LEVELS = {
    Finding.HEALTHY: Level.GOOD,
    Finding.PARTIAL: Level.SOON,
    Finding.UNHEALTHY: Level.BAD,
    Finding.UNCLEAR: Level.LOST,
}
_STATUS_LEVELS: dict[Status | Unknown | None, Level] = {
    Status.UP: Level.GOOD,
    Status.INITIALIZING: Level.SOON,
    Status.DOWN: Level.BAD,
    None: Level.UNTOLD,
    Unknown.UNKNOWN: Level.LOST,
}


class History:
    """The last minutes, in cells of equal length."""

    __slots__ = ("_cell_s", "_cells", "_newest")

    def __init__(self, cell_s: float) -> None:
        self._cell_s = cell_s
        self._cells = bytes(CELLS)
        self._newest = 0

    def add(self, level: Level, at_s: float, from_s: float | None = None) -> None:
        """With `from_s`, it was like that for all of the time from then on."""
        newest = int(at_s // self._cell_s)
        oldest = newest if from_s is None else int(from_s // self._cell_s)
        cells = bytearray(self._moved_on(newest - self._newest))
        for place in range(max(0, CELLS - 1 - (newest - oldest)), CELLS):
            cells[place] = max(cells[place], level)
        self._cells, self._newest = bytes(cells), newest

    def last(self, count: int, now_s: float) -> list[Level]:
        """The newest is the last one. A cell that has just begun and holds nothing yet is no gap, and not shown."""
        age = int(now_s // self._cell_s) - self._newest
        cells = self._moved_on(age if age > 1 else 0)
        return [Level(cell) for cell in cells[CELLS - min(count, CELLS) :]]

    def _moved_on(self, count: int) -> bytes:
        return (self._cells + bytes(min(count, CELLS)))[-CELLS:]


class Track:
    """One thing that has a state: which, since when, and how it was before."""

    __slots__ = ("changed_s", "first_s", "history", "state")

    def __init__(self, state: object, at_s: float, cell_s: float, *, is_new: bool = False) -> None:
        self.state = state
        self.first_s = at_s
        self.changed_s = at_s if is_new else None  # None: not since we began to look
        self.history = History(cell_s)

    def see(self, state: object, level: Level, at_s: float, from_s: float | None = None) -> None:
        if state != self.state:
            self.state, self.changed_s = state, at_s
        self.history.add(level, at_s, from_s)

    def age_s(self, now_s: float) -> float:
        return max(0.0, now_s - (self.first_s if self.changed_s is None else self.changed_s))

    def is_fresh(self, now_s: float) -> bool:
        return is_fresh(self.changed_s, now_s)


def is_fresh(changed_s: float | None, now_s: float) -> bool:
    return changed_s is not None and now_s - changed_s < HIGHLIGHT_S


class ServiceKey(NamedTuple):
    """A node may list an id more than once."""

    id: str
    number: int


class ServiceSeen:
    __slots__ = ("key", "service", "track")

    def __init__(self, key: ServiceKey, service: BackingService, track: Track) -> None:
        self.key = key
        self.service = service  # as it was last listed
        self.track = track

    @property
    def status(self) -> Status | Unknown | None:
        state = self.track.state
        assert state is None or isinstance(state, Status | Unknown)
        return state

    @property
    def level(self) -> Level:
        return _STATUS_LEVELS[self.status]


class NodeSeen:
    def __init__(self, number: int, url: str, cell_s: float) -> None:
        self.number = number  # its place among those given
        self.url = url
        self.look: Look | None = None
        self.identity: Identity | None = None  # the last one told
        self.identity_changed_s: float | None = None
        self.services: tuple[ServiceSeen, ...] = ()  # the last ones told
        self.services_changed_s: float | None = None  # one of them, or which there are
        self.asked_s: float | None = None  # when the question was put that is not answered yet
        self.track: Track | None = None
        self._cell_s = cell_s
        self._has_told_services = False

    @property
    def changed_s(self) -> float | None:
        times_s = (self.track.changed_s if self.track else None, self.identity_changed_s, self.services_changed_s)
        return max((time_s for time_s in times_s if time_s is not None), default=None)

    def see(self, look: Look, at_s: float) -> None:
        asked_s, self.asked_s = self.asked_s, None
        self.look = look
        level = _FINDING_LEVELS[look.finding]
        state = (look.finding, type(look.errors[0]) if look.errors else None)
        if self.track is None:
            self.track = Track(state, at_s, self._cell_s)
        self.track.see(state, level, at_s, asked_s if level is Level.LOST else None)
        self._see_identity(look, at_s)
        if look.services is None:
            self._lose_services(at_s, asked_s)
        else:
            self._see_services(look.services, at_s)

    def _see_identity(self, look: Look, at_s: float) -> None:
        if look.identity is None:
            return
        if self.identity is not None and self.identity != look.identity:
            self.identity_changed_s = at_s
        self.identity = look.identity

    def _lose_services(self, at_s: float, asked_s: float | None) -> None:
        for seen in self.services:
            seen.track.see(Unknown.UNKNOWN, Level.LOST, at_s, asked_s)

    def _see_services(self, services: Iterable[BackingService], at_s: float) -> None:
        known = {seen.key: seen for seen in self.services}
        has_list = self._has_told_services
        now = []
        numbers: Counter[str] = Counter()
        for service in services:
            key = ServiceKey(service.id, numbers[service.id])
            numbers[service.id] += 1
            track = known[key].track if key in known else Track(service.status, at_s, self._cell_s, is_new=has_list)
            track.see(service.status, _STATUS_LEVELS[service.status], at_s)
            now.append(ServiceSeen(key, service, track))
        if has_list and (known.keys() != {seen.key for seen in now} or any(s.track.changed_s == at_s for s in now)):
            self.services_changed_s = at_s
        self.services = tuple(now)
        self._has_told_services = True

    def unanswered_s(self, now_s: float, patience_s: float) -> float | None:
        """How long the node has kept us waiting, once that is longer than it should."""
        if self.asked_s is None or now_s - self.asked_s < patience_s:
            return None
        return now_s - self.asked_s


class Watch:
    """All the nodes, in the order given."""

    def __init__(self, urls: Sequence[str], interval_s: float) -> None:
        self.interval_s = interval_s
        self.cell_s = max(MIN_CELL_S, 2 * interval_s)  # so that no cell stays empty while a node is asked and answers
        self.patience_s = max(MIN_PATIENCE_S, interval_s)
        self.nodes = [NodeSeen(number, url, self.cell_s) for number, url in enumerate(urls)]

    def ask(self, number: int, now_s: float) -> None:
        self.nodes[number].asked_s = now_s

    def see(self, number: int, look: Look, now_s: float) -> None:
        self.nodes[number].see(look, now_s)
