"""SQLite probes on real files: valid, missing, corrupt, locked and replaced; no check changes or disturbs them."""

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
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from svcnode.core.codes import ReasonCode
from svcnode.core.model import Outcome, Verdict
from svcnode.probes import make_probe, sqlite
from svcnode.probes.run import run_check
from svcnode.probes.sqlite import STORE_APPLICATION_ID, SqliteProbe
from tests.support.probe_assertions import TIMEOUTS_S
from tests.support.servers.base import wait_until
from tests.support.verdicts import READY, UNEXPECTED_RESPONSE, failed, not_ready

if TYPE_CHECKING:
    from collections.abc import Callable

UNPRIVILEGED_UID = 65534
WAIT_TIMEOUT_S = 60.0
CORRUPT = failed(ReasonCode.CORRUPT)
MISSING = failed(ReasonCode.FILE_NOT_FOUND)


def check(path: Path, **options: object) -> Verdict:
    return asyncio.run(probe_of(path, **options).check())


def probe_of(path: Path, **options: object) -> SqliteProbe:
    probe = make_probe({"url": f"sqlite:{quote(str(path))}", **options})
    assert isinstance(probe, SqliteProbe)
    return probe


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.db"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE entries (id INTEGER PRIMARY KEY, text TEXT)")
        database.executemany("INSERT INTO entries (text) VALUES (?)", [("lorem " * 100,)] * 500)
    return path


def test_a_database_with_another_application_id_is_failed(ledger: Path) -> None:
    probe = SqliteProbe.for_path(ledger, application_id=STORE_APPLICATION_ID)
    assert asyncio.run(probe.check()) == UNEXPECTED_RESPONSE
    with closing(sqlite3.connect(ledger)) as database:
        database.execute(f"PRAGMA application_id = {STORE_APPLICATION_ID}")
    assert asyncio.run(probe.check()) == READY


@pytest.mark.parametrize("left_over", [b"", b"x"])
def test_an_empty_or_tiny_file_is_failed(ledger: Path, left_over: bytes) -> None:
    ledger.write_bytes(left_over)
    assert check(ledger) == CORRUPT


@pytest.mark.parametrize("page", [0, 1])
def test_a_database_with_a_corrupt_schema_or_table_is_failed(ledger: Path, page: int) -> None:
    corrupt_page(ledger, page)
    assert check(ledger) == CORRUPT


def corrupt_page(path: Path, page: int) -> None:
    """In place, as a disk does it."""
    with path.open("r+b") as file:
        file.seek(4096 * page + (100 if page == 0 else 0))
        file.write(b"\xff" * 3996)


def cut(path: Path, cut_bytes: int) -> None:
    os.truncate(path, path.stat().st_size - cut_bytes)


@pytest.mark.parametrize(("mode", "page_bytes"), [("delete", 512), ("delete", 65536), ("wal", 4096)])
@pytest.mark.parametrize("cut_bytes", [1, 511])
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


def test_a_database_that_is_replaced_during_the_check_is_not_compared_with_the_old_size(
    ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    smaller = ledger.with_name("smaller.db")
    with closing(sqlite3.connect(smaller)) as database:
        database.execute("CREATE TABLE t (x)")

    def replace_and_read(database: sqlite3.Connection, pragma: str) -> object:
        if pragma == "application_id" and smaller.exists():
            smaller.replace(ledger)
        return read_pragma(database, pragma)

    read_pragma = sqlite._read_pragma
    monkeypatch.setattr(sqlite, "_read_pragma", replace_and_read)
    assert check(ledger) == READY


def test_a_check_keeps_the_locks_of_this_process(ledger: Path) -> None:
    """Closing any descriptor of a file releases all POSIX locks of the process on it."""
    script = f"import sqlite3; sqlite3.connect({str(ledger)!r}, timeout=0).execute('BEGIN IMMEDIATE')"
    with closing(sqlite3.connect(ledger)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        check(ledger, lock_wait="0s", thorough="1h")
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert "database is locked" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change its user")
def test_a_database_without_read_permission_is_failed() -> None:
    with TemporaryDirectory() as name:
        path = with_free_pages_at_the_end(Path(name) / "ledger.db", "delete")
        path.chmod(0o000)
        path.parent.chmod(0o755)
        assert as_nobody(SqliteProbe.for_path(path)._check_now) == failed(ReasonCode.FILE_NOT_READABLE)


def as_nobody(function: Callable[[], Verdict]) -> Verdict:
    os.seteuid(UNPRIVILEGED_UID)
    try:
        return function()
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("mode", ["delete", "wal"])
@pytest.mark.parametrize("options", [{}, {"thorough": "1h"}])
def test_a_check_changes_nothing(ledger: Path, mode: str, options: dict[str, str]) -> None:
    """Also no -wal and -shm files: those of another user would keep the application out."""
    execute(ledger, f"PRAGMA journal_mode = {mode}")
    before = (ledger.read_bytes(), ledger.stat().st_mtime_ns, ledger.parent.stat().st_mtime_ns)
    assert check(ledger, **options) == READY
    assert (ledger.read_bytes(), ledger.stat().st_mtime_ns, ledger.parent.stat().st_mtime_ns) == before
    assert list(ledger.parent.iterdir()) == [ledger]


def execute(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        for statement in statements:
            database.execute(statement)


class OtherProcess:
    """Executes statements and keeps its connection open; `with` waits until they are executed."""

    def __init__(self, path: Path, *statements: str) -> None:
        script = (
            "import sqlite3, sys\ndatabase = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
            "for statement in sys.argv[2:]: database.execute(statement)\nprint(flush=True)\nsys.stdin.read()"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-c", script, str(path), *statements], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def __enter__(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"\n"

    def __exit__(self, *_: object) -> None:
        self._process.communicate()


@pytest.mark.parametrize(("transaction", "mode"), [("BEGIN EXCLUSIVE", "delete"), ("BEGIN IMMEDIATE", "wal")])
def test_a_held_write_lock_is_not_ready(ledger: Path, mode: str, transaction: str) -> None:
    execute(ledger, f"PRAGMA journal_mode = {mode}")
    with closing(sqlite3.connect(ledger, isolation_level=None)) as writer:
        writer.execute(transaction)
        assert check(ledger, lock_wait="0s") == not_ready(ReasonCode.LOCKED)


@pytest.mark.parametrize("mode", ["delete", "wal"])
@pytest.mark.parametrize(
    "statements",
    [["ROLLBACK"], ["INSERT INTO entries (text) VALUES ('more')", "COMMIT", "BEGIN IMMEDIATE"]],
    ids=["released", "one transaction after another"],
)
def test_a_write_lock_that_no_transaction_holds_for_the_whole_lock_wait_is_ready(
    ledger: Path, monkeypatch: pytest.MonkeyPatch, mode: str, statements: list[str]
) -> None:
    with closing(sqlite3.connect(ledger, isolation_level=None, check_same_thread=False)) as writer:

        def end_transaction() -> None:
            for statement in statements if writer.in_transaction else []:
                writer.execute(statement)

        writer.execute(f"PRAGMA journal_mode = {mode}")
        writer.execute("BEGIN IMMEDIATE")
        after_each_query(monkeypatch, end_transaction)
        assert check(ledger, lock_wait="30s") == READY


def after_each_query(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    check_now = SqliteProbe._check_now

    def check_and_act(probe: SqliteProbe) -> Verdict:
        verdict = check_now(probe)
        act()
        return verdict

    monkeypatch.setattr(SqliteProbe, "_check_now", check_and_act)


@pytest.mark.parametrize("mode", ["delete", "wal"])
@pytest.mark.parametrize("writes", [False, True])
def test_a_write_lock_that_is_held_until_the_deadline_is_not_ready(
    ledger: Path, mode: str, writes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute(ledger, f"PRAGMA journal_mode = {mode}", CREATE_TABLE)
    if writes:
        monkeypatch.setattr(SqliteProbe, "_check_now", lambda _: READY)  # the lock is taken after the read
    with OtherProcess(ledger, "BEGIN IMMEDIATE"):
        for timeout_s in TIMEOUTS_S:  # on a busy machine, the first ones are too short to find the lock
            probe = probe_of(ledger, lock_wait="30s", write=writes)  # the thread of the last one may still run
            verdict, _ = asyncio.run(run_check(probe, timeout_s))
            if verdict.outcome is not Outcome.FAILED:
                break
        assert verdict == not_ready(ReasonCode.LOCKED)
    wait_until(lambda: asyncio.run(probe.check()) == READY, "ready")


def test_a_corrupt_page_is_found_by_the_thorough_check_only_and_failed_until_the_next_one(ledger: Path) -> None:
    content = ledger.read_bytes()
    corrupt_page(ledger, 5)
    assert check(ledger) == READY
    probe = probe_of(ledger, thorough="1h")
    assert asyncio.run(probe.check()) == CORRUPT
    ledger.write_bytes(content)
    assert asyncio.run(probe.check()) == CORRUPT
    probe._memory.thorough_due_s = 0.0
    assert asyncio.run(probe.check()) == READY


def test_a_thorough_check_may_take_longer_than_a_check(ledger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may_return, started = threading.Event(), list[None]()

    def quick_check(*_: object) -> set[str]:
        started.append(None)
        assert may_return.wait(WAIT_TIMEOUT_S)
        return {"Tree 2 page 5: btreeInitPage() returns error code 11"}

    monkeypatch.setattr(SqliteProbe, "_quick_check", quick_check)
    probe = probe_of(ledger, thorough="1h")
    assert asyncio.run(probe.check()) == READY
    assert asyncio.run(probe.check()) == READY
    assert len(started) == 1
    may_return.set()
    wait_until(lambda: asyncio.run(probe.check()) == CORRUPT, "failed")


def test_errors_that_are_not_in_every_pass_are_not_errors(ledger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pages of a healthy database change while they are read."""
    passes = [{"page 1", "page 2"}, {"page 2", "page 3"}, {"page 4"}]
    modes: list[str] = []

    def quick_check(_: SqliteProbe, mode: str) -> set[str]:
        modes.append(mode)
        return passes[len(modes) - 1]

    monkeypatch.setattr(SqliteProbe, "_quick_check", quick_check)
    assert check(ledger, thorough="1h") == READY
    assert modes == ["immutable=1"] * 3  # none with a lock


def test_closing_a_probe_ends_its_thorough_check(ledger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted = threading.Event()

    class Connection:
        def interrupt(self) -> None:
            interrupted.set()

    probe = probe_of(ledger, thorough="1h")
    probe.close()
    monkeypatch.setattr(probe._memory, "thorough_connection", Connection())
    probe.close()
    assert interrupted.is_set()


def small_database(path: Path, *statements: str) -> Path:
    execute(path, "CREATE TABLE other (x)", *statements)
    return path


def replace_by_rename(path: Path) -> None:
    small_database(path.with_name("new.db")).replace(path)


def replace_in_place(path: Path) -> None:
    content = small_database(path.with_name("new.db")).read_bytes()
    path.write_bytes(content)


@pytest.mark.parametrize("replace", [replace_by_rename, replace_in_place])
def test_a_replaced_database_is_not_ready_once(ledger: Path, replace: Callable[[Path], None]) -> None:
    execute(ledger, *["INSERT INTO entries (text) VALUES ('more')"] * 3)
    probe = probe_of(ledger)
    assert asyncio.run(probe.check()) == READY
    replace(ledger)
    assert asyncio.run(probe.check()) == not_ready(ReasonCode.REPLACED)
    assert asyncio.run(probe.check()) == READY


def test_a_database_that_comes_back_is_ready(ledger: Path) -> None:
    probe = probe_of(ledger)
    assert asyncio.run(probe.check()) == READY
    ledger.rename(ledger.with_name("old.db"))
    assert asyncio.run(probe.check()) == MISSING
    ledger.with_name("old.db").rename(ledger)
    assert asyncio.run(probe.check()) == READY


@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_the_work_of_an_application_is_not_a_replacement(ledger: Path, mode: str) -> None:
    probe = probe_of(ledger)
    with closing(sqlite3.connect(ledger, isolation_level=None)) as database:
        for statement in (
            f"PRAGMA journal_mode = {mode}",
            "CREATE TABLE more (x)",
            "DELETE FROM entries",
            "VACUUM",
            "PRAGMA application_id = 7",
            "DROP TABLE more",
            "PRAGMA wal_checkpoint(TRUNCATE)",
            "PRAGMA journal_mode = delete",
            "VACUUM",
        ):
            database.execute(statement)
            assert asyncio.run(probe.check()) == READY, statement


CREATE_TABLE = 'CREATE TABLE "svcnode_write" (slot INTEGER PRIMARY KEY, written_at TEXT NOT NULL)'


@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_a_write_is_committed_to_its_table(ledger: Path, mode: str) -> None:
    execute(ledger, f"PRAGMA journal_mode = {mode}", CREATE_TABLE)
    probe = probe_of(ledger, write=True)
    for _ in range(3):
        assert asyncio.run(probe.check()) == READY
    with closing(sqlite3.connect(ledger)) as database:
        assert database.execute("SELECT slot FROM svcnode_write").fetchall() == [(1,)]


def test_without_its_table_a_write_is_failed_and_the_reason_has_the_statement(ledger: Path) -> None:
    probe = probe_of(ledger, write='my "own" table')
    verdict = asyncio.run(probe.check())
    assert verdict == failed(ReasonCode.NOT_FOUND)
    execute(ledger, verdict.reason.partition("create it: ")[2].rpartition(":")[0])
    assert asyncio.run(probe.check()) == READY
    verdict = check(ledger, write="entries")
    assert verdict == failed(ReasonCode.WRITE_FAILED), "a table with other columns"
    assert CREATE_TABLE.replace("svcnode_write", "entries") in verdict.reason


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change its user")
@pytest.mark.parametrize(
    ("file_mode", "folder_mode", "named"), [(0o644, 0o777, "the file"), (0o666, 0o755, "the directory")]
)
def test_a_write_without_permission_is_failed(file_mode: int, folder_mode: int, named: str) -> None:
    with TemporaryDirectory() as name:
        path = small_database(Path(name) / "ledger.db", CREATE_TABLE)
        path.chmod(file_mode)
        path.parent.chmod(folder_mode)
        verdict = as_nobody(probe_of(path, write=True)._write_now)
    assert verdict == failed(ReasonCode.PERMISSION_DENIED)
    assert named in verdict.reason


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


# ---- queries


def set_journal_mode(path: Path, mode: str) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"PRAGMA journal_mode = {mode}")


CONDITIONS_QUERY = """\
SELECT datetime('now', '-30 seconds') AS newest, strftime('%s') AS now_s, count(*) AS waiting, 0.1 AS share,
       NULL AS unset, 9223372036854775807 AS height, x'6f6b' AS raw FROM entries"""


@pytest.mark.parametrize("mode", ["delete", "wal"])
@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        (["waiting == 500", "share == 0.1", "height == 9223372036854775807", 'raw == "ok"', "unset == null"], READY),
        (["age of value <= 10m", "age of newest > 20s", "age of now_s <= 5m"], READY),
        (["age of newest <= 10s"], failed(ReasonCode.LAGGING)),
        (["waiting advances within 1m"], not_ready(ReasonCode.STARTING)),
        (["waiting < 500"], UNEXPECTED_RESPONSE),
        (["wating < 500"], UNEXPECTED_RESPONSE),
    ],
)
def test_conditions_judge_the_first_row(ledger: Path, mode: str, conditions: list[str], expected: Verdict) -> None:
    set_journal_mode(ledger, mode)
    assert check(ledger, query=CONDITIONS_QUERY, require=conditions) == expected
    assert sorted(path.name for path in ledger.parent.iterdir() if path.stat().st_size) == ["ledger.db"]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT count(*) = 500 FROM entries", READY),
        ("SELECT 2", UNEXPECTED_RESPONSE),
        ("SELECT '1'", UNEXPECTED_RESPONSE),
        ("SELECT 1 WHERE 0", UNEXPECTED_RESPONSE),
        ("", READY),
        ("SELEC 1", failed(ReasonCode.BAD_REQUEST)),
        ("SELECT 1 FROM gone", failed(ReasonCode.BAD_REQUEST)),
        ("SELECT 1; SELECT 1", failed(ReasonCode.BAD_REQUEST)),
        ("DELETE FROM entries", failed(ReasonCode.BAD_REQUEST)),
        ("PRAGMA user_version = 5", failed(ReasonCode.BAD_REQUEST)),
        ("ATTACH 'other.db' AS other", failed(ReasonCode.BAD_REQUEST)),
        ("VACUUM INTO 'copy.db'", failed(ReasonCode.BAD_REQUEST)),
    ],
)
def test_a_query_must_return_1_and_can_only_read(
    ledger: Path, query: str, expected: Verdict, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ledger.parent)
    before = ledger.read_bytes()
    assert check(ledger, query=query) == expected
    assert ledger.read_bytes() == before
    assert [path.name for path in ledger.parent.iterdir()] == ["ledger.db"]


def test_a_query_that_takes_too_long_ends_with_the_check(ledger: Path) -> None:
    endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n"
    probe = probe_of(ledger, query=endless)
    for _ in range(2):  # the second is not hindered by the first
        verdict, error = asyncio.run(run_check(probe, TIMEOUTS_S[0]))
        assert error is None
        assert verdict == failed(ReasonCode.TIMEOUT)
        wait_until(lambda: not probe._thread.is_busy, "the end of the query")


def test_a_query_waits_while_the_database_is_locked(ledger: Path) -> None:
    probe = probe_of(ledger, query="SELECT 1", lock_wait="0s")
    with closing(sqlite3.connect(ledger, isolation_level=None)) as database:
        database.execute("BEGIN EXCLUSIVE")
        assert asyncio.run(probe.check()) == not_ready(ReasonCode.LOCKED)
        database.execute("ROLLBACK")
    assert asyncio.run(probe.check()) == READY
