"""The file itself, on a real disk: what goes in comes out, whatever happens in between."""

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
from svcnode.history.errors import CorruptionError, HistoryError, history_error_from
from svcnode.history.files import APPLICATION_ID
from svcnode.history.query import latest_transitions, open_read_only, read_buckets, transitions_after
from svcnode.history.records import (
    DAYS,
    HOURS,
    MINUTES,
    RESOLUTIONS,
    Bucket,
    ClosedMinute,
    Resolution,
    RetentionLimits,
    Transition,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
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
    return Transition(number, number / 1e6, "status", service_id, "Up", "Down", reason, 200, 503)


def transitions(*numbers: int) -> Batch:
    return Batch([transition(number) for number in numbers], [], 0)


def minute(number: int, begin_s: int, **bars: Bucket) -> Batch:
    return Batch([], [ClosedMinute(number, begin_s, bars)], 0)


def asked(path: Path, question: str) -> Any:
    with closing(sqlite3.connect(path)) as reader:
        row = reader.execute(question).fetchone()
        reader.commit()
    return row[0] if row else None


def bars(path: Path, span: Resolution, service_id: str = "db") -> dict[int, Bucket]:
    begins_s = [int(value) for (value,) in rows(path, f"SELECT DISTINCT begin_s FROM {span.name}")]
    with closing(open_read_only(path)) as reader:
        return {bar.begin_s: bar for bar in read_buckets(reader, [service_id], span, begins_s or [0])[service_id]}


def rows(path: Path, question: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as reader:
        return reader.execute(question).fetchall()


# ---- opening


def test_a_new_file_says_whose_it_is_before_anything_is_in_its_log(path: Path, database: Database) -> None:
    beginning = path.read_bytes()[:100]
    assert int.from_bytes(beginning[68:72]) == APPLICATION_ID
    assert asked(path, "PRAGMA user_version") == 1


def test_it_is_written_ahead_synced_with_every_commit_and_can_shrink(path: Path, database: Database) -> None:
    connection = database._connection
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
    assert connection.execute("PRAGMA auto_vacuum").fetchone() == (2,)
    assert connection.execute("PRAGMA journal_size_limit").fetchone() == (4 * 1024**2,)
    assert connection.execute("PRAGMA wal_autocheckpoint").fetchone() == (1024,)


def test_a_file_that_is_opened_again_goes_on_where_it_was(path: Path) -> None:
    with closing(Database(path, LIMITS)) as first:
        assert (first.last_id, first.last_kind, first.last_sequence) == (0, None, 0)
        first.write(transitions(7, 8))
        first.write(minute(9, NOON, db=Bucket(NOON, up_s=60.0)))
    with closing(Database(path, LIMITS)) as second:
        assert second.is_at_path
        assert (second.last_id, second.last_kind, second.last_sequence) == (8, "status", 9)


def test_a_file_that_was_begun_and_never_finished_is_begun_anew(path: Path) -> None:
    path.touch()
    with closing(Database(path, LIMITS)) as made:
        made.write(transitions(1))


def test_a_file_of_a_newer_version_is_left_alone(path: Path) -> None:
    Database(path, LIMITS).close()
    asked(path, "PRAGMA user_version = 2")
    before = path.read_bytes()
    with pytest.raises(HistoryError, match="was written by a newer svcnode; use that one, or name another file"):
        Database(path, LIMITS)
    assert path.read_bytes() == before


def damage(path: Path) -> None:
    """The first pages stay as they are."""
    with path.open("r+b") as file:
        file.seek(3 * 4096)
        file.write(b"\xa5" * (path.stat().st_size - 3 * 4096))


def test_damage_is_found_when_the_file_is_opened(path: Path) -> None:
    with closing(Database(path, LIMITS)) as made:
        made.write(transitions(*range(1, 500)))
    damage(path)
    with pytest.raises((CorruptionError, sqlite3.DatabaseError)) as caught:
        Database(path, LIMITS)
    assert isinstance(history_error_from(caught.value, path), CorruptionError)


def test_a_check_that_takes_too_long_is_cut_short_and_the_file_is_used(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Database(path, LIMITS)) as made:
        for first in range(1, 20_000, 2000):
            made.write(transitions(*range(first, first + 2000)))
    monkeypatch.setattr(module, "QUICK_CHECK_TIMEOUT_S", 0.0)
    with closing(Database(path, LIMITS)) as opened:
        opened.write(transitions(50_000))
    assert asked(path, "PRAGMA integrity_check") == "ok"


# ---- transitions


def test_what_is_written_is_read_as_it_was(path: Path, database: Database) -> None:
    written = [
        transition(1_767_268_800_123_456, "<script>alert('ü')</script>", 'it said "no"\n\t\u2028'),
        transition(1_767_268_800_123_457, None, ""),
        Transition(1_767_268_800_123_458, 1_767_268_799.5, "registered", "a b", None, "Initializing", "?", 200, 206),
    ]
    database.write(Batch(written, [], 0))
    with closing(open_read_only(path)) as reader:
        assert transitions_after(reader, 0, 2**62, 10) == written
        assert latest_transitions(reader, None, 2**62, 2) == [written[2], written[1]]
        assert latest_transitions(reader, "a b", 2**62, 10) == [written[2]]
        assert latest_transitions(reader, "nobody", 2**62, 10) == []


def test_what_comes_after_an_id_is_told_from_the_oldest_on(path: Path, database: Database) -> None:
    database.write(transitions(*range(1, 1501)))
    with closing(open_read_only(path)) as reader:
        assert [one.id for one in transitions_after(reader, 700, 2**62, 3)] == [701, 702, 703]
        assert [one.id for one in transitions_after(reader, 1498, 1499, 3)] == [1499]
        assert transitions_after(reader, 1500, 2**62, 3) == []


def test_a_batch_that_was_written_after_all_is_not_written_twice(path: Path, database: Database) -> None:
    batch = Batch([transition(1), transition(2)], [ClosedMinute(3, NOON, {"db": Bucket(NOON, up_s=20.0, checks=1)})], 0)
    database.write(batch)
    database.write(batch)
    assert asked(path, "SELECT count(*) FROM transitions") == 2
    for span in RESOLUTIONS:
        assert [bar.checks for bar in bars(path, span).values()] == [1]


def test_a_batch_is_written_as_a_whole_or_not_at_all(path: Path, database: Database) -> None:
    broken = Batch([transition(1)], [ClosedMinute(2, NOON, {"db": Bucket(NOON, up_s=math.nan)})], 0)
    with pytest.raises(sqlite3.Error):
        database.write(broken)
    assert asked(path, "SELECT count(*) FROM transitions") == 0
    database.write(transitions(1))
    assert asked(path, "SELECT count(*) FROM transitions") == 1


# ---- bars


def test_a_minute_is_added_to_its_hour_and_its_day(path: Path, database: Database) -> None:
    database.write(minute(1, NOON, db=Bucket(NOON, 60.0, 0.0, 0.0, 6, 0, 0.5, 0.25)))
    database.write(minute(2, NOON + 60, db=Bucket(NOON + 60, 30.0, 10.0, 20.0, 5, 2, 1.0, 0.75)))
    both = (90.0, 10.0, 20.0, 11, 2, 1.5, 0.75)
    assert bars(path, HOURS) == {NOON: Bucket(NOON, *both)}
    assert bars(path, DAYS) == {NOON - 43_200: Bucket(NOON - 43_200, *both)}
    assert len(bars(path, MINUTES)) == 2


def test_a_process_that_starts_in_a_minute_that_another_began_adds_to_it(path: Path, database: Database) -> None:
    database.write(minute(1, NOON, db=Bucket(NOON, up_s=20.0, checks=2)))
    database.write(minute(2, NOON, db=Bucket(NOON, down_s=30.0, checks=3)))
    assert bars(path, MINUTES) == {NOON: Bucket(NOON, up_s=20.0, down_s=30.0, checks=5)}


def test_a_minute_that_comes_twice_because_the_clock_was_set_back_counts_once(path: Path, database: Database) -> None:
    database.write(minute(1, NOON, db=Bucket(NOON, up_s=60.0)))
    database.write(minute(2, NOON, db=Bucket(NOON, down_s=60.0)))
    assert bars(path, MINUTES) == {NOON: Bucket(NOON, up_s=60.0)}


def test_bars_of_many_services_are_found_each_under_its_id(path: Path, database: Database) -> None:
    many = {f"s{number}": Bucket(NOON, up_s=float(number % 60)) for number in range(1200)}
    database.write(Batch([], [ClosedMinute(1, NOON, many)], 0))
    wanted = [*many, "nobody"]
    with closing(open_read_only(path)) as reader:
        found = read_buckets(reader, wanted, MINUTES, [NOON - 60, NOON])
    assert found == {**{service_id: [bar] for service_id, bar in many.items()}, "nobody": []}


seconds = st.floats(0, 20)
any_bar = st.builds(
    Bucket,
    begin_s=st.just(0),
    up_s=seconds,
    initializing_s=seconds,
    down_s=seconds,
    checks=st.integers(0, 9),
    failures=st.integers(0, 9),
    latency_sum_s=seconds,
    latency_max_s=seconds,
)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 180), any_bar), max_size=40))
def test_an_hour_is_the_sum_of_its_minutes_and_no_bar_is_longer_than_itself(
    tmp_path_factory: pytest.TempPathFactory, told: list[tuple[int, Bucket]]
) -> None:
    path = tmp_path_factory.mktemp("hours") / "history.db"
    with closing(Database(path, LIMITS)) as made:
        seen: set[int] = set()
        for number, (place, bar) in enumerate(told, start=1):
            if place not in seen:  # a clock that runs on
                seen.add(place)
                made.write(minute(number, NOON + 60 * place, db=bar))
        sums: dict[int, list[float]] = defaultdict(lambda: [0.0] * 6)
        for bar in bars(path, MINUTES).values():
            hour = sums[HOURS.begin_s(bar.begin_s)]
            for place in range(6):
                hour[place] += bar[place + 1]
        assert {begin_s: pytest.approx(values) for begin_s, values in sums.items()} == {
            begin_s: list(bar[1:7]) for begin_s, bar in bars(path, HOURS).items()
        }
        for span in RESOLUTIONS:
            assert all(bar.known_s <= span.length_s + 0.01 for bar in bars(path, span).values())


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), any_bar), max_size=40))
def test_no_bar_is_longer_than_itself_however_often_the_clock_is_set_back(
    tmp_path_factory: pytest.TempPathFactory, told: list[tuple[int, Bucket]]
) -> None:
    path = tmp_path_factory.mktemp("back") / "history.db"
    with closing(Database(path, LIMITS)) as made:
        for number, (place, bar) in enumerate(told, start=1):
            made.write(minute(number, NOON + 60 * place, db=bar))
        for span in RESOLUTIONS:
            assert all(bar.known_s <= span.length_s + 0.01 for bar in bars(path, span).values())


# ---- in its place


def log_of(path: Path) -> Path:
    return path.with_name("history.db-wal")


@pytest.mark.parametrize(
    "remove",
    [
        lambda path: path.unlink(),
        lambda path: path.rename(path.with_name("elsewhere")),
        lambda path: path.write_bytes(b""),
        lambda path: log_of(path).unlink(),
    ],
    ids=["removed", "renamed", "emptied", "its log removed"],
)
def test_a_file_that_is_no_longer_there_is_noticed(
    path: Path, database: Database, remove: Callable[[Path], object]
) -> None:
    assert database.is_at_path
    database.write(transitions(1))
    assert database.is_at_path
    remove(path)
    assert not database.is_at_path


def test_a_file_that_has_lost_a_table_is_damaged(path: Path) -> None:
    Database(path, LIMITS).close()
    asked(path, "DROP TABLE minutes")
    with pytest.raises(CorruptionError, match="it has lost its table minutes"):
        Database(path, LIMITS)


def test_a_note_is_found_again_as_it_was_last_written(path: Path) -> None:
    with closing(Database(path, LIMITS)) as made:
        assert made.saved_state is None
        made.write(Batch([], [], 0, "first"))
        made.write(Batch([], [], 0, "second"))
        made.write(transitions(1))
    with closing(Database(path, LIMITS)) as again:
        assert again.saved_state == "second"


def test_a_file_from_before_there_were_notes_is_taken_as_it_is(path: Path) -> None:
    with closing(Database(path, LIMITS)) as made:
        made.write(transitions(1))
    asked(path, "DROP TABLE saved_state")
    with closing(Database(path, LIMITS)) as again:
        again.write(Batch([], [], 0, "first"))
        assert again.last_id == 1
    assert asked(path, "SELECT text FROM saved_state") == "first"
