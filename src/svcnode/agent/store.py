"""The node's own SQLite store: created if it is missing, otherwise left unchanged."""

from __future__ import annotations

import os
import sqlite3
import stat
from contextlib import closing, suppress
from typing import TYPE_CHECKING

from svcnode.core.errors import StoreError
from svcnode.core.text import os_error_text
from svcnode.probes.sqlite import STORE_APPLICATION_ID

if TYPE_CHECKING:
    from pathlib import Path

USE_ANOTHER_FILE_HINT = "set another file in [store] path"


def is_missing(path: Path) -> bool:
    """False also if the path cannot be read or is invalid: opening it raises the right error."""
    try:
        path.stat()
    except OSError as exc:
        return isinstance(exc, FileNotFoundError)
    return False


def ensure_store(path: Path) -> None:
    """Create the store if it is missing, and check that it is ours and usable."""
    created: _FileIdentity | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        created = _create(path)
        with closing(sqlite3.connect(path, timeout=1.0)) as database:
            (owner,) = database.execute("PRAGMA application_id").fetchone()
            (table_count,) = database.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if owner != STORE_APPLICATION_ID and table_count:
                raise StoreError(f"{path} is the database of another program; {USE_ANOTHER_FILE_HINT}")
            # WAL: readers and the writer do not block each other, and the file survives a power failure.
            database.execute("PRAGMA journal_mode = WAL")
            database.execute(f"PRAGMA application_id = {STORE_APPLICATION_ID}")
    except (OSError, sqlite3.Error) as exc:
        _remove_if_empty(path, created)
        cause = os_error_text(exc) if isinstance(exc, OSError) else exc
        raise StoreError(f"cannot open the store {path}: {cause}; fix this, or {USE_ANOTHER_FILE_HINT}") from exc


_FileIdentity = tuple[int, int]  # device and inode


def _create(path: Path) -> _FileIdentity | None:
    """Create an empty file, which SQLite takes for an empty database. None if the file exists."""
    try:
        descriptor = os.open(os.path.realpath(path), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        if not stat.S_ISREG(path.stat().st_mode):  # a device, for example, which must not be opened
            raise StoreError(f"{path} is not a file; {USE_ANOTHER_FILE_HINT}") from None
        return None
    try:
        return _identity(os.fstat(descriptor))
    finally:
        os.close(descriptor)


def _identity(info: os.stat_result) -> _FileIdentity:
    return info.st_dev, info.st_ino


def _remove_if_empty(path: Path, created: _FileIdentity | None) -> None:
    """Remove the empty file that this attempt created, and no other one. A full disk leaves such a file."""
    with suppress(OSError):
        info = path.stat()
        if _identity(info) == created and info.st_size == 0:
            path.resolve().unlink()
