"""How often each service was Down lately: from the history at the start, and from the changes since then. There is no
I/O. Maintenance does not count. A service that is Down before and after a restart has had one outage.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple, Protocol

from svcnode.core.model import ChangeKind, Health, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from svcnode.notify.subjects import Subject

PERIOD_S = 30 * 86_400.0
MAX_SERVICES = 10_000
MAX_OUTAGES = 1000  # of one service
MAX_UNREAD = 10_000  # changes while the history is read
MAX_TRANSITIONS = 5000  # of the history; parsing them takes a few milliseconds


class PastTransition(Protocol):
    """A transition of the history."""

    @property
    def at_s(self) -> float: ...
    @property
    def kind(self) -> str: ...
    @property
    def service_id(self) -> str | None: ...
    @property
    def after(self) -> str | None: ...


class PastTransitions(Protocol):
    """svcnode.history.History implements it."""

    async def load_latest(self, limit: int) -> Sequence[PastTransition]:
        """The newest ones, in order. Waits until the history can be read."""


class Outages(NamedTuple):
    """The outages of one service."""

    number: int
    period_s: float  # how far back it is known, at most PERIOD_S


class _Note(NamedTuple):
    service_id: str
    is_down: bool
    at_s: float


class OutageLog:
    def __init__(self) -> None:
        self._unread: deque[_Note] | None = deque(maxlen=MAX_UNREAD)  # None: the history has been read
        self._past = _PastReader()
        self._known_since_s = 0.0
        self._begun_at_s: dict[str, deque[float]] = {}  # by service
        self._down: set[str] = set()  # services whose outage has not ended

    def see(self, subject: Subject, at_s: float) -> None:
        seen, service = subject.seen, subject.service
        if service is None or seen.is_held or seen.is_removed or seen.health is Health.PARTIAL:
            return
        note = _Note(service.id, seen.health is Health.UNHEALTHY, at_s)
        if self._unread is None:
            self._add(note)
        else:
            self._unread.append(note)

    def start(self, since_s: float, past: Sequence[PastTransition], from_wall: Callable[[float], float]) -> None:
        """Nothing is counted before this. `past` is what happened before `since_s`, when this log began."""
        self._known_since_s = min(since_s, from_wall(past[0].at_s)) if past else since_s
        for one in past:
            self.follow(one, from_wall(one.at_s))
        for note in self._unread or ():
            self._add(note)
        self._unread = None

    def follow(self, one: PastTransition, at_s: float) -> None:
        """The next transition of the history."""
        note = self._past.read(one)
        if note is not None:
            self._add(note._replace(at_s=at_s))

    def _add(self, note: _Note) -> None:
        if not note.is_down:
            self._down.discard(note.service_id)
        elif note.service_id not in self._down:
            self._down.add(note.service_id)
            if note.service_id not in self._begun_at_s and len(self._begun_at_s) >= MAX_SERVICES:
                del self._begun_at_s[next(iter(self._begun_at_s))]
            self._begun_at_s.setdefault(note.service_id, deque(maxlen=MAX_OUTAGES)).append(note.at_s)

    def find(self, service_id: str, now_s: float) -> Outages | None:
        """None: nothing is known, or the clock was set back, so that it is not known for how long."""
        if now_s < self._known_since_s:
            return None
        times_s = [at_s for at_s in self._begun_at_s.get(service_id, ()) if at_s > now_s - PERIOD_S]
        return Outages(len(times_s), min(PERIOD_S, now_s - self._known_since_s)) if times_s else None


class _PastReader:
    """What a sequence of transitions says about outages."""

    def __init__(self) -> None:
        self._held: set[str | None] = set()  # services in maintenance; None: the node

    def read(self, one: PastTransition) -> _Note | None:
        if one.kind == "started":
            self._held.clear()  # what is still in maintenance is recorded again
        elif one.kind == ChangeKind.MAINTENANCE.value:
            self._held.add(one.service_id)
        elif one.kind == ChangeKind.MAINTENANCE_ENDED.value:
            self._held.discard(one.service_id)
        is_settled = one.after in (Status.UP.value, Status.DOWN.value)
        if one.service_id is None or not is_settled or not self._held.isdisjoint((None, one.service_id)):
            return None
        return _Note(one.service_id, one.after == Status.DOWN.value, one.at_s)
