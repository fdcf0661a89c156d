"""The SQLite file of the history, on a real disk."""

from __future__ import annotations

import math
import sqlite3
from collections import defaultdict
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from svcnode.history import database as module
from svcnode.history.backlog import Batch
from svcnode.history.database import Database
from svcnode.history.errors import CorruptionError, HistoryError, HistoryProblem, history_error_from
from svcnode.history.files import APPLICATION_ID
from svcnode.history.migrations import VERSION
from svcnode.history.records import (
    DAYS,
    HOURS,
    MINUTES,
    RESOLUTIONS,
    Bucket,
    ClosedMinute,
    Resolution,
    RetentionLimits,
    Stretch,
    Transition,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NOON = 1_767_268_800
LIMITS = RetentionLimits(400 * 86_400.0, 256 * 1024**2)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.db"


@pytest.fixture
def database(path: Path) -> Iterator[Database]:
    with closing(Database(path, LIMITS)) as opened:
        yield opened


def transition(number: int, service_id: str | None = "db", reason: str = "refused") -> Transition:
    return Transition(number, number / 1e6, "status", service_id, "Up", "Down", reason, "timeout", 200, 503)


def transitions(*numbers: int) -> Batch:
    return Batch([transition(number) for number in numbers], [], 0)


def minute(number: int, begin_s: int, **buckets: Bucket) -> Batch:
    return Batch([], [ClosedMinute(number, begin_s, buckets)], 0)


def scalar(path: Path, statement: str) -> Any:
    with closing(sqlite3.connect(path)) as reader:
        row = reader.execute(statement).fetchone()
        reader.commit()
    return row[0] if row else None


def buckets(path: Path, resolution: Resolution, service_id: str = "db") -> dict[int, Bucket]:
    columns = ", ".join(Bucket._fields)
    statement = f"SELECT {columns} FROM {resolution.name} JOIN services ON number = service WHERE id = '{service_id}'"
    return {row[0]: Bucket._make(row) for row in rows(path, statement)}


def rows(path: Path, statement: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as reader:
        return reader.execute(statement).fetchall()


def test_a_new_file_has_the_application_id_the_schema_version_and_its_settings(path: Path) -> None:
    path.touch()  # an empty file is a new one, too
    with closing(Database(path, LIMITS)) as database:
        execute = database._connection.execute
        assert execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert execute("PRAGMA synchronous").fetchone() == (2,)
        assert execute("PRAGMA auto_vacuum").fetchone() == (2,)
        assert execute("PRAGMA journal_size_limit").fetchone() == (4 * 1024**2,)
        assert execute("PRAGMA wal_autocheckpoint").fetchone() == (1024,)
        assert execute("PRAGMA user_version").fetchone() == (VERSION,)
        assert int.from_bytes(path.read_bytes()[68:72]) == APPLICATION_ID == int.from_bytes(b"svch")


def test_a_reopened_file_continues_its_sequence_and_has_the_last_saved_state(path: Path) -> None:
    with closing(Database(path, LIMITS)) as first:
        assert (first.last_id, first.last_kind, first.last_sequence, first.saved_state) == (0, None, 0, None)
        first.write(Batch([], [], 0, "first"))
        first.write(Batch([], [], 0, "second"))
        first.write(transitions(7, 8))
        first.write(minute(9, NOON, db=Bucket(NOON, up_s=60.0)))
    with closing(Database(path, LIMITS)) as second:
        assert second.is_at_path
        assert (second.last_id, second.last_kind, second.last_sequence) == (8, "status", 9)
        assert second.saved_state == "second"


def test_a_file_of_a_newer_schema_is_rejected_and_not_changed(path: Path) -> None:
    Database(path, LIMITS).close()
    scalar(path, f"PRAGMA user_version = {VERSION + 1}")
    before = path.read_bytes()
    with pytest.raises(HistoryError) as caught:
        Database(path, LIMITS)
    assert (type(caught.value), caught.value.code) == (HistoryError, HistoryProblem.NEWER_SCHEMA)
    assert path.read_bytes() == before


def test_corruption_is_found_when_the_file_is_opened(path: Path) -> None:
    with closing(Database(path, LIMITS)) as made:
        made.write(transitions(*range(1, 500)))
    with path.open("r+b") as file:
        file.seek(3 * 4096)
        file.write(b"\xa5" * (path.stat().st_size - 3 * 4096))
    with pytest.raises((CorruptionError, sqlite3.DatabaseError)) as caught:
        Database(path, LIMITS)
    assert isinstance(history_error_from(caught.value, path), CorruptionError)


def test_a_slow_quick_check_is_interrupted_and_the_file_is_used(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(Database(path, LIMITS)) as made:
        made.write(transitions(*range(1, 8000)))
    monkeypatch.setattr(module, "QUICK_CHECK_TIMEOUT_S", 0.0)
    with closing(Database(path, LIMITS)) as opened:
        opened.write(transitions(50_000))
    assert scalar(path, "PRAGMA integrity_check") == "ok"


def test_a_batch_that_is_written_twice_counts_once(path: Path, database: Database) -> None:
    batch = Batch([transition(1), transition(2)], [ClosedMinute(3, NOON, {"db": Bucket(NOON, up_s=20.0, checks=1)})], 0)
    database.write(batch)
    database.write(batch)
    assert scalar(path, "SELECT count(*) FROM transitions") == 2
    for resolution in RESOLUTIONS:
        assert [bucket.checks for bucket in buckets(path, resolution).values()] == [1]


def test_a_batch_is_written_completely_or_not_at_all(path: Path, database: Database) -> None:
    broken = Batch([transition(1)], [ClosedMinute(2, NOON, {"db": Bucket(NOON, up_s=math.nan)})], 0)
    with pytest.raises(sqlite3.Error):
        database.write(broken)
    assert scalar(path, "SELECT count(*) FROM transitions") == 0
    database.write(transitions(1))
    assert scalar(path, "SELECT count(*) FROM transitions") == 1


def test_a_minute_is_added_to_its_hour_and_its_day(path: Path, database: Database) -> None:
    database.write(minute(1, NOON, db=Bucket(NOON, 50.0, 0.0, 0.0, 6, 0, 0.5, 0.25, 10.0)))
    database.write(minute(2, NOON + 60, db=Bucket(NOON + 60, 25.0, 10.0, 20.0, 5, 2, 1.0, 0.75, 5.0)))
    both = (75.0, 10.0, 20.0, 11, 2, 1.5, 0.75, 15.0)
    assert buckets(path, HOURS) == {NOON: Bucket(NOON, *both)}
    assert buckets(path, DAYS) == {NOON - 43_200: Bucket(NOON - 43_200, *both)}
    assert len(buckets(path, MINUTES)) == 2


def test_parts_of_a_minute_add_up_but_one_that_is_repeated_because_the_clock_was_set_back_counts_once(
    path: Path, database: Database
) -> None:
    database.write(minute(1, NOON, db=Bucket(NOON, up_s=60.0)))
    database.write(minute(2, NOON, db=Bucket(NOON, down_s=60.0)))
    database.write(minute(3, NOON, db=Bucket(NOON, maintenance_s=60.0)))
    database.write(minute(4, NOON + 60, db=Bucket(NOON + 60, up_s=20.0, checks=2)))
    database.write(minute(5, NOON + 60, db=Bucket(NOON + 60, down_s=30.0, checks=3)))  # of the next process
    assert buckets(path, MINUTES) == {
        NOON: Bucket(NOON, up_s=60.0),
        NOON + 60: Bucket(NOON + 60, up_s=20.0, down_s=30.0, checks=5),
    }


seconds = st.floats(0, 15)
any_bucket = st.builds(
    Bucket,
    begin_s=st.just(0),
    up_s=seconds,
    initializing_s=seconds,
    down_s=seconds,
    checks=st.integers(0, 9),
    failures=st.integers(0, 9),
    latency_sum_s=seconds,
    latency_max_s=seconds,
    maintenance_s=seconds,
)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3) | st.integers(0, 180), any_bucket), max_size=25), st.booleans())
def test_an_hour_is_the_sum_of_its_minutes_unless_the_clock_is_set_back_and_no_bucket_exceeds_its_length(
    tmp_path_factory: pytest.TempPathFactory, minutes: list[tuple[int, Bucket]], is_set_back: bool
) -> None:
    path = tmp_path_factory.mktemp("hours") / "history.db"
    with closing(Database(path, LIMITS)) as made:
        for number, (index, bucket) in enumerate(minutes if is_set_back else dict(minutes).items(), start=1):
            made.write(minute(number, NOON + 60 * index, db=bucket))
        sums: dict[int, list[float]] = defaultdict(lambda: [0.0] * 6)
        for bucket in buckets(path, MINUTES).values():
            hour = sums[HOURS.begin_s(bucket.begin_s)]
            for index in range(6):
                hour[index] += bucket[index + 1]
        hours = {begin_s: list(bucket[1:7]) for begin_s, bucket in buckets(path, HOURS).items()}
        assert is_set_back or hours == {begin_s: pytest.approx(values) for begin_s, values in sums.items()}
        for resolution in RESOLUTIONS:
            assert all(bucket.observed_s <= resolution.length_s + 0.01 for bucket in buckets(path, resolution).values())


def test_a_removed_file_is_detected(path: Path, database: Database) -> None:
    found = [database.is_at_path]
    database.write(transitions(1))
    found.append(database.is_at_path)
    for file in (path.with_name("history.db-wal"), path):
        file.rename(file.with_name("elsewhere"))
        found.append(database.is_at_path)
        file.with_name("elsewhere").rename(file)
        found.append(database.is_at_path)
    path.write_bytes(b"")
    found.append(database.is_at_path)
    assert found == [True, True, False, True, False, True, False]


def test_a_file_with_a_missing_table_is_corrupt(path: Path) -> None:
    Database(path, LIMITS).close()
    scalar(path, "DROP TABLE minutes")
    with pytest.raises(CorruptionError, match="minutes"):
        Database(path, LIMITS)


def observed(number: int, begin_s: float, end_s: float, **latencies: dict[int, int]) -> Batch:
    minutes = {service_id: Bucket(NOON, checks=1) for service_id in latencies}
    return Batch([], [ClosedMinute(number, NOON, minutes, Stretch(begin_s, end_s), latencies)], 0)


def test_a_run_grows_with_each_minute_and_ends_with_a_break(path: Path) -> None:
    with closing(Database(path, LIMITS)) as database:
        for number, (begin_s, end_s) in enumerate([(10, 60), (60, 120), (120, 130), (140, 180), (150, 170)], start=1):
            database.write(observed(number, begin_s, end_s))
    assert rows(path, "SELECT begin_s, end_s FROM runs") == [(10, 130), (140, 180)]


def test_latencies_are_added_up_by_hour_and_day_and_expire(path: Path) -> None:
    with closing(Database(path, LIMITS)) as database:
        database.write(observed(1, NOON, NOON + 60, db={5: 2, 7: 1}))
        database.write(observed(2, NOON, NOON + 60, db={5: 3}, api={1: 1}))
        for table, resolution in (("hour_latencies", HOURS), ("day_latencies", DAYS)):
            begin_s = resolution.begin_s(NOON)
            assert rows(path, f"SELECT * FROM {table} ORDER BY 2, 3") == [
                (begin_s, 1, 5, 5),
                (begin_s, 1, 7, 1),
                (begin_s, 2, 1, 1),
            ]
        while database.prune_some(NOON + 9 * 86_400.0):
            pass
        assert (
            scalar(path, "SELECT count(*) FROM hour_latencies"),
            scalar(path, "SELECT count(*) FROM day_latencies"),
        ) == (0, 3)
        while database.prune_some(NOON + LIMITS.max_age_s + 9 * 86_400.0):
            pass
    assert scalar(path, "SELECT count(*) FROM day_latencies") == 0
    assert scalar(path, "SELECT count(*) FROM runs") == 0
