"""Whose file it is: nothing that is not ours is ever touched, and what is ours has one writer."""

from __future__ import annotations

import fcntl
import os
import time
from typing import TYPE_CHECKING

from svcnode.history.errors import OTHER_PATH_HINT, HistoryError

if TYPE_CHECKING:
    from pathlib import Path

# "svch": tells our databases from anybody else's. See PRAGMA application_id.
APPLICATION_ID = 0x73766368
MAX_QUARANTINED = 3  # damaged files that are kept; a disk that damages one after the other must not fill up with them

_SQLITE_MAGIC = b"SQLite format 3\0"
_APPLICATION_ID_BYTES = slice(68, 72)  # where the application id stands in the first page
_SIDECAR_SUFFIXES = ("-wal", "-shm", "-journal")


def check_owner(path: Path) -> None:
    """Refuse what somebody else has put there. Read as bytes: a stranger's database is not even opened."""
    try:
        if not path.is_file():
            path.stat()
            raise HistoryError(f"{path} is not a file; {OTHER_PATH_HINT}")
        with path.open("rb") as file:
            beginning = file.read(100)
    except FileNotFoundError:
        return
    if not beginning:
        return  # as good as none
    if not beginning.startswith(_SQLITE_MAGIC):
        if not _lock_path(path).exists():  # or else it was ours, and its beginning is lost
            raise HistoryError(f"{path} is not a database; {OTHER_PATH_HINT}")
    elif int.from_bytes(beginning[_APPLICATION_ID_BYTES]) != APPLICATION_ID:
        raise HistoryError(f"{path} is a database of another program; {OTHER_PATH_HINT}")


def make_directory(folder: Path) -> None:
    """With all above it that are missing, for nobody else to look into."""
    if not folder.exists():
        make_directory(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)


def create_file(path: Path) -> None:
    """For nobody else to read, since reasons tell much about a node; what is there already keeps its mode.

    SQLite gives the same mode to the files beside it.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return  # and is not opened: who closes a file gives up all that SQLite has locked there
    os.close(descriptor)


class FileLock:
    """While it is held, no other svcnode writes to this file. It ends with the process, however that ends."""

    def __init__(self, path: Path) -> None:
        # Beside the database and not on it: what SQLite locks there is its own affair, and on a disk in the network the
        # two kinds of locks are one.
        self.path = _lock_path(path)
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._descriptor, 0)
            os.write(self._descriptor, b"%d\n" % os.getpid())
        except BlockingIOError:
            holder = os.pread(self._descriptor, 20, 0).decode("ascii", "replace").strip()
            os.close(self._descriptor)
            who = f"process {holder}" if holder.isdigit() else "it runs"
            raise HistoryError(
                f"{path} belongs to another svcnode ({who}), so this one keeps no history; {OTHER_PATH_HINT}"
            ) from None
        except OSError:  # nothing can be locked there, or the disk is full: the number is only for people to read
            pass

    @property
    def is_at_path(self) -> bool:
        """Whether others find it. Where it was removed, the next one who comes makes a new one and holds that."""
        held = os.fstat(self._descriptor)
        try:
            found = self.path.stat()
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == (held.st_dev, held.st_ino)

    def release(self) -> None:
        os.close(self._descriptor)


def _lock_path(path: Path) -> Path:
    return path.with_name(f"{path.name}-lock")


def quarantine(path: Path, now_s: float) -> Path:
    """Move a damaged file, and what belongs to it, out of the way; returns where it is now."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now_s))
    aside = path.with_name(f"{path.name}.corrupt-{stamp}")
    path.rename(aside)  # first, so that nobody finds it without the rest
    for suffix in _SIDECAR_SUFFIXES:
        beside = path.with_name(path.name + suffix)
        if beside.exists():
            beside.rename(aside.with_name(aside.name + suffix))
    _remove_old_quarantined(path)
    return aside


def _remove_old_quarantined(path: Path) -> None:
    beginning = f"{path.name}.corrupt-"
    asides = sorted(
        one
        for one in path.parent.iterdir()
        if one.name.startswith(beginning) and not one.name.endswith(_SIDECAR_SUFFIXES)
    )
    for old in asides[:-MAX_QUARANTINED]:
        for suffix in ("", *_SIDECAR_SUFFIXES):
            old.with_name(old.name + suffix).unlink(missing_ok=True)


def file_identity(path: Path, *, has_wal: bool = True) -> tuple[tuple[int, int], ...] | None:
    """Which files they are, the database and its log; None when one is not there, or nothing is in the database."""
    try:
        found = [path.stat(), *([path.with_name(f"{path.name}-wal").stat()] if has_wal else [])]
    except OSError:
        return None
    return tuple((one.st_dev, one.st_ino) for one in found) if found[0].st_size else None
