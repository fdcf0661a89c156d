"""The SQLite database of the history: its tables, writing, and deleting old records. Only the writer thread uses it.

A thread that reads or writes row by row releases the GIL for every row, and then waits until the event loop gives it
back. On a busy node, that takes milliseconds each time. So rows are passed as JSON, hundreds per statement.

The tables of buckets are ordered by time, not by service: a minute is written and deleted as a whole, so it touches a
few pages instead of one or two per service.

Records are deleted in small steps, so that new records are written soon: first expired records, then, if the file is
too large, the oldest records of the table that exceeds its quota most.

A record expires by its own time, never by its place in the file: while the clock is wrong, records with times in the
past or in the future are written among the others. `RetentionClock` judges whether the clock is right now.
"""

# ruff: noqa: S608  only constants and numbers are formatted into statements; values are parameters

from __future__ import annotations

import json
import logging
import sqlite3
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from svcnode.core.model import MAINTENANCE_CHANGES, ChangeKind
from svcnode.history.errors import (
    OTHER_PATH_HINT,
    CorruptionError,
    HistoryError,
    HistoryProblem,
    other_node_error,
)
from svcnode.history.files import APPLICATION_ID, file_identity
from svcnode.history.migrations import VERSION, migrate
from svcnode.history.records import (
    DAYS,
    HOURS,
    LATENCY_RESOLUTIONS,
    RESOLUTIONS,
    ROUNDING_TOLERANCE_S,
    LastStatus,
    OpenMaintenance,
)
from svcnode.history.recovery import recover_minutes
from svcnode.history.timeline import SAYS_STATUS
from svcnode.net.threads import start_thread

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from svcnode.history.backlog import Backlog, Batch
    from svcnode.history.records import ClosedMinute, Resolution, RetentionLimits

T = TypeVar("T")

log = logging.getLogger("svcnode.history")

BUSY_TIMEOUT_S = 0.5  # the wait for a lock that another program holds
QUICK_CHECK_TIMEOUT_S = 1.0  # a large file on a slow disk is checked in part
ROWS_PER_STATEMENT = 500
TRANSITIONS_PRUNED_PER_STEP = 1000
SERVICES_PRUNED_PER_STEP = 500
PAGES_FREED_PER_STEP = 100
RECENT_TRANSITIONS = 20_000
FREE_FRACTION = 0.05  # when the limit is exceeded, this fraction of it is freed, so that it is not exceeded again soon


class TableQuota(NamedTuple):
    table: str
    fraction: float  # of the file
    row_bytes: int  # approximate size of a row


# With 10,000 services and 256 MiB, as many minutes, hours and days as a query returns fit into their quotas.
TABLE_QUOTAS = (
    TableQuota("transitions", 0.34, 135),
    TableQuota("minutes", 0.17, 40),
    TableQuota("hours", 0.06, 45),
    TableQuota("days", 0.2, 45),
    TableQuota("hour_latencies", 0.06, 17),
    TableQuota("day_latencies", 0.16, 17),
    TableQuota("runs", 0.01, 25),
)

# ---- tables and statements

TABLES = {
    *("services", "transitions", "watermarks", "saved_state", "runs"),
    *(resolution.name for resolution in (*RESOLUTIONS, *LATENCY_RESOLUTIONS)),
}
PRUNED_TO, AGGREGATED_TO = "pruned_to", "aggregated_to"  # names of watermarks

_BUCKET_COLUMNS = """
    begin_s INTEGER NOT NULL,
    service INTEGER NOT NULL,
    up_s REAL NOT NULL,
    initializing_s REAL NOT NULL,
    down_s REAL NOT NULL,
    checks INTEGER NOT NULL,
    failures INTEGER NOT NULL,
    latency_sum_s REAL NOT NULL,
    latency_max_s REAL NOT NULL,
    maintenance_s REAL NOT NULL,
    PRIMARY KEY (begin_s, service)
"""
SCHEMA = (
    "CREATE TABLE services (number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, last_seen_s INTEGER NOT NULL)",
    """CREATE TABLE transitions (
        id INTEGER PRIMARY KEY,
        at_us INTEGER NOT NULL,
        kind TEXT NOT NULL,
        service INTEGER,
        before TEXT,
        after TEXT,
        reason TEXT NOT NULL,
        code TEXT,
        health_before INTEGER NOT NULL,
        health INTEGER NOT NULL
    )""",
    "CREATE INDEX transitions_of_service ON transitions (service)",
    *(f"CREATE TABLE {resolution.name} ({_BUCKET_COLUMNS}) WITHOUT ROWID" for resolution in RESOLUTIONS),
    *(
        f"""CREATE TABLE {resolution.name} (
            begin_s INTEGER NOT NULL,
            service INTEGER NOT NULL,
            bucket INTEGER NOT NULL,
            checks INTEGER NOT NULL,
            PRIMARY KEY (begin_s, service, bucket)
        ) WITHOUT ROWID"""
        for resolution in LATENCY_RESOLUTIONS
    ),
    "CREATE TABLE runs (begin_s REAL PRIMARY KEY, end_s REAL NOT NULL) WITHOUT ROWID",
    "CREATE TABLE watermarks (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE saved_state (name TEXT PRIMARY KEY, text TEXT NOT NULL) WITHOUT ROWID",
    f"PRAGMA user_version = {VERSION}",
    f"PRAGMA application_id = {APPLICATION_ID}",
)
# Finds expired transitions. Files of earlier versions do not have it.
CREATE_TIME_INDEX = "CREATE INDEX IF NOT EXISTS transitions_by_time ON transitions (at_us)"
# The buckets of one minute, before they are added to the three tables.
CREATE_STAGING = """
    CREATE TEMP TABLE staging
    (service INTEGER, up_s, initializing_s, down_s, checks, failures, latency_sum_s, latency_max_s, maintenance_s)
"""


def _json_columns(first: int, last: int) -> str:
    return ", ".join(f"json_extract(value, '$[{index}]')" for index in range(first, last + 1))


# last_seen_s is the start of a day, so it changes once per day.
UPSERT_SERVICES = """
    INSERT INTO services (id, last_seen_s) SELECT value, ? FROM json_each(?) WHERE true
    ON CONFLICT (id) DO UPDATE SET last_seen_s = excluded.last_seen_s WHERE excluded.last_seen_s > last_seen_s
"""
# A row that exists already comes from a transaction that was reported as failed but was committed.
INSERT_TRANSITIONS = f"""
    INSERT OR IGNORE INTO transitions
    (id, at_us, kind, service, before, after, reason, code, health_before, health)
    SELECT {_json_columns(0, 2)}, (SELECT number FROM services WHERE services.id = {_json_columns(3, 3)}),
        {_json_columns(4, 9)}
    FROM json_each(?)
"""
INSERT_STAGING = f"""
    INSERT INTO staging SELECT services.number, {_json_columns(1, 8)}
    FROM json_each(?) CROSS JOIN services ON services.id = {_json_columns(0, 0)}
"""
# A run continues if the node has run without a break since its end.
EXTEND_RUN = """
    UPDATE runs SET end_s = max(end_s, ?2)
    WHERE begin_s = (SELECT max(begin_s) FROM runs WHERE begin_s <= ?1) AND end_s >= ?1
"""
INSERT_RUN = "INSERT OR IGNORE INTO runs VALUES (?1, ?2)"
SET_WATERMARK = "INSERT INTO watermarks VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
# The name of the node that the file belongs to. Files of earlier versions have none.
GET_NODE_NAME = "SELECT text FROM saved_state WHERE name = 'node'"
SET_NODE_NAME = "INSERT INTO saved_state VALUES ('node', ?) ON CONFLICT (name) DO UPDATE SET text = excluded.text"
SELECT_LAST_TRANSITION = "SELECT id, kind, at_us FROM transitions ORDER BY id DESC LIMIT 1"
# Of each service, the newest transition that says its status.
SELECT_LAST_STATUSES = f"""
    SELECT json_group_array(json_array(services.id, newest.after, newest.at_us, newest.reason, newest.code))
    FROM services CROSS JOIN transitions AS newest ON newest.id = (
        SELECT id FROM transitions
        WHERE service = services.number AND {SAYS_STATUS}
        ORDER BY id DESC LIMIT 1
    )
    WHERE newest.after IS NOT NULL
"""
# Every start records it again, so it is among the newest transitions.
SELECT_MAINTENANCE = f"""
    SELECT json_group_array(json_array(services.id, at_us, reason, kind)) FROM (
        SELECT * FROM (SELECT * FROM transitions ORDER BY id DESC LIMIT {RECENT_TRANSITIONS})
        WHERE kind IN {tuple(kind.value for kind in MAINTENANCE_CHANGES)} ORDER BY id
    ) AS recent LEFT JOIN services ON services.number = recent.service
"""
GET_SAVED_STATE = "SELECT text FROM saved_state WHERE name = 'notify'"
SET_SAVED_STATE = "INSERT INTO saved_state VALUES ('notify', ?) ON CONFLICT (name) DO UPDATE SET text = excluded.text"

_TIME_COLUMNS = ("up_s", "initializing_s", "down_s", "maintenance_s")
_SUM_COLUMNS = (*_TIME_COLUMNS, "checks", "failures", "latency_sum_s")


def _upsert_buckets(resolution: Resolution) -> str:
    """The statement that adds the staged buckets to a table, as `records.merge_buckets` does."""
    table = resolution.name
    sums = ", ".join(f"{column} = {column} + excluded.{column}" for column in _SUM_COLUMNS)
    observed = " + ".join(f"{table}.{column} + excluded.{column}" for column in _TIME_COLUMNS)
    return f"""
        INSERT INTO {table} SELECT ?, * FROM staging WHERE true ORDER BY service
        ON CONFLICT (begin_s, service)
        DO UPDATE SET {sums}, latency_max_s = max(latency_max_s, excluded.latency_max_s)
        WHERE {observed} <= {resolution.length_s + ROUNDING_TOLERANCE_S}
    """


def _upsert_latencies(table: str) -> str:
    return f"""
        INSERT INTO {table}
        SELECT ?, services.number, {_json_columns(1, 2)}
        FROM json_each(?) CROSS JOIN services ON services.id = {_json_columns(0, 0)} WHERE true
        ON CONFLICT (begin_s, service, bucket) DO UPDATE SET checks = checks + excluded.checks
    """


class Database:
    """An open history file."""

    def __init__(self, path: Path, limits: RetentionLimits, *, verify: bool = True) -> None:
        self._path = path
        self._limits = limits
        self._row_counts: dict[str, int] = {}  # per table; empty unless the file is too large
        self._connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
        self._execute = self._connection.execute
        try:
            self._prepare(verify=verify)
            last: tuple[int, str | None, int | None] = self._row(SELECT_LAST_TRANSITION) or (0, None, None)
            saved: tuple[str | None] = self._row(GET_SAVED_STATE) or (None,)
            watermarks = dict(self._execute("SELECT name, value FROM watermarks").fetchall())
        except BaseException:
            self._connection.close()
            raise
        # At the time of opening.
        self.last_id, self.last_kind, last_at_us = last
        (self.saved_state,) = saved
        self._aggregated_to = int(watermarks.get(AGGREGATED_TO, 0))
        self.pruned_to = int(watermarks.get(PRUNED_TO, 0))  # the newest transition that was deleted
        # Not by its id, if it can be helped: after a clock was ahead, ids stay ahead.
        self.last_at_s = (self.last_sequence if last_at_us is None else last_at_us) / 1e6
        self._file_identity = file_identity(path, has_wal=self._has_wal)

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

    def last_statuses(self) -> list[LastStatus]:
        """Of each service that was registered when the file was last written."""
        (text,) = self._row(SELECT_LAST_STATUSES)
        return [
            LastStatus(service_id, status, at_us / 1e6, reason, code)
            for service_id, status, at_us, reason, code in json.loads(text)
        ]

    def open_maintenance(self) -> list[OpenMaintenance]:
        (text,) = self._row(SELECT_MAINTENANCE)
        found: dict[str | None, OpenMaintenance] = {}
        for service_id, at_us, reason, kind in json.loads(text):
            found.pop(service_id, None)
            if kind == ChangeKind.MAINTENANCE.value:
                found[service_id] = OpenMaintenance(service_id, at_us / 1e6, reason)
        return list(found.values())

    def recover_minutes(self, backlog: Backlog) -> None:
        """Add to the backlog what the previous process has not written, because it was killed."""
        recover_minutes(self._connection, backlog)

    def claim(self, node_name: str, former_name: str | None = None) -> None:
        """Record that the file belongs to this node, or raise if it belongs to another one."""
        (owner,) = self._row(GET_NODE_NAME) or (None,)
        if owner in (None, former_name):
            self._execute(SET_NODE_NAME, (node_name,))
        elif owner != node_name:
            raise other_node_error(self._path, owner, node_name)

    def write(self, batch: Batch) -> None:
        """Write the batch in one transaction."""
        new_minutes = [minute for minute in batch.minutes if minute.sequence > self._aggregated_to]
        with self._transaction():
            self._upsert_services(batch)
            for rows in _chunks([[one.id, round(one.at_s * 1e6), *one[2:]] for one in batch.transitions]):
                self._execute(INSERT_TRANSITIONS, (json.dumps(rows),))
            for minute in new_minutes:
                self._add_minute(minute)
            self._record_pruned(batch.pruned_to)
            if batch.saved_state is not None:
                self._execute(SET_SAVED_STATE, (batch.saved_state,))
        for minute in new_minutes:
            self._aggregated_to = minute.sequence

    def set_limits(self, limits: RetentionLimits) -> bool:
        """Returns whether the limits changed, so that there may be something to prune."""
        if limits == self._limits:
            return False
        self._limits = limits
        self._limit_wal()
        return True

    def prune_some(self, now_s: float) -> bool:
        """Run one step; returns whether it deleted something, so that there may be more."""
        return self._prune_expired(now_s) or self._prune_oversize() or self._vacuum()

    def close(self) -> None:
        self._connection.close()

    # ---- opening

    def _prepare(self, *, verify: bool) -> None:
        # Without memory mapping, a file that is truncated while in use causes an error, not SIGBUS.
        self._execute("PRAGMA mmap_size = 0")
        # Temporary tables in memory work also if the disk is full.
        self._execute("PRAGMA temp_store = MEMORY")
        version = self._number("PRAGMA user_version")
        if version == 0:
            self._create()
        else:
            self._check_version(version)
            if verify:
                self._quick_check()
            if version < VERSION:
                self._migrate(version)
            self._check_tables()
        self._execute(CREATE_TIME_INDEX)
        # In WAL mode readers and the writer do not block each other, and a commit is one sequential write. Some file
        # systems do not support it; there they block each other.
        self._has_wal = self._execute("PRAGMA journal_mode = WAL").fetchone() == ("wal",)
        # A commit is on disk before it is acknowledged, so it survives a power failure. One commit covers all records
        # that were added during the previous commit.
        self._execute("PRAGMA synchronous = FULL")
        self._limit_wal()
        self._execute(CREATE_STAGING)

    def _check_version(self, version: int) -> None:
        if version > VERSION:
            text = f"{self._path} has schema version {version}, but this svcnode knows only versions up to {VERSION}"
            raise HistoryError(f"{text}; use a newer svcnode, or {OTHER_PATH_HINT}", HistoryProblem.NEWER_SCHEMA)

    def _migrate(self, version: int) -> None:
        with self._transaction():
            migrate(self._connection, version)
        text, extra = "history file migrated from format %d to %d: %s", {"event": "history_migrated"}
        log.info(text, version, VERSION, self._path, extra=extra)

    def _limit_wal(self) -> None:
        """Set the size at which the write-ahead log is moved into the database and truncated."""
        wal_bytes = self._limits.wal_bytes
        self._execute(f"PRAGMA wal_autocheckpoint = {wal_bytes // self._number('PRAGMA page_size')}")
        self._execute(f"PRAGMA journal_size_limit = {wal_bytes}")

    def _create(self) -> None:
        # Allows freeing pages in small steps; takes effect only before the first table is created.
        self._execute("PRAGMA auto_vacuum = INCREMENTAL")
        # Before WAL mode is set: the application id must be in the database file itself from the start.
        with self._transaction():
            for statement in SCHEMA:
                self._execute(statement)

    def _check_tables(self) -> None:
        tables = {name for (name,) in self._execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if missing := sorted(TABLES - tables):
            raise CorruptionError(f"{self._path} is corrupt: missing table {', '.join(missing)}")

    def _quick_check(self) -> None:
        is_interrupted = threading.Event()

        def interrupt() -> None:
            is_interrupted.set()
            self._connection.interrupt()

        timer = threading.Timer(QUICK_CHECK_TIMEOUT_S, interrupt)
        timer.name, timer.daemon = "svcnode history check", True
        start_thread(timer)
        result = "ok"
        try:
            (result,) = self._execute("PRAGMA quick_check(1)").fetchone()
        except sqlite3.OperationalError:
            if not is_interrupted.is_set():
                raise
        finally:
            timer.cancel()
            timer.join()
        if result != "ok" and not is_interrupted.is_set():
            raise CorruptionError(f"{self._path} is corrupt: {' '.join(result.split())}")

    # ---- writing

    def _upsert_services(self, batch: Batch) -> None:
        ids = {transition.service_id for transition in batch.transitions if transition.service_id is not None}
        ids.update(*(minute.buckets for minute in batch.minutes))
        times_s = [
            *(transition.at_s for transition in batch.transitions),
            *(minute.begin_s for minute in batch.minutes),
        ]
        for chunk in _chunks(sorted(ids)):
            self._execute(UPSERT_SERVICES, (DAYS.begin_s(max(times_s)), json.dumps(chunk)))

    def _add_minute(self, minute: ClosedMinute) -> None:
        for rows in _chunks([[service_id, *bucket[1:]] for service_id, bucket in minute.buckets.items()]):
            self._execute(INSERT_STAGING, (json.dumps(rows),))
        for resolution in RESOLUTIONS:
            self._execute(_upsert_buckets(resolution), (resolution.begin_s(minute.begin_s),))
        self._execute("DELETE FROM staging")
        if minute.observed is not None and not self._execute(EXTEND_RUN, minute.observed).rowcount:
            self._execute(INSERT_RUN, minute.observed)
        self._add_latencies(minute)
        self._execute(SET_WATERMARK, (AGGREGATED_TO, minute.sequence))

    def _add_latencies(self, minute: ClosedMinute) -> None:
        rows = [
            [service_id, bucket, checks]
            for service_id, histogram in minute.latencies.items()
            for bucket, checks in histogram.items()
        ]
        for chunk in _chunks(rows):
            for resolution in LATENCY_RESOLUTIONS:
                self._execute(
                    _upsert_latencies(resolution.name), (resolution.begin_s(minute.begin_s), json.dumps(chunk))
                )

    # ---- pruning

    def _record_pruned(self, transition_id: int) -> None:
        """Call this inside a transaction."""
        if transition_id > self.pruned_to:
            self._execute(SET_WATERMARK, (PRUNED_TO, transition_id))
            self.pruned_to = transition_id

    def _prune_expired(self, now_s: float) -> bool:
        # The limit moves once per hour, so that not every expired record costs a transaction.
        oldest_s = HOURS.begin_s(now_s - self._limits.max_age_s)
        return (
            any(
                self._prune_buckets(
                    resolution.name, max(oldest_s, now_s - resolution.retention_s) - resolution.length_s
                )
                for resolution in (*RESOLUTIONS, *LATENCY_RESOLUTIONS)
            )
            or self._prune_transitions(oldest_s) > 0
            or self._prune_runs(oldest_s) > 0
            or self._prune_services(oldest_s) > 0
        )

    def _prune_oversize(self) -> bool:
        limit_bytes = self._limits.data_bytes * (1 - FREE_FRACTION if self._row_counts else 1)
        if self._used_bytes() <= limit_bytes:
            self._row_counts = {}
            return False
        if not self._row_counts:
            self._row_counts = {
                quota.table: self._number(f"SELECT count(*) FROM {quota.table}") for quota in TABLE_QUOTAS
            }
        table = max(
            TABLE_QUOTAS, key=lambda quota: self._row_counts[quota.table] * quota.row_bytes / quota.fraction
        ).table
        count = self._prune_transitions() if table == "transitions" else self._prune_buckets(table)
        self._row_counts[table] -= count
        return count > 0

    def _vacuum(self) -> bool:
        """Give free pages back to the file system; SQLite does not shrink a file by itself."""
        if self._file_bytes() <= self._limits.data_bytes or not self._number("PRAGMA freelist_count"):
            return False
        # As a script: `execute` runs one step of the vacuum, which frees one page. The checkpoint truncates the file.
        self._connection.executescript(
            f"PRAGMA incremental_vacuum({PAGES_FREED_PER_STEP}); PRAGMA wal_checkpoint(PASSIVE)"
        )
        return True

    # ---- single steps; each returns the number of deleted rows

    def _prune_buckets(self, table: str, older_than_s: float | None = None) -> int:
        """Delete the oldest minute, hour or day."""
        (oldest_s,) = self._row(f"SELECT min(begin_s) FROM {table}")
        if oldest_s is None or (older_than_s is not None and oldest_s >= older_than_s):
            return 0
        with self._transaction():
            return self._execute(f"DELETE FROM {table} WHERE begin_s = ?", (oldest_s,)).rowcount

    def _prune_transitions(self, older_than_s: float | None = None) -> int:
        """Without a time, the oldest in the order in which they were recorded, whatever the clock said."""
        selection = "ORDER BY id" if older_than_s is None else f"WHERE at_us < {int(older_than_s * 1e6)} ORDER BY at_us"
        pruned = f"SELECT id FROM transitions {selection} LIMIT {TRANSITIONS_PRUNED_PER_STEP}"
        (last_id,) = self._row(f"SELECT max(id) FROM ({pruned})")
        if last_id is None:
            return 0
        with self._transaction():
            self._record_pruned(last_id)
            return self._execute(f"DELETE FROM transitions WHERE id IN ({pruned})").rowcount

    def _prune_runs(self, older_than_s: float) -> int:
        if self._row(f"SELECT begin_s FROM runs WHERE end_s < {older_than_s}") is None:
            return 0
        with self._transaction():
            return self._execute("DELETE FROM runs WHERE end_s < ?", (older_than_s,)).rowcount

    def _prune_services(self, older_than_s: float) -> int:
        """Delete services without records: no record is newer than the day on which the service was last seen."""
        last_seen_s = older_than_s - 2 * DAYS.length_s
        expired = f"SELECT number FROM services WHERE last_seen_s < {last_seen_s} LIMIT {SERVICES_PRUNED_PER_STEP}"
        if self._row(expired) is None:
            return 0
        with self._transaction():
            return self._execute(f"DELETE FROM services WHERE number IN ({expired})").rowcount

    # ---- the size of the file

    def _used_bytes(self) -> int:
        return self._file_bytes() - self._number("PRAGMA freelist_count") * self._number("PRAGMA page_size")

    def _file_bytes(self) -> int:
        return self._number("PRAGMA page_count") * self._number("PRAGMA page_size")

    # ---- statements

    def _row(self, statement: str) -> Any:  # noqa: ANN401  its columns are those of the statement
        """The first row; None if there is none."""
        return self._execute(statement).fetchone()

    def _number(self, statement: str) -> int:
        (value,) = self._row(statement)
        return int(value)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._execute("BEGIN IMMEDIATE")
        try:
            yield
            self._execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):  # after some errors SQLite has rolled back already
                self._execute("ROLLBACK")
            raise


def _chunks(rows: Sequence[T]) -> Iterator[Sequence[T]]:
    for first in range(0, len(rows), ROWS_PER_STATEMENT):
        yield rows[first : first + ROWS_PER_STATEMENT]
