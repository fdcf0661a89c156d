"""Nothing that is not ours is ever touched, and what is ours has one writer."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from svcnode.history.errors import HistoryError
from svcnode.history.files import (
    APPLICATION_ID,
    MAX_QUARANTINED,
    FileLock,
    check_owner,
    create_file,
    file_identity,
    make_directory,
    quarantine,
)

if TYPE_CHECKING:
    from pathlib import Path

NOON = 1_767_268_800.0


def make_database(path: Path, application_id: int) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE kept (what)")
        database.execute(f"PRAGMA application_id = {application_id}")
        database.commit()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.db"


def test_our_mark_reads_svch() -> None:
    assert APPLICATION_ID.to_bytes(4, "big") == b"svch"


def test_a_file_that_is_missing_or_empty_is_free_to_take(path: Path) -> None:
    check_owner(path)
    path.touch()
    check_owner(path)


def test_our_own_database_is_ours(path: Path) -> None:
    make_database(path, APPLICATION_ID)
    check_owner(path)


def test_the_database_of_another_program_is_refused(path: Path) -> None:
    make_database(path, 0)
    with pytest.raises(HistoryError, match=r"history\.db is a database of another program; name another file in"):
        check_owner(path)


def test_a_file_that_is_no_database_is_refused(path: Path) -> None:
    path.write_text("the only copy of a novel")
    with pytest.raises(HistoryError, match=r"history\.db is not a database; name another file in \[history\] path"):
        check_owner(path)


def test_a_file_that_was_ours_is_still_ours_when_its_beginning_is_lost(path: Path) -> None:
    FileLock(path).release()
    path.write_bytes(bytes(4096))
    check_owner(path)


def test_what_is_no_file_is_refused_at_once(path: Path) -> None:
    os.mkfifo(path)  # whoever opened it would wait for ever
    with pytest.raises(HistoryError, match=r"history\.db is not a file"):
        check_owner(path)


def test_a_folder_is_refused(path: Path) -> None:
    path.mkdir()
    with pytest.raises(HistoryError, match="is not a file"):
        check_owner(path)


def test_one_claim_excludes_another_and_names_who_holds_it(path: Path) -> None:
    claim = FileLock(path)
    with pytest.raises(HistoryError, match=rf"belongs to another svcnode \(process {os.getpid()}\)"):
        FileLock(path)
    claim.release()
    FileLock(path).release()


def test_a_claim_ends_with_its_process_however_that_ends(path: Path) -> None:
    script = f"from pathlib import Path; from svcnode.history.files import Claim; c = Claim(Path({str(path)!r}))\n"
    script += "print('claimed', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "claimed\n"
        with pytest.raises(HistoryError, match=rf"process {holder.pid}"):
            FileLock(path)
        holder.kill()
    FileLock(path).release()


def test_a_claim_by_nobody_knows_whom_is_told_all_the_same(path: Path) -> None:
    claim = FileLock(path)
    path.with_name("history.db-lock").write_text("")
    with pytest.raises(HistoryError, match=r"another svcnode \(it runs\)"):
        FileLock(path)
    claim.release()


def test_a_claim_knows_when_its_lock_is_no_longer_the_one_that_others_find(path: Path) -> None:
    claim = FileLock(path)
    found = [claim.is_at_path]
    claim.path.unlink()
    found.append(claim.is_at_path)
    other = FileLock(path)
    found += [claim.is_at_path, other.is_at_path]
    assert found == [True, False, False, True]
    claim.release()
    other.release()


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_what_is_made_is_for_nobody_else_to_read(path: Path, mask: int) -> None:
    path = path.parent / "some" / "state" / path.name
    before = os.umask(mask)
    try:
        make_directory(path.parent)
        FileLock(path).release()
        create_file(path)
        with closing(sqlite3.connect(path)) as database:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("CREATE TABLE kept (what)")
            assert {one.name: mode_of(one) for one in path.parent.iterdir()} == {
                path.name + suffix: 0o600 for suffix in ("", "-wal", "-shm", "-lock")
            }
    finally:
        os.umask(before)
    assert [mode_of(folder) for folder in (path.parent, path.parent.parent)] == [0o700, 0o700]


def test_what_is_there_already_keeps_its_mode(path: Path) -> None:
    path.parent.chmod(0o755)
    path.write_text("kept")
    path.chmod(0o644)
    make_directory(path.parent)
    create_file(path)
    assert (mode_of(path.parent), mode_of(path), path.read_text()) == (0o755, 0o644, "kept")


def test_a_damaged_file_is_set_aside_under_a_dated_name_with_all_that_belongs_to_it(path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).write_text(f"damaged{suffix}")
    aside = quarantine(path, NOON)
    assert aside.name == "history.db.corrupt-20260101T120000Z"
    assert {one.name: one.read_text() for one in path.parent.iterdir()} == {
        aside.name + suffix: f"damaged{suffix}" for suffix in ("", "-wal", "-shm")
    }


def test_only_the_newest_damaged_files_are_kept(path: Path) -> None:
    stranger = path.with_name("other.db.corrupt-20200101T000000Z")
    stranger.touch()
    for hour in range(MAX_QUARANTINED + 2):
        path.touch()
        path.with_name("history.db-wal").touch()
        quarantine(path, NOON + 3600 * hour)
    kept = sorted(one.name for one in path.parent.iterdir() if one.name.startswith("history.db"))
    assert kept == sorted(
        f"history.db.corrupt-20260101T{hour}0000Z{suffix}" for hour in (14, 15, 16) for suffix in ("", "-wal")
    )
    assert stranger.exists()


def test_a_file_in_the_place_of_another_is_another(path: Path) -> None:
    log = path.with_name("history.db-wal")
    for one in (path, log):
        one.write_text("something")
    before = file_identity(path)
    assert before is not None
    for one in (path, log):
        one.rename(one.with_name("moved"))
        assert file_identity(path) is None
        one.write_text("something")
        assert file_identity(path) not in (None, before)


def test_a_file_that_was_emptied_is_as_good_as_gone(path: Path) -> None:
    path.with_name("history.db-wal").touch()
    path.write_text("something")
    assert file_identity(path) is not None
    path.write_text("")
    assert file_identity(path) is None


def test_where_there_is_no_log_none_is_missed(path: Path) -> None:
    path.write_text("something")
    assert file_identity(path) is None
    assert file_identity(path, has_wal=False) is not None
