"""The state of a file system: whether it has inodes, and why it accepts no writes."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_MOUNT_TABLE = Path("/proc/self/mountinfo")
_MAX_MOUNTS = 100_000
# Options in the mount table with which ext4 reports its state after an error. ST_RDONLY is not set in these states.
_ERROR_STATES = {
    "emergency_ro": "read-only after an error (emergency_ro)",
    "shutdown": "shut down after an error (shutdown)",
}


def has_no_inodes(info: os.statvfs_result) -> bool:
    """A file system without a limit, such as btrfs, reports 0 of 0 inodes."""
    return info.f_files > 0 and info.f_favail == 0


def read_only_cause(path: str, info: os.statvfs_result) -> str:
    """Why the file system of the path accepts no writes; "" if it reports no cause."""
    if info.f_flag & os.ST_RDONLY:
        return "mounted read-only"
    device = Path(path).stat().st_dev
    try:
        with _MOUNT_TABLE.open(encoding="utf-8", errors="surrogateescape") as table:
            return error_state(device, islice(table, _MAX_MOUNTS))
    except FileNotFoundError:  # no /proc
        return ""


def error_state(device: int, mount_table: Iterable[str]) -> str:
    """The state after an error that the mount table has for a device; "" if it has none.

    All mounts of a device have the same options after the separator, so it does not matter which of them, also of
    several mounts over each other, is the one of a path.
    """
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in mount_table:
        mount, _, file_system = line.rstrip("\n").partition(" - ")
        if mount.split(" ", 3)[2:3] == [number]:
            options = file_system.rpartition(" ")[2].split(",")
            return next((text for name, text in _ERROR_STATES.items() if name in options), "")
    return ""
