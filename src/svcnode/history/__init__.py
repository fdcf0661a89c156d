"""The history: every transition, and per service the status times and checks of each minute, hour and day, in SQLite.

records.py     transitions, buckets, resolutions
aggregator.py  the current minute
breaks.py      when the process stood still, or the clock was set
recovery.py    the minutes that a killed process has not written
backlog.py     records that are not written or not published yet
writer.py      the thread that writes, and its states
database.py    the tables, writing and deleting
files.py       the file on disk: owner, lock, quarantine
errors.py      what can be wrong with it
timeline.py    what transitions mean to a reader: outages, health of the node, events
migrations.py  a file of an older format becomes one of this format
query.py       reads the file and the memory
latencies.py   percentiles from counts
report.py      what a period was like: times, outages, latencies
follower.py    the history that another process writes

Whatever is wrong with the file, the event loop, the checks and the responses are not affected.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from svcnode.core.codes import ReasonCode, known_code
from svcnode.core.errors import is_user_interrupt
from svcnode.core.model import (
    ACKNOWLEDGEMENT_CHANGES,
    ANNOUNCEMENTS,
    MAINTENANCE_CHANGES,
    PLAN_CHANGES,
    ChangeKind,
    Health,
    KnownBefore,
    Outcome,
    Status,
)
from svcnode.core.text import encodable, with_author
from svcnode.history.aggregator import MinuteAggregator
from svcnode.history.backlog import Backlog
from svcnode.history.breaks import BreakFinder
from svcnode.history.errors import HistoryError, HistoryProblem
from svcnode.history.query import HistoryQuery
from svcnode.history.records import Bucket, Resolution, RetentionLimits, Transition
from svcnode.history.report import ReportPeriod
from svcnode.history.timeline import CLOCK_SET, PAUSED, STARTED, STOPPED, is_outage, make_timeline_page, says_status
from svcnode.history.writer import Writer, WriterConfig
from svcnode.net.clock import RetentionClock, WallTimes, next_tick_s
from svcnode.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from svcnode.core.model import Change, Evidence, ServiceState
    from svcnode.history.breaks import Break
    from svcnode.history.records import LastStatus, OpenMaintenance
    from svcnode.history.report import PeriodReport
    from svcnode.history.timeline import Period, TimelinePage
    from svcnode.node.node_state import NodeState

__all__ = ["Bucket", "History", "Resolution", "Transition"]

MAX_AGE_S, MAX_BYTES = 400 * 86_400.0, 256 * 1024**2
OPEN_TIMEOUT_S = 0.2  # the node does not wait longer than this for the file to open
CLOSE_TIMEOUT_S = 2.0
TICK_S = 1.0
SERVICES_CLOSED_PER_STEP = 200  # when a minute ends; blocks the event loop for a fraction of a millisecond
TRANSITIONS_PUBLISHED_PER_STEP = 50
TRANSITIONS_PER_PAGE = 1000  # of the timeline
_REMEMBERED = (Status.UP.value, Status.DOWN.value)  # over a restart; Initializing says nothing worth it

log = logging.getLogger("svcnode.history")


class History:
    """Records the changes of a node while its `async with` block runs. Without a path, it keeps them in memory only.

    A file belongs to the node whose name is in it. The file of another node is not used.
    """

    def __init__(
        self,
        node: NodeState,
        path: Path | None,
        *,
        max_age_s: float = MAX_AGE_S,
        max_bytes: int = MAX_BYTES,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._node = node
        self._wall_clock = wall_clock
        # As everywhere else; with another clock, its own conversion.
        self._to_wall = node.wall_time_s if wall_clock is time.time else WallTimes(node.now_s, wall_clock).wall_s
        self._listeners: tuple[Callable[[Transition], None], ...] = ()
        self._loop: asyncio.AbstractEventLoop
        self._timer: asyncio.TimerHandle | None = None
        self._backlog = Backlog()
        self._aggregator = MinuteAggregator(wall_clock(), self._backlog)
        self._writer: Writer | None = None
        if path is not None:
            self._writer = Writer(
                WriterConfig(path.absolute(), node.identity.node_name, RetentionLimits(max_age_s, max_bytes)),
                self._backlog,
                wall_clock,
                RetentionClock(wall_clock, node.now_s),
                self._on_acknowledged,
            )
            self._writer.on_last_known = self._remember
        self._query = HistoryQuery(self._backlog, self._aggregator, self._writer)
        self._publish_to_id = 0
        self._is_publishing = False
        self._previous_last_ids = (0, 0)  # at the tick before the last one, and at the last tick
        self._published_early_to = 0  # up to this id, transitions were published before they were written; 0 if none
        self._restart_needed: HistoryError | None = None  # the configuration has another path
        self._no_folder: HistoryError | None = None
        self._breaks = BreakFinder(node.now_s, wall_clock)
        self._last_break: Break | None = None
        self._newest: Transition | None = None
        self._outages: dict[str, Transition] = {}  # what was last recorded of each service that is not Up
        self._unconfirmed: dict[str, Transition] = {}  # those from before a standstill, until a check
        self._down_before: dict[str, tuple[float, float]] = {}  # since when before the restart: node's and wall clock
        self._maintenance_before: dict[str | None, OpenMaintenance] = {}  # by service; None: the node
        self.last_id = 0  # of the newest published transition

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self.last_id = int(self._wall_clock() * 1e6)
        if self._writer is None:
            self._backlog.pruned_to = self.last_id
        else:
            self._writer.start(self._loop)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._writer.opened.wait(), OPEN_TIMEOUT_S)
        if self._writer is not None and self._writer.is_readable:
            self.last_id = self._writer.last_id
        else:
            self._backlog.continue_after(self.last_id)
        self._record_start()
        self._subscribe_to_node()
        self._tick()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._unsubscribe()
        if self._timer is not None:
            self._timer.cancel()
        self._aggregator.finish(self._wall_clock())
        self._record_process(STOPPED, f"svcnode {__version__}")
        if self._writer is not None:
            self._writer.close()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._writer.closed.wait(), CLOSE_TIMEOUT_S)
            if len(self._backlog) and not self._writer.has_never_written:
                extra = {"event": "history_incomplete", "records": len(self._backlog)}
                log.warning(
                    "shutdown: records of the history that could not be written: %d", len(self._backlog), extra=extra
                )
        self._publish(self._backlog.last_id)
        while self._is_publishing:
            self._publish_some()

    def reconfigure(
        self,
        path: Path | None,
        *,
        max_age_s: float = MAX_AGE_S,
        max_bytes: int = MAX_BYTES,
        moved_from: Path | None = None,
    ) -> None:
        """Apply the name of the node and new limits.

        A new path takes effect after a restart, and until then it is reported as a problem. If it is new only because
        the node has a new name, `moved_from` is the old path, and the file is moved now.
        """
        path, moved_from = path and path.absolute(), moved_from and moved_from.absolute()
        current = None
        if self._writer is not None:
            current, _, limits = self._writer.config
            if path is not None and current == moved_from:
                current = path
            if path == current:
                limits = RetentionLimits(max_age_s, max_bytes)
            self._writer.configure(WriterConfig(current, self._node.identity.node_name, limits))
        self._restart_needed = None if path == current else _restart_error(current, path)
        _log_warning(self._restart_needed)

    def set_has_folder(self, has_folder: bool) -> None:
        """False if there is no path only because there is no folder for it; this is reported as a problem."""
        if has_folder:
            self._no_folder = None
        elif self._no_folder is None:
            self._no_folder = _no_folder_error()
            _log_warning(self._no_folder)

    # ---- status

    @property
    def problem(self) -> str | None:
        """Not written, not at the configured path, or a file was quarantined; None if there is no problem."""
        return "; ".join(map(str, self._problems)) or None

    @property
    def problem_code(self) -> str | None:
        return self._problems[0].code if self._problems else None

    @property
    def _problems(self) -> list[HistoryError]:
        problems = (self._no_folder, self._writer_problem, self._restart_needed)
        return [problem for problem in problems if problem is not None]

    @property
    def _writer_problem(self) -> HistoryError | None:
        if self._writer is None:
            return None
        if self._published_early_to and not self._writer.status.is_failing:
            text = f"slow disk: {self._writer.path}; changes are published before they are written"
            return HistoryError(text, HistoryProblem.SLOW_DISK)
        return self._writer.status.problem

    @property
    def is_healthy(self) -> bool:
        """Whether new records are being written. Always true without a file."""
        return self._writer is None or not (self._published_early_to or self._writer.status.is_failing)

    @property
    def pruned_to(self) -> int:
        """The newest transition that was deleted. Older ones are deleted, too, unless a wrong clock made it expire."""
        return max(self._backlog.pruned_to, 0 if self._writer is None else self._writer.pruned_to)

    def subscribe(self, listener: Callable[[Transition], None]) -> None:
        """Call `listener` on the event loop for every transition, in order, once it is written or cannot be written."""
        self._listeners = (*self._listeners, listener)

    # ---- queries

    async def after(self, transition_id: int, limit: int = 500) -> list[Transition]:
        """The oldest published transitions after this one."""
        return await self._query.after(transition_id, self.last_id, limit)

    async def latest(self, service_id: str | None = None, limit: int = 20) -> list[Transition]:
        """The newest transitions first, of one service or of all services and the node."""
        return await self._query.latest(service_id, self.last_id, limit)

    async def of_services(self, service_ids: Sequence[str], from_s: float, limit: int) -> list[Transition]:
        """In order, since this time: the newest transitions of these services, and of the node itself."""
        return await self._query.of_services(service_ids, from_s, self.last_id, limit)

    async def load_latest(self, limit: int) -> list[Transition]:
        """The newest transitions, in order. Waits until the file can be opened."""
        if self._writer is not None:
            await asyncio.shield(self._writer.saved_state)
            # The file may have been opened late, and after a clock was ahead its ids are greater than the time.
            self.last_id = max(self.last_id, self._writer.last_id)
        return (await self.latest(limit=limit))[::-1]

    async def buckets(self, service_ids: Sequence[str], resolution: Resolution) -> dict[str, list[Bucket]]:
        """`resolution.bucket_count` buckets per service, without gaps, the oldest first; the last one is incomplete."""
        now_s = self._wall_clock()
        self._aggregator.tick(now_s)
        return await self._query.buckets(service_ids, resolution, now_s)

    async def report(self, from_s: float, to_s: float) -> PeriodReport:
        """Of the period nearest to these times that begins and ends with a bucket, or ends now."""
        now_s = self._wall_clock()
        self._aggregator.tick(now_s)
        return await self._query.report(ReportPeriod.around(from_s, to_s, now_s), self.pruned_to)

    async def timeline(self, period: Period) -> TimelinePage:
        """What happened in a period; a page of it."""
        return make_timeline_page(period, await self._query.page(period, self.last_id, TRANSITIONS_PER_PAGE))

    async def known_ids(self, service_ids: Sequence[str]) -> set[str]:
        """The ids that the history has records of."""
        return await self._query.known_ids(service_ids)

    # ---- the saved state of the notifier

    def save_state(self, text: str) -> None:
        """Replace the saved state. Without a file, it is not saved."""
        if self._writer is not None:
            self._backlog.set_saved_state(text)

    async def load_state(self) -> str | None:
        """The state that the previous process saved. Waits until the file can be opened."""
        return None if self._writer is None else await asyncio.shield(self._writer.saved_state)

    # ---- what the previous process knew

    def _remember(self, statuses: list[LastStatus], maintenance: list[OpenMaintenance]) -> None:
        """In the writer thread. It delays neither the start nor a check, and no status follows from it."""
        self._maintenance_before = {one.service_id: one for one in maintenance}
        now_s, wall_s = self._node.now_s(), self._wall_clock()
        known = {
            one.service_id: KnownBefore(
                Status(one.status), now_s - max(0.0, wall_s - one.since_s), one.reason, known_code(one.code)
            )
            for one in statuses
            if one.status in _REMEMBERED and one.service_id in self._node
        }
        self._down_before = {
            one.service_id: (known[one.service_id].since_s, one.since_s)
            for one in statuses
            if one.service_id in known and one.status == Status.DOWN.value
        }
        self._node.remember(known)

    # ---- recording, in any thread

    def _subscribe_to_node(self) -> None:
        self._unsubscribe = self._node.subscribe(self._on_change, on_evidence=self._on_evidence)
        for service, state in self._node:
            now_s = self._wall_clock()
            self._set_status(service.id, state, now_s, now_s)

    def _set_status(self, service_id: str, state: ServiceState | None, since_s: float, now_s: float) -> None:
        in_maintenance = self._node.maintenance.current(service_id) is not None
        status = None if state is None else state.status
        # Until the first evidence the status is not known: a restart must not lower the availability.
        is_known = state is None or status is not Status.INITIALIZING or state.last_evidence_at_s is not None
        self._aggregator.set_status(
            service_id, status, since_s, now_s, in_maintenance=in_maintenance, is_known=is_known
        )

    def _continued_since_s(self, service_id: str, since_s: float) -> float | None:
        """The same outage as before the restart begins at the same time, to the microsecond."""
        known_since_s, at_s = self._down_before.get(service_id, (None, None))
        return at_s if since_s == known_since_s else None

    def _maintenance_since_s(self, change: Change) -> float | None:
        """The same maintenance as before the restart begins at the same time, too."""
        before = self._maintenance_before.pop(change.service_id, None)
        is_same = (
            before is not None
            and change.kind is ChangeKind.MAINTENANCE
            and change.maintenance is not None
            and before.text.startswith(_storable_text(self._node.maintenance.text(change.maintenance)))
        )
        return before.since_s if before is not None and is_same else None

    def _on_evidence(self, service_id: str, evidence: Evidence, state: ServiceState) -> None:
        outcome = evidence.verdict.outcome
        if outcome is Outcome.UNKNOWN:  # it says nothing about the service
            return
        if self._unconfirmed and outcome is not Outcome.READY:
            self._confirm(service_id, state)
        self._aggregator.set_known(service_id, self._wall_clock)
        if self._node.probe_config(service_id) is not None:  # a reported status is not a check
            self._aggregator.add_check(service_id, evidence.duration_s, is_failure=outcome is Outcome.FAILED)

    def _on_change(self, change: Change) -> None:
        self._notice_breaks()
        now_s = self._wall_clock()
        # A status change may be recorded late: evidence expires before that is noticed, and checks take time.
        changed_at_s = change.after.since_s if change.kind is ChangeKind.STATUS and change.after else change.at_s
        at_s = self._to_wall(changed_at_s)
        if self._last_break is not None and self._last_break.is_during(changed_at_s):
            at_s = self._last_break.resumed_s  # before, nothing was known
        if change.service_id is not None:
            at_s = self._continued_since_s(change.service_id, changed_at_s) or at_s
            self._set_status(change.service_id, change.after, at_s, now_s)
        elif change.kind in MAINTENANCE_CHANGES:
            for service, state in self._node:
                self._set_status(service.id, state, at_s, now_s)
        if self._maintenance_before and change.kind in MAINTENANCE_CHANGES:
            at_s = self._maintenance_since_s(change) or at_s
        reason, code = self._reason_and_code(change)
        self._record(
            Transition(
                id=int(now_s * 1e6),
                at_s=at_s,
                kind=change.kind.value,
                service_id=change.service_id,
                before=None if change.before is None else change.before.status.value,
                after=None if change.after is None else change.after.status.value,
                reason=_storable_text(with_author(reason, change.by)),
                code=code,
                health_before=int(change.health_before),
                health=int(change.health),
            )
        )

    def _reason_and_code(self, change: Change) -> tuple[str, str | None]:
        if change.kind in MAINTENANCE_CHANGES:
            return "" if change.maintenance is None else self._node.maintenance.text(change.maintenance), None
        if change.kind in (*PLAN_CHANGES, *ANNOUNCEMENTS):
            return change.reason, None
        if change.kind in ACKNOWLEDGEMENT_CHANGES:
            return change.reason if change.acknowledgement is None else change.acknowledgement.text, None
        return (change.reason, None) if change.after is None else (change.after.reason, str(change.after.code))

    def _record_start(self) -> None:
        text = f"svcnode {__version__}"
        if self._writer is None or self._writer.last_kind in (None, STOPPED):
            self._record_process(STARTED, text)
        else:
            text += "; the previous process did not shut down cleanly"
            self._record_process(STARTED, text, ReasonCode.UNCLEAN_SHUTDOWN.value)

    def _record_process(self, kind: str, reason: str, code: str | None = None) -> None:
        now_us, health = int(self._wall_clock() * 1e6), int(self._node.health)
        self._record(Transition(now_us, now_us / 1e6, kind, None, None, None, reason, code, health, health))

    def _notice_breaks(self) -> None:
        """In the timeline, nothing is known of a break; what lasts over it is recorded again."""
        for one in self._breaks.find():
            self._last_break = one
            log.warning("%s %s", one.kind.replace("_", " "), one.text, extra={"event": one.kind})
            self._record_mark(PAUSED, one.paused_s, f"{one.kind.replace('_', ' ')} {one.text}")
            self._record_mark(one.kind, one.resumed_s, one.text)
            for service_id, outage in list(self._outages.items()):
                if one.kind == CLOCK_SET:
                    self._record_again(outage._replace(at_s=one.resumed_s))
                elif self._node.probe_config(service_id) is None:
                    self._record_again(outage)
                else:
                    self._unconfirmed[service_id] = outage

    def _record_mark(self, kind: str, at_s: float, reason: str) -> None:
        health = int(Health.PARTIAL) if self._newest is None else self._newest.health
        recorded_us = int(self._wall_clock() * 1e6)
        self._record(Transition(recorded_us, at_s, kind, None, None, None, reason, None, health, health))

    def _record_again(self, outage: Transition) -> None:
        health = outage.health if self._newest is None else self._newest.health
        recorded_us = int(self._wall_clock() * 1e6)
        self._record(outage._replace(id=recorded_us, before=outage.after, health_before=health, health=health))

    def _confirm(self, service_id: str, state: ServiceState) -> None:
        """A check after a standstill has found what was so before."""
        outage = self._unconfirmed.pop(service_id, None)
        if outage is not None and state.status.value == outage.after and self._outages.get(service_id) is outage:
            self._record_again(outage)

    def _record(self, draft: Transition) -> None:
        transition = self._newest = self._backlog.add(draft)
        if transition.service_id is not None and is_outage(transition):
            self._outages[transition.service_id] = transition
        elif transition.service_id is not None and says_status(transition):
            self._outages.pop(transition.service_id, None)
        if self._writer is None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._publish, transition.id)

    # ---- on the event loop

    def _publish(self, up_to_id: int) -> None:
        self._publish_to_id = max(self._publish_to_id, up_to_id)
        if not self._is_publishing:
            self._publish_some()

    def _publish_some(self) -> None:
        """In steps, so that slow listeners do not block the event loop for long."""
        transitions = self._backlog.take_unpublished(self._publish_to_id, TRANSITIONS_PUBLISHED_PER_STEP)
        for transition in transitions:
            self._call_listeners(transition)
        self._is_publishing = len(transitions) == TRANSITIONS_PUBLISHED_PER_STEP
        if self._is_publishing:
            self._loop.call_soon(self._publish_some)

    def _call_listeners(self, transition: Transition) -> None:
        self.last_id = transition.id
        for listener in self._listeners:
            try:
                listener(transition)
            except BaseException as exc:
                if is_user_interrupt(exc):
                    raise
                log.exception("a listener of the history raised an exception", extra={"event": "listener_failed"})

    def _tick(self) -> None:
        self._timer = self._loop.call_at(next_tick_s(self._loop.time(), TICK_S), self._tick)
        self._notice_breaks()
        self._aggregator.tick(self._wall_clock())
        self._close_minute()
        self._publish_overdue()

    def _close_minute(self) -> None:
        if self._aggregator.close_some(SERVICES_CLOSED_PER_STEP):
            self._loop.call_soon(self._close_minute)

    def _publish_overdue(self) -> None:
        """Publish transitions after two ticks even if they are not written yet, because the disk is slow."""
        overdue_id, previous_id = self._previous_last_ids
        self._previous_last_ids = (previous_id, self._backlog.last_id)
        if overdue_id > self._publish_to_id and self._backlog.is_unpublished(overdue_id):
            self._published_early_to = overdue_id
            self._publish(overdue_id)

    def _on_acknowledged(self, up_to_id: int) -> None:
        if up_to_id >= self._published_early_to:
            self._published_early_to = 0
        self._publish(up_to_id)


def _restart_error(current: Path | None, configured: Path | None) -> HistoryError:
    now = f"history is written to {current}" if current else "history is kept in memory only"
    new = f"the configuration now has the path {configured}" if configured else "the configuration now has no file"
    return HistoryError(f"{now}, but {new}; restart the node to apply this", HistoryProblem.RESTART_REQUIRED)


def _no_folder_error() -> HistoryError:
    return HistoryError(
        "history is kept in memory only, because there is no home folder: HOME is not set, and this user is not in the "
        "password database; set path in [history], or keep = false",
        HistoryProblem.NO_FOLDER,
    )


def _log_warning(error: HistoryError | None) -> None:
    if error is not None:
        log.warning("%s", error, extra={"event": "history_failed", "code": error.code})


def _storable_text(text: str) -> str:
    """Without secrets, and without characters that SQLite cannot store: lone surrogates and NUL."""
    return encodable(text).replace("\0", "�")
