"""What is forgotten, in which order, and how large the file may become."""

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
    """One each second."""
    times_s = range(first, first + count)
    return Batch(
        [
            Transition(at_s * 10**6, float(at_s), "status", service_id, "Up", "Down", reason, 200, 503)
            for at_s in times_s
        ],
        [],
        0,
    )


def minute(number: int, begin_s: int, services: int = 1) -> Batch:
    bars = {f"s{place}": Bucket(begin_s, 59.123456, 0.876544, 0.0, 6, 1, 0.123456, 0.0456) for place in range(services)}
    return Batch([], [ClosedMinute(number, begin_s, bars)], 0)


def forget_all(database: Database, now_s: float) -> int:
    steps = 0
    while database.prune_some(now_s):
        steps += 1
        assert steps < 10_000
    return steps


def number(path: Path, question: str) -> int:
    with closing(sqlite3.connect(path)) as reader:
        (found,) = reader.execute(question).fetchone()
    return int(found or 0)


def size_of(path: Path) -> int:
    return sum(one.stat().st_size for one in path.parent.iterdir() if not one.name.endswith("-shm"))


def test_transitions_go_when_they_are_too_old_and_that_is_remembered(path: Path) -> None:
    limits = RetentionLimits(10 * DAY_S, 256 * MIB)
    with closing(Database(path, limits)) as database:
        database.write(transitions(NOON, 100))
        database.write(transitions(NOON + int(5 * DAY_S), 100))
        forget_all(database, NOON + 11 * DAY_S)
        assert number(path, "SELECT count(*) FROM transitions") == 100
        assert database.pruned_to == (NOON + 99) * 10**6
    with closing(Database(path, limits)) as again:
        assert again.pruned_to == (NOON + 99) * 10**6
        assert again.last_sequence == (NOON + int(5 * DAY_S) + 99) * 10**6


def test_when_everything_is_forgotten_the_numbers_go_on_all_the_same(path: Path) -> None:
    limits = RetentionLimits(DAY_S, 256 * MIB)
    with closing(Database(path, limits)) as database:
        database.write(transitions(NOON, 10))
        forget_all(database, NOON + 30 * DAY_S)
    with closing(Database(path, limits)) as again:
        assert (again.last_id, again.last_sequence) == (0, (NOON + 9) * 10**6)


def test_minutes_and_hours_go_before_days_do(path: Path) -> None:
    with closing(Database(path, RetentionLimits(400 * DAY_S, 256 * MIB))) as database:
        for place in range(20 * 6):
            database.write(minute(place + 1, NOON + 4 * 3600 * place))
        now_s = NOON + 20 * DAY_S
        forget_all(database, now_s)
    for span in (MINUTES, HOURS):
        oldest_s = number(path, f"SELECT min(begin_s) FROM {span.name}")
        assert 0 <= oldest_s + span.length_s - (now_s - span.retention_s) <= 4 * 3600
    assert number(path, "SELECT min(begin_s) FROM days") == DAYS.begin_s(NOON)


def test_nothing_outlives_max_age_by_more_than_its_own_length_and_an_hour(path: Path) -> None:
    with closing(Database(path, RetentionLimits(3600.0, 256 * MIB))) as database:
        for place in range(3 * 24 * 2):
            database.write(minute(place + 1, NOON + 1800 * place))
        now_s = NOON + 3 * DAY_S
        forget_all(database, now_s)
    for span in (MINUTES, HOURS, DAYS):
        oldest_s = number(path, f"SELECT min(begin_s) FROM {span.name}")
        assert oldest_s + span.length_s >= now_s - 2 * 3600


def test_a_bar_that_is_still_shown_is_not_too_old(path: Path) -> None:
    with closing(Database(path, RetentionLimits(400 * DAY_S, 256 * MIB))) as database:
        for span in (DAYS, HOURS, MINUTES):
            begin_s = span.begin_s(NOON) - (span.bucket_count - 1) * span.length_s
            database.write(minute(begin_s, begin_s))
        forget_all(database, NOON + 59)
    assert number(path, "SELECT count(*) FROM minutes") == 1
    assert number(path, "SELECT count(*) FROM hours") == 2
    assert number(path, "SELECT count(*) FROM days") == 3


def test_a_flood_of_transitions_costs_old_transitions_and_no_bars(path: Path) -> None:
    with closing(Database(path, RetentionLimits(400 * DAY_S, 2 * MIB))) as database:
        for place in range(90):
            database.write(minute(place + 1, NOON + 60 * place, services=10))
        for first in range(NOON, NOON + 40_000, 1000):
            database.write(transitions(first, 1000, "connection refused by 127.0.0.1:5432"))
            forget_all(database, NOON + 5400)
            assert size_of(path) <= 2 * MIB
        assert number(path, "SELECT count(*) FROM minutes") == 900
        assert number(path, "SELECT max(id) FROM transitions") == (NOON + 39_999) * 10**6
        assert number(path, "SELECT min(id) FROM transitions") > database.pruned_to > NOON * 10**6
        assert number(path, "SELECT count(*) FROM transitions") > 2000


def test_a_multitude_of_services_costs_old_minutes_and_no_transitions(path: Path) -> None:
    with closing(Database(path, RetentionLimits(400 * DAY_S, 2 * MIB))) as database:
        database.write(transitions(NOON, 500))
        for place in range(120):
            database.write(minute(place + 1, NOON + 60 * place, services=500))
            forget_all(database, NOON + 60 * place)
            assert size_of(path) <= 2 * MIB
        assert number(path, "SELECT count(*) FROM transitions") == 500
        assert number(path, "SELECT max(begin_s) FROM minutes") == NOON + 60 * 119
        assert number(path, "SELECT count(*) FROM hours") == 1000
        assert number(path, "SELECT count(*) FROM days") == 500


def test_the_smallest_file_that_may_be_asked_for_still_works(path: Path) -> None:
    with closing(Database(path, RetentionLimits(3600.0, MIB))) as database:
        for place in range(100):
            database.write(minute(place + 1, NOON + 60 * place, services=300))
            database.write(transitions(NOON + 60 * place, 60))
            forget_all(database, NOON + 60 * place)
            assert size_of(path) <= MIB
        assert number(path, f"SELECT count(*) FROM minutes WHERE begin_s = {NOON + 60 * 99}") == 300


def test_when_less_is_allowed_than_there_is_the_file_becomes_smaller(path: Path) -> None:
    with closing(Database(path, RetentionLimits(400 * DAY_S, 64 * MIB))) as database:
        for first in range(NOON, NOON + 40_000, 2000):
            database.write(transitions(first, 2000))
    before = size_of(path)
    with closing(Database(path, RetentionLimits(400 * DAY_S, 2 * MIB))) as database:
        assert forget_all(database, NOON + 40_000) < 100
    assert before > 2.5 * MIB
    assert size_of(path) <= 2 * MIB
    with closing(sqlite3.connect(path)) as reader:
        assert reader.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_limits_that_change_while_the_file_is_open_hold_at_once(path: Path) -> None:
    with closing(Database(path, RetentionLimits(400 * DAY_S, 64 * MIB))) as database:
        for first in range(NOON, NOON + 40_000, 2000):
            database.write(transitions(first, 2000))
        assert database.set_limits(smaller := RetentionLimits(400 * DAY_S, 2 * MIB))
        assert not database.set_limits(smaller)
        forget_all(database, NOON + 40_000)
        assert size_of(path) <= 2 * MIB
        database.set_limits(RetentionLimits(3600.0, 2 * MIB))
        forget_all(database, NOON + 10 * DAY_S)
        assert number(path, "SELECT count(*) FROM transitions") == 0


def test_what_is_forgotten_goes_in_small_steps(path: Path) -> None:
    with closing(Database(path, RetentionLimits(DAY_S, 256 * MIB))) as database:
        for first in range(NOON, NOON + 10_000, 2000):
            database.write(transitions(first, 2000))
        assert forget_all(database, NOON + 10 * DAY_S) >= 10


def test_with_nothing_to_forget_nothing_is_written(path: Path) -> None:
    with closing(Database(path, RetentionLimits(DAY_S, 256 * MIB))) as database:
        database.write(transitions(NOON, 10))
        log = path.with_name("history.db-wal")
        before = log.stat().st_size
        assert not database.prune_some(NOON + 60)
        assert log.stat().st_size == before


def test_services_of_which_nothing_is_left_are_forgotten_too(path: Path) -> None:
    with closing(Database(path, RetentionLimits(10 * DAY_S, 256 * MIB))) as database:
        database.write(transitions(NOON, 1, service_id="gone"))
        database.write(transitions(NOON + int(12 * DAY_S), 1, service_id="here"))
        forget_all(database, NOON + 14 * DAY_S)
    with closing(sqlite3.connect(path)) as reader:
        assert reader.execute("SELECT id FROM services").fetchall() == [("here",)]


def test_a_service_that_goes_on_is_not_forgotten(path: Path) -> None:
    with closing(Database(path, RetentionLimits(10 * DAY_S, 256 * MIB))) as database:
        for day in range(30):
            begin_s = NOON + day * int(DAY_S)
            database.write(minute(day + 1, begin_s))
            forget_all(database, begin_s)
        assert number(path, "SELECT count(*) FROM services JOIN days ON service = number") >= 10
