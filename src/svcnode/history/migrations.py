"""How a history file of an older format becomes one of the current format.

Each step leads from one version of the tables to the next, so a change of the tables is one more function at the end of
`STEPS`, and the new tables in database.py. All steps run in one transaction: a file is migrated completely or not at
all. A step changes names and adds columns, which takes the same short time for a small file and for a large one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcnode.history.records import RESOLUTIONS

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterator


def migrate(connection: sqlite3.Connection, version: int) -> None:
    """From this version to the current one. Call it inside a transaction."""
    for number, step in enumerate(STEPS[version - 1 :], start=version + 1):
        for statement in step(connection):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {number}")


def _to_version_2(connection: sqlite3.Connection) -> Iterator[str]:
    """Transitions have a reason code. The first files also had other names for some tables and columns."""
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if "marks" in tables:
        yield "ALTER TABLE marks RENAME TO watermarks"
        yield "UPDATE watermarks SET name = 'pruned_to' WHERE name = 'forgotten_to'"
        yield "UPDATE watermarks SET name = 'aggregated_to' WHERE name = 'minutes_to'"
        yield "ALTER TABLE services RENAME COLUMN seen_s TO last_seen_s"
        yield from (f"ALTER TABLE {resolution.name} RENAME COLUMN looks TO checks" for resolution in RESOLUTIONS)
    if "saved_state" not in tables:
        yield "CREATE TABLE saved_state (name TEXT PRIMARY KEY, text TEXT NOT NULL) WITHOUT ROWID"
    yield "ALTER TABLE transitions ADD COLUMN code TEXT"


def _to_version_3(_: sqlite3.Connection) -> Iterator[str]:
    """Time in maintenance is counted on its own."""
    for resolution in RESOLUTIONS:
        yield f"ALTER TABLE {resolution.name} ADD COLUMN maintenance_s REAL NOT NULL DEFAULT 0"


def _to_version_4(_: sqlite3.Connection) -> Iterator[str]:
    """The times in which the node ran, and latencies. Before, it is known only up to the last transition of a process.

    The one step that reads all transitions: a second for the largest file.
    """
    yield "CREATE TABLE runs (begin_s REAL PRIMARY KEY, end_s REAL NOT NULL) WITHOUT ROWID"
    yield """
        INSERT OR IGNORE INTO runs SELECT min(at_us) / 1e6, max(at_us) / 1e6
        FROM (SELECT at_us, sum(kind = 'started') OVER (ORDER BY id) AS process FROM transitions) GROUP BY process
    """
    for table in ("hour_latencies", "day_latencies"):
        yield f"""
            CREATE TABLE {table} (
                begin_s INTEGER NOT NULL, service INTEGER NOT NULL, bucket INTEGER NOT NULL, checks INTEGER NOT NULL,
                PRIMARY KEY (begin_s, service, bucket)
            ) WITHOUT ROWID
        """


STEPS: tuple[Callable[[sqlite3.Connection], Iterator[str]], ...] = (_to_version_2, _to_version_3, _to_version_4)
VERSION = len(STEPS) + 1  # of the tables in database.py
