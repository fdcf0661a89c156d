"""The history file on disk: owner, lock and quarantine. Files of other programs are never changed."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from svcnode.history.errors import OTHER_PATH_HINT, HistoryError, HistoryProblem

if TYPE_CHECKING:
    from pathlib import Path

APPLICATION_ID = 0x73766368  # "svch": PRAGMA application_id of the databases that svcnode creates
MAX_QUARANTINED = 3  # so that a bad disk does not fill up with corrupt files

_SQLITE_MAGIC = b"SQLite format 3\0"
_APPLICATION_ID_BYTES = slice(68, 72)  # position of the application id in the database header
_SIDECAR_SUFFIXES = ("-wal", "-shm", "-journal")


def check_owner(path: Path) -> None:
    """Reject a file of another program. Only the header is read; SQLite does not open the file."""
    try:
        if not path.is_file():
            path.stat()
            raise HistoryError(f"{path} is not a file; {OTHER_PATH_HINT}", HistoryProblem.NOT_A_FILE)
        with path.open("rb") as file:
            header = file.read(100)
    except FileNotFoundError:
        return
    if not header:
        return
    if not header.startswith(_SQLITE_MAGIC):
        if not _lock_path(path).exists():  # with a lock file it is a history file with a corrupt header
            raise HistoryError(f"{path} is not a SQLite database; {OTHER_PATH_HINT}", HistoryProblem.NOT_A_DATABASE)
    elif int.from_bytes(header[_APPLICATION_ID_BYTES]) != APPLICATION_ID:
        raise HistoryError(
            f"{path} is a database of another program; {OTHER_PATH_HINT}", HistoryProblem.FOREIGN_DATABASE
        )


def make_directory(folder: Path) -> None:
    """Create a directory and its missing parents with mode 0700."""
    if not folder.exists():
        make_directory(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)


def create_file(path: Path) -> None:
    """Create the file with mode 0600, since reasons may be confidential. An existing file keeps its mode.

    SQLite gives the same mode to its sidecar files.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return  # not opened: closing a descriptor releases all POSIX locks that SQLite holds on the file
    os.close(descriptor)


class FileLock:
    """While it is held, no other svcnode writes this history file. The kernel releases it when the process ends."""

    def __init__(self, path: Path) -> None:
        # A file beside the database: SQLite has its own locks on the database, and NFS does not separate the two kinds.
        self.path = _lock_path(path)
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._descriptor, 0)
            os.write(self._descriptor, b"%d\n" % os.getpid())
        except BlockingIOError:
            holder = os.pread(self._descriptor, 20, 0).decode("ascii", "replace").strip()
            os.close(self._descriptor)
            process = f" (process {holder})" if holder.isdigit() else ""
            raise HistoryError(
                f"{path} is in use by another svcnode{process}; this node writes no history; {OTHER_PATH_HINT}",
                HistoryProblem.IN_USE,
            ) from None
        except OSError:  # the file system has no locks, or the disk is full; the process id is informative only
            pass

    @property
    def is_at_path(self) -> bool:
        """False if the lock file was removed: another process would create a new one and lock that."""
        locked = os.fstat(self._descriptor)
        try:
            current = self.path.stat()
        except OSError:
            return False
        return (current.st_dev, current.st_ino) == (locked.st_dev, locked.st_ino)

    def release(self) -> None:
        os.close(self._descriptor)


def _lock_path(path: Path) -> Path:
    return path.with_name(f"{path.name}-lock")


def quarantine(path: Path, now_s: float) -> Path:
    """Rename an unusable file and its sidecar files; returns the new path."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now_s))
    quarantined = path.with_name(f"{path.name}.corrupt-{stamp}")
    _rename(path, quarantined)
    _remove_old_quarantined(path)
    return quarantined


def move(lock: FileLock, path: Path, new_path: Path) -> FileLock:
    """Move a file that this process has locked and closed; returns its new lock. Raises if the new path is in use."""
    make_directory(new_path.parent)
    if new_path.exists():
        raise HistoryError(f"cannot move {path}: {new_path} exists; remove one of them", HistoryProblem.OTHER_NODE)
    new_lock = FileLock(new_path)
    try:
        _rename(path, new_path)
    except BaseException:
        new_lock.release()
        raise
    with suppress(OSError):  # the folder contains something else
        lock.path.unlink()
        path.parent.rmdir()
    lock.release()
    return new_lock


def _rename(path: Path, new_path: Path) -> None:
    path.rename(new_path)  # first, so that the database is never at its path without its sidecar files
    for suffix in _SIDECAR_SUFFIXES:
        sidecar = path.with_name(path.name + suffix)
        if sidecar.exists():
            sidecar.rename(new_path.with_name(new_path.name + suffix))


def _remove_old_quarantined(path: Path) -> None:
    prefix = f"{path.name}.corrupt-"
    quarantined = sorted(
        file
        for file in path.parent.iterdir()
        if file.name.startswith(prefix) and not file.name.endswith(_SIDECAR_SUFFIXES)
    )
    for old in quarantined[:-MAX_QUARANTINED]:
        for suffix in ("", *_SIDECAR_SUFFIXES):
            old.with_name(old.name + suffix).unlink(missing_ok=True)


def file_identity(path: Path, *, has_wal: bool = True) -> tuple[tuple[int, int], ...] | None:
    """Device and inode of the database and its write-ahead log; None if one is missing or the database is empty."""
    try:
        files = [path.stat(), *([path.with_name(f"{path.name}-wal").stat()] if has_wal else [])]
    except OSError:
        return None
    return tuple((file.st_dev, file.st_ino) for file in files) if files[0].st_size else None
