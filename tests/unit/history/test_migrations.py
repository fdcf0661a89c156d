"""Files of older formats, as earlier versions have written them."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from svcnode.history import migrations
from svcnode.history.database import TABLES, Database
from svcnode.history.follower import read_report
from svcnode.history.migrations import VERSION
from svcnode.history.records import RESOLUTIONS, Bucket
from tests.unit.history.test_database import LIMITS, NOON, buckets, minute, rows, scalar, transitions

if TYPE_CHECKING:
    from pathlib import Path

_BUCKETS = """
    begin_s INTEGER NOT NULL, service INTEGER NOT NULL, up_s REAL NOT NULL, initializing_s REAL NOT NULL,
    down_s REAL NOT NULL, {checks} INTEGER NOT NULL, failures INTEGER NOT NULL, latency_sum_s REAL NOT NULL,
    latency_max_s REAL NOT NULL, PRIMARY KEY (begin_s, service)
"""


def older_file(version: int, *, has_first_names: bool) -> str:
    """The tables of that version, with a transition, a bucket of each length and both watermarks."""
    seen, checks, marks = ("seen_s", "looks", "marks") if has_first_names else ("last_seen_s", "checks", "watermarks")
    pruned_to, aggregated_to = ("forgotten_to", "minutes_to") if has_first_names else ("pruned_to", "aggregated_to")
    tables = "".join(
        f"CREATE TABLE {one.name} ({_BUCKETS.format(checks=checks)}) WITHOUT ROWID;"
        f"INSERT INTO {one.name} VALUES ({one.begin_s(NOON)}, 1, 30, 10, 5, 4, 1, 0.5, 0.25);"
        for one in RESOLUTIONS
    )
    code = "code TEXT," if version == 2 else ""
    saved_state = "CREATE TABLE saved_state (name TEXT PRIMARY KEY, text TEXT NOT NULL) WITHOUT ROWID;"
    return f"""
        CREATE TABLE services (number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, {seen} INTEGER NOT NULL);
        INSERT INTO services VALUES (1, 'db', {NOON});
        CREATE TABLE transitions (
            id INTEGER PRIMARY KEY, at_us INTEGER NOT NULL, kind TEXT NOT NULL, service INTEGER, before TEXT,
            after TEXT, reason TEXT NOT NULL, {code} health_before INTEGER NOT NULL, health INTEGER NOT NULL
        );
        CREATE INDEX transitions_of_service ON transitions (service);
        INSERT INTO transitions (id, at_us, kind, service, before, after, reason, health_before, health)
        VALUES (7, 7, 'status', 1, 'Up', 'Down', 'refused', 200, 503);
        {tables}
        CREATE TABLE {marks} (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
        INSERT INTO {marks} VALUES ('{pruned_to}', 3), ('{aggregated_to}', 5);
        {"" if has_first_names else saved_state}
        PRAGMA user_version = {version};
        PRAGMA application_id = 0x73766368;
    """


@pytest.mark.parametrize(("version", "has_first_names"), [(1, True), (1, False), (2, False)])
def test_a_file_of_an_older_format_keeps_its_records_and_takes_new_ones(
    tmp_path: Path, version: int, has_first_names: bool
) -> None:
    path = tmp_path / "history.db"
    with closing(sqlite3.connect(path)) as old:
        old.executescript(older_file(version, has_first_names=has_first_names))
    with closing(Database(path, LIMITS)) as migrated:
        assert (migrated.last_id, migrated.pruned_to, migrated.last_sequence) == (7, 3, 7)
        migrated.write(transitions(8))
        migrated.write(minute(9, NOON, db=Bucket(NOON, up_s=10.0, maintenance_s=2.0)))
    assert scalar(path, "PRAGMA user_version") == VERSION
    assert rows(path, "SELECT id, reason, code, health FROM transitions ORDER BY id") == [
        (7, "refused", None, 503),
        (8, "refused", "timeout", 503),
    ]
    for resolution in RESOLUTIONS:
        begin_s = resolution.begin_s(NOON)
        assert buckets(path, resolution)[begin_s] == Bucket(begin_s, 40.0, 10.0, 5.0, 4, 1, 0.5, 0.25, 2.0)


@pytest.mark.parametrize(("version", "has_first_names"), [(1, True), (2, False)])
def test_a_report_reads_a_file_of_an_older_format_and_leaves_it_as_it_is(
    tmp_path: Path, version: int, has_first_names: bool
) -> None:
    path = tmp_path / "history.db"
    with closing(sqlite3.connect(path)) as old:
        old.executescript(older_file(version, has_first_names=has_first_names))
    before = path.read_bytes()
    report, _ = asyncio.run(read_report(path, NOON - 60.0, NOON + 60.0, NOON + 60.0))
    assert report.services["db"].times == (30.0, 10.0, 5.0, 0.0)
    assert path.read_bytes() == before


def test_a_migrated_file_has_the_tables_and_columns_of_a_new_one(tmp_path: Path) -> None:
    new, migrated = tmp_path / "new.db", tmp_path / "migrated.db"
    with closing(sqlite3.connect(migrated)) as old:
        old.executescript(older_file(1, has_first_names=True))
    for path in (new, migrated):
        Database(path, LIMITS).close()
    for table in TABLES:
        columns = f"SELECT name FROM pragma_table_info('{table}') ORDER BY name"
        assert rows(migrated, columns) == rows(new, columns), table


def test_a_migration_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "history.db"
    with closing(sqlite3.connect(path)) as old:
        old.executescript(older_file(1, has_first_names=True))

    def fail(_: sqlite3.Connection) -> list[str]:
        return ["ALTER TABLE nowhere ADD COLUMN x"]

    monkeypatch.setattr(migrations, "STEPS", (migrations.STEPS[0], fail))
    with pytest.raises(sqlite3.OperationalError):
        Database(path, LIMITS)
    assert scalar(path, "PRAGMA user_version") == 1
    assert scalar(path, "SELECT count(*) FROM marks") == 2


def test_the_runs_of_an_older_file_last_from_the_first_to_the_last_transition_of_each_process(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    with closing(sqlite3.connect(path)) as old, old:
        old.executescript(older_file(2, has_first_names=False))
        kinds = {1: "status", 2: "stopped", 100: "started", 150: "status", 300: "started"}
        old.execute("DELETE FROM transitions")
        old.executemany(
            "INSERT INTO transitions VALUES (?, ?, ?, NULL, NULL, NULL, '', NULL, 200, 200)",
            [(second, second * 1_000_000, kind) for second, kind in kinds.items()],
        )
    Database(path, LIMITS).close()
    assert rows(path, "SELECT begin_s, end_s FROM runs ORDER BY begin_s") == [(1, 2), (100, 150), (300, 300)]
