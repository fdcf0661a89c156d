"""The texts of the history: errors, log lines and reasons."""

from __future__ import annotations

import asyncio
import errno
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from svcnode.history import History
from svcnode.history.database import Database
from svcnode.history.errors import CorruptionError, HistoryError, HistoryProblem, history_error_from
from svcnode.history.files import FileLock, check_owner, move
from svcnode.history.records import RetentionLimits
from svcnode.history.writer import Writer, WriterStatus
from tests.support.nodes import make_node
from tests.support.virtual_time import VirtualClock

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from tests.wording.conftest import Snapshot

PATH = Path("/var/lib/svcnode/history.db")
NOON = 1_767_268_800
LIMITS = RetentionLimits(86_400.0, 1024**2)


def error_of(function: Callable[[], object]) -> HistoryError:
    try:
        function()
    except HistoryError as error:
        return error
    raise AssertionError("no HistoryError")


def sqlite_error(code: int, text: str) -> sqlite3.Error:
    error = sqlite3.OperationalError(text)
    error.sqlite_errorcode = code
    return error


def test_errors_of_the_file(snapshot: Snapshot, tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    errors = [
        history_error_from(OSError(number, os.strerror(number)), PATH)
        for number in (errno.ENOSPC, errno.EACCES, errno.EROFS, errno.ENOTDIR)
    ]
    errors += [
        history_error_from(sqlite_error(sqlite3.SQLITE_BUSY, "database is locked"), PATH),
        history_error_from(sqlite_error(sqlite3.SQLITE_IOERR, "disk I/O error"), PATH),
        history_error_from(sqlite_error(sqlite3.SQLITE_CORRUPT, "database disk image is malformed"), PATH),
    ]
    path.mkdir()
    errors.append(error_of(lambda: check_owner(path)))
    path.rmdir()
    path.write_text("a text file")
    errors.append(error_of(lambda: check_owner(path)))
    path.unlink()
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE ledger (entry)")
    errors.append(error_of(lambda: check_owner(path)))
    path.unlink()
    lock = FileLock(path)
    errors.append(error_of(lambda: FileLock(path)))
    lock.release()
    lock.path.write_text("entries")
    errors.append(error_of(lambda: FileLock(path)))
    lock.path.unlink()
    for statement in ("PRAGMA user_version = 1000", "DROP TABLE minutes"):
        path.unlink(missing_ok=True)
        Database(path, LIMITS).close()
        with closing(sqlite3.connect(path)) as changed:
            changed.execute(statement)
        errors.append(error_of(lambda: Database(path, LIMITS)))
    path.unlink()
    with closing(Database(path, LIMITS)) as database:
        database.claim("validator-7")
        errors.append(error_of(lambda: database.claim("validator-8")))
    new_path = tmp_path / "nodes" / "validator-8" / "history.db"
    new_path.parent.mkdir(parents=True)
    new_path.touch()
    lock = FileLock(path)
    errors.append(error_of(lambda: move(lock, path, new_path)))
    lock.release()
    text = "\n".join(f"{error.code}: {error}" for error in errors).replace(str(new_path.parent.parent), "/nodes")
    snapshot("errors", text.replace(str(path), str(PATH)).replace(f"process {os.getpid()}", "process 1234"))


def test_log_of_the_writer(snapshot: Snapshot, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    status = WriterStatus(VirtualClock())
    cause = sqlite_error(sqlite3.SQLITE_FULL, "database or disk is full")
    status.record_failure(history_error_from(cause, PATH), cause)
    status.record_success()
    snapshot("writer-log", log_text(caplog))


def test_log_and_problems_of_a_running_history(
    snapshot: Snapshot, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    path = tmp_path / "history.db"
    problems: list[str | None] = []

    async def scenario() -> None:
        async with History(make_node("node", version="v1"), path, wall_clock=lambda: NOON) as history:
            writer = history._writer
            assert writer is not None
            await wait_until(lambda: writer.is_readable)
            corrupt = CorruptionError(f"{path} is corrupt: database disk image is malformed")
            writer.report_corruption(corrupt, generation=0)
            await wait_until(lambda: writer.generation == 1 and writer.is_readable)
            problems.append(history.problem)
            history.reconfigure(None)
            history.reconfigure(tmp_path / "other.db")
            history.reconfigure(path)
            history.set_has_folder(False)
            history.set_has_folder(True)
            with caplog.at_level("CRITICAL"):
                writer.report_corruption(corrupt, generation=1)
                await wait_until(lambda: not history.is_healthy)
            problems.append(history.problem)

    asyncio.run(scenario())
    text = "\n".join(["problems:", *map(str, problems), "", "log:", log_text(caplog)])
    snapshot("history", text.replace(str(tmp_path), str(PATH.parent)))


def test_reasons_of_the_process(snapshot: Snapshot, tmp_path: Path) -> None:
    reasons: list[str] = []

    async def scenario(path: Path) -> None:
        async with History(make_node("node", version="v1"), path) as history:
            history.subscribe(lambda transition: reasons.append(f"{transition.kind}: {transition.reason}"))
            if not (tmp_path / "killed.db").exists():
                await wait_until(lambda: bool(reasons))
                with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(tmp_path / "killed.db")) as copy:
                    source.backup(copy)

    asyncio.run(scenario(tmp_path / "history.db"))
    asyncio.run(scenario(tmp_path / "killed.db"))
    snapshot("reasons", "\n".join(reasons))


def test_error_without_a_thread(snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("threading.Thread.start", refuse)
    history = History(make_node("node", version="v1"), PATH)
    writer = history._writer
    assert isinstance(writer, Writer)
    with closing(asyncio.new_event_loop()) as loop:
        writer.start(loop)
    assert history.problem_code == HistoryProblem.NO_THREAD
    snapshot("no-thread", str(history.problem))


def log_text(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(f"{record.levelname.lower()}: {record.getMessage()}" for record in caplog.records)


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  the condition sets no event
            await asyncio.sleep(0.005)
