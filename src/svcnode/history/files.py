"""Whose file it is: nothing that is not ours is ever touched, and what is ours has one writer."""

from __future__ import annotations

import fcntl
import os
import time
from typing import TYPE_CHECKING

from svcnode.history.faults import ANOTHER_FILE, FaultError

if TYPE_CHECKING:
    from pathlib import Path

# "svch": tells our databases from anybody else's. See PRAGMA application_id.
APPLICATION_ID = 0x73766368
KEPT_ASIDE = 3  # damaged files that are kept; a disk that damages one after the other must not fill up with them

_FIRST_BYTES = b"SQLite format 3\0"
_OWNER = slice(68, 72)  # where the application id stands in the first page
_BESIDE = ("-wal", "-shm", "-journal")


def check_owner(path: Path) -> None:
    """Refuse what somebody else has put there. Read as bytes: a stranger's database is not even opened."""
    try:
        if not path.is_file():
            path.stat()
            raise FaultError(f"{path} is not a file; {ANOTHER_FILE}")
        with path.open("rb") as file:
            beginning = file.read(100)
    except FileNotFoundError:
        return
    if not beginning:
        return  # as good as none
    if not beginning.startswith(_FIRST_BYTES):
        if not _lock_path(path).exists():  # or else it was ours, and its beginning is lost
            raise FaultError(f"{path} is not a database; {ANOTHER_FILE}")
    elif int.from_bytes(beginning[_OWNER]) != APPLICATION_ID:
        raise FaultError(f"{path} is a database of another program; {ANOTHER_FILE}")


def make_folder(folder: Path) -> None:
    """With all above it that are missing, for nobody else to look into."""
    if not folder.exists():
        make_folder(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)


def begin_file(path: Path) -> None:
    """For nobody else to read, since reasons tell much about a node; what is there already keeps its mode.

    SQLite gives the same mode to the files beside it.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return  # and is not opened: who closes a file gives up all that SQLite has locked there
    os.close(descriptor)


class Claim:
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
            raise FaultError(
                f"{path} belongs to another svcnode ({who}), so this one keeps no history; {ANOTHER_FILE}"
            ) from None
        except OSError:  # nothing can be locked there, or the disk is full: the number is only for people to read
            pass

    @property
    def is_in_place(self) -> bool:
        """Whether others find it. Where it was removed, the next one who comes makes a new one and holds that."""
        held = os.fstat(self._descriptor)
        try:
            found = self.path.stat()
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == (held.st_dev, held.st_ino)

    def end(self) -> None:
        os.close(self._descriptor)


def _lock_path(path: Path) -> Path:
    return path.with_name(f"{path.name}-lock")


def set_aside(path: Path, now_s: float) -> Path:
    """Move a damaged file, and what belongs to it, out of the way; returns where it is now."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now_s))
    aside = path.with_name(f"{path.name}.corrupt-{stamp}")
    path.rename(aside)  # first, so that nobody finds it without the rest
    for suffix in _BESIDE:
        beside = path.with_name(path.name + suffix)
        if beside.exists():
            beside.rename(aside.with_name(aside.name + suffix))
    _remove_all_but_the_newest(path)
    return aside


def _remove_all_but_the_newest(path: Path) -> None:
    beginning = f"{path.name}.corrupt-"
    asides = sorted(
        one for one in path.parent.iterdir() if one.name.startswith(beginning) and not one.name.endswith(_BESIDE)
    )
    for old in asides[:-KEPT_ASIDE]:
        for suffix in ("", *_BESIDE):
            old.with_name(old.name + suffix).unlink(missing_ok=True)


def identity(path: Path, *, has_log: bool = True) -> tuple[tuple[int, int], ...] | None:
    """Which files they are, the database and its log; None when one is not there, or nothing is in the database."""
    try:
        found = [path.stat(), *([path.with_name(f"{path.name}-wal").stat()] if has_log else [])]
    except OSError:
        return None
    return tuple((one.st_dev, one.st_ino) for one in found) if found[0].st_size else None
