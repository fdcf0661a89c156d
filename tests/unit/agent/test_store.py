from __future__ import annotations

import os
import re
import resource
import sqlite3
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import pytest

from svcnode.agent.store import ensure_store, is_missing
from svcnode.core.errors import StoreError
from svcnode.probes.sqlite import STORE_APPLICATION_ID

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def query(path: Path, sql: str) -> object:
    with closing(sqlite3.connect(path)) as database:
        row = database.execute(sql).fetchone()
        database.commit()
    return None if row is None else row[0]


def test_a_store_is_missing_only_if_its_folder_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert is_missing(tmp_path / "no.db")
    assert is_missing(tmp_path / "no" / "no.db")
    assert not is_missing(tmp_path / "file")
    assert not is_missing(tmp_path / "file" / "store.db")
    assert not is_missing(tmp_path / ("x" * 300) / "store.db")


def test_a_missing_store_is_created_with_its_folders_and_not_changed_later(tmp_path: Path) -> None:
    path = tmp_path / "state" / "svcnode" / "store.db"
    ensure_store(path)
    assert path.read_bytes().startswith(b"SQLite format 3\0")
    assert query(path, "PRAGMA application_id") == STORE_APPLICATION_ID
    assert query(path, "PRAGMA journal_mode") == "wal"
    assert query(path, "PRAGMA integrity_check") == "ok"
    query(path, "CREATE TABLE entries (value)")
    query(path, "INSERT INTO entries VALUES ('this')")
    ensure_store(path)
    assert query(path, "SELECT value FROM entries") == "this"


def test_an_error_names_the_path_and_the_setting(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    path = tmp_path / "file" / "svcnode" / "store.db"
    with pytest.raises(StoreError, match=re.escape(str(path))) as caught:
        ensure_store(path)
    assert "[store] path" in str(caught.value)
    assert isinstance(caught.value.__cause__, NotADirectoryError)


def test_a_database_or_a_file_of_another_program_is_not_changed(tmp_path: Path) -> None:
    ledger, notes = tmp_path / "ledger.db", tmp_path / "notes.txt"
    query(ledger, "CREATE TABLE ledger (entry)")
    notes.write_text("some long text\n" * 150)
    for path, cause in ((ledger, type(None)), (notes, sqlite3.DatabaseError)):
        before = path.read_bytes()
        with pytest.raises(StoreError, match=rf"{path.name}.*\[store\] path") as caught:
            ensure_store(path)
        assert isinstance(caught.value.__cause__, cause)
        assert path.read_bytes() == before


def test_a_folder_or_a_fifo_is_neither_opened_nor_removed(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for path in (tmp_path, fifo):
        with pytest.raises(StoreError, match=r"\[store\] path"):
            ensure_store(path)
    assert fifo.is_fifo()


@contextmanager
def full_disk() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))  # no file may grow, as on a full disk
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_an_empty_file_that_existed_before_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    path.touch()
    before = path.stat().st_ino
    with full_disk(), pytest.raises(StoreError):
        ensure_store(path)
    assert path.stat().st_ino == before
    ensure_store(path)
    assert query(path, "PRAGMA application_id") == STORE_APPLICATION_ID == 0x7376636E  # "svcn"


def test_the_target_of_a_link_is_created_and_after_a_failure_removed(tmp_path: Path) -> None:
    path, target = tmp_path / "store.db", tmp_path / "target.db"
    path.symlink_to(target)
    with full_disk(), pytest.raises(StoreError):
        ensure_store(path)
    assert path.is_symlink()
    assert not target.exists()
    ensure_store(path)
    assert path.is_symlink()
    assert query(target, "PRAGMA application_id") == STORE_APPLICATION_ID
