"""A file system and SQLite databases in the place of a server: they can be started and removed."""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from tests.support.disks import LoopDisk
from tests.support.servers.base import READY_TIMEOUT_S, RealServer, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

DISK_BYTES = 4 * 1024**2
CREATE_TABLE = "CREATE TABLE svcnode_write (slot INTEGER PRIMARY KEY, written_at TEXT NOT NULL)"
# An application that writes all the time, and does not wait for locks.
WRITER = """
import sqlite3, sys, time
database = sqlite3.connect(sys.argv[1], timeout=0, isolation_level=None)
database.execute("CREATE TABLE IF NOT EXISTS entries (id INTEGER PRIMARY KEY, text TEXT)")
while True:
    try:
        database.execute("INSERT INTO entries (text) VALUES (hex(randomblob(300)))")
    except sqlite3.OperationalError:
        pass
    time.sleep(0.005)
"""


class MountedDisk(RealServer):
    """A small file system. It is mounted while it is started."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.disk = LoopDisk(folder / "disk", size_bytes=DISK_BYTES)

    @property
    def url(self) -> str:
        return f"disk:{self.disk.path}"

    def command(self) -> Sequence[str]:
        raise NotImplementedError("a file system is no process")

    def is_ready(self) -> bool:
        return self.disk.path.is_mount()

    def start(self) -> None:
        self.disk.__enter__()

    def kill(self) -> None:
        if self.disk.path.is_mount():
            self.disk.__exit__()
            self.disk.path.rmdir()

    def wait_until_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        wait_until(self.is_ready, "mounted", timeout_s)

    @contextmanager
    def without_inodes(self) -> Iterator[None]:
        folder = self.disk.path / "files"
        folder.mkdir()
        files: list[Path] = []
        while self.disk.free_inodes():
            files.append(folder / str(len(files)))
            files[-1].touch()
        yield
        for file in files:
            file.unlink()
        folder.rmdir()


class SqliteOnDisk(MountedDisk):
    """A database on a small file system. No application has it open: the file system could not become read-only."""

    @property
    def _path(self) -> Path:
        return self.disk.path / "ledger.db"

    @property
    def url(self) -> str:
        return f"sqlite:{self._path}"

    def start(self) -> None:
        super().start()
        with closing(sqlite3.connect(self._path)) as database:
            database.execute(CREATE_TABLE)

    def write_lock(self) -> AbstractContextManager[None]:
        return write_lock(self._path)


class SqliteWithWriter(RealServer):
    """A database and an application that writes to it."""

    @property
    def _path(self) -> Path:
        return self.folder / "ledger.db"

    @property
    def url(self) -> str:
        return f"sqlite:{self._path}"

    def command(self) -> Sequence[str]:
        return [sys.executable, "-c", WRITER, str(self._path)]

    def is_ready(self) -> bool:
        try:
            with closing(sqlite3.connect(f"file:{self._path}?mode=ro", uri=True)) as database:
                return bool(database.execute("SELECT count(*) FROM entries").fetchone()[0])
        except sqlite3.Error:
            return False

    def write_lock(self) -> AbstractContextManager[None]:
        return write_lock(self._path)


@contextmanager
def write_lock(path: Path) -> Iterator[None]:
    with closing(sqlite3.connect(path, timeout=READY_TIMEOUT_S, isolation_level=None)) as database:
        database.execute("BEGIN IMMEDIATE")
        yield
        database.execute("ROLLBACK")
