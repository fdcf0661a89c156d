"""The minutes that a killed process had counted but not written, counted again from its transitions.

Every transition is on disk before anyone sees it, but buckets and runs are written when their minute ends. So after a
kill they end with the last minute that was written. `recover_minutes` counts from there to the last transition with the
same aggregator, and adds the result to the backlog, as if those minutes had just ended. After the last transition,
nothing is known.

Transitions do not have everything: checks and latencies are lost, and a service that has had no transition since the
start of its process stays unknown.
"""

# ruff: noqa: S608  only constants are formatted into statements; values are parameters

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from svcnode.core.codes import ReasonCode
from svcnode.core.model import MAINTENANCE_CHANGES, STATUS_CHANGES, ChangeKind, Status
from svcnode.history.aggregator import MAX_GAP_S, MinuteAggregator
from svcnode.history.report import AHEAD_S
from svcnode.history.timeline import BEGINS, STARTED, STOPPED

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator

    from svcnode.history.backlog import Backlog

ROWS_PER_STATEMENT = 10_000  # parsing their JSON holds the GIL for a few milliseconds

_SELECT_NEWEST = "SELECT id, kind FROM transitions ORDER BY id DESC LIMIT 1"
_SELECT_LAST = "SELECT id, at_us FROM transitions WHERE service IS NULL AND kind IN {kinds} ORDER BY id DESC LIMIT 1"
_SELECT_START = _SELECT_LAST.format(kinds=f"('{STARTED}')")
_SELECT_BEGIN = _SELECT_LAST.format(kinds=BEGINS)
# The end of the run that began then. The first tick may be a moment later.
_SELECT_WRITTEN_TO = f"SELECT coalesce(max(end_s), ?1) FROM runs WHERE end_s >= ?1 AND begin_s <= ?1 + {MAX_GAP_S}"
_KINDS = tuple(kind.value for kind in STATUS_CHANGES)
_MAINTENANCE_KINDS = tuple(kind.value for kind in MAINTENANCE_CHANGES)
# All that is recorded later than ?3; and of what the process (from ?1 on) recorded before, what still held then.
_SELECT_RECORDS = f"""
    SELECT json_group_array(json_array(id, at_us, kind, service_id, after, code)) FROM (
        SELECT transitions.*, services.id AS service_id
        FROM transitions LEFT JOIN services ON services.number = transitions.service
        WHERE transitions.id >= ?1 AND transitions.id > ?2 AND (
            transitions.id > ?3 OR kind IN {_MAINTENANCE_KINDS} OR transitions.id IN (
                SELECT (
                    SELECT id FROM transitions
                    WHERE service = number AND id >= ?1 AND id <= ?3 AND kind IN {_KINDS} ORDER BY id DESC LIMIT 1
                ) FROM services
            )
        )
        ORDER BY transitions.id LIMIT {ROWS_PER_STATEMENT}
    )
"""


class _Record(NamedTuple):
    """What is needed of a transition."""

    id: int
    at_us: int
    kind: str
    service_id: str | None
    after: str | None
    code: str | None


def recover_minutes(connection: sqlite3.Connection, backlog: Backlog) -> None:
    """Does nothing if the last process has stopped by itself. Once the minutes are written, it finds none."""
    begin = connection.execute(_SELECT_BEGIN).fetchone()
    if begin is None:
        return
    newest_id, newest_kind = connection.execute(_SELECT_NEWEST).fetchone()
    begin_id, begin_us = begin
    start_id, start_us = connection.execute(_SELECT_START).fetchone() or (0, 0)
    (written_to_s,) = connection.execute(_SELECT_WRITTEN_TO, (begin_us / 1e6,)).fetchone()
    # After a clock was ahead, ids stay ahead: they are no times.
    is_ahead = begin_id - begin_us > AHEAD_S * 1e6
    if newest_kind == STOPPED or (newest_id <= written_to_s * 1e6 and not is_ahead):
        return
    replay = _Replay(start_us / 1e6, written_to_s, backlog)
    for one in _records(connection, start_id, written_to_s):
        if one.id > begin_id:
            replay.move_to((one.at_us if is_ahead else one.id) / 1e6)
        replay.add(one)
    replay.finish()


def _records(connection: sqlite3.Connection, start_id: int, written_to_s: float) -> Iterator[_Record]:
    """In the order in which they were recorded."""
    last_id = 0
    while True:
        (text,) = connection.execute(_SELECT_RECORDS, (start_id, last_id, int(written_to_s * 1e6))).fetchone()
        rows = json.loads(text)
        yield from map(_Record._make, rows)
        if len(rows) < ROWS_PER_STATEMENT:
            return
        last_id = rows[-1][0]


class _Replay:
    """Gives an aggregator what the history gave it while the process ran."""

    def __init__(self, started_s: float, begin_s: float, backlog: Backlog) -> None:
        self._started_s = started_s
        self._aggregator = MinuteAggregator(begin_s, backlog)
        self._now_s = begin_s
        self._statuses: dict[str, Status | None] = {}
        self._known: set[str] = set()  # services with evidence
        self._held: set[str | None] = set()  # services in maintenance; None: the node

    def move_to(self, at_s: float) -> None:
        """The process ran until then."""
        while self._now_s < at_s:
            self._now_s = min(at_s, self._now_s + MAX_GAP_S)
            self._aggregator.tick(self._now_s)

    def add(self, one: _Record) -> None:
        if one.kind == ChangeKind.MAINTENANCE.value:
            self._held.add(one.service_id)
        elif one.kind == ChangeKind.MAINTENANCE_ENDED.value:
            self._held.discard(one.service_id)
        # What has lasted since before the start of the process is known when it is recorded.
        since_s = self._now_s if one.at_us / 1e6 < self._started_s else one.at_us / 1e6
        if one.service_id is not None:
            self._see(one, one.service_id)
            self._set_status(one.service_id, since_s)
        elif one.kind in _MAINTENANCE_KINDS:
            for service_id in self._statuses:
                self._set_status(service_id, since_s)

    def finish(self) -> None:
        self._aggregator.finish(self._now_s)

    def _see(self, one: _Record, service_id: str) -> None:
        self._statuses[service_id] = None if one.after is None else Status(one.after)
        if one.code == ReasonCode.NO_EVIDENCE.value:
            self._known.discard(service_id)
        elif one.code is not None:
            self._known.add(service_id)

    def _set_status(self, service_id: str, since_s: float) -> None:
        status = self._statuses[service_id]
        self._aggregator.set_status(
            service_id,
            status,
            since_s,
            self._now_s,
            in_maintenance=not self._held.isdisjoint((None, service_id)),
            is_known=status is not Status.INITIALIZING or service_id in self._known,
        )
