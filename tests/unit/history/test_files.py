"""Files of other programs are never changed, and a history file has one writer."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from svcnode.history.errors import HistoryError, HistoryProblem
from svcnode.history.files import (
    APPLICATION_ID,
    MAX_QUARANTINED,
    FileLock,
    check_owner,
    create_file,
    file_identity,
    make_directory,
    move,
    quarantine,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NOON = 1_767_268_800.0


def make_database(path: Path, application_id: int) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE ledger (entry)")
        database.execute(f"PRAGMA application_id = {application_id}")
        database.commit()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.db"


def problem_of(path: Path) -> HistoryProblem:
    with pytest.raises(HistoryError) as caught:
        check_owner(path)
    return caught.value.code


def test_a_file_of_svcnode_is_accepted_also_if_it_is_missing_empty_or_corrupt(path: Path) -> None:
    check_owner(path)
    path.touch()
    check_owner(path)
    make_database(path, APPLICATION_ID)
    check_owner(path)
    path.with_name("history.db-lock").write_text("1234\n")  # of an earlier version
    FileLock(path).release()
    path.write_bytes(bytes(4096))
    check_owner(path)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda path: make_database(path, 0), HistoryProblem.FOREIGN_DATABASE),
        (lambda path: path.write_text("a text file"), HistoryProblem.NOT_A_DATABASE),
        (os.mkfifo, HistoryProblem.NOT_A_FILE),  # opening it for reading would block
        (lambda path: path.mkdir(), HistoryProblem.NOT_A_FILE),
    ],
    ids=["database", "text", "fifo", "directory"],
)
def test_a_file_of_another_program_is_rejected(
    path: Path, make: Callable[[Path], object], problem: HistoryProblem
) -> None:
    make(path)
    assert problem_of(path) is problem


@pytest.mark.parametrize("content", ["", "1234\n", "entries", None])
def test_a_file_that_is_not_a_database_beside_the_lock_file_of_another_program_is_rejected(
    path: Path, content: str | None
) -> None:
    path.write_text("a text file")
    lock = path.with_name("history.db-lock")
    if content is None:
        lock.symlink_to("/proc/self/status")
    else:
        lock.write_text(content)
    assert problem_of(path) is HistoryProblem.NOT_A_DATABASE


def test_a_lock_excludes_another_one_and_the_error_names_the_process(path: Path) -> None:
    lock = FileLock(path)
    with pytest.raises(HistoryError, match=str(os.getpid())) as caught:
        FileLock(path)
    assert caught.value.code is HistoryProblem.IN_USE
    path.with_name("history.db-lock").write_text("")
    assert lock_problem(path) is HistoryProblem.IN_USE
    lock.release()
    path.with_name("history.db-lock").write_text("svcnode 123456789\n")  # of a process that has ended
    FileLock(path).release()
    assert lock.path.read_text() == f"svcnode {os.getpid()}\n"


def test_a_lock_ends_with_its_process(path: Path) -> None:
    script = (
        f"from pathlib import Path; from svcnode.history.files import FileLock; lock = FileLock(Path({str(path)!r}))\n"
    )
    script += "print('locked', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(HistoryError, match=str(holder.pid)):
            FileLock(path)
        holder.kill()
    FileLock(path).release()


def lock_problem(path: Path) -> HistoryProblem:
    with pytest.raises(HistoryError) as caught:
        FileLock(path)
    return caught.value.code


@pytest.mark.parametrize("content", ["entries\n", "1234\n", "svcnode 1234\nmore", "x" * 5000])
def test_the_lock_file_of_another_program_is_not_changed(path: Path, content: str) -> None:
    lock = path.with_name("history.db-lock")
    lock.write_text(content)
    assert lock_problem(path) is HistoryProblem.FOREIGN_LOCK
    assert lock.read_text() == content


def test_a_link_a_fifo_or_a_directory_at_the_path_of_the_lock_is_refused(path: Path, tmp_path: Path) -> None:
    target, lock = tmp_path / "target", path.with_name("history.db-lock")
    lock.symlink_to(target)
    assert lock_problem(path) is HistoryProblem.FOREIGN_LOCK
    assert not target.exists()
    target.touch()
    assert lock_problem(path) is HistoryProblem.FOREIGN_LOCK
    assert target.read_text() == ""
    lock.unlink()
    os.mkfifo(lock)  # opening it must not wait
    assert lock_problem(path) is HistoryProblem.FOREIGN_LOCK
    assert lock.is_fifo()
    lock.unlink()
    lock.mkdir()
    assert lock_problem(path) is HistoryProblem.FOREIGN_LOCK


def test_a_lock_detects_that_its_file_was_removed(path: Path) -> None:
    lock = FileLock(path)
    found = [lock.is_at_path]
    lock.path.unlink()
    found.append(lock.is_at_path)
    other = FileLock(path)
    found += [lock.is_at_path, other.is_at_path]
    assert found == [True, False, False, True]
    lock.release()
    other.release()


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.mark.parametrize("mask", [0o000, 0o077])
def test_new_files_are_private(path: Path, mask: int) -> None:
    path = path.parent / "some" / "state" / path.name
    before = os.umask(mask)
    try:
        make_directory(path.parent)
        FileLock(path).release()
        create_file(path)
        with closing(sqlite3.connect(path)) as database:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("CREATE TABLE ledger (entry)")
            assert {one.name: mode_of(one) for one in path.parent.iterdir()} == {
                path.name + suffix: 0o600 for suffix in ("", "-wal", "-shm", "-lock")
            }
    finally:
        os.umask(before)
    assert [mode_of(folder) for folder in (path.parent, path.parent.parent)] == [0o700, 0o700]


def test_an_existing_file_keeps_its_mode(path: Path) -> None:
    path.parent.chmod(0o755)
    path.write_text("text")
    path.chmod(0o644)
    make_directory(path.parent)
    create_file(path)
    assert (mode_of(path.parent), mode_of(path), path.read_text()) == (0o755, 0o644, "text")


def test_a_quarantined_file_gets_a_dated_name_with_its_sidecar_files_and_replaces_no_other(path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).write_text(f"corrupt{suffix}")
    quarantined = quarantine(path, NOON)
    assert quarantined.name == "history.db.corrupt-20260101T120000Z"
    assert {one.name: one.read_text() for one in path.parent.iterdir()} == {
        quarantined.name + suffix: f"corrupt{suffix}" for suffix in ("", "-wal", "-shm")
    }
    path.write_text("another")
    assert quarantine(path, NOON).read_text() == "another"
    assert quarantined.read_text() == "corrupt"


def test_only_the_newest_quarantined_files_are_kept_and_no_file_of_another_name_is_removed(path: Path) -> None:
    others = [
        path.with_name("other.db.corrupt-20200101T000000Z"),
        path.with_name("history.db.corrupt-20200101T000000Z.bak"),
    ]
    for other in others:
        other.touch()
    for hour in range(MAX_QUARANTINED + 2):
        path.touch()
        path.with_name("history.db-wal").touch()
        quarantine(path, NOON + 3600 * hour)
    assert sorted(one.name for one in path.parent.iterdir() if one not in others) == sorted(
        f"history.db.corrupt-20260101T{hour}0000Z{suffix}" for hour in (14, 15, 16) for suffix in ("", "-wal")
    )
    assert all(other.exists() for other in others)


@pytest.mark.parametrize("suffix", ["", "-wal"])
def test_a_move_replaces_no_file(path: Path, tmp_path: Path, suffix: str) -> None:
    new_path = tmp_path / "new" / "history.db"
    new_path.parent.mkdir()
    other = new_path.with_name(new_path.name + suffix)
    for one in (path, path.with_name("history.db-wal")):
        one.write_text("ours")
    other.write_text("entries")
    lock = FileLock(path)
    with pytest.raises(HistoryError) as caught:
        move(lock, path, new_path)
    assert caught.value.code is HistoryProblem.OTHER_NODE
    assert (other.read_text(), path.read_text()) == ("entries", "ours")
    lock.release()


def test_a_move_does_not_remove_a_lock_file_that_is_not_its_own(path: Path, tmp_path: Path) -> None:
    path.write_text("ours")
    lock = FileLock(path)
    lock.path.unlink()
    lock.path.write_text("entries")
    move(lock, path, tmp_path / "new" / "history.db").release()
    assert lock.path.read_text() == "entries"


def test_a_replaced_file_has_another_identity_and_an_emptied_one_none(path: Path) -> None:
    log = path.with_name("history.db-wal")
    path.write_text("something")
    assert file_identity(path) is None
    assert file_identity(path, has_wal=False) is not None
    log.write_text("something")
    before = file_identity(path)
    assert before is not None
    for one in (path, log):
        one.rename(one.with_name("moved"))
        assert file_identity(path) is None
        one.write_text("something")
        assert file_identity(path) not in (None, before)
    path.write_text("")
    assert file_identity(path) is None
