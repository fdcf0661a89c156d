"""What is forgotten: what is too old, and when the file is too large, what takes more than its share.

Each step is small, so that whatever comes meanwhile is soon written.
"""

# ruff: noqa: S608  what stands in the statements are names and numbers of ours

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from svcnode.history import schema
from svcnode.history.records import DAYS, HOURS, SPANS
from svcnode.history.transactions import transaction

if TYPE_CHECKING:
    import sqlite3

    from svcnode.history.records import Limits

TRANSITIONS_AT_ONCE = 1000
SERVICES_AT_ONCE = 500
PAGES_AT_ONCE = 100
ROOM_LEFT = 0.05  # of what there may be: when it was too much, so much is made free, so that there is peace for a while


class Share(NamedTuple):
    """What a table may have of the whole, and what one of its rows takes, roughly."""

    table: str
    share: float
    row_bytes: int


# With 10,000 services and 256 MiB, as many minutes, hours and days as are shown still have room.
SHARES = (
    Share("transitions", 0.4, 120),
    Share("minutes", 0.2, 40),
    Share("hours", 0.1, 45),
    Share("days", 0.3, 45),
)


class Retention:
    def __init__(self, connection: sqlite3.Connection, limits: Limits, forgotten_to: int) -> None:
        self._connection = connection
        self.limits = limits
        self._row_counts: dict[str, int] = {}  # while there is too much
        self.forgotten_to = forgotten_to  # the newest transition that is gone

    def note_forgotten(self, transition_id: int) -> None:
        """Inside a transaction."""
        if transition_id > self.forgotten_to:
            self._connection.execute(schema.SET_MARK, (schema.FORGOTTEN_TO, transition_id))
            self.forgotten_to = transition_id

    def forget_some(self, now_s: float) -> bool:
        """Returns whether something went, so that there may be more."""
        return self._forget_old(now_s) or self._forget_what_is_too_much() or self._give_space_back()

    def _forget_old(self, now_s: float) -> bool:
        # By the hour, so that it does not take a transaction for each that comes of age.
        too_old_s = HOURS.begin_s(now_s - self.limits.max_age_s)
        return (
            any(self._forget_bars(span.name, max(too_old_s, now_s - span.kept_s) - span.length_s) for span in SPANS)
            or self._forget_transitions(too_old_s) > 0
            or self._forget_services(too_old_s) > 0
        )

    def _forget_what_is_too_much(self) -> bool:
        allowed = self.limits.data_bytes * (1 - ROOM_LEFT if self._row_counts else 1)
        if self._used_bytes() <= allowed:
            self._row_counts = {}
            return False
        if not self._row_counts:
            self._row_counts = {share.table: self._number(f"SELECT count(*) FROM {share.table}") for share in SHARES}
        table = max(SHARES, key=lambda share: self._row_counts[share.table] * share.row_bytes / share.share).table
        count = self._forget_transitions() if table == "transitions" else self._forget_bars(table)
        self._row_counts[table] -= count
        return count > 0

    def _give_space_back(self) -> bool:
        """By itself, a file never gets smaller; what is free in it is used again."""
        if self._file_bytes() <= self.limits.data_bytes or not self._number("PRAGMA freelist_count"):
            return False
        # As a script: it is over only when it has been stepped through, and executed alone it gives back one page.
        self._connection.executescript(f"PRAGMA incremental_vacuum({PAGES_AT_ONCE})")
        return True

    # ---- single steps; each returns how many rows went

    def _forget_bars(self, table: str, older_than_s: float | None = None) -> int:
        """Those of the oldest minute, hour or day."""
        (oldest_s,) = self._connection.execute(f"SELECT min(begin_s) FROM {table}").fetchone()
        if oldest_s is None or (older_than_s is not None and oldest_s >= older_than_s):
            return 0
        with transaction(self._connection):
            return self._connection.execute(f"DELETE FROM {table} WHERE begin_s = ?", (oldest_s,)).rowcount

    def _forget_transitions(self, older_than_s: float | None = None) -> int:
        oldest = f"SELECT id, at_us FROM transitions ORDER BY id LIMIT {TRANSITIONS_AT_ONCE}"
        condition = "" if older_than_s is None else f"WHERE at_us < {int(older_than_s * 1e6)}"
        (last_id,) = self._connection.execute(f"SELECT max(id) FROM ({oldest}) {condition}").fetchone()
        if last_id is None:
            return 0
        with transaction(self._connection):
            self.note_forgotten(last_id)
            return self._connection.execute("DELETE FROM transitions WHERE id <= ?", (last_id,)).rowcount

    def _forget_services(self, older_than_s: float) -> int:
        """Those of which nothing is left: all that there was of them is about as old as the day they were last seen."""
        gone = f"SELECT number FROM services WHERE seen_s < {older_than_s - 2 * DAYS.length_s} LIMIT {SERVICES_AT_ONCE}"
        if self._connection.execute(gone).fetchone() is None:
            return 0
        with transaction(self._connection):
            return self._connection.execute(f"DELETE FROM services WHERE number IN ({gone})").rowcount

    # ---- how large it is

    def _used_bytes(self) -> int:
        return self._file_bytes() - self._number("PRAGMA freelist_count") * self._number("PRAGMA page_size")

    def _file_bytes(self) -> int:
        return self._number("PRAGMA page_count") * self._number("PRAGMA page_size")

    def _number(self, statement: str) -> int:
        (number,) = self._connection.execute(statement).fetchone()
        return int(number)
