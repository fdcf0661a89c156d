"""Real SQLite files: sound, missing, broken and locked, and none of them changed by looking."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from svcnode.core.errors import ProbeError
from svcnode.core.model import Outcome, Verdict
from svcnode.probes import make_probe, sqlite
from svcnode.probes.run import run_check
from svcnode.probes.sqlite import STORE_APPLICATION_ID, SqliteProbe
from tests.support.probe_assertions import no_free_descriptors
from tests.support.verdicts import NO_DESCRIPTORS

NOBODY = 65534


def look_at(path: Path) -> Verdict:
    return asyncio.run(SqliteProbe.for_path(path).check())


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
    whose = SqliteProbe.for_path(ledger, application_id=STORE_APPLICATION_ID)
    assert asyncio.run(whose.check()) == Verdict.failed(f"the database of another program: {ledger}")
    with closing(sqlite3.connect(ledger)) as database:
        database.execute(f"PRAGMA application_id = {STORE_APPLICATION_ID}")
    assert asyncio.run(whose.check()) == Verdict.ready()


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
    probe = SqliteProbe.for_path(ledger)
    with no_free_descriptors():
        assert probe._check_now() == NO_DESCRIPTORS


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


def cut(path: Path, cut_bytes: int) -> None:
    os.truncate(path, path.stat().st_size - cut_bytes)


@pytest.mark.parametrize("mode", ["delete", "truncate", "wal"])
@pytest.mark.parametrize("page_bytes", [512, 4096, 65536])
@pytest.mark.parametrize("cut_bytes", [1, 100, 511])
def test_a_database_that_lost_less_than_a_page_is_failed(
    tmp_path: Path, mode: str, page_bytes: int, cut_bytes: int
) -> None:
    """SQLite reads zeros where the file has ended, and where those were before it finds nothing wrong."""
    path = with_free_pages_at_its_end(tmp_path / "ledger.db", mode, page_bytes)
    assert look_at(path) == Verdict.ready()
    cut(path, cut_bytes)
    assert look_at(path) == Verdict.failed(f"its end is missing, {cut_bytes} bytes of it: {path}")


def with_free_pages_at_its_end(path: Path, mode: str, page_bytes: int = 4096) -> Path:
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"PRAGMA page_size = {page_bytes}")
        database.execute(f"PRAGMA journal_mode = {mode}")
        with database:
            database.execute("CREATE TABLE entries (words TEXT)")
            database.executemany("INSERT INTO entries VALUES (?)", [("lorem " * 100,)] * 500)
        with database:
            database.execute("DELETE FROM entries")
    return path


def test_a_database_whose_end_still_stands_in_its_wal_is_ready(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with closing(sqlite3.connect(path)) as writer:
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("PRAGMA wal_autocheckpoint = 0")
        with writer:
            writer.execute("CREATE TABLE entries (words TEXT)")
            writer.executemany("INSERT INTO entries VALUES (?)", [("lorem " * 100,)] * 500)
        assert path.stat().st_size < writer.execute("PRAGMA page_count").fetchone()[0] * 4096
        assert look_at(path) == Verdict.ready()
        writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        assert look_at(path) == Verdict.ready()
        cut(path, 1)
        assert look_at(path).outcome is Outcome.FAILED


@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_a_database_without_tables_is_ready(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "new.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"PRAGMA journal_mode = {mode}")
        database.execute("PRAGMA user_version = 1")
    assert look_at(path) == Verdict.ready()


def test_a_database_with_bytes_behind_its_end_is_ready(ledger: Path) -> None:
    with ledger.open("ab") as file:
        file.write(b"more")
    assert look_at(ledger) == Verdict.ready()


def test_a_database_that_is_put_in_the_place_of_another_is_not_held_against_its_size(
    ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    smaller = ledger.with_name("smaller.db")
    with closing(sqlite3.connect(smaller)) as database:
        database.execute("CREATE TABLE t (x)")

    def replaced(database: sqlite3.Connection, pragma: str) -> object:
        if pragma == "quick_check(1)":
            smaller.replace(ledger)
        return told(database, pragma)

    told = sqlite._read_pragma
    monkeypatch.setattr(sqlite, "_read_pragma", replaced)
    assert look_at(ledger) == Verdict.ready()


@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_a_database_that_grows_and_shrinks_meanwhile_is_never_failed(tmp_path: Path, mode: str) -> None:
    path, is_over = with_free_pages_at_its_end(tmp_path / "ledger.db", mode, 65536), threading.Event()

    def write() -> None:
        with closing(sqlite3.connect(path, timeout=30, isolation_level=None)) as database:
            database.execute("PRAGMA synchronous = OFF")
            database.execute("PRAGMA wal_autocheckpoint = 20")
            while not is_over.is_set():
                database.execute("INSERT INTO entries VALUES (zeroblob(3000000))")
                database.execute("DELETE FROM entries")
                database.execute("VACUUM")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        seen = [look_at(path) for _ in range(100)]
    finally:
        is_over.set()
        writer.join()
    assert [verdict for verdict in seen if verdict.outcome is Outcome.FAILED] == []
    assert Verdict.ready() in seen


def test_looking_leaves_the_locks_alone_that_this_process_has(ledger: Path) -> None:
    """Whoever opens a file and closes it again ends them, and another program would write at the same time."""
    another = f"import sqlite3; sqlite3.connect({str(ledger)!r}, timeout=0).execute('BEGIN IMMEDIATE')"
    with closing(sqlite3.connect(ledger)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        assert look_at(ledger) == Verdict.ready()
        tried = subprocess.run([sys.executable, "-c", another], capture_output=True, text=True, check=False)
        assert "database is locked" in tried.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_database_that_is_not_for_whom_we_run_as_is_failed() -> None:
    with TemporaryDirectory() as name:
        path = with_free_pages_at_its_end(Path(name) / "ledger.db", "delete")
        path.chmod(0o000)
        path.parent.chmod(0o755)
        probe = SqliteProbe.for_path(path)
        os.seteuid(NOBODY)
        try:
            verdict = probe._check_now()
        finally:
            os.seteuid(0)
    assert verdict == Verdict.failed(f"permission denied: {path}")


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
        probe = SqliteProbe.for_path(ledger)
        with monkeypatch.context() as patch:
            patch.setattr(sqlite3, "connect", hangs)
            first = asyncio.create_task(probe.check())
            assert await asyncio.to_thread(begun.wait, 10.0)
            assert await probe.check() == Verdict.failed("the previous look has not returned yet")
            may_return.set()
            assert await first == Verdict.failed(f"the disk came back: {ledger}")
        assert await probe.check() == Verdict.ready()

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
    assert asyncio.run(make_probe({"url": f"sqlite:{ledger}", "application_id": 7}).check()) == Verdict.ready()
    another = make_probe({"url": f"sqlite:{ledger}", "application_id": 8})
    assert asyncio.run(another.check()) == Verdict.failed(f"the database of another program: {ledger}")


def test_running_out_of_threads_is_our_own_fault(ledger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot_start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def story() -> None:
        probe = SqliteProbe.for_path(ledger)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", cannot_start)
            verdict, _ = await run_check(probe, 5.0)
        assert verdict.outcome is Outcome.UNKNOWN
        assert await probe.check() == Verdict.ready()

    asyncio.run(story())
