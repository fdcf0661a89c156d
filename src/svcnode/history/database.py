"""The SQLite database of the history. Only the writer thread uses it."""

from __future__ import annotations

import json
import sqlite3
import threading
from typing import TYPE_CHECKING, TypeVar

from svcnode.history import schema
from svcnode.history.errors import (
    OTHER_PATH_HINT,
    CorruptionError,
    HistoryError,
    HistoryProblem,
    other_node_error,
)
from svcnode.history.files import file_identity
from svcnode.history.records import DAYS, RESOLUTIONS
from svcnode.history.retention import Retention
from svcnode.history.schema import transaction
from svcnode.net.threads import start_thread

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from svcnode.history.backlog import Batch
    from svcnode.history.records import ClosedMinute, RetentionLimits

T = TypeVar("T")

BUSY_TIMEOUT_S = 0.5  # the wait for a lock that another program holds
QUICK_CHECK_TIMEOUT_S = 1.0  # a large file on a slow disk is checked in part
ROWS_PER_STATEMENT = 500


class Database:
    """An open history file."""

    def __init__(self, path: Path, limits: RetentionLimits, *, verify: bool = True) -> None:
        self._path = path
        self._connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
        try:
            self._prepare(limits, verify=verify)
            self.last_id, self.last_kind = self._last_transition()
            self.saved_state = self._read_saved_state()  # at the time of opening
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
        """The greatest sequence number of the file."""
        return max(self.last_id, self.pruned_to, self._aggregated_to)

    @property
    def is_at_path(self) -> bool:
        """False if the file was removed or replaced: writes to it still succeed, but are lost at the end."""
        return (
            self._file_identity is not None and file_identity(self._path, has_wal=self._has_wal) == self._file_identity
        )

    def claim(self, node_name: str, former_name: str | None = None) -> None:
        """Record that the file belongs to this node, or raise if it belongs to another one."""
        row: tuple[str] | None = self._connection.execute(schema.GET_NODE_NAME).fetchone()
        if row is None or row[0] == former_name:
            self._connection.execute(schema.SET_NODE_NAME, (node_name,))
        elif row[0] != node_name:
            raise other_node_error(self._path, row[0], node_name)

    def write(self, batch: Batch) -> None:
        """Write the batch in one transaction."""
        new_minutes = [minute for minute in batch.minutes if minute.sequence > self._aggregated_to]
        with transaction(self._connection):
            self._upsert_services(batch)
            for rows in _chunks([schema.transition_row(transition) for transition in batch.transitions]):
                self._connection.execute(schema.INSERT_TRANSITIONS, (json.dumps(rows),))
            for minute in new_minutes:
                self._add_minute(minute)
            self._retention.record_pruned(batch.pruned_to)
            if batch.saved_state is not None:
                self._connection.execute(schema.SET_SAVED_STATE, (batch.saved_state,))
        for minute in new_minutes:
            self._aggregated_to = minute.sequence

    def set_limits(self, limits: RetentionLimits) -> bool:
        """Returns whether the limits changed, so that there may be something to prune."""
        if limits == self._retention.limits:
            return False
        self._limit_wal(limits)
        self._retention.limits = limits
        return True

    def prune_some(self, now_s: float) -> bool:
        """Run one step; returns whether it deleted something, so that there may be more."""
        return self._retention.prune_some(now_s)

    def close(self) -> None:
        self._connection.close()

    # ---- opening

    def _prepare(self, limits: RetentionLimits, *, verify: bool) -> None:
        connection = self._connection
        # Without memory mapping, a file that is truncated while in use causes an error, not SIGBUS.
        connection.execute("PRAGMA mmap_size = 0")
        # Temporary tables in memory work also if the disk is full.
        connection.execute("PRAGMA temp_store = MEMORY")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version == 0:
            self._create()
        else:
            self._check_version(version)
            self._check_tables()
            if verify:
                self._quick_check()
        # In WAL mode readers and the writer do not block each other, and a commit is one sequential write. Some file
        # systems do not support it; there they block each other.
        self._has_wal = connection.execute("PRAGMA journal_mode = WAL").fetchone() == ("wal",)
        # A commit is on disk before it is acknowledged, so it survives a power failure. One commit covers all records
        # that were added during the previous commit.
        connection.execute("PRAGMA synchronous = FULL")
        self._limit_wal(limits)
        connection.execute(schema.CREATE_STAGING)

    def _check_version(self, version: int) -> None:
        text = f"{self._path} has schema version {version}; this svcnode uses version {schema.VERSION}"
        if version > schema.VERSION:
            raise HistoryError(f"{text}; use a newer svcnode, or {OTHER_PATH_HINT}", HistoryProblem.NEWER_SCHEMA)
        if version < schema.VERSION:
            raise CorruptionError(text, HistoryProblem.OLDER_SCHEMA)

    def _limit_wal(self, limits: RetentionLimits) -> None:
        """Set the size at which the write-ahead log is moved into the database and truncated."""
        (page_bytes,) = self._connection.execute("PRAGMA page_size").fetchone()
        self._connection.execute(f"PRAGMA wal_autocheckpoint = {limits.wal_bytes // page_bytes}")
        self._connection.execute(f"PRAGMA journal_size_limit = {limits.wal_bytes}")

    def _create(self) -> None:
        # Allows freeing pages in small steps; takes effect only before the first table is created.
        self._connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        # Before WAL mode is set: the application id must be in the database file itself from the start.
        with transaction(self._connection):
            for statement in schema.SCHEMA:
                self._connection.execute(statement)

    def _check_tables(self) -> None:
        tables = {name for (name,) in self._connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if missing := sorted(schema.TABLES - tables):
            raise CorruptionError(f"{self._path} is corrupt: missing table {', '.join(missing)}")

    def _quick_check(self) -> None:
        is_interrupted, is_finished = False, threading.Event()

        def interrupt_after_timeout() -> None:
            nonlocal is_interrupted
            if not is_finished.wait(QUICK_CHECK_TIMEOUT_S):
                is_interrupted = True
                self._connection.interrupt()

        watchdog = threading.Thread(target=interrupt_after_timeout, name="svcnode history check", daemon=True)
        start_thread(watchdog)
        result = "ok"
        try:
            (result,) = self._connection.execute("PRAGMA quick_check(1)").fetchone()
        except sqlite3.OperationalError:
            if not is_interrupted:
                raise
        finally:
            is_finished.set()
            watchdog.join()
        if result != "ok" and not is_interrupted:
            raise CorruptionError(f"{self._path} is corrupt: {' '.join(result.split())}")

    def _last_transition(self) -> tuple[int, str | None]:
        query = "SELECT id, kind FROM transitions ORDER BY id DESC LIMIT 1"
        row: tuple[int, str] | None = self._connection.execute(query).fetchone()
        return row or (0, None)

    def _read_saved_state(self) -> str | None:
        row: tuple[str] | None = self._connection.execute(schema.GET_SAVED_STATE).fetchone()
        return None if row is None else row[0]

    # ---- writing

    def _upsert_services(self, batch: Batch) -> None:
        ids = {transition.service_id for transition in batch.transitions if transition.service_id is not None}
        ids.update(*(minute.buckets for minute in batch.minutes))
        times_s = [
            *(transition.at_s for transition in batch.transitions),
            *(minute.begin_s for minute in batch.minutes),
        ]
        for chunk in _chunks(sorted(ids)):
            self._connection.execute(schema.UPSERT_SERVICES, (DAYS.begin_s(max(times_s)), json.dumps(chunk)))

    def _add_minute(self, minute: ClosedMinute) -> None:
        for rows in _chunks([schema.bucket_row(service_id, bucket) for service_id, bucket in minute.buckets.items()]):
            self._connection.execute(schema.INSERT_STAGING, (json.dumps(rows),))
        for resolution in RESOLUTIONS:
            self._connection.execute(schema.upsert_buckets(resolution), (resolution.begin_s(minute.begin_s),))
        self._connection.execute("DELETE FROM staging")
        self._connection.execute(schema.SET_WATERMARK, (schema.AGGREGATED_TO, minute.sequence))


def _chunks(rows: Sequence[T]) -> Iterator[Sequence[T]]:
    for first in range(0, len(rows), ROWS_PER_STATEMENT):
        yield rows[first : first + ROWS_PER_STATEMENT]
