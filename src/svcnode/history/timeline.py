"""The timeline: what the transitions of a period mean to a reader, as items.

    outage   a service was not Up, from when until when and why
    health   the node answered 206 or 503, or nothing is known (`health` is None): it did not run, the machine slept,
             or the clock was set forward
    event    something that happened at one moment: a start, a reload, a note, a message, maintenance

The functions are pure, and take transitions in the order in which they were recorded. A period is read in pages of
transitions. Each item is complete and appears once: on the page on which it ends, or on the last page if it has not
ended by the end of the period. `Opening` says what was going on when a page begins.

The first page begins with the transition that was recorded first of those in the period. From there on, all that was
recorded counts, also what is dated before the period. So an item is the same in every period that it touches.

An outage ends with the process that has seen it, unless the next process confirms it. Then the transition has the time
at which the outage began, which is before the start of that process, and both are one outage. The same holds before
and after the machine has slept. If the clock was set, an outage is shown as two: their times are not of one clock.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from svcnode.core.model import ChangeKind, Health, Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from svcnode.history.records import Transition

STARTED, STOPPED = "started", "stopped"
# The process runs on, but nothing is known of the time in between: PAUSED is dated before it, what follows after it.
PAUSED, CLOCK_SET, STOOD_STILL = "paused", "clock_set", "stood_still"
NEW_FILE = "new_file"  # the file was lost while the process ran, so what goes on is recorded again
BEGINS, ENDS = (STARTED, CLOCK_SET, STOOD_STILL, NEW_FILE), (STOPPED, PAUSED)  # of a time that is known
_UP = Status.UP.value
_REPLACED = ChangeKind.REPLACED.value
_STATUS_KINDS = (ChangeKind.REGISTERED.value, _REPLACED, ChangeKind.DEREGISTERED.value, ChangeKind.STATUS.value)
# As `says_status`, for a statement.
SAYS_STATUS = f"kind IN {_STATUS_KINDS} AND (kind <> '{_REPLACED}' OR before <> after)"


class Period(NamedTuple):
    """The period to read. A page begins after the transition with a given id; the first page begins after 0."""

    from_s: float
    to_s: float
    after_id: int = 0

    # In microseconds, as in the file: so both select the same.

    @property
    def from_us(self) -> int:
        return round(self.from_s * 1e6)

    @property
    def to_us(self) -> int:
        return round(self.to_s * 1e6)

    def is_before_end(self, one: Transition) -> bool:
        return round(one.at_s * 1e6) < self.to_us

    def end_id(self, end_id: int | None, transitions: Iterable[Transition]) -> int | None:
        """What the processes after the period have recorded begins here, or with `end_id`; None if there is none."""
        for one in transitions:
            if one.kind in BEGINS:
                end_id = None if self.is_before_end(one) else end_id or one.id
        return end_id


class TimelinePage(NamedTuple):
    items: list[TimelineItem]  # in the order in which they began
    next_after_id: int | None  # of the next page; None: this is the last one


class TimelineItem(NamedTuple):
    """The id never changes, so links to it work. `until_s` is None for an event, and until the item has ended."""

    id: str
    type: str  # "outage", "health" or "event"
    kind: str  # of the transition that began it
    service_id: str | None
    status: str | None  # of an outage: Down or Initializing
    health: int | None  # of the node; None: it did not run
    from_s: float
    until_s: float | None
    is_open: bool  # it had not ended at the end of the period
    reason: str
    code: str | None


class Opening(NamedTuple):
    """What was going on when the first transition of a page was recorded."""

    statuses: Sequence[Transition] = ()  # the newest of each service that says its status; of those that a page needs
    health: Sequence[Transition] = ()  # the newest that has changed the health of the node, or explains it
    process: Sequence[Transition] = ()  # the newest of BEGINS and ENDS, and what has ended the processes of `statuses`


class PageOfTransitions(NamedTuple):
    opening: Opening
    transitions: list[Transition]
    is_last: bool
    end_id: int | None = None  # from here on, processes after the period have recorded: they know outages, not health
    # By the id of a start after a process that was killed: when that process was last known to run.
    last_known_s: Mapping[int, float] = MappingProxyType({})


def make_timeline_page(period: Period, page: PageOfTransitions) -> TimelinePage:
    items = make_items(period.from_s, page)
    return TimelinePage(items, None if page.is_last else page.transitions[-1].id)


def make_items(from_s: float, page: PageOfTransitions) -> list[TimelineItem]:
    """In the order in which they began."""
    timeline = Timeline(from_s, page)
    timeline.add(page.transitions)
    if page.is_last:
        timeline.finish()
    return sorted(timeline.items, key=lambda item: (item.from_s, item.id))


def says_status(one: Transition) -> bool:
    """Whether it says since when a service has its status. A service that is replaced may keep its state."""
    return one.kind in _STATUS_KINDS and (one.kind != _REPLACED or one.before != one.after)


def is_outage(one: Transition) -> bool:
    return one.kind == ChangeKind.STATUS.value and one.after not in (None, _UP)


def explains_start(one: Transition) -> bool:
    """After a start the node is 206 until all is known; from here on it would be 206 without the start.

    In a new file, it explains the health that the node had before.
    """
    return (
        one.kind == ChangeKind.STATUS.value
        and one.after == Status.DOWN.value
        and one.health == one.health_before != Health.HEALTHY
    )


class Timeline:
    """Knows what was going on before a page. Give it the transitions of that page; then `items` is complete."""

    def __init__(self, from_s: float, page: PageOfTransitions) -> None:
        self.items: list[TimelineItem] = []
        self._from_s = from_s
        self._end_id = page.end_id
        self._last_known_s = page.last_known_s
        self._outages: dict[str, _Outage] = {}  # that last
        self._health: TimelineItem | None = None  # that lasts, unless it is 200
        self._health_before_break: TimelineItem | None = None
        self._started_s = 0.0  # the process
        for one in page.opening.statuses:
            self._see_status(one)
        for one in sorted((*page.opening.health, *page.opening.process), key=_id_of):
            if one.kind in (*BEGINS, *ENDS):
                self._see_process(one)
            elif self._changes_health(one):
                self._set_health(one)
        self.items.clear()  # what has ended before is on an earlier page, or before the period

    def add(self, transitions: Iterable[Transition]) -> None:
        for one in transitions:
            if one.kind in (*BEGINS, *ENDS):
                self._see_process(one)
            elif says_status(one):
                self._see_status(one)
            if _is_event(one) and not self._is_told(one):
                self._add_event(one)
            if self._changes_health(one):
                self._set_health(one)

    def finish(self) -> None:
        """The period ends here: what lasts is open."""
        for outage in self._outages.values():
            if outage.ended_s is None:
                self.items.append(outage.item._replace(is_open=True))
            else:
                self._end(outage, outage.ended_s)
        self._outages.clear()
        if self._health is not None:
            self.items.append(self._health._replace(is_open=True))
            self._health = None

    # ---- services

    def _see_status(self, one: Transition) -> None:
        if one.service_id is None:
            return
        before = self._outages.pop(one.service_id, None)
        if before is not None and is_outage(one) and before.is_continued_by(one):
            before = None
        if before is not None:
            self._end(before, one.at_s if before.ended_s is None else before.ended_s)
        if is_outage(one):
            is_counted = one.health != Health.HEALTHY
            self._outages[one.service_id] = _Outage(_outage_item(one, one.service_id), one.id, is_counted=is_counted)

    def _end(self, outage: _Outage, at_s: float) -> None:
        self._show(outage.item._replace(until_s=max(at_s, outage.item.from_s)))

    def _show(self, item: TimelineItem) -> None:
        """If it ended in the period."""
        if item.from_s >= self._from_s or (item.until_s is not None and item.until_s >= self._from_s):
            self.items.append(item)

    # ---- the node

    def _see_process(self, one: Transition) -> None:
        """From an end to a begin nothing is known, and neither is it after a process was last known before a kill."""
        ended_s = min(one.at_s, self._last_known_s.get(one.id, one.at_s))
        for service_id, outage in self._outages.items():
            if outage.newest_id < one.id and outage.ended_s is None:
                self._outages[service_id] = outage._replace(ended_s=max(ended_s, outage.item.from_s))
        if one.kind in BEGINS:
            self._started_s = one.at_s
            if ended_s < one.at_s:
                self._change_health(_health_item(one, None, ended_s)._replace(id=f"k{one.id}", code=None), ended_s)
        if one.kind == PAUSED:
            self._health_before_break = self._health
        self._set_health(one)
        if one.kind == STARTED:  # the clock may have been set before
            self._health_before_break = self._health
        before = self._health_before_break
        if one.kind in (CLOCK_SET, STOOD_STILL) and before is not None and before.health == one.health:
            self._health = before._replace(id=f"h{one.id}", from_s=one.at_s)  # for the same reason

    def _changes_health(self, one: Transition) -> bool:
        if one.kind in BEGINS or (self._end_id is not None and one.id >= self._end_id):
            return False
        is_starting = self._health is not None and self._health.kind in BEGINS
        return one.health != one.health_before or (is_starting and explains_start(one))

    def _set_health(self, one: Transition) -> None:
        """An outage that began before the start of the process has changed the health after the start only."""
        at_s = max(one.at_s, self._started_s) if one.kind == ChangeKind.STATUS.value else one.at_s
        health = None if one.kind in ENDS else one.health
        item = None if health == Health.HEALTHY else _health_item(one, health, at_s)
        if item is not None and item.health is not None and item.health < one.health_before and item.status is None:
            item = self._with_what_remains(item, one.id)
        self._change_health(item, at_s)

    def _with_what_remains(self, item: TimelineItem, recorded_id: int) -> TimelineItem:
        """The health has become better, but not good: the reason is an outage that has not ended."""
        others = [
            outage.item
            for outage in self._outages.values()
            if outage.is_counted and outage.ended_s is None and outage.newest_id < recorded_id
        ]
        cause = min(others, key=lambda other: (other.status != Status.DOWN.value, other.from_s), default=None)
        if cause is None:
            return item._replace(service_id=None, reason="", code=None)
        return item._replace(service_id=cause.service_id, status=cause.status, reason=cause.reason, code=cause.code)

    def _change_health(self, item: TimelineItem | None, at_s: float) -> None:
        before, self._health = self._health, item
        if before is not None and at_s > before.from_s:
            self._show(before._replace(until_s=at_s))

    def _is_told(self, one: Transition) -> bool:
        """Maintenance that lasts over a restart is recorded again, with the time at which it began."""
        return one.kind == ChangeKind.MAINTENANCE.value and one.at_s < self._started_s

    def _add_event(self, one: Transition) -> None:
        self._show(
            TimelineItem(
                id=f"e{one.id}",
                type="event",
                kind=one.kind,
                service_id=one.service_id,
                status=None,
                health=one.health,
                from_s=one.at_s,
                until_s=None,
                is_open=False,
                reason=one.reason,
                code=one.code,
            )
        )


def _is_event(one: Transition) -> bool:
    """Not a status, which is an outage, nor what a reload replaces, which the reload counts, nor the begin of a pause,
    which its end tells.
    """
    if one.kind == ChangeKind.NODE.value:
        return bool(one.reason)  # without one: another order of the services
    return one.kind not in (ChangeKind.STATUS.value, _REPLACED, PAUSED)


def _id_of(one: Transition) -> int:
    return one.id


class _Outage(NamedTuple):
    item: TimelineItem
    newest_id: int  # of the transition that says so last
    ended_s: float | None = None  # when the process ended that has seen it; the next one may confirm it
    is_counted: bool = True  # the node was not healthy when it began

    def is_continued_by(self, one: Transition) -> bool:
        """Whether the next process has confirmed it: it began before that process started."""
        return self.item.status == one.after and self.item.from_s == one.at_s


def _outage_item(one: Transition, service_id: str) -> TimelineItem:
    # Not the id of the transition: the same outage is recorded again after a restart.
    item_id = f"o{round(one.at_s * 1e6)}-{crc32(service_id.encode()):08x}"
    return TimelineItem(
        id=item_id,
        type="outage",
        kind=one.kind,
        service_id=service_id,
        status=one.after,
        health=None,
        from_s=one.at_s,
        until_s=None,
        is_open=False,
        reason=one.reason,
        code=one.code,
    )


def _health_item(one: Transition, health: int | None, at_s: float) -> TimelineItem:
    """Of a service that has caused it, the id."""
    return TimelineItem(
        id=f"h{one.id}",
        type="health",
        kind=one.kind,
        service_id=one.service_id,
        status=one.after if is_outage(one) else None,
        health=health,
        from_s=at_s,
        until_s=None,
        is_open=False,
        reason="" if one.kind in (STOPPED, *BEGINS) else one.reason,
        code=one.code,
    )
