"""What is forgotten: what is too old, and when the file is too large, what takes more than its share.

Each step is small, so that whatever comes meanwhile is soon written.
"""

# ruff: noqa: S608  what stands in the statements are names and numbers of ours

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
FREE_FRACTION = (
    0.05  # of what there may be: when it was too much, so much is made free, so that there is peace for a while
)


class TableQuota(NamedTuple):
    """What a table may have of the whole, and what one of its rows takes, roughly."""

    table: str
    fraction: float
    row_bytes: int


# With 10,000 services and 256 MiB, as many minutes, hours and days as are shown still have room.
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
        self._row_counts: dict[str, int] = {}  # while there is too much
        self.pruned_to = pruned_to  # the newest transition that is gone

    def record_pruned(self, transition_id: int) -> None:
        """Inside a transaction."""
        if transition_id > self.pruned_to:
            self._connection.execute(schema.SET_WATERMARK, (schema.PRUNED_TO, transition_id))
            self.pruned_to = transition_id

    def prune_some(self, now_s: float) -> bool:
        """Returns whether something went, so that there may be more."""
        return self._prune_expired(now_s) or self._prune_oversize() or self._vacuum()

    def _prune_expired(self, now_s: float) -> bool:
        # By the hour, so that it does not take a transaction for each that comes of age.
        too_old_s = HOURS.begin_s(now_s - self.limits.max_age_s)
        return (
            any(
                self._prune_buckets(span.name, max(too_old_s, now_s - span.retention_s) - span.length_s)
                for span in RESOLUTIONS
            )
            or self._prune_transitions(too_old_s) > 0
            or self._prune_services(too_old_s) > 0
        )

    def _prune_oversize(self) -> bool:
        allowed = self.limits.data_bytes * (1 - FREE_FRACTION if self._row_counts else 1)
        if self._used_bytes() <= allowed:
            self._row_counts = {}
            return False
        if not self._row_counts:
            self._row_counts = {
                share.table: self._scalar(f"SELECT count(*) FROM {share.table}") for share in TABLE_QUOTAS
            }
        table = max(
            TABLE_QUOTAS, key=lambda share: self._row_counts[share.table] * share.row_bytes / share.fraction
        ).table
        count = self._prune_transitions() if table == "transitions" else self._prune_buckets(table)
        self._row_counts[table] -= count
        return count > 0

    def _vacuum(self) -> bool:
        """By itself, a file never gets smaller; what is free in it is used again."""
        if self._file_bytes() <= self.limits.data_bytes or not self._scalar("PRAGMA freelist_count"):
            return False
        # As a script: it is over only when it has been stepped through, and executed alone it gives back one page.
        self._connection.executescript(f"PRAGMA incremental_vacuum({PAGES_PER_STEP})")
        return True

    # ---- single steps; each returns how many rows went

    def _prune_buckets(self, table: str, older_than_s: float | None = None) -> int:
        """Those of the oldest minute, hour or day."""
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
        """Those of which nothing is left: all that there was of them is about as old as the day they were last seen."""
        gone = f"SELECT number FROM services WHERE last_seen_s < {older_than_s - 2 * DAYS.length_s} LIMIT {SERVICES_PER_STEP}"
        if self._connection.execute(gone).fetchone() is None:
            return 0
        with transaction(self._connection):
            return self._connection.execute(f"DELETE FROM services WHERE number IN ({gone})").rowcount

    # ---- how large it is

    def _used_bytes(self) -> int:
        return self._file_bytes() - self._scalar("PRAGMA freelist_count") * self._scalar("PRAGMA page_size")

    def _file_bytes(self) -> int:
        return self._scalar("PRAGMA page_count") * self._scalar("PRAGMA page_size")

    def _scalar(self, statement: str) -> int:
        (number,) = self._connection.execute(statement).fetchone()
        return int(number)
