"""Reads the history that another process writes, from its file: only one of the workers of a program writes."""

from __future__ import annotations

import asyncio
import logging
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

from svcnode.core.model import Health
from svcnode.history import OPEN_TIMEOUT_S, TICK_S, TRANSITIONS_PER_PAGE, History
from svcnode.history.aggregator import MinuteAggregator
from svcnode.history.backlog import Backlog
from svcnode.history.errors import CorruptionError, HistoryError, HistoryProblem
from svcnode.history.migrations import VERSION, migrate
from svcnode.history.query import HistoryQuery, open_read_only
from svcnode.history.records import Transition
from svcnode.history.recovery import recover_minutes
from svcnode.history.report import OPEN_WITHIN_S, ReportPeriod
from svcnode.history.timeline import PAUSED, STOPPED, make_timeline_page

if TYPE_CHECKING:
    from collections.abc import Sequence

    from svcnode.history.query import EndOfFile
    from svcnode.history.report import PeriodReport
    from svcnode.history.timeline import Period, TimelinePage
    from svcnode.node.node_state import NodeState

TRANSITIONS_PER_READ = 500

log = logging.getLogger("svcnode.history")


class _FollowedFile:
    """The file of another process. If it is corrupt, the process that writes it notices that."""

    generation = 0
    is_readable = False

    def __init__(self, path: Path) -> None:
        self.path = path

    def report_corruption(self, error: CorruptionError, generation: int) -> None:
        pass


async def read_timeline(path: Path, period: Period) -> TimelinePage:
    """From the file of a node that does not run."""
    query, end = await _open(path, period.to_s, Backlog())
    page = await query.page(period, end.last_id, TRANSITIONS_PER_PAGE)
    if page.is_last and end.last_kind != STOPPED and period.to_s - end.last_known_s > OPEN_WITHIN_S:
        page = page._replace(transitions=[*page.transitions, _end_of_records(end)])
    return make_timeline_page(period, page)


def _end_of_records(end: EndOfFile) -> Transition:
    """Nothing is known after the last record of a process that did not stop."""
    reason = "svcnode was killed, or its machine was switched off; nothing was recorded since"
    health = int(Health.PARTIAL)
    return Transition(end.last_id + 1, end.last_known_s, PAUSED, None, None, None, reason, None, health, health)


async def read_known_ids(path: Path, ids: Sequence[str]) -> set[str]:
    """Those of the ids that are in the file of a node that does not run."""
    query, _ = await _open(path, 0.0, Backlog())
    return await query.known_ids(ids)


async def read_report(path: Path, from_s: float, to_s: float, now_s: float) -> tuple[PeriodReport, str]:
    """From the file of a node that does not run; and the name of the node."""
    from tempfile import TemporaryDirectory  # loaded late: only this needs it

    with TemporaryDirectory(prefix="svcnode-") as folder:
        current = _in_current_format(path, Path(folder))
        query, end = await _open(current, now_s, _recovered_minutes(current))
        report = await query.report(ReportPeriod.around(from_s, to_s, now_s), end.pruned_to)
    return report, end.node_name or ""


def _in_current_format(path: Path, folder: Path) -> Path:
    """The file itself, or a migrated copy: the file is migrated when a node opens it."""
    import sqlite3  # loaded late: only an offline report needs it

    with suppress(sqlite3.Error), closing(open_read_only(path)) as source:
        (version,) = source.execute("PRAGMA user_version").fetchone()
        if 0 < version < VERSION:
            with closing(sqlite3.connect(folder / path.name, isolation_level=None)) as copy:
                source.backup(copy)
                copy.execute("BEGIN")
                migrate(copy, version)
                copy.execute("COMMIT")
            return folder / path.name
    return path


def _recovered_minutes(path: Path) -> Backlog:
    """In memory: they are written when a node opens the file."""
    import sqlite3  # loaded late, as above

    backlog = Backlog()
    with suppress(sqlite3.Error), closing(open_read_only(path)) as connection:
        recover_minutes(connection, backlog)
    return backlog


async def _open(path: Path, now_s: float, backlog: Backlog) -> tuple[HistoryQuery, EndOfFile]:
    file = _FollowedFile(path)
    query = HistoryQuery(backlog, MinuteAggregator(now_s, backlog), file)
    end = await query.end_of(path)
    if end is None:
        raise HistoryError(f"cannot read {path}", HistoryProblem.UNUSABLE)
    file.is_readable = True
    return query, end


class HistoryFollower(History):
    """Records nothing. What the other process has not written yet is missing: the times and checks of this minute."""

    def __init__(self, node: NodeState, path: Path) -> None:
        super().__init__(node, None)
        self._file = _FollowedFile(path)
        self._query = HistoryQuery(self._backlog, self._aggregator, self._file)
        self._pruned_to = 0
        self._has_started = asyncio.Event()  # the first attempt to read the file has ended

    async def __aenter__(self) -> Self:
        self.last_id = int(self._wall_clock() * 1e6)  # all that the file gets from now on is newer
        self._task = asyncio.create_task(self._follow(), name="follow history")
        with suppress(TimeoutError):
            await asyncio.wait_for(self._has_started.wait(), OPEN_TIMEOUT_S)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    @property
    def _writer_problem(self) -> HistoryError | None:
        if self._file.is_readable:
            return None
        text = f"cannot read the history that another worker writes: {self._file.path}; its log says why"
        return HistoryError(text, HistoryProblem.UNUSABLE)

    @property
    def is_healthy(self) -> bool:
        """Whether the file can be read."""
        return self._file.is_readable

    @property
    def pruned_to(self) -> int:
        return self._pruned_to

    async def _follow(self) -> None:
        read = self._skip_to_end
        while True:
            try:
                await read()
            except Exception:
                log.exception("internal error while the history is read", extra={"event": "internal_error"})
            read = self._publish_new
            self._has_started.set()
            await asyncio.sleep(TICK_S)

    async def _skip_to_end(self) -> None:
        """However long it takes: what the file has got meanwhile is published next."""
        self.last_id = await self._find_end() or self.last_id

    async def _find_end(self) -> int:
        """The newest transition of the file; 0 if it cannot be read, or belongs to another node."""
        end = await self._query.end_of(self._file.path)
        self._file.is_readable = end is not None and end.node_name == self._node.identity.node_name
        if end is None or not self._file.is_readable:
            return 0
        self._pruned_to = end.pruned_to
        return end.last_id

    async def _publish_new(self) -> None:
        end_id = await self._find_end()
        while self.last_id < end_id:
            transitions = await self._query.after(self.last_id, end_id, TRANSITIONS_PER_READ)
            if not transitions:  # it cannot be read any more
                return
            for transition in transitions:
                self._call_listeners(transition)
