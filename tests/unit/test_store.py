from __future__ import annotations

import resource
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from svcnode.core.errors import StoreError
from svcnode.probes.sqlite import STORE_APPLICATION_ID
from svcnode.store import ensure_store, is_missing

if TYPE_CHECKING:
    from pathlib import Path


def asked(path: Path, question: str) -> object:
    with closing(sqlite3.connect(path)) as database:
        row = database.execute(question).fetchone()
        database.commit()
    return None if row is None else row[0]


def test_a_store_is_missing_only_where_that_can_be_seen(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert is_missing(tmp_path / "no.db")
    assert is_missing(tmp_path / "no" / "no.db")
    assert not is_missing(tmp_path / "file")
    assert not is_missing(tmp_path / "file" / "store.db")
    assert not is_missing(tmp_path / ("x" * 300) / "store.db")


def test_a_missing_store_is_made_with_the_folders_it_needs(tmp_path: Path) -> None:
    path = tmp_path / "state" / "svcnode" / "store.db"
    ensure_store(path)
    assert path.read_bytes().startswith(b"SQLite format 3\0")
    assert asked(path, "PRAGMA application_id") == STORE_APPLICATION_ID
    assert asked(path, "PRAGMA journal_mode") == "wal"
    assert asked(path, "PRAGMA integrity_check") == "ok"


def test_the_mark_of_a_store_reads_svcn() -> None:
    assert STORE_APPLICATION_ID.to_bytes(4, "big") == b"svcn"


def test_a_store_is_left_as_it_is_found(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    ensure_store(path)
    asked(path, "CREATE TABLE kept (what)")
    asked(path, "INSERT INTO kept VALUES ('this')")
    ensure_store(path)
    assert asked(path, "SELECT what FROM kept") == "this"


def test_an_empty_file_becomes_a_store(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    path.touch()
    ensure_store(path)
    assert asked(path, "PRAGMA application_id") == STORE_APPLICATION_ID


def test_a_store_that_cannot_be_made_is_told_in_plain_words(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    path = tmp_path / "file" / "svcnode" / "store.db"
    with pytest.raises(StoreError) as refused:
        ensure_store(path)
    assert str(refused.value) == (
        f"cannot open the store {path}: not a directory; mend that, or name another file in [store] path"
    )


def test_the_database_of_another_program_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    asked(path, "CREATE TABLE ledger (entry)")
    before = path.read_bytes()
    with pytest.raises(
        StoreError, match=r"ledger\.db is a database of another program; name another file in \[store\]"
    ):
        ensure_store(path)
    assert path.read_bytes() == before


def test_a_file_that_is_no_database_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database, only long enough to look at\n" * 50)
    with pytest.raises(StoreError, match=r"cannot open the store .*notes\.txt: file is not a database"):
        ensure_store(path)
    assert path.read_text().startswith("not a database")


def test_a_place_where_nothing_can_be_made_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot open the store"):
        ensure_store(tmp_path / "file" / "store.db")


def test_a_folder_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="unable to open database file"):
        ensure_store(tmp_path)


def test_a_store_that_a_full_disk_refuses_leaves_nothing_in_the_way_of_the_next_attempt(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))  # no file may grow, as on a disk that is full
    try:
        with pytest.raises(StoreError, match="cannot open the store"):
            ensure_store(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not path.exists()
    ensure_store(path)
    assert asked(path, "PRAGMA application_id") == STORE_APPLICATION_ID
