"""The documents on disk: every written change is read again, all of a transaction or nothing."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from svcnode.control import store as store_module
from svcnode.control.store import ControlStore, Document
from svcnode.core.errors import StoreError

if TYPE_CHECKING:
    from pathlib import Path

ONE, TWO = Document({"ttl": "5s"}, 1), Document({"ttl": "6s"}, 2)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "control.db"


def test_a_missing_file_is_empty_and_is_not_created_by_reading(path: Path) -> None:
    with closing(ControlStore(path)) as store:
        assert store.load() == ({}, 0, True)
    assert not path.parent.exists()


def test_written_documents_are_read_again_in_the_order_of_their_creation(path: Path) -> None:
    with closing(ControlStore(path)) as store:
        store.load()
        store.write({"b": ONE, "a": ONE}, 1)
        store.write({"b": TWO, "c": TWO}, 2)
        store.write({"a": None, "unknown": None}, 3)
    with closing(ControlStore(path)) as store:
        stored = store.load()
        assert list(stored.documents.items()) == [("b", TWO), ("c", TWO)]
        assert (stored.revision, stored.is_same_boot) == (3, True)


def test_a_change_is_on_the_disk_when_write_returns_and_only_the_user_of_the_node_can_read_it(path: Path) -> None:
    with closing(ControlStore(path)) as store:
        store.load()
        store.write({"a": ONE}, 1)
        assert {file.stat().st_mode & 0o077 for file in path.parent.iterdir()} == {0}
        assert path.parent.stat().st_mode & 0o077 == 0
        assert store._connection is not None
        assert store._connection.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL


def test_a_transaction_that_fails_changes_nothing(path: Path) -> None:
    with closing(ControlStore(path)) as store:
        store.load()
        store.write({"a": ONE}, 1)
        with pytest.raises(TypeError):
            store.write({"a": TWO, "b": Document({"x": object()}, 2)}, 2)
        store.write({"c": TWO}, 2)
    with closing(ControlStore(path)) as store:
        assert store.load().documents == {"a": ONE, "c": TWO}


def test_a_start_of_the_machine_is_noticed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(ControlStore(path)) as store:
        store.load()
        store.write({"a": ONE}, 1)
    for boot_id in ("another", ""):
        monkeypatch.setattr(store_module, "_boot_id", lambda boot_id=boot_id: boot_id)
        with closing(ControlStore(path)) as store:
            assert not store.load().is_same_boot


def test_a_file_that_is_in_use_is_refused(path: Path) -> None:
    with closing(ControlStore(path)) as first, closing(ControlStore(path)) as second:
        first.load()
        first.write({"a": ONE}, 1)
        with pytest.raises(StoreError, match="another process uses it"):
            second.load()


def test_a_file_that_another_process_has_created_since_is_not_overwritten(path: Path) -> None:
    with closing(ControlStore(path)) as first, closing(ControlStore(path)) as second:
        assert first.load() == second.load()
        first.write({"a": ONE}, 1)
        first.close()
        with pytest.raises(StoreError, match="another process since the start"):
            second.write({"b": TWO}, 1)
        assert first.load().documents == {"a": ONE}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("PRAGMA application_id = 5", "the database of another program"),
        ("PRAGMA user_version = 99", r"newer version of svcnode \(format 99\)"),
        ("UPDATE documents SET value = 'x'", "cannot use the control store"),
        ("DROP TABLE documents", "no such table"),
    ],
)
def test_a_file_with_other_contents_is_refused_and_kept(path: Path, change: str, text: str) -> None:
    with closing(ControlStore(path)) as store:
        store.load()
        store.write({"a": ONE}, 1)
    with closing(sqlite3.connect(path)) as database:
        database.execute(change)
        database.commit()
    content = path.read_bytes()
    with closing(ControlStore(path)) as store, pytest.raises(StoreError, match=text):
        store.load()
    assert path.read_bytes() == content


def test_a_symbolic_link_is_not_followed(path: Path, tmp_path: Path) -> None:
    path.parent.mkdir()
    path.symlink_to(tmp_path / "elsewhere.db")
    with pytest.raises(StoreError):
        ControlStore(path).load()
    assert not (tmp_path / "elsewhere.db").exists()


@pytest.mark.parametrize("name", ["a-file/control.db", "a-folder", "a-pipe"])
def test_a_path_that_cannot_be_used_is_an_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "a-file").write_text("")
    (tmp_path / "a-folder").mkdir()
    os.mkfifo(tmp_path / "a-pipe")  # opening it must not block
    with pytest.raises(StoreError):
        ControlStore(tmp_path / name).load()
