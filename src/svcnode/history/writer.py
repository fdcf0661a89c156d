"""The thread that writes the history file, and its status.

All records since the last commit go into one transaction, so a burst costs little more than a single record. If a write
fails, the records stay in the backlog and the writer retries with increasing delays. It acknowledges them all the
same, so that a full disk does not delay events.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from contextlib import suppress
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from svcnode.core.units import utc_text
from svcnode.history.errors import CorruptionError, HistoryError, HistoryProblem, history_error_from
from svcnode.history.files import FileLock, check_owner, create_file, make_directory, move, quarantine
from svcnode.net.threads import ThreadRefusedError, start_thread

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from svcnode.history.backlog import Backlog
    from svcnode.history.database import Database
    from svcnode.history.records import LastStatus, OpenMaintenance, RetentionLimits
    from svcnode.net.clock import RetentionClock

MIN_BACKOFF_S, MAX_BACKOFF_S = 1.0, 60.0
# On a full disk single writes succeed now and then. After a second failure within this time, writes must succeed for
# this long before the problem counts as solved. It is long enough to write a minute.
STABLE_AFTER_S = 90.0
NOTICE_S = 86_400.0  # how long a quarantined or replaced file is reported as a problem
PRUNE_PAUSE_S = 0.01  # between two steps
LOCK_CHECK_INTERVAL_S = 5.0  # how often an idle writer checks that the file and the lock are still at their paths
MIN_QUARANTINE_INTERVAL_S = 60.0  # a second corrupt file within this time is not quarantined: the disk is bad

log = logging.getLogger("svcnode.history")


class WriterState(Enum):
    """What the writer does.

        OPENING ──success──► WRITING ◄──stable──┐
           │                    │               │
           │                 failure            │
           │                    ▼               │
           └─────failure───► RETRYING       RECOVERING
                              │  ▲           ▲    │
                              │  └──failure──┼────┘
                              └────success───┘

    RECOVERING usually becomes stable at once. If the writer had failed shortly before, it takes 90 s of successes.
    """

    OPENING = "opening"  # the first attempt has not ended
    WRITING = "writing"
    RETRYING = "retrying"  # the last attempt failed, the next one follows after a delay
    RECOVERING = "recovering"  # the last attempt succeeded, but the problem is still reported


class WriterStatus:
    """The state of the writer and its problem. Only the writer thread changes it; any thread may read it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.state = WriterState.OPENING
        self._error: HistoryError | None = None  # while the writer retries or recovers
        self._logged_errors: set[str] = set()  # since writing started to fail, so that each is logged once
        self._backoff_s = 0.0
        self._retry_at_s = 0.0
        self._stable_after_s = 0.0
        self._recovering_since_s = 0.0
        self._recovered_at_s = -math.inf
        self._notice: HistoryError | None = None
        self._notice_until_s = 0.0

    @property
    def is_failing(self) -> bool:
        return self._error is not None

    @property
    def problem(self) -> HistoryError | None:
        """The current error, or a file that was quarantined or replaced within the last day."""
        notice = self._notice if self._clock() < self._notice_until_s else None
        return self._error or notice

    @property
    def retry_in_s(self) -> float:
        return max(0.0, self._retry_at_s - self._clock()) if self.state is WriterState.RETRYING else 0.0

    def record_failure(self, error: HistoryError, cause: Exception) -> None:
        now_s = self._clock()
        if not self.is_failing:
            self._stable_after_s = STABLE_AFTER_S if now_s - self._recovered_at_s < STABLE_AFTER_S else 0.0
        if str(error) not in self._logged_errors:
            is_bug = not (isinstance(cause, OSError | HistoryError) or hasattr(cause, "sqlite_errorcode"))
            extra = {"event": "history_failed", "code": error.code, "reason": str(error)}
            log.error("writing history failed: %s", error, exc_info=cause if is_bug else None, extra=extra)
        self._error = error
        self._logged_errors.add(str(error))
        self._backoff_s = min(MAX_BACKOFF_S, 2 * self._backoff_s or MIN_BACKOFF_S)
        self._retry_at_s = now_s + self._backoff_s
        self.state = WriterState.RETRYING

    def record_success(self) -> None:
        now_s = self._clock()
        if self.state is WriterState.OPENING:
            self.state = WriterState.WRITING
        elif self.state is WriterState.RETRYING:
            self.state, self._recovering_since_s = WriterState.RECOVERING, now_s
        if self.state is WriterState.RECOVERING and now_s - self._recovering_since_s >= self._stable_after_s:
            log.info("writing history succeeds again", extra={"event": "history_recovered"})
            self._error, self._backoff_s, self._recovered_at_s = None, 0.0, now_s
            self._logged_errors.clear()
            self.state = WriterState.WRITING

    def set_notice(self, notice: HistoryError) -> None:
        """What happened to the file. It is reported as a problem for a day, although writing succeeds."""
        self._notice, self._notice_until_s = notice, self._clock() + NOTICE_S


class WriterConfig(NamedTuple):
    path: Path
    node_name: str  # of the node that the file belongs to
    limits: RetentionLimits


class Writer:
    """Writes the backlog into the file.

    `on_acknowledged` is called on the event loop: all transitions up to this id are written, or cannot be written now.
    """

    def __init__(
        self,
        config: WriterConfig,
        backlog: Backlog,
        wall_clock: Callable[[], float],
        expiry_clock: RetentionClock,
        on_acknowledged: Callable[[int], None],
    ) -> None:
        self.config = config  # the wanted one
        self._config = config  # the one in use
        self._former_name: str | None = None
        self._backlog = backlog
        self._wall_clock = wall_clock
        self._expiry_clock = expiry_clock
        self._on_acknowledged = on_acknowledged
        self._is_closing = False
        self._file_lock: FileLock | None = None
        self._database: Database | None = None
        self._is_pruning = False
        self._quarantined_at_s: float | None = None
        self._reported_corruption: tuple[int, CorruptionError] | None = None  # with the generation of the file
        self._written_to = 0  # the newest transition that was written
        self.status = WriterStatus()
        # Called in the writer thread with what the file says of the services, when it is first opened.
        self.on_last_known: Callable[[list[LastStatus], list[OpenMaintenance]], None] = lambda *_: None
        # For the event loop.
        self.opened = asyncio.Event()  # the first attempt to open the file has ended
        self.closed = asyncio.Event()  # the thread has ended
        self.saved_state: asyncio.Future[str | None]  # of the previous process; done once the file is open
        # Read by other threads.
        self.generation = 0  # increases whenever the file is replaced
        self.is_readable = False
        self.last_id = 0  # when the file was first opened
        self.last_kind: str | None = None
        self.pruned_to = 0

    @property
    def path(self) -> Path:
        return self._config.path

    @property
    def has_never_written(self) -> bool:
        return self.status.is_failing and not self._written_to

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self.saved_state = loop, loop.create_future()
        try:
            start_thread(threading.Thread(target=self._run, name="svcnode history", daemon=True))
        except (ThreadRefusedError, MemoryError) as exc:
            text = "cannot start the writer thread; no history is written; raise the limit of threads"
            self.status.record_failure(HistoryError(text, HistoryProblem.NO_THREAD), exc)
            self.opened.set()
            self.closed.set()

    def configure(self, config: WriterConfig) -> None:
        """With another name of the node, the file belongs to the new name. With another path, it is moved."""
        self.config = config
        self._backlog.wake_writer.set()

    def close(self) -> None:
        """Write the backlog and end the thread, without waiting for it."""
        self._is_closing = True
        self._backlog.wake_writer.set()

    def report_corruption(self, error: CorruptionError, generation: int) -> None:
        """A query found the file corrupt."""
        if generation == self.generation:
            self._reported_corruption = generation, error
            self._backlog.wake_writer.set()

    def _set_saved_state(self, text: str | None) -> None:
        if not self.saved_state.done():  # the file may be opened again
            self.saved_state.set_result(text)

    # ---- in the writer thread

    def _call(self, callback: Callable[..., None], *args: object) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(callback, *args)

    def _run(self) -> None:
        self._work()
        self._call(self.opened.set)
        while not self._is_closing:
            self._backlog.wake_writer.wait(self._idle_s())
            self._backlog.wake_writer.clear()
            self._work()
        self._work()  # records that were added just before `close`
        self._close_database()
        self._release_lock()
        self._call(self.closed.set)

    def _idle_s(self) -> float:
        return self.status.retry_in_s or (PRUNE_PAUSE_S if self._is_pruning else LOCK_CHECK_INTERVAL_S)

    def _work(self) -> None:
        if self.status.retry_in_s and not self._is_closing:
            self._call(self._on_acknowledged, self._backlog.last_id)
            return
        try:
            self._write_or_recreate()
        except Exception as exc:  # noqa: BLE001  an error of the history must not stop the node
            self._close_database()
            self.status.record_failure(history_error_from(exc, self.path), exc)
            self._call(self._on_acknowledged, self._backlog.last_id)
        else:
            self.status.record_success()

    def _write_or_recreate(self) -> None:
        try:
            self._write()
        except Exception as exc:
            error = history_error_from(exc, self.path)
            if not isinstance(error, CorruptionError):
                raise
            self._recreate(error)
            self._write()

    def _write(self) -> None:
        self._raise_reported_corruption()
        database = self._current_database()
        while (batch := self._backlog.next_batch()) is not None:
            with self._backlog.handover_lock:
                database.write(batch)
                is_written = database.is_at_path
                if is_written:
                    self._backlog.mark_written(batch)
            if is_written:
                self._written_to = max(self._written_to, batch.last_id)
                self._call(self._on_acknowledged, batch.last_id)
            database = self._current_database()
            self._is_pruning = True
        if database.set_limits(self._config.limits) or self._is_pruning:
            self._is_pruning = database.prune_some(self._expiry_clock.now_s())
        self.pruned_to = database.pruned_to

    def _raise_reported_corruption(self) -> None:
        match self._reported_corruption:
            case (generation, error) if generation == self.generation:
                raise error

    # ---- the file

    def _current_database(self) -> Database:
        if self._config != self.config:
            self._apply(self.config)
        if self._database is not None and not self._database.is_at_path:
            self._note_replaced_file()
            self._close_database()
            self.generation += 1
            self._release_lock()
        elif self._file_lock is not None and not self._file_lock.is_at_path:
            extra = {"event": "history_lock_removed"}
            log.warning("lock file was removed while in use: %s", self._file_lock.path, extra=extra)
            self._release_lock()
            self._acquire_lock()
        if self._database is None:
            self._database = self._open()
        return self._database

    def _note_replaced_file(self) -> None:
        """Removed, replaced, or its file system was unmounted: nobody would see what is written to it from now on."""
        extra = {"event": "history_file_removed"}
        log.warning("history file was removed or replaced while in use: %s", self.path, extra=extra)
        notice = (
            f"{self.path} was removed, replaced or unmounted while in use, at {utc_text(self._wall_clock())}; "
            "new records go to the file that is at this path now; check the mounts of its folder"
        )
        self.status.set_notice(HistoryError(notice, HistoryProblem.FILE_REPLACED))

    def _apply(self, config: WriterConfig) -> None:
        if config.path != self.path:
            self._close_database()
            if self.is_readable and self._file_lock is not None:
                self._file_lock = move(self._file_lock, self.path, config.path)
            else:  # it is not ours
                self._release_lock()
        if config.node_name != self._config.node_name:
            self._close_database()  # opening it again claims it for the new name
            if self.is_readable:
                self._former_name = self._config.node_name
        self._config = config

    def _open(self) -> Database:
        make_directory(self.path.parent)
        check_owner(self.path)
        if self._file_lock is None:
            self._acquire_lock()
        create_file(self.path)
        from svcnode.history.database import Database  # loads sqlite3, in this thread, to not delay the start

        is_first = not self.is_readable
        database = Database(self.path, self._config.limits, verify=is_first)
        try:
            database.claim(self._config.node_name, self._former_name)
        except Exception as exc:
            database.close()
            if isinstance(exc, HistoryError):  # it belongs to another node, which may start
                self._mark_unreadable()
                self._release_lock()
            raise
        if database.last_sequence < self._written_to:
            self._mark_file_lost()
        self._backlog.continue_after(database.last_sequence)
        if is_first:
            self.last_id, self.last_kind = database.last_id, database.last_kind
            if database.last_sequence:
                self._expiry_clock.continue_from(database.last_at_s)
                self.on_last_known(database.last_statuses(), database.open_maintenance())
            if not self._written_to:  # otherwise the last minutes are those of this process
                database.recover_minutes(self._backlog)
        self.pruned_to = database.pruned_to
        self.is_readable = self._is_pruning = True
        if is_first:
            self._call(self._set_saved_state, database.saved_state)  # whoever waits for it may read the file now
        return database

    def _acquire_lock(self) -> None:
        try:
            self._file_lock = FileLock(self.path)
        except HistoryError:  # another svcnode writes this file from now on
            self._mark_unreadable()
            raise

    def _mark_unreadable(self) -> None:
        """The file at the path is not ours any more."""
        if self.is_readable:
            self.is_readable = False
            self.generation += 1
            self._mark_file_lost()

    def _mark_file_lost(self) -> None:
        self._backlog.mark_file_lost(int(self._wall_clock() * 1e6))

    def _release_lock(self) -> None:
        if self._file_lock is not None:
            self._file_lock.release()
            self._file_lock = None

    def _close_database(self) -> None:
        if self._database is not None:
            with suppress(Exception):
                self._database.close()
            self._database = None

    def _recreate(self, error: CorruptionError) -> None:
        self._close_database()
        now_s = time.monotonic()
        if self._quarantined_at_s is not None and now_s - self._quarantined_at_s < MIN_QUARANTINE_INTERVAL_S:
            text = (
                f"{error}; another file was quarantined less than {MIN_QUARANTINE_INTERVAL_S:g} s ago; check the disk"
            )
            raise HistoryError(text, error.code)
        self.is_readable = False
        quarantined = quarantine(self.path, self._wall_clock())
        self._quarantined_at_s = now_s
        self.generation += 1
        self._mark_file_lost()  # also the records of previous processes, whose newest id is not known
        notice = HistoryError(f"{error}; moved to {quarantined.name}; new records go to a new file", error.code)
        extra = {"event": "history_quarantined", "code": notice.code, "reason": str(notice)}
        log.error("history file quarantined: %s", notice, extra=extra)
        self.status.set_notice(notice)
