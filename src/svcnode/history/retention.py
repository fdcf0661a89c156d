"""Deletes expired records, and if the file is too large, the oldest records of the table that exceeds its quota most.

Each step is small, so that new records are written soon.
"""

# ruff: noqa: S608  only constants and numbers are formatted into statements

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from svcnode.history import schema
from svcnode.history.records import DAYS, HOURS, RESOLUTIONS
from svcnode.history.schema import transaction

if TYPE_CHECKING:
    import sqlite3

    from svcnode.history.records import RetentionLimits

TRANSITIONS_PER_STEP = 1000
SERVICES_PER_STEP = 500
PAGES_PER_STEP = 100
FREE_FRACTION = 0.05  # when the limit is exceeded, this fraction of it is freed, so that it is not exceeded again soon


class TableQuota(NamedTuple):
    table: str
    fraction: float  # of the file
    row_bytes: int  # approximate size of a row


# With 10,000 services and 256 MiB, as many minutes, hours and days as a query returns fit into their quotas.
TABLE_QUOTAS = (
    TableQuota("transitions", 0.4, 120),
    TableQuota("minutes", 0.2, 40),
    TableQuota("hours", 0.1, 45),
    TableQuota("days", 0.3, 45),
)


class Retention:
    def __init__(self, connection: sqlite3.Connection, limits: RetentionLimits, pruned_to: int) -> None:
        self._connection = connection
        self.limits = limits
        self._row_counts: dict[str, int] = {}  # per table; empty unless the file is too large
        self.pruned_to = pruned_to  # the newest transition that was deleted

    def record_pruned(self, transition_id: int) -> None:
        """Call this inside a transaction."""
        if transition_id > self.pruned_to:
            self._connection.execute(schema.SET_WATERMARK, (schema.PRUNED_TO, transition_id))
            self.pruned_to = transition_id

    def prune_some(self, now_s: float) -> bool:
        """Run one step; returns whether it deleted something, so that there may be more."""
        return self._prune_expired(now_s) or self._prune_oversize() or self._vacuum()

    def _prune_expired(self, now_s: float) -> bool:
        # The limit moves once per hour, so that not every expired record costs a transaction.
        oldest_s = HOURS.begin_s(now_s - self.limits.max_age_s)
        return (
            any(
                self._prune_buckets(
                    resolution.name, max(oldest_s, now_s - resolution.retention_s) - resolution.length_s
                )
                for resolution in RESOLUTIONS
            )
            or self._prune_transitions(oldest_s) > 0
            or self._prune_services(oldest_s) > 0
        )

    def _prune_oversize(self) -> bool:
        limit_bytes = self.limits.data_bytes * (1 - FREE_FRACTION if self._row_counts else 1)
        if self._used_bytes() <= limit_bytes:
            self._row_counts = {}
            return False
        if not self._row_counts:
            self._row_counts = {
                quota.table: self._scalar(f"SELECT count(*) FROM {quota.table}") for quota in TABLE_QUOTAS
            }
        table = max(
            TABLE_QUOTAS, key=lambda quota: self._row_counts[quota.table] * quota.row_bytes / quota.fraction
        ).table
        count = self._prune_transitions() if table == "transitions" else self._prune_buckets(table)
        self._row_counts[table] -= count
        return count > 0

    def _vacuum(self) -> bool:
        """Give free pages back to the file system; SQLite does not shrink a file by itself."""
        if self._file_bytes() <= self.limits.data_bytes or not self._scalar("PRAGMA freelist_count"):
            return False
        # As a script: `execute` runs one step of the vacuum, which frees one page. The checkpoint truncates the file.
        self._connection.executescript(f"PRAGMA incremental_vacuum({PAGES_PER_STEP}); PRAGMA wal_checkpoint(PASSIVE)")
        return True

    # ---- single steps; each returns the number of deleted rows

    def _prune_buckets(self, table: str, older_than_s: float | None = None) -> int:
        """Delete the oldest minute, hour or day."""
        (oldest_s,) = self._connection.execute(f"SELECT min(begin_s) FROM {table}").fetchone()
        if oldest_s is None or (older_than_s is not None and oldest_s >= older_than_s):
            return 0
        with transaction(self._connection):
            return self._connection.execute(f"DELETE FROM {table} WHERE begin_s = ?", (oldest_s,)).rowcount

    def _prune_transitions(self, older_than_s: float | None = None) -> int:
        oldest = f"SELECT id, at_us FROM transitions ORDER BY id LIMIT {TRANSITIONS_PER_STEP}"
        condition = "" if older_than_s is None else f"WHERE at_us < {int(older_than_s * 1e6)}"
        (last_id,) = self._connection.execute(f"SELECT max(id) FROM ({oldest}) {condition}").fetchone()
        if last_id is None:
            return 0
        with transaction(self._connection):
            self.record_pruned(last_id)
            return self._connection.execute("DELETE FROM transitions WHERE id <= ?", (last_id,)).rowcount

    def _prune_services(self, older_than_s: float) -> int:
        """Delete services without records: no record is newer than the day on which the service was last seen."""
        last_seen_s = older_than_s - 2 * DAYS.length_s
        expired = f"SELECT number FROM services WHERE last_seen_s < {last_seen_s} LIMIT {SERVICES_PER_STEP}"
        if self._connection.execute(expired).fetchone() is None:
            return 0
        with transaction(self._connection):
            return self._connection.execute(f"DELETE FROM services WHERE number IN ({expired})").rowcount

    # ---- the size of the file

    def _used_bytes(self) -> int:
        return self._file_bytes() - self._scalar("PRAGMA freelist_count") * self._scalar("PRAGMA page_size")

    def _file_bytes(self) -> int:
        return self._scalar("PRAGMA page_count") * self._scalar("PRAGMA page_size")

    def _scalar(self, statement: str) -> int:
        (value,) = self._connection.execute(statement).fetchone()
        return int(value)
