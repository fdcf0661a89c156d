"""Why history cannot be kept, in words for people: what, where, and how to mend it."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from svcnode.core.wording import system_words

if TYPE_CHECKING:
    from pathlib import Path

ANOTHER_FILE = "name another file in [history] path"


class FaultError(Exception):
    """Its text goes to the page and into the log. It is tried again later, for some mend themselves."""


class DamageError(FaultError):
    """The file is ours, and no longer sound."""


_NO_ROOM = "there is no room left on the disk of {path}; what comes is kept in memory until there is"
_NOT_TO_BE_WRITTEN = "{path} cannot be written: {exc}; mend its permissions, or " + ANOTHER_FILE
_LOCKED = "another program holds {path} locked; what comes is kept in memory until it lets go"
_CANNOT_USE = "cannot use {path}: {exc}; mend that, or " + ANOTHER_FILE

# By the first byte of SQLite's result codes. Its own names for them would have to be loaded with it, for every node.
_WORDS = {
    5: _LOCKED,  # BUSY
    6: _LOCKED,  # LOCKED
    8: _NOT_TO_BE_WRITTEN,  # READONLY
    10: "the disk of {path} fails, or has no room: {exc}; what comes is kept in memory meanwhile",  # IOERR
    13: _NO_ROOM,  # FULL
    15: _LOCKED,  # PROTOCOL: a race for the lock that went on for too long
}
_DAMAGE = (11, 26)  # CORRUPT, NOTADB

_SYSTEM_WORDS = {
    errno.ENOSPC: _NO_ROOM,
    errno.EDQUOT: _NO_ROOM,
    errno.EFBIG: _NO_ROOM,
    errno.EROFS: _NOT_TO_BE_WRITTEN,
    errno.EACCES: _NOT_TO_BE_WRITTEN,
    errno.EPERM: _NOT_TO_BE_WRITTEN,
}


def fault_from(exc: Exception, path: Path) -> FaultError:
    """What an error of SQLite or of the system means here."""
    if isinstance(exc, FaultError):
        return exc
    if isinstance(exc, OSError):
        words = _SYSTEM_WORDS.get(exc.errno or 0, _CANNOT_USE)
        return FaultError(words.format(path=path, exc=system_words(exc)))
    code = getattr(exc, "sqlite_errorcode", 0) & 0xFF
    if code in _DAMAGE:
        return DamageError(f"{path} is damaged: {exc}")
    return FaultError(_WORDS.get(code, _CANNOT_USE).format(path=path, exc=exc))
