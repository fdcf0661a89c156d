"""SQLite probes on real files: valid, missing, corrupt and locked; no check changes them."""

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

from svcnode.core.codes import ReasonCode
from svcnode.core.model import Outcome, Verdict
from svcnode.net.url import UrlError
from svcnode.probes import make_probe, sqlite
from svcnode.probes.run import run_check
from svcnode.probes.sqlite import STORE_APPLICATION_ID, SqliteProbe
from tests.support.probe_assertions import no_free_descriptors
from tests.support.verdicts import NO_DESCRIPTORS, READY, UNEXPECTED_RESPONSE, failed, not_ready

UNPRIVILEGED_UID = 65534
WAIT_TIMEOUT_S = 30.0
CORRUPT = failed(ReasonCode.CORRUPT)
MISSING = failed(ReasonCode.FILE_NOT_FOUND)


def check(path: Path) -> Verdict:
    return asyncio.run(SqliteProbe.for_path(path).check())


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.db"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE entries (id INTEGER PRIMARY KEY, text TEXT)")
        database.executemany("INSERT INTO entries (text) VALUES (?)", [("lorem " * 100,)] * 500)
    return path


@pytest.fixture
def _no_wait_for_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "_LOCK_WAIT_S", 0.0)


# ---- verdicts


def test_a_valid_database_is_ready(ledger: Path) -> None:
    assert check(ledger) == READY


def test_a_database_with_another_application_id_is_failed(ledger: Path) -> None:
    probe = SqliteProbe.for_path(ledger, application_id=STORE_APPLICATION_ID)
    assert asyncio.run(probe.check()) == UNEXPECTED_RESPONSE
    with closing(sqlite3.connect(ledger)) as database:
        database.execute(f"PRAGMA application_id = {STORE_APPLICATION_ID}")
    assert asyncio.run(probe.check()) == READY


def test_a_database_in_use_is_ready(ledger: Path) -> None:
    with closing(sqlite3.connect(ledger)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM entries").fetchone()
        assert check(ledger) == READY


def test_a_missing_database_is_failed_and_not_created(tmp_path: Path) -> None:
    assert check(tmp_path / "gone.db") == MISSING
    assert list(tmp_path.iterdir()) == []


def test_a_removed_database_is_not_created_again(ledger: Path) -> None:
    assert check(ledger) == READY
    ledger.unlink()
    assert check(ledger) == MISSING
    assert not ledger.exists()


def test_a_text_file_is_failed(tmp_path: Path) -> None:
    path = tmp_path / "letter.txt"
    path.write_text("lorem ipsum, " * 100)
    assert check(path) == CORRUPT


@pytest.mark.parametrize("left_over", [b"", b"x"])
def test_an_empty_or_tiny_file_is_failed(ledger: Path, left_over: bytes) -> None:
    ledger.write_bytes(left_over)
    assert check(ledger) == CORRUPT


@pytest.mark.parametrize("device", ["/dev/null", "/dev/zero"])
def test_a_device_is_failed(ledger: Path, device: str) -> None:
    ledger.unlink()
    ledger.symlink_to(device)
    assert check(ledger) == CORRUPT


def test_a_check_without_free_descriptors_is_unknown(ledger: Path) -> None:
    probe = SqliteProbe.for_path(ledger)
    with no_free_descriptors():
        assert probe._check_now() == NO_DESCRIPTORS


def test_a_directory_is_failed(tmp_path: Path) -> None:
    assert check(tmp_path) == CORRUPT


def test_a_database_with_a_corrupt_page_is_failed(ledger: Path) -> None:
    content = bytearray(ledger.read_bytes())
    content[4096 * 5 : 4096 * 6] = b"\xff" * 4096
    ledger.write_bytes(content)
    verdict = check(ledger)
    assert verdict == CORRUPT
    assert "quick_check" in verdict.reason


def test_a_truncated_database_is_failed(ledger: Path) -> None:
    ledger.write_bytes(ledger.read_bytes()[: 4096 * 5])
    assert check(ledger) == CORRUPT


def cut(path: Path, cut_bytes: int) -> None:
    os.truncate(path, path.stat().st_size - cut_bytes)


@pytest.mark.parametrize("mode", ["delete", "truncate", "wal"])
@pytest.mark.parametrize("page_bytes", [512, 4096, 65536])
@pytest.mark.parametrize("cut_bytes", [1, 100, 511])
def test_a_database_that_lacks_less_than_a_page_is_failed(
    tmp_path: Path, mode: str, page_bytes: int, cut_bytes: int
) -> None:
    """SQLite reads zeros after the end of the file, so its own check finds no error in free pages."""
    path = with_free_pages_at_the_end(tmp_path / "ledger.db", mode, page_bytes)
    assert check(path) == READY
    cut(path, cut_bytes)
    verdict = check(path)
    assert verdict == CORRUPT
    assert f" {cut_bytes} byte" in verdict.reason


def with_free_pages_at_the_end(path: Path, mode: str, page_bytes: int = 4096) -> Path:
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"PRAGMA page_size = {page_bytes}")
        database.execute(f"PRAGMA journal_mode = {mode}")
        with database:
            database.execute("CREATE TABLE entries (text TEXT)")
            database.executemany("INSERT INTO entries VALUES (?)", [("lorem " * 100,)] * 500)
        with database:
            database.execute("DELETE FROM entries")
    return path


def test_a_database_whose_end_is_in_its_wal_is_ready(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with closing(sqlite3.connect(path)) as writer:
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("PRAGMA wal_autocheckpoint = 0")
        with writer:
            writer.execute("CREATE TABLE entries (text TEXT)")
            writer.executemany("INSERT INTO entries VALUES (?)", [("lorem " * 100,)] * 500)
        assert path.stat().st_size < writer.execute("PRAGMA page_count").fetchone()[0] * 4096
        assert check(path) == READY
        writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        assert check(path) == READY
        cut(path, 1)
        assert check(path) == CORRUPT


@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_a_database_without_tables_is_ready(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "new.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"PRAGMA journal_mode = {mode}")
        database.execute("PRAGMA user_version = 1")
    assert check(path) == READY


def test_a_database_with_extra_bytes_at_the_end_is_ready(ledger: Path) -> None:
    with ledger.open("ab") as file:
        file.write(b"more")
    assert check(ledger) == READY


def test_a_database_that_is_replaced_during_the_check_is_not_compared_with_the_old_size(
    ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    smaller = ledger.with_name("smaller.db")
    with closing(sqlite3.connect(smaller)) as database:
        database.execute("CREATE TABLE t (x)")

    def replace_and_read(database: sqlite3.Connection, pragma: str) -> object:
        if pragma == "quick_check(1)":
            smaller.replace(ledger)
        return read_pragma(database, pragma)

    read_pragma = sqlite._read_pragma
    monkeypatch.setattr(sqlite, "_read_pragma", replace_and_read)
    assert check(ledger) == READY


@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_a_database_that_grows_and_shrinks_during_checks_is_never_failed(tmp_path: Path, mode: str) -> None:
    path, is_done = with_free_pages_at_the_end(tmp_path / "ledger.db", mode, 65536), threading.Event()

    def write() -> None:
        with closing(sqlite3.connect(path, timeout=30, isolation_level=None)) as database:
            database.execute("PRAGMA synchronous = OFF")
            database.execute("PRAGMA wal_autocheckpoint = 20")
            while not is_done.is_set():
                database.execute("INSERT INTO entries VALUES (zeroblob(3000000))")
                database.execute("DELETE FROM entries")
                database.execute("VACUUM")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        verdicts = [check(path) for _ in range(100)]
    finally:
        is_done.set()
        writer.join()
    assert [verdict for verdict in verdicts if verdict.outcome is Outcome.FAILED] == []
    assert READY in verdicts


def test_a_check_keeps_the_locks_of_this_process(ledger: Path) -> None:
    """Closing any descriptor of a file releases all POSIX locks of the process on it."""
    script = f"import sqlite3; sqlite3.connect({str(ledger)!r}, timeout=0).execute('BEGIN IMMEDIATE')"
    with closing(sqlite3.connect(ledger)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        assert check(ledger) == READY
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert "database is locked" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change its user")
def test_a_database_without_read_permission_is_failed() -> None:
    with TemporaryDirectory() as name:
        path = with_free_pages_at_the_end(Path(name) / "ledger.db", "delete")
        path.chmod(0o000)
        path.parent.chmod(0o755)
        probe = SqliteProbe.for_path(path)
        os.seteuid(UNPRIVILEGED_UID)
        try:
            verdict = probe._check_now()
        finally:
            os.seteuid(0)
    assert verdict == failed(ReasonCode.FILE_NOT_READABLE)


@pytest.mark.usefixtures("_no_wait_for_locks")
def test_a_locked_database_is_not_ready(ledger: Path) -> None:
    with closing(sqlite3.connect(ledger)) as writer:
        writer.execute("BEGIN EXCLUSIVE")
        assert check(ledger) == not_ready(ReasonCode.LOCKED)
        writer.rollback()
    assert check(ledger) == READY


def test_a_check_changes_nothing(ledger: Path) -> None:
    before = (ledger.read_bytes(), ledger.stat().st_mtime_ns)
    check(ledger)
    assert (ledger.read_bytes(), ledger.stat().st_mtime_ns) == before
    assert list(ledger.parent.iterdir()) == [ledger]


def test_a_second_check_does_not_start_while_the_first_runs(ledger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started, may_return = threading.Event(), threading.Event()

    def hangs(*args: object, **kwargs: object) -> None:
        started.set()
        assert may_return.wait(WAIT_TIMEOUT_S)
        raise sqlite3.OperationalError("disk I/O error")

    async def scenario() -> None:
        probe = SqliteProbe.for_path(ledger)
        with monkeypatch.context() as patch:
            patch.setattr(sqlite3, "connect", hangs)
            first = asyncio.create_task(probe.check())
            assert await asyncio.to_thread(started.wait, WAIT_TIMEOUT_S)
            assert await probe.check() == failed(ReasonCode.STILL_RUNNING)
            may_return.set()
            assert await first == failed(ReasonCode.OTHER)
        assert await probe.check() == READY

    asyncio.run(scenario())


@pytest.mark.parametrize("name", ["a b.db", "50%.db", "what?mode=ro.db", "#1.db", "é.db", "a&b=c.db"])
def test_a_file_may_have_any_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE t (x)")
    assert check(path) == READY


def test_a_relative_path_starts_in_the_working_directory(ledger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ledger.parent)
    assert check(Path("ledger.db")) == READY


# ---- configuration


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:/var/lib/ledger.db", "/var/lib/ledger.db"),
        ("sqlite:///var/lib/ledger.db", "/var/lib/ledger.db"),
        ("sqlite:ledger.db", "ledger.db"),
        ("sqlite:/var/lib/my%20ledger.db", "/var/lib/my ledger.db"),
    ],
)
def test_a_url_has_the_path_of_a_file(url: str, path: str) -> None:
    probe = make_probe(url)
    assert isinstance(probe, SqliteProbe)
    assert probe.path == Path(path)


@pytest.mark.parametrize("url", ["sqlite:", "sqlite://"])
def test_a_url_without_a_path_is_rejected(url: str) -> None:
    with pytest.raises(UrlError) as caught:
        make_probe(url)
    assert caught.value.part == "path"


@pytest.mark.parametrize("url", ["sqlite:/var/lib/ledger.db?mode=ro", "sqlite:///var/lib/ledger.db?mode=ro"])
def test_a_query_is_rejected(url: str) -> None:
    with pytest.raises(UrlError) as caught:
        make_probe(url)
    assert caught.value.part == "query"


def test_the_application_id_is_an_option(ledger: Path) -> None:
    with closing(sqlite3.connect(ledger)) as database:
        database.execute("PRAGMA application_id = 7")
    assert asyncio.run(make_probe({"url": f"sqlite:{ledger}", "application_id": 7}).check()) == READY
    another = make_probe({"url": f"sqlite:{ledger}", "application_id": 8})
    assert asyncio.run(another.check()) == UNEXPECTED_RESPONSE


def test_a_check_without_a_thread_is_unknown(ledger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot_start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def scenario() -> None:
        probe = SqliteProbe.for_path(ledger)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", cannot_start)
            verdict, _ = await run_check(probe, WAIT_TIMEOUT_S)
        assert verdict == NO_DESCRIPTORS
        assert await probe.check() == READY

    asyncio.run(scenario())
