"""The file, in the hands of the thread that writes."""

from __future__ import annotations

import json
import sqlite3
import threading
from typing import TYPE_CHECKING, TypeVar

from svcnode.history import schema
from svcnode.history.errors import OTHER_PATH_HINT, CorruptionError, HistoryError
from svcnode.history.files import file_identity
from svcnode.history.records import DAYS, RESOLUTIONS
from svcnode.history.retention import Retention
from svcnode.history.schema import transaction

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from svcnode.history.backlog import Batch
    from svcnode.history.records import ClosedMinute, RetentionLimits

T = TypeVar("T")

BUSY_TIMEOUT_S = 0.5  # how long to wait for a program that holds the file; nobody waits for us meanwhile
QUICK_CHECK_TIMEOUT_S = 1.0  # a large file on a slow disk is checked as far as this goes
ROWS_PER_STATEMENT = 500


class Database:
    """An open history file."""

    def __init__(self, path: Path, limits: RetentionLimits, *, verify: bool = True) -> None:
        self._path = path
        self._connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
        try:
            self._prepare(limits, verify=verify)
            self.last_id, self.last_kind = self._last_transition()
            self.saved_state = self._read_saved_state()  # as it was found
            watermarks = dict(self._connection.execute("SELECT name, value FROM watermarks").fetchall())
        except BaseException:
            self._connection.close()
            raise
        self._aggregated_to = int(watermarks.get(schema.AGGREGATED_TO, 0))
        self._retention = Retention(self._connection, limits, int(watermarks.get(schema.PRUNED_TO, 0)))
        self._file_identity = file_identity(path, has_wal=self._has_wal)

    @property
    def pruned_to(self) -> int:
        return self._retention.pruned_to

    @property
    def last_sequence(self) -> int:
        """The greatest that was given to anything here."""
        return max(self.last_id, self.pruned_to, self._aggregated_to)

    @property
    def is_at_path(self) -> bool:
        """Whether the files are still there. What was removed can be written for ever, and is gone at the end."""
        return (
            self._file_identity is not None and file_identity(self._path, has_wal=self._has_wal) == self._file_identity
        )

    def write(self, batch: Batch) -> None:
        """All of it, or nothing."""
        fresh = [minute for minute in batch.minutes if minute.sequence > self._aggregated_to]
        with transaction(self._connection):
            self._upsert_services(batch)
            for some in _chunks([schema.transition_row(one) for one in batch.transitions]):
                self._connection.execute(schema.INSERT_TRANSITIONS, (json.dumps(some),))
            for minute in fresh:
                self._add_minute(minute)
            self._retention.record_pruned(batch.pruned_to)
            if batch.saved_state is not None:
                self._connection.execute(schema.SET_SAVED_STATE, (batch.saved_state,))
        for minute in fresh:
            self._aggregated_to = minute.sequence

    def set_limits(self, limits: RetentionLimits) -> bool:
        """Returns whether they are others than before, so that there may be something to forget."""
        if limits == self._retention.limits:
            return False
        self._limit_wal(limits)
        self._retention.limits = limits
        return True

    def prune_some(self, now_s: float) -> bool:
        """Returns whether something went, so that there may be more."""
        return self._retention.prune_some(now_s)

    def close(self) -> None:
        self._connection.close()

    # ---- opening

    def _prepare(self, limits: RetentionLimits, *, verify: bool) -> None:
        connection = self._connection
        # A file that is cut short under our feet is an error then, and not the end of the process.
        connection.execute("PRAGMA mmap_size = 0")
        # What a statement needs on the side needs no disk, which may be full.
        connection.execute("PRAGMA temp_store = MEMORY")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > schema.VERSION:
            raise HistoryError(f"{self._path} was written by a newer svcnode; use that one, or {OTHER_PATH_HINT}")
        if version == 0:
            self._create()
        else:
            self._check_tables()
            if verify:
                self._quick_check()
        # Readers and the writer do not wait for each other, and a commit is one write at the end of one file. Some
        # disks cannot have it: there they wait.
        self._has_wal = connection.execute("PRAGMA journal_mode = WAL").fetchone() == ("wal",)
        # A commit is on the disk before it is acknowledged, so it outlives a power cut, too. The price is paid once for
        # all that came while the commit before was under way.
        connection.execute("PRAGMA synchronous = FULL")
        self._limit_wal(limits)
        connection.execute(schema.CREATE_STAGING)
        connection.execute(schema.CREATE_SAVED_STATE)

    def _limit_wal(self, limits: RetentionLimits) -> None:
        """When the log has grown so far, it is brought into the file, and cut down again if it was longer."""
        (page_bytes,) = self._connection.execute("PRAGMA page_size").fetchone()
        self._connection.execute(f"PRAGMA wal_autocheckpoint = {limits.wal_bytes // page_bytes}")
        self._connection.execute(f"PRAGMA journal_size_limit = {limits.wal_bytes}")

    def _create(self) -> None:
        # So that the file can give space back a little at a time. Only a file without tables takes it.
        self._connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        # Before the log is begun: whose file it is must stand in the file itself from the first moment on.
        with transaction(self._connection):
            for statement in schema.SCHEMA:
                self._connection.execute(statement)

    def _check_tables(self) -> None:
        found = {name for (name,) in self._connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if missing := sorted(schema.TABLES - found):
            raise CorruptionError(f"{self._path} is damaged: it has lost its table {', '.join(missing)}")

    def _quick_check(self) -> None:
        was_cut_short, is_over = False, threading.Event()

        def cut_short_when_it_takes_long() -> None:
            nonlocal was_cut_short
            if not is_over.wait(QUICK_CHECK_TIMEOUT_S):
                was_cut_short = True
                self._connection.interrupt()

        guard = threading.Thread(target=cut_short_when_it_takes_long, name="svcnode history check", daemon=True)
        guard.start()
        finding = "ok"
        try:
            (finding,) = self._connection.execute("PRAGMA quick_check(1)").fetchone()
        except sqlite3.OperationalError:
            if not was_cut_short:
                raise
        finally:
            is_over.set()
            guard.join()
        if finding != "ok" and not was_cut_short:
            raise CorruptionError(f"{self._path} is damaged: {' '.join(finding.split())}")

    def _last_transition(self) -> tuple[int, str | None]:
        last = "SELECT id, kind FROM transitions ORDER BY id DESC LIMIT 1"
        found: tuple[int, str] | None = self._connection.execute(last).fetchone()
        return found or (0, None)

    def _read_saved_state(self) -> str | None:
        found: tuple[str] | None = self._connection.execute(schema.GET_SAVED_STATE).fetchone()
        return None if found is None else found[0]

    # ---- writing

    def _upsert_services(self, batch: Batch) -> None:
        ids = {transition.service_id for transition in batch.transitions if transition.service_id is not None}
        ids.update(*(minute.buckets for minute in batch.minutes))
        times_s = [*(one.at_s for one in batch.transitions), *(minute.begin_s for minute in batch.minutes)]
        for some in _chunks(sorted(ids)):
            self._connection.execute(schema.UPSERT_SERVICES, (DAYS.begin_s(max(times_s)), json.dumps(some)))

    def _add_minute(self, minute: ClosedMinute) -> None:
        for some in _chunks([schema.bucket_row(service_id, bar) for service_id, bar in minute.buckets.items()]):
            self._connection.execute(schema.INSERT_STAGING, (json.dumps(some),))
        for span in RESOLUTIONS:
            self._connection.execute(schema.upsert_buckets(span), (span.begin_s(minute.begin_s),))
        self._connection.execute("DELETE FROM staging")
        self._connection.execute(schema.SET_WATERMARK, (schema.AGGREGATED_TO, minute.sequence))


def _chunks(rows: Sequence[T]) -> Iterator[Sequence[T]]:
    for first in range(0, len(rows), ROWS_PER_STATEMENT):
        yield rows[first : first + ROWS_PER_STATEMENT]
