"""The files of a SQLite database: its identity, its header and its locks, for a process that has the database open.

Opening one of these files is not possible in this process: closing it would release all POSIX locks of the process on
it, also those of a program that embeds the node. So they are read through the descriptors that SQLite has open.
"""

from __future__ import annotations

import fcntl
import os
import struct
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class DatabaseIdentity(NamedTuple):
    device: int
    inode: int
    generation: int  # of the inode, whose number is used again after its file is removed
    change_counter: int  # of the header; transactions only increase it; 0 if it is not known
    application_id: int

    def is_same_file(self, other: DatabaseIdentity | None) -> bool:
        return other is not None and self[:3] == other[:3]

    def is_replacement_of(self, other: DatabaseIdentity) -> bool:
        return (
            not self.is_same_file(other)
            or 0 < self.change_counter < other.change_counter
            or other.application_id not in (0, self.application_id)
        )


class DatabaseFiles:
    # https://sqlite.org/src/file/src/os.h (PENDING_BYTE, RESERVED_BYTE, SHARED_FIRST, SHARED_SIZE)
    _LOCK_BYTES = 0x40000000, 512
    # https://sqlite.org/walformat.html#locks (WAL_WRITE_LOCK)
    _WAL_LOCK_BYTES = 120, 1
    _HEADER_BYTES = 100
    _WAL_INDEX_HEADER_BYTES = 48  # it has the number of frames of the last commit
    _FS_IOC_GETVERSION = 0x80087601

    def __init__(self, path: str) -> None:
        self._path = path
        self.has_wal = Path(f"{path}-wal").exists()
        self._main = _OpenFile(path)
        self._shm = _OpenFile(f"{path}-shm") if self.has_wal else None

    @property
    def wal_mode(self) -> str:
        # Without an existing -shm file, mode=ro would create one and not remove it.
        return "mode=ro" if Path(f"{self._path}-shm").exists() else "mode=rw"

    def is_write_locked(self) -> bool:
        is_locked = self._main.call(lambda file: _has_write_lock(file, *self._LOCK_BYTES))
        if not is_locked and self._shm is not None:
            is_locked = self._shm.call(lambda file: _has_write_lock(file, *self._WAL_LOCK_BYTES))
        return bool(is_locked)

    def commit_state(self) -> tuple[bytes | None, ...]:
        """It is another one after each commit."""
        counter = self._main.call(lambda file: os.pread(file, 4, 24))
        if self._shm is None:
            return (counter,)
        return counter, self._shm.call(lambda file: os.pread(file, self._WAL_INDEX_HEADER_BYTES, 0))

    def identity(self, info: os.stat_result) -> DatabaseIdentity:
        header = self._main.call(lambda file: os.pread(file, self._HEADER_BYTES, 0)) or b""
        header = header.ljust(self._HEADER_BYTES, b"\0")
        is_rollback_due = size_bytes(f"{self._path}-journal") > 0  # the rollback may decrease the counter
        return DatabaseIdentity(
            device=info.st_dev,
            inode=info.st_ino,
            generation=self._main.call(self._inode_generation) or 0,
            change_counter=0 if is_rollback_due else int.from_bytes(header[24:28]),
            application_id=int.from_bytes(header[68:72]),
        )

    def _inode_generation(self, file: int) -> int:
        return int.from_bytes(fcntl.ioctl(file, self._FS_IOC_GETVERSION, bytes(8)), "little")


class _OpenFile:
    """A file that this process has open."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor: int | None = None

    def call(self, read: Callable[[int], T]) -> T | None:
        """The result for its descriptor; None if it is not open, or the system does not support the call."""
        if self._descriptor is None or not self._is_open_as(self._descriptor):
            self._descriptor = self._find()
        if self._descriptor is None:
            return None
        try:
            result = read(self._descriptor)
        except OSError:
            return None
        # Another thread may have closed this descriptor, and opened another file.
        return result if self._is_open_as(self._descriptor) else None

    def _find(self) -> int | None:
        try:
            descriptors = [int(name) for name in os.listdir("/proc/self/fd")]  # noqa: PTH208  numbers
        except FileNotFoundError:  # no /proc
            return None
        return next(filter(self._is_open_as, descriptors), None)

    def _is_open_as(self, descriptor: int) -> bool:
        """Reading the link does not use the file system of the file, which may hang."""
        try:
            return os.readlink(f"/proc/self/fd/{descriptor}") == self._path  # noqa: PTH115  faster
        except OSError:
            return False


def _has_write_lock(file: int, start: int, length: int) -> bool:
    """Whether any process has one, also this one. The query itself sets no lock."""
    query = struct.pack("hhqqi", fcntl.F_RDLCK, os.SEEK_SET, start, length, 0)
    lock_type: int = struct.unpack("hhqqi", fcntl.fcntl(file, fcntl.F_OFD_GETLK, query))[0]
    return lock_type == fcntl.F_WRLCK


def size_bytes(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except FileNotFoundError:
        return 0
