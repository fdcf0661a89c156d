"""Errors of the history file, with the path and the fix."""

from __future__ import annotations

import errno
from enum import StrEnum
from typing import TYPE_CHECKING

from svcnode.core.text import os_error_text

if TYPE_CHECKING:
    from pathlib import Path

OTHER_PATH_HINT = "set another [history] path"
# Without a name, the file belongs to the next node that opens it.
FORGET_NODE_NAME = "DELETE FROM saved_state WHERE name = 'node'"


class HistoryProblem(StrEnum):
    """The problem as one word that programs compare."""

    DISK_FULL = "disk_full"
    NOT_WRITABLE = "not_writable"
    LOCKED = "locked"  # another program holds a lock of SQLite
    IO_ERROR = "io_error"
    UNUSABLE = "unusable"  # any other error of SQLite or of the operating system
    NO_THREAD = "no_thread"
    CORRUPT = "corrupt"
    FILE_REPLACED = "file_replaced"  # while in use; the one at the path is used now
    NEWER_SCHEMA = "newer_schema"
    NOT_A_FILE = "not_a_file"
    NOT_A_DATABASE = "not_a_database"
    FOREIGN_DATABASE = "foreign_database"  # the database of another program
    FOREIGN_LOCK = "foreign_lock"  # the lock file is not ours
    IN_USE = "in_use"  # another svcnode writes this file
    SLOW_DISK = "slow_disk"
    RESTART_REQUIRED = "restart_required"  # the configuration changed the path
    OTHER_NODE = "other_node"  # the history of a node with another name
    NO_FOLDER = "no_folder"  # no path is set, and there is no default path


class HistoryError(Exception):
    """The history cannot be written. The writer logs the text and retries."""

    def __init__(self, text: str, code: HistoryProblem) -> None:
        super().__init__(text)
        self.code = code


class CorruptionError(HistoryError):
    """The file was written by svcnode and is corrupt. It is quarantined."""

    def __init__(self, text: str) -> None:
        super().__init__(text, HistoryProblem.CORRUPT)


_TEXT = {
    HistoryProblem.DISK_FULL: "disk full: {path}; buffering in memory",
    HistoryProblem.NOT_WRITABLE: "{path} is not writable: {exc}; buffering in memory; fix its permissions, "
    + OTHER_PATH_HINT
    + ", or keep = false",
    HistoryProblem.LOCKED: "{path} is locked by another program; buffering in memory",
    HistoryProblem.IO_ERROR: "I/O error: {path}: {exc}; buffering in memory; check the disk",
    HistoryProblem.UNUSABLE: "cannot use {path}: {exc}; fix this, or " + OTHER_PATH_HINT,
}

# By the primary result code of SQLite, as numbers: the names are in the sqlite3 module, which is imported late.
_PROBLEM_BY_SQLITE_CODE = {
    5: HistoryProblem.LOCKED,  # BUSY
    6: HistoryProblem.LOCKED,  # LOCKED
    8: HistoryProblem.NOT_WRITABLE,  # READONLY
    10: HistoryProblem.IO_ERROR,  # IOERR
    13: HistoryProblem.DISK_FULL,  # FULL
    15: HistoryProblem.LOCKED,  # PROTOCOL: the lock was not available for too long
}
_CORRUPTION_CODES = (11, 26)  # CORRUPT, NOTADB

_PROBLEM_BY_ERRNO = {
    errno.ENOSPC: HistoryProblem.DISK_FULL,
    errno.EDQUOT: HistoryProblem.DISK_FULL,
    errno.EFBIG: HistoryProblem.DISK_FULL,
    errno.EROFS: HistoryProblem.NOT_WRITABLE,
    errno.EACCES: HistoryProblem.NOT_WRITABLE,
    errno.EPERM: HistoryProblem.NOT_WRITABLE,
}


def history_error_from(exc: Exception, path: Path) -> HistoryError:
    """Translate an error of SQLite or of the operating system."""
    if isinstance(exc, HistoryError):
        return exc
    if isinstance(exc, OSError):
        problem, text = _PROBLEM_BY_ERRNO.get(exc.errno or 0, HistoryProblem.UNUSABLE), os_error_text(exc)
    else:
        sqlite_code, text = getattr(exc, "sqlite_errorcode", 0) & 0xFF, str(exc)
        if sqlite_code in _CORRUPTION_CODES:
            return CorruptionError(f"{path} is corrupt: {exc}")
        problem = _PROBLEM_BY_SQLITE_CODE.get(sqlite_code, HistoryProblem.UNUSABLE)
    return HistoryError(_TEXT[problem].format(path=path, exc=text), problem)


def other_node_error(path: Path, owner: str, node_name: str) -> HistoryError:
    return HistoryError(
        f'{path} is not used, because it is the history of node "{owner}", and this node is "{node_name}"; '
        f'{OTHER_PATH_HINT}, or, if the node was renamed, run: sqlite3 {path} "{FORGET_NODE_NAME}"',
        HistoryProblem.OTHER_NODE,
    )
