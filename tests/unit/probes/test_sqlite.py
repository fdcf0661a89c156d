"""Real SQLite files: sound, missing, broken and locked, and none of them changed by looking."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

from svcnode.core.errors import ProbeError
from svcnode.core.model import Outcome, Verdict
from svcnode.look import look_once
from svcnode.probes import make_probe, sqlite
from svcnode.probes.sqlite import STORE_APPLICATION_ID, SqliteProbe
from tests.support.looks import OUT_OF_FILES, no_files_left


def look_at(path: Path) -> Verdict:
    return asyncio.run(SqliteProbe.at(path).look())


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """A database with something in it."""
    path = tmp_path / "ledger.db"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE entries (id INTEGER PRIMARY KEY, words TEXT)")
        database.executemany("INSERT INTO entries (words) VALUES (?)", [("lorem " * 100,)] * 500)
    return path


@pytest.fixture
def _no_wait_for_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "_LOCK_WAIT_S", 0.0)


# ---- what it sees


def test_a_sound_database_is_ready(ledger: Path) -> None:
    assert look_at(ledger) == Verdict.ready()


def test_a_database_of_another_program_is_failed_where_that_matters(ledger: Path) -> None:
    whose = SqliteProbe.at(ledger, application_id=STORE_APPLICATION_ID)
    assert asyncio.run(whose.look()) == Verdict.failed(f"the database of another program: {ledger}")
    with closing(sqlite3.connect(ledger)) as database:
        database.execute(f"PRAGMA application_id = {STORE_APPLICATION_ID}")
    assert asyncio.run(whose.look()) == Verdict.ready()


def test_a_database_in_use_is_ready(ledger: Path) -> None:
    with closing(sqlite3.connect(ledger)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM entries").fetchone()
        assert look_at(ledger) == Verdict.ready()


def test_a_missing_database_is_failed_and_is_not_created_by_looking(tmp_path: Path) -> None:
    assert look_at(tmp_path / "gone.db") == Verdict.failed(f"no such file or directory: {tmp_path}/gone.db")
    assert list(tmp_path.iterdir()) == []


def test_a_database_that_went_missing_does_not_come_back_empty(ledger: Path) -> None:
    assert look_at(ledger).outcome is Outcome.READY
    ledger.unlink()
    assert look_at(ledger).outcome is Outcome.FAILED
    assert not ledger.exists()


def test_a_file_that_is_no_database_is_failed(tmp_path: Path) -> None:
    path = tmp_path / "letter.txt"
    path.write_text("Dear Sir or Madam, " * 100)
    assert look_at(path) == Verdict.failed(f"not a SQLite database: {path}")


@pytest.mark.parametrize("left_over", [b"", b"x"])
def test_what_a_failed_restore_leaves_is_failed(ledger: Path, left_over: bytes) -> None:
    ledger.write_bytes(left_over)
    assert look_at(ledger) == Verdict.failed(f"not a SQLite database: {ledger}")


@pytest.mark.parametrize("device", ["/dev/null", "/dev/zero"])
def test_a_device_is_failed(ledger: Path, device: str) -> None:
    ledger.unlink()
    ledger.symlink_to(device)
    assert look_at(ledger) == Verdict.failed(f"not a SQLite database: {ledger}")


def test_running_out_of_open_files_is_our_own_fault(ledger: Path) -> None:
    probe = SqliteProbe.at(ledger)
    with no_files_left():
        assert probe._look_now() == OUT_OF_FILES


def test_a_directory_is_failed(tmp_path: Path) -> None:
    assert look_at(tmp_path).outcome is Outcome.FAILED


def test_a_database_with_a_broken_page_is_failed(ledger: Path) -> None:
    whole = bytearray(ledger.read_bytes())
    whole[4096 * 5 : 4096 * 6] = b"\xff" * 4096
    ledger.write_bytes(whole)
    verdict = look_at(ledger)
    assert verdict.outcome is Outcome.FAILED
    assert verdict.reason.startswith("quick_check: ")


def test_a_database_that_was_cut_short_is_failed(ledger: Path) -> None:
    ledger.write_bytes(ledger.read_bytes()[: 4096 * 5])
    assert look_at(ledger) == Verdict.failed(f"database disk image is malformed: {ledger}")


@pytest.mark.usefixtures("_no_wait_for_locks")
def test_a_locked_database_is_not_ready(ledger: Path) -> None:
    with closing(sqlite3.connect(ledger)) as writer:
        writer.execute("BEGIN EXCLUSIVE")
        assert look_at(ledger) == Verdict.not_ready(f"the database is locked: {ledger}")
        writer.rollback()
    assert look_at(ledger) == Verdict.ready()


def test_looking_changes_nothing(ledger: Path) -> None:
    before = (ledger.read_bytes(), ledger.stat().st_mtime_ns)
    look_at(ledger)
    assert (ledger.read_bytes(), ledger.stat().st_mtime_ns) == before
    assert list(ledger.parent.iterdir()) == [ledger]


def test_a_look_that_has_not_returned_is_not_begun_again_beside_itself(
    ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_return = threading.Event(), threading.Event()

    def hangs(*args: object, **kwargs: object) -> None:
        begun.set()
        assert may_return.wait(10.0)
        raise sqlite3.OperationalError("the disk came back")

    async def story() -> None:
        probe = SqliteProbe.at(ledger)
        with monkeypatch.context() as patch:
            patch.setattr(sqlite3, "connect", hangs)
            first = asyncio.create_task(probe.look())
            assert await asyncio.to_thread(begun.wait, 10.0)
            assert await probe.look() == Verdict.failed("the previous look has not returned yet")
            may_return.set()
            assert await first == Verdict.failed(f"the disk came back: {ledger}")
        assert await probe.look() == Verdict.ready()

    asyncio.run(story())


@pytest.mark.parametrize("name", ["a b.db", "50%.db", "what?mode=ro.db", "#1.db", "é.db", "a&b=c.db"])
def test_a_file_may_have_any_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE t (x)")
    assert look_at(path) == Verdict.ready()


def test_a_relative_path_is_taken_from_where_the_program_runs(ledger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ledger.parent)
    assert look_at(Path("ledger.db")) == Verdict.ready()


# ---- how it is named


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:/var/lib/ledger.db", "/var/lib/ledger.db"),
        ("sqlite:///var/lib/ledger.db", "/var/lib/ledger.db"),
        ("sqlite:ledger.db", "ledger.db"),
        ("sqlite:/var/lib/my%20ledger.db", "/var/lib/my ledger.db"),
    ],
)
def test_a_url_names_a_file(url: str, path: str) -> None:
    probe = make_probe(url)
    assert isinstance(probe, SqliteProbe)
    assert probe.path == Path(path)


@pytest.mark.parametrize("url", ["sqlite:", "sqlite://"])
def test_a_url_that_names_no_file_is_refused_with_one_that_does(url: str) -> None:
    with pytest.raises(ProbeError, match=r'names a file, such as "sqlite:/var/lib/app/ledger.db"'):
        make_probe(url)


@pytest.mark.parametrize("url", ["sqlite:/var/lib/ledger.db?mode=ro", "sqlite:///var/lib/ledger.db?mode=ro"])
def test_a_query_is_refused_rather_than_passed_over_or_taken_for_a_part_of_the_name(url: str) -> None:
    with pytest.raises(ProbeError, match="takes no query; write the path alone, and %3F for a"):
        make_probe(url)


def test_whose_database_it_must_be_is_an_option(ledger: Path) -> None:
    with closing(sqlite3.connect(ledger)) as database:
        database.execute("PRAGMA application_id = 7")
    assert asyncio.run(make_probe({"url": f"sqlite:{ledger}", "application_id": 7}).look()) == Verdict.ready()
    another = make_probe({"url": f"sqlite:{ledger}", "application_id": 8})
    assert asyncio.run(another.look()) == Verdict.failed(f"the database of another program: {ledger}")


def test_running_out_of_threads_is_our_own_fault(ledger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot_start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def story() -> None:
        probe = SqliteProbe.at(ledger)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", cannot_start)
            verdict, _ = await look_once(probe, 5.0)
        assert verdict.outcome is Outcome.UNKNOWN
        assert await probe.look() == Verdict.ready()

    asyncio.run(story())
