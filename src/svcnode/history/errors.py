"""Why history cannot be kept, in words for people: what, where, and how to mend it."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from svcnode.core.text import os_error_text

if TYPE_CHECKING:
    from pathlib import Path

OTHER_PATH_HINT = "name another file in [history] path"


class HistoryError(Exception):
    """Its text goes to the page and into the log. It is tried again later, for some mend themselves."""


class CorruptionError(HistoryError):
    """The file is ours, and no longer sound."""


_DISK_FULL = "there is no room left on the disk of {path}; what comes is kept in memory until there is"
_NOT_WRITABLE = "{path} cannot be written: {exc}; mend its permissions, or " + OTHER_PATH_HINT
_LOCKED = "another program holds {path} locked; what comes is kept in memory until it lets go"
_CANNOT_USE = "cannot use {path}: {exc}; mend that, or " + OTHER_PATH_HINT

# By the first byte of SQLite's result codes. Its own names for them would have to be loaded with it, for every node.
_TEXT_BY_SQLITE_CODE = {
    5: _LOCKED,  # BUSY
    6: _LOCKED,  # LOCKED
    8: _NOT_WRITABLE,  # READONLY
    10: "the disk of {path} fails, or has no room: {exc}; what comes is kept in memory meanwhile",  # IOERR
    13: _DISK_FULL,  # FULL
    15: _LOCKED,  # PROTOCOL: a race for the lock that went on for too long
}
_CORRUPTION_CODES = (11, 26)  # CORRUPT, NOTADB

_TEXT_BY_ERRNO = {
    errno.ENOSPC: _DISK_FULL,
    errno.EDQUOT: _DISK_FULL,
    errno.EFBIG: _DISK_FULL,
    errno.EROFS: _NOT_WRITABLE,
    errno.EACCES: _NOT_WRITABLE,
    errno.EPERM: _NOT_WRITABLE,
}


def history_error_from(exc: Exception, path: Path) -> HistoryError:
    """What an error of SQLite or of the system means here."""
    if isinstance(exc, HistoryError):
        return exc
    if isinstance(exc, OSError):
        words = _TEXT_BY_ERRNO.get(exc.errno or 0, _CANNOT_USE)
        return HistoryError(words.format(path=path, exc=os_error_text(exc)))
    code = getattr(exc, "sqlite_errorcode", 0) & 0xFF
    if code in _CORRUPTION_CODES:
        return CorruptionError(f"{path} is damaged: {exc}")
    return HistoryError(_TEXT_BY_SQLITE_CODE.get(code, _CANNOT_USE).format(path=path, exc=exc))
