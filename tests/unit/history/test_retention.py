"""Which records are deleted, in which order, and how large the file becomes."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from svcnode.history.backlog import Batch
from svcnode.history.database import Database
from svcnode.history.records import DAYS, HOURS, MINUTES, Bucket, ClosedMinute, RetentionLimits, Transition

if TYPE_CHECKING:
    from pathlib import Path

NOON = 1_767_268_800
DAY_S = 86_400.0
MIB = 1024**2


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.db"


def transitions(first: int, count: int, reason: str = "refused", service_id: str = "db") -> Batch:
    """One per second."""
    times_s = range(first, first + count)
    return Batch(
        [
            Transition(at_s * 10**6, float(at_s), "status", service_id, "Up", "Down", reason, "timeout", 200, 503)
            for at_s in times_s
        ],
        [],
        0,
    )


def minute(number: int, begin_s: int, services: int = 1) -> Batch:
    buckets = {
        f"s{index}": Bucket(begin_s, 59.123456, 0.876544, 0.0, 6, 1, 0.123456, 0.0456) for index in range(services)
    }
    return Batch([], [ClosedMinute(number, begin_s, buckets)], 0)


def prune_all(database: Database, now_s: float) -> int:
    steps = 0
    while database.prune_some(now_s):
        steps += 1
        assert steps < 10_000
    return steps


def number(path: Path, statement: str) -> int:
    with closing(sqlite3.connect(path)) as reader:
        (found,) = reader.execute(statement).fetchone()
    return int(found or 0)


def size_of(path: Path) -> int:
    return sum(one.stat().st_size for one in path.parent.iterdir() if not one.name.endswith("-shm"))


def test_expired_transitions_are_deleted_in_steps_and_pruned_to_is_stored(path: Path) -> None:
    limits = RetentionLimits(10 * DAY_S, 256 * MIB)
    with closing(Database(path, limits)) as database:
        database.write(transitions(NOON, 4000))
        database.write(transitions(NOON + int(5 * DAY_S), 100))
        assert prune_all(database, NOON + 11 * DAY_S) >= 4
        assert number(path, "SELECT count(*) FROM transitions") == 100
        assert database.pruned_to == (NOON + 3999) * 10**6
        log = path.with_name("history.db-wal")
        before = log.stat().st_size
        assert not database.prune_some(NOON + 11 * DAY_S)
        assert log.stat().st_size == before, "without expired records nothing is written"
    last_sequence = (NOON + int(5 * DAY_S) + 99) * 10**6
    with closing(Database(path, limits)) as again:
        assert (again.pruned_to, again.last_sequence) == ((NOON + 3999) * 10**6, last_sequence)
        prune_all(again, NOON + 30 * DAY_S)
    with closing(Database(path, limits)) as empty:
        assert (empty.last_id, empty.last_sequence) == (0, last_sequence), "the sequence continues"


def recorded(first_id: int, at_s: int, count: int) -> Batch:
    """Transitions that a clock dated differently than the ids say: these increase whatever the clock does."""
    batch = transitions(at_s, count)
    return batch._replace(
        transitions=[one._replace(id=first_id + index) for index, one in enumerate(batch.transitions)]
    )


@pytest.mark.parametrize("wrong_s", [0, int(NOON - 300 * DAY_S), int(NOON + 3000 * DAY_S)])
def test_records_of_a_wrong_clock_do_not_delete_or_keep_others(path: Path, wrong_s: int) -> None:
    old_s, kept_s, now_s = NOON, NOON + int(6 * DAY_S), NOON + int(12 * DAY_S)
    with closing(Database(path, RetentionLimits(10 * DAY_S, 256 * MIB))) as database:
        database.write(recorded(1, old_s, 1500))
        database.write(recorded(10_000, kept_s, 500))
        database.write(recorded(20_000, wrong_s, 1500))
        database.write(recorded(30_000, old_s, 1500))
        database.write(recorded(40_000, kept_s, 500))
        prune_all(database, now_s)
    counts = {
        name: number(path, f"SELECT count(*) FROM transitions WHERE at_us BETWEEN {at_s}000000 AND {at_s + 1500}000000")
        for name, at_s in {"old": old_s, "kept": kept_s, "wrong": wrong_s}.items()
    }
    assert counts == {"old": 0, "kept": 1000, "wrong": 1500 if wrong_s > now_s else 0}


def test_after_a_clock_was_ahead_the_time_of_the_last_record_is_right_although_its_id_is_ahead(path: Path) -> None:
    """So a clock that is wrong again at the next start is not trusted at once."""
    limits, ahead_s = RetentionLimits(10 * DAY_S, 256 * MIB), NOON + int(3000 * DAY_S)
    with closing(Database(path, limits)) as database:
        database.write(transitions(ahead_s, 1))
        database.write(recorded(ahead_s * 10**6 + 1, NOON, 1))
    with closing(Database(path, limits)) as database:
        assert (database.last_id, database.last_at_s) == (ahead_s * 10**6 + 1, NOON)


def test_buckets_of_a_wrong_clock_do_not_delete_or_keep_others(path: Path) -> None:
    times_s = [NOON + int(6 * DAY_S), 0, NOON + int(3000 * DAY_S), NOON]
    with closing(Database(path, RetentionLimits(10 * DAY_S, 256 * MIB))) as database:
        for sequence, begin_s in enumerate(times_s, start=1):
            database.write(minute(sequence, begin_s))
        prune_all(database, NOON + 12 * DAY_S)
    with closing(sqlite3.connect(path)) as reader:
        begins_s = [begin_s for (begin_s,) in reader.execute("SELECT begin_s FROM days ORDER BY begin_s")]
    assert begins_s == [DAYS.begin_s(times_s[0]), DAYS.begin_s(times_s[2])]


def test_a_file_of_an_earlier_version_without_an_index_of_times_is_pruned(path: Path) -> None:
    limits = RetentionLimits(10 * DAY_S, 256 * MIB)
    with closing(Database(path, limits)) as database:
        database.write(transitions(NOON, 10))
    with closing(sqlite3.connect(path)) as earlier:
        earlier.execute("DROP INDEX transitions_by_time")
    with closing(Database(path, limits)) as database:
        prune_all(database, NOON + 11 * DAY_S)
    assert number(path, "SELECT count(*) FROM transitions") == 0
    assert number(path, "SELECT count(*) FROM sqlite_master WHERE name = 'transitions_by_time'") == 1


def test_minutes_and_hours_expire_before_days_and_all_at_max_age(path: Path) -> None:
    with closing(Database(path, RetentionLimits(400 * DAY_S, 256 * MIB))) as database:
        for index in range(20 * 6):
            database.write(minute(index + 1, NOON + 4 * 3600 * index))
        now_s = NOON + 20 * DAY_S
        prune_all(database, now_s)
        for resolution in (MINUTES, HOURS):
            oldest_s = number(path, f"SELECT min(begin_s) FROM {resolution.name}")
            assert 0 <= oldest_s + resolution.length_s - (now_s - resolution.retention_s) <= 4 * 3600
        assert number(path, "SELECT min(begin_s) FROM days") == DAYS.begin_s(NOON)
        for index in range(10):
            database.write(minute(index + 1000, int(now_s) - 600 * index))
        database.set_limits(RetentionLimits(3600.0, 256 * MIB))
        prune_all(database, now_s)
    for resolution in (MINUTES, HOURS, DAYS):
        oldest_s = number(path, f"SELECT min(begin_s) FROM {resolution.name}")
        assert oldest_s + resolution.length_s >= now_s - 2 * 3600


def test_a_bucket_that_a_query_returns_is_not_deleted(path: Path) -> None:
    with closing(Database(path, RetentionLimits(400 * DAY_S, 256 * MIB))) as database:
        for resolution in (DAYS, HOURS, MINUTES):
            begin_s = resolution.begin_s(NOON) - (resolution.bucket_count - 1) * resolution.length_s
            database.write(minute(begin_s, begin_s))
        prune_all(database, NOON + 59)
    assert number(path, "SELECT count(*) FROM minutes") == 1
    assert number(path, "SELECT count(*) FROM hours") == 2
    assert number(path, "SELECT count(*) FROM days") == 3


def test_many_transitions_displace_old_transitions_and_no_buckets(path: Path) -> None:
    with closing(Database(path, RetentionLimits(400 * DAY_S, MIB))) as database:
        for index in range(90):
            database.write(minute(index + 1, NOON + 60 * index, services=5))
        for first in range(NOON, NOON + 20_000, 2000):
            database.write(transitions(first, 2000, "connection refused by 127.0.0.1:5432"))
            prune_all(database, NOON + 5400)
            assert size_of(path) <= MIB
        assert number(path, "SELECT count(*) FROM minutes") == 450
        assert number(path, "SELECT max(id) FROM transitions") == (NOON + 19_999) * 10**6
        assert number(path, "SELECT min(id) FROM transitions") > database.pruned_to > NOON * 10**6
        assert number(path, "SELECT count(*) FROM transitions") > 1000


def test_at_the_smallest_max_size_many_services_displace_old_minutes_and_no_transitions(path: Path) -> None:
    with closing(Database(path, RetentionLimits(400 * DAY_S, MIB))) as database:
        database.write(transitions(NOON, 500))
        for index in range(80):
            database.write(minute(index + 1, NOON + 60 * index, services=300))
            prune_all(database, NOON + 60 * index)
            assert size_of(path) <= MIB
        assert number(path, "SELECT count(*) FROM transitions") == 500
        assert number(path, f"SELECT count(*) FROM minutes WHERE begin_s = {NOON + 60 * 79}") == 300
        assert number(path, "SELECT count(*) FROM minutes") < 300 * 80
        assert number(path, "SELECT count(*) FROM hours") == 600
        assert number(path, "SELECT count(*) FROM days") == 300


def test_a_file_above_new_limits_shrinks_while_it_is_open(path: Path) -> None:
    with closing(Database(path, RetentionLimits(400 * DAY_S, 64 * MIB))) as database:
        for first in range(NOON, NOON + 20_000, 2000):
            database.write(transitions(first, 2000))
        assert size_of(path) > 1.25 * MIB
        assert database.set_limits(smaller := RetentionLimits(400 * DAY_S, MIB))
        assert not database.set_limits(smaller)
        assert prune_all(database, NOON + 20_000) < 100
        assert size_of(path) <= MIB
        assert number(path, "SELECT count(*) FROM transitions") > 0
        database.set_limits(RetentionLimits(3600.0, MIB))
        prune_all(database, NOON + 10 * DAY_S)
        assert number(path, "SELECT count(*) FROM transitions") == 0
    with closing(sqlite3.connect(path)) as reader:
        assert reader.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_services_without_records_are_deleted_and_those_with_new_ones_are_not(path: Path) -> None:
    with closing(Database(path, RetentionLimits(10 * DAY_S, 256 * MIB))) as database:
        database.write(transitions(NOON, 1, service_id="gone"))
        for day in range(30):
            begin_s = NOON + day * int(DAY_S)
            database.write(minute(day + 1, begin_s))
            prune_all(database, begin_s)
        assert number(path, "SELECT count(*) FROM services JOIN days ON service = number") >= 10
    with closing(sqlite3.connect(path)) as reader:
        assert reader.execute("SELECT id FROM services").fetchall() == [("s0",)]
