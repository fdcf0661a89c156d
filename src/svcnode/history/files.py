"""The history file on disk: owner, lock and quarantine. Files of other programs are never changed."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
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
_STAMP = "[0-9]{8}T[0-9]{6}Z"

_LOCK_CONTENT = re.compile(rb"svcnode ([0-9]{1,10})\n")
_OLD_LOCK_CONTENT = re.compile(rb"([0-9]{1,10})\n")  # of earlier versions, and of other programs
_MAX_LOCK_BYTES = 64


def check_owner(path: Path) -> None:
    """Reject a file of another program. Only the header is read; SQLite does not open the file."""
    header = _read_header(path)
    if not header:
        return
    if not header.startswith(_SQLITE_MAGIC):
        if not _has_own_lock_file(path):  # with our lock file it is a history file with a corrupt header
            raise HistoryError(f"{path} is not a SQLite database; {OTHER_PATH_HINT}", HistoryProblem.NOT_A_DATABASE)
    elif not _has_application_id(header):
        raise HistoryError(
            f"{path} is a database of another program; {OTHER_PATH_HINT}", HistoryProblem.FOREIGN_DATABASE
        )


def _read_header(path: Path) -> bytes:
    """Empty if the file is missing or empty."""
    try:
        if not path.is_file():
            path.stat()
            raise HistoryError(f"{path} is not a file; {OTHER_PATH_HINT}", HistoryProblem.NOT_A_FILE)
        with path.open("rb") as file:
            return file.read(100)
    except FileNotFoundError:
        return b""


def _has_application_id(header: bytes) -> bool:
    return header.startswith(_SQLITE_MAGIC) and int.from_bytes(header[_APPLICATION_ID_BYTES]) == APPLICATION_ID


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
    """While it is held, no other svcnode writes this history file. The kernel releases it when the process ends.

    A lock file of another program, or a symbolic link, is refused and not changed.
    """

    def __init__(self, path: Path) -> None:
        # A file beside the database: SQLite has its own locks on the database, and NFS does not separate the two kinds.
        self.path = _lock_path(path)
        self._descriptor = _open_lock_file(self.path, os.O_RDWR | os.O_CREAT)
        try:
            self._lock(path)
        except BaseException:
            os.close(self._descriptor)
            raise

    def _lock(self, path: Path) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise self._in_use_error(path) from None
        except OSError:  # the file system has no locks
            pass
        content = os.pread(self._descriptor, _MAX_LOCK_BYTES, 0)
        if not (
            not content
            or _LOCK_CONTENT.fullmatch(content)
            or (_OLD_LOCK_CONTENT.fullmatch(content) and _has_application_id(_read_header(path)))
        ):
            raise _foreign_lock_error(self.path)
        with suppress(OSError):  # the disk is full; the process id is informative only
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, b"svcnode %d\n" % os.getpid(), 0)

    def _in_use_error(self, path: Path) -> HistoryError:
        content = os.pread(self._descriptor, _MAX_LOCK_BYTES, 0)
        holder = _LOCK_CONTENT.fullmatch(content) or _OLD_LOCK_CONTENT.fullmatch(content)
        process = f" (process {holder[1].decode()})" if holder else ""
        return HistoryError(
            f"{path} is in use by another svcnode{process}; this node writes no history; {OTHER_PATH_HINT}",
            HistoryProblem.IN_USE,
        )

    @property
    def is_at_path(self) -> bool:
        """False if the lock file was removed: another process would create a new one and lock that."""
        locked = os.fstat(self._descriptor)
        try:
            current = self.path.lstat()
        except OSError:
            return False
        return (current.st_dev, current.st_ino) == (locked.st_dev, locked.st_ino)

    def release(self) -> None:
        os.close(self._descriptor)


def _lock_path(path: Path) -> Path:
    return path.with_name(f"{path.name}-lock")


def _open_lock_file(path: Path, flags: int) -> int:
    """Open a regular file, without following a link and without waiting for the other end of a FIFO."""
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY, 0o600)
    except OSError as exc:
        if exc.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):  # a link, a directory, a socket
            raise _foreign_lock_error(path) from exc
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _foreign_lock_error(path)
    return descriptor


def _foreign_lock_error(path: Path) -> HistoryError:
    text = f"{path} is not a lock file of svcnode, so it is left as it is; move it, or {OTHER_PATH_HINT}"
    return HistoryError(text, HistoryProblem.FOREIGN_LOCK)


def _has_own_lock_file(path: Path) -> bool:
    try:
        descriptor = _open_lock_file(_lock_path(path), os.O_RDONLY)
    except (OSError, HistoryError):
        return False
    try:
        return _LOCK_CONTENT.fullmatch(os.pread(descriptor, _MAX_LOCK_BYTES, 0)) is not None
    finally:
        os.close(descriptor)


def quarantine(path: Path, now_s: float) -> Path:
    """Rename an unusable file and its sidecar files; returns the new path, which did not exist before."""
    quarantined = _quarantine_path(path, now_s)
    while os.path.lexists(quarantined):  # the clock was set back
        now_s += 1
        quarantined = _quarantine_path(path, now_s)
    _rename(path, quarantined)
    _remove_old_quarantined(path)
    return quarantined


def _quarantine_path(path: Path, at_s: float) -> Path:
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(at_s))
    return path.with_name(f"{path.name}.corrupt-{stamp}")


def move(lock: FileLock, path: Path, new_path: Path) -> FileLock:
    """Move a file that this process has locked and closed; returns its new lock. Raises if the new path is in use."""
    make_directory(new_path.parent)
    _require_free(path, new_path)
    new_lock = FileLock(new_path)
    try:
        _require_free(path, new_path)  # another node may have created it before the lock was held
        _rename(path, new_path)
    except BaseException:
        new_lock.release()
        raise
    with suppress(OSError):  # the folder contains something else
        if lock.is_at_path:
            lock.path.unlink()
        path.parent.rmdir()
    lock.release()
    return new_lock


def _require_free(path: Path, new_path: Path) -> None:
    """A rename would replace a file of the new name."""
    for suffix in ("", *_SIDECAR_SUFFIXES):
        other = new_path.with_name(new_path.name + suffix)
        if os.path.lexists(other):
            raise HistoryError(
                f"cannot move {path}: {other} already exists; remove one of them", HistoryProblem.OTHER_NODE
            )


def _rename(path: Path, new_path: Path) -> None:
    path.rename(new_path)  # first, so that the database is never at its path without its sidecar files
    for suffix in _SIDECAR_SUFFIXES:
        sidecar = path.with_name(path.name + suffix)
        if sidecar.exists():
            sidecar.rename(new_path.with_name(new_path.name + suffix))


def _remove_old_quarantined(path: Path) -> None:
    own_name = re.compile(re.escape(f"{path.name}.corrupt-") + _STAMP)  # not, for example, a copy with another ending
    quarantined = sorted(file for file in path.parent.iterdir() if own_name.fullmatch(file.name))
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
