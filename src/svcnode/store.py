"""The node's own SQLite store: made when it is missing, and otherwise left as it is found."""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from typing import TYPE_CHECKING

from svcnode.core.errors import StoreError
from svcnode.core.text import os_error_text
from svcnode.probes.sqlite import STORE_APPLICATION_ID

if TYPE_CHECKING:
    from pathlib import Path

USE_ANOTHER_FILE_HINT = "name another file in [store] path"


def is_missing(path: Path) -> bool:
    """Not what nobody lets us see, or what no system could hold: to open it will say that."""
    try:
        path.stat()
    except OSError as exc:
        return isinstance(exc, FileNotFoundError)
    return False


def ensure_store(path: Path) -> None:
    """Make sure that there is a store to use at this path."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(path, timeout=1.0)) as database:
            (owner,) = database.execute("PRAGMA application_id").fetchone()
            (table_count,) = database.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if owner != STORE_APPLICATION_ID and table_count:
                raise StoreError(f"{path} is a database of another program; {USE_ANOTHER_FILE_HINT}")
            # Readers and the one writer do not wait for each other; the file stays sound through a power cut.
            database.execute("PRAGMA journal_mode = WAL")
            database.execute(f"PRAGMA application_id = {STORE_APPLICATION_ID}")
    except (OSError, sqlite3.Error) as exc:
        _remove_if_empty(path)
        why = os_error_text(exc) if isinstance(exc, OSError) else exc
        raise StoreError(f"cannot open the store {path}: {why}; mend that, or {USE_ANOTHER_FILE_HINT}") from exc


def _remove_if_empty(path: Path) -> None:
    """What a full disk leaves of a store that was to be made would stand in the way of the next attempt."""
    with suppress(OSError):
        if path.stat().st_size == 0:
            path.unlink()
