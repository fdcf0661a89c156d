"""What keeps history from being written, when that is tried again, and what is said of it meanwhile.

The one thread that writes.

What has come since the last commit goes into one transaction, so a burst costs little more than one change. When
something cannot be written, it stays in the backlog and is tried again, after a longer and longer pause; it is
acknowledged all the same, for nobody is to wait for a disk that is full.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from svcnode.history.errors import CorruptionError, HistoryError, history_error_from
from svcnode.history.files import FileLock, check_owner, create_file, make_directory, quarantine

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from svcnode.history.backlog import Backlog
    from svcnode.history.database import Database
    from svcnode.history.records import RetentionLimits

MIN_BACKOFF_S, MAX_BACKOFF_S = 1.0, 60.0
# A disk that is full takes a little now and then. So what fails again soon after it was well must work for longer than
# this to be well once more: long enough that a minute is written meanwhile.
STABLE_AFTER_S = 90.0
QUARANTINE_NOTICE_S = 86_400.0  # a file that was set aside is told of for so long

log = logging.getLogger("svcnode.history")


class WriterStatus:
    """Only the thread that writes may change it; any may read."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._error: str | None = None
        self._logged_errors: set[str] = set()  # of this trouble, so that each is told once and not at every try
        self._recovered_at_s = -math.inf  # the one before
        self._succeeding_since_s: float | None = None
        self._is_relapse = False
        self._backoff_s = 0.0
        self._retry_at_s = 0.0
        self._notice: str | None = None
        self._notice_until_s = 0.0

    @property
    def is_failing(self) -> bool:
        return self._error is not None

    @property
    def problem(self) -> str | None:
        """For the page; None when there is nothing to say."""
        notice = self._notice if self._clock() < self._notice_until_s else None
        return self._error or notice

    @property
    def retry_in_s(self) -> float:
        """How long until it is worth another try."""
        is_failing = self.is_failing and self._succeeding_since_s is None
        return max(0.0, self._retry_at_s - self._clock()) if is_failing else 0.0

    def record_failure(self, fault: HistoryError, cause: Exception) -> None:
        if not self.is_failing:
            self._is_relapse = self._clock() - self._recovered_at_s < STABLE_AFTER_S
        if str(fault) not in self._logged_errors:
            is_strange = not (isinstance(cause, OSError | HistoryError) or hasattr(cause, "sqlite_errorcode"))
            log.error("history: %s", fault, exc_info=cause if is_strange else None)
        self._error, self._succeeding_since_s = str(fault), None
        self._logged_errors.add(self._error)
        self._backoff_s = min(MAX_BACKOFF_S, 2 * self._backoff_s or MIN_BACKOFF_S)
        self._retry_at_s = self._clock() + self._backoff_s

    def record_success(self) -> None:
        """It works; whether that is the end of the trouble is seen here."""
        if not self.is_failing:
            return
        now_s = self._clock()
        if self._succeeding_since_s is None:
            self._succeeding_since_s = now_s
        if self._is_relapse and now_s - self._succeeding_since_s < STABLE_AFTER_S:
            return
        log.info("history is written again")
        self._error, self._backoff_s, self._recovered_at_s = None, 0.0, now_s
        self._logged_errors.clear()

    def set_notice(self, notice: str) -> None:
        log.error("history: %s", notice)
        self._notice, self._notice_until_s = notice, self._clock() + QUARANTINE_NOTICE_S


PRUNE_PAUSE_S = 0.01  # from step to step
LOCK_CHECK_INTERVAL_S = 5.0  # how often it is looked whether the file is still ours, when there is nothing to write
MIN_QUARANTINE_INTERVAL_S = (
    60.0  # between two files that are set aside: a disk that damages each new one is no place to write to
)


class WriterCallbacks(NamedTuple):
    """Who is told, on the thread that writes."""

    on_acknowledged: Callable[[int], None]  # all up to this id is written, or cannot be for now
    on_opened: Callable[[], None]  # the first attempt to open the file is over
    on_state_loaded: Callable[[str | None], None]  # the note that was in the file, once that is open
    on_closed: Callable[[], None]  # nothing more will be written


class Writer:
    def __init__(
        self,
        path: Path,
        backlog: Backlog,
        limits: RetentionLimits,
        wall_clock: Callable[[], float],
        ears: WriterCallbacks,
    ) -> None:
        self.path = path
        self._backlog = backlog
        self._limits = limits
        self._wall_clock = wall_clock
        self._callbacks = ears
        self._wake = threading.Event()
        self._is_closing = False
        self._file_lock: FileLock | None = None
        self._database: Database | None = None
        self._is_pruning = False
        self._quarantined_at_s: float | None = None
        self._reported_corruption: tuple[int, CorruptionError] | None = None  # and of which generation
        self._written_to = 0  # the newest transition that was
        self.status = WriterStatus()
        # For others to read.
        self.generation = 0  # of the file: it grows whenever another one is begun
        self.is_readable = False  # there is a file, and it is ours
        self.last_id = 0  # as the file had it when it was first opened
        self.last_kind: str | None = None
        self.pruned_to = 0
        self._thread = threading.Thread(target=self._run, name="svcnode history", daemon=True)

    def start(self) -> None:
        try:
            self._thread.start()
        except RuntimeError as exc:
            self.status.record_failure(
                HistoryError("there is no thread to be had that could write; nothing is kept"), exc
            )
            self._callbacks.on_opened()
            self._callbacks.on_closed()

    def wake(self) -> None:
        """Something has come."""
        self._wake.set()

    def set_limits(self, limits: RetentionLimits) -> None:
        """They hold from the next turn of the thread on."""
        self._limits = limits
        self._wake.set()

    def close(self) -> None:
        """Write what there is, and end."""
        self._is_closing = True
        self._wake.set()

    @property
    def has_never_written(self) -> bool:
        """Nothing was ever written, and why has been told."""
        return self.status.is_failing and not self._written_to

    def report_corruption(self, damage: CorruptionError, generation: int) -> None:
        """Somebody who read the file has found it damaged."""
        if generation == self.generation:  # which it may no longer be a moment later
            self._reported_corruption = generation, damage
            self._wake.set()

    # ---- on the thread

    def _run(self) -> None:
        self._work()
        self._callbacks.on_opened()
        while not self._is_closing:
            self._wake.wait(self._idle_s())
            self._wake.clear()
            self._work()
        self._work()  # what came just before the end
        self._close_database()
        self._release_lock()
        self._callbacks.on_closed()

    def _idle_s(self) -> float:
        if self.status.retry_in_s:
            return self.status.retry_in_s
        return PRUNE_PAUSE_S if self._is_pruning else LOCK_CHECK_INTERVAL_S

    def _work(self) -> None:
        if self.status.retry_in_s and not self._is_closing:
            self._callbacks.on_acknowledged(self._backlog.last_id)
            return
        try:
            self._write_or_recreate()
        except Exception as exc:  # noqa: BLE001  whatever it is, the node goes on
            self._close_database()
            self.status.record_failure(history_error_from(exc, self.path), exc)
            self._callbacks.on_acknowledged(self._backlog.last_id)
        else:
            self.status.record_success()

    def _write_or_recreate(self) -> None:
        try:
            self._write()
        except Exception as exc:
            fault = history_error_from(exc, self.path)
            if not isinstance(fault, CorruptionError):
                raise
            self._recreate(fault)
            self._write()

    def _write(self) -> None:
        self._raise_reported_corruption()
        database = self._current_database()
        while (batch := self._backlog.next_batch()) is not None:
            with self._backlog.handover_lock:
                database.write(batch)
                is_kept = database.is_at_path
                if is_kept:
                    self._backlog.mark_written(batch)
            if is_kept:
                self._written_to = max(self._written_to, batch.last_id)
                self._callbacks.on_acknowledged(batch.last_id)
            database = self._current_database()
            self._is_pruning = True
        if database.set_limits(self._limits) or self._is_pruning:
            self._is_pruning = database.prune_some(self._wall_clock())
        self.pruned_to = database.pruned_to

    def _raise_reported_corruption(self) -> None:
        match self._reported_corruption:
            case (generation, damage) if generation == self.generation:
                raise damage

    # ---- the file

    def _current_database(self) -> Database:
        if self._database is not None and not self._database.is_at_path:
            log.warning("history: %s was removed or replaced while it was in use", self.path)
            self._close_database()
            self.generation += 1
            self._release_lock()
        elif self._file_lock is not None and not self._file_lock.is_at_path:
            log.warning("history: %s was removed while it was in use", self._file_lock.path)
            self._release_lock()
            self._acquire_lock()
        if self._database is None:
            self._database = self._open()
        return self._database

    def _open(self) -> Database:
        make_directory(self.path.parent)
        check_owner(self.path)
        if self._file_lock is None:
            self._acquire_lock()
        create_file(self.path)
        from svcnode.history.database import Database  # and with it SQLite, beside the start of the node

        is_first = not self.is_readable
        database = Database(self.path, self._limits, verify=is_first)
        if database.last_sequence < self._written_to:  # what was there is gone
            self._backlog.mark_file_lost(int(self._wall_clock() * 1e6))
        self._backlog.continue_after(database.last_sequence)
        if is_first:
            self.last_id, self.last_kind = database.last_id, database.last_kind
            self._callbacks.on_state_loaded(database.saved_state)
        self.pruned_to = database.pruned_to
        self.is_readable = self._is_pruning = True
        return database

    def _acquire_lock(self) -> None:
        try:
            self._file_lock = FileLock(self.path)
        except HistoryError:  # it is another's, and so is what stands in it from now on
            if self.is_readable:
                self.is_readable = False
                self.generation += 1
                self._backlog.mark_file_lost(int(self._wall_clock() * 1e6))
            raise

    def _release_lock(self) -> None:
        if self._file_lock is not None:
            self._file_lock.release()
            self._file_lock = None

    def _close_database(self) -> None:
        if self._database is not None:
            with suppress(Exception):  # it was of no use any more
                self._database.close()
            self._database = None

    def _recreate(self, damage: CorruptionError) -> None:
        self._close_database()
        now_s = time.monotonic()
        if self._quarantined_at_s is not None and now_s - self._quarantined_at_s < MIN_QUARANTINE_INTERVAL_S:
            raise HistoryError(f"{damage}, soon after another one; is the disk sound?")
        self.is_readable = False
        aside = quarantine(self.path, self._wall_clock())
        self._quarantined_at_s = now_s
        self.generation += 1
        # Also what a process before this one had written, of which nobody knows how far it went.
        self._backlog.mark_file_lost(int(self._wall_clock() * 1e6))
        self.status.set_notice(f"{damage}; it was set aside as {aside.name}, and a new one begun")
