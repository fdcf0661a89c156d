"""The control documents on disk: every acknowledged change survives a crash of the process and of the machine.

One SQLite file maps a path, such as `services/db-1`, to a JSON document and the revision that wrote it. `write` returns
after the changes are on the disk. Times in documents are of the clock of `net/clock.py`, which starts at 0 with the
machine. `load` says whether the machine has been restarted since.
"""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from svcnode.core.errors import StoreError
from svcnode.core.text import os_error_text

if TYPE_CHECKING:
    from collections.abc import Mapping

APPLICATION_ID = 0x7376_6374  # "svct"
SCHEMA_VERSION = 1
BUSY_TIMEOUT_S = 0.5
_BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")
_SCHEMA = """
CREATE TABLE documents (
    path TEXT PRIMARY KEY,
    position INTEGER NOT NULL,
    value TEXT NOT NULL,
    revision INTEGER NOT NULL
) STRICT;
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
"""
# A document that is replaced keeps its position: services are listed in the order of their registration.
_PUT = """
INSERT INTO documents (path, position, value, revision)
VALUES (?, (SELECT coalesce(max(position), 0) + 1 FROM documents), ?, ?)
ON CONFLICT (path) DO UPDATE SET value = excluded.value, revision = excluded.revision
"""
_SET_META = "INSERT INTO meta (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value"


class Document(NamedTuple):
    value: dict[str, Any]
    revision: int  # of the change that wrote it


class StoredDocuments(NamedTuple):
    documents: dict[str, Document]  # by path, in the order of their creation
    revision: int  # of the last change
    is_same_boot: bool  # the machine has not been restarted since, so times in the documents are comparable


class ControlStore:
    """Not thread-safe: one call at a time, from any thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None

    def load(self) -> StoredDocuments:
        """Open the file and read everything. A missing file is created with the first change. Raises `StoreError`."""
        self.close()
        try:
            try:
                self._path.lstat()
            except FileNotFoundError:
                return StoredDocuments({}, 0, is_same_boot=True)
            self._connection = connection = self._open()
            rows = connection.execute("SELECT path, value, revision FROM documents ORDER BY position").fetchall()
            documents = {path: Document(json.loads(value), revision) for path, value, revision in rows}
            meta = dict(connection.execute("SELECT name, value FROM meta").fetchall())
            boot_id = _boot_id()
            is_same_boot = bool(boot_id) and meta.get("boot_id") == boot_id
            return StoredDocuments(documents, int(meta.get("revision", 0)), is_same_boot)
        except (OSError, sqlite3.Error, ValueError) as exc:
            self.close()
            raise self._error(exc) from exc

    def write(self, changes: Mapping[str, Document | None], revision: int) -> None:
        """Write all changes, or none; None deletes a document. Raises `StoreError`."""
        try:
            connection = self._connection or self._create()
            self._connection = connection
            connection.execute("BEGIN IMMEDIATE")
            try:
                for path, document in changes.items():
                    if document is None:
                        connection.execute("DELETE FROM documents WHERE path = ?", (path,))
                    else:
                        connection.execute(_PUT, (path, json.dumps(document.value), document.revision))
                connection.executemany(_SET_META, [("revision", str(revision)), ("boot_id", _boot_id())])
                connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                raise
        except (OSError, sqlite3.Error) as exc:
            raise self._error(exc) from exc

    def close(self) -> None:
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None

    def _create(self) -> sqlite3.Connection:
        connection = self._open()
        if connection.execute("SELECT 1 FROM meta").fetchone():
            connection.close()
            raise StoreError(f"{self._path} has been written by another process since the start; restart the node")
        return connection

    def _open(self) -> sqlite3.Connection:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # The options of probes may contain passwords.
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600))
        connection = sqlite3.connect(self._path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
        try:
            # For as long as the file is open: a second node with the same file would undo changes.
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")  # COMMIT returns after the change is on the disk
            self._check_schema(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _check_schema(self, connection: sqlite3.Connection) -> None:
        (owner,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        (table_count,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if not table_count:
            connection.executescript(
                f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA application_id = {APPLICATION_ID}; "
                f"PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;"
            )
        elif owner != APPLICATION_ID:
            raise StoreError(f"{self._path} is the database of another program; set another file in [control] path")
        elif version != SCHEMA_VERSION:
            raise StoreError(f"{self._path} was written by a newer version of svcnode (format {version}); upgrade")

    def _error(self, exc: Exception) -> StoreError:
        if isinstance(exc, StoreError):
            return exc
        cause = os_error_text(exc) if isinstance(exc, OSError) else str(exc)
        if "locked" in cause:
            cause = "another process uses it"
        return StoreError(f"cannot use the control store {self._path}: {cause}")


def _boot_id() -> str:
    """Empty on systems without it: then every start counts as a start of the machine."""
    try:
        return _BOOT_ID_FILE.read_text("ascii").strip()
    except OSError:
        return ""
