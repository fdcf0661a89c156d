"""The state of a file system: whether it has inodes, why it accepts no writes, and whether it is the one that should be
mounted there."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_MOUNT_TABLE = Path("/proc/self/mountinfo")
_FSTAB = Path("/etc/fstab")
_BY_UUID = Path("/dev/disk/by-uuid")
_UDEV_DATA = Path("/run/udev/data")  # which a sandbox without devices has too
_BLOCK_DEVICES = Path("/sys/class/block")
_MAX_MOUNTS = 100_000
_OCTAL = re.compile(r"\\([0-7]{3})")  # how both tables write spaces in names
# Options in the mount table with which ext4 reports its state after an error. ST_RDONLY is not set in these states.
_ERROR_STATES = {
    "emergency_ro": "read-only after an error (emergency_ro)",
    "shutdown": "shut down after an error (shutdown)",
}


def has_no_inodes(info: os.statvfs_result) -> bool:
    """A file system without a limit, such as btrfs, reports 0 of 0 inodes."""
    return info.f_files > 0 and info.f_favail == 0


# ---- the mount table


class Mount(NamedTuple):
    device: str  # major:minor
    point: str
    source: str
    options: Sequence[str]  # of the file system


def read_mounts() -> list[Mount]:
    """Empty without /proc."""
    try:
        with _MOUNT_TABLE.open(encoding="utf-8", errors="surrogateescape") as table:
            return list(parse_mounts(islice(table, _MAX_MOUNTS)))
    except FileNotFoundError:
        return []


def parse_mounts(mount_table: Iterable[str]) -> Iterator[Mount]:
    """Incomplete lines are left out."""
    for line in mount_table:
        mount, _, file_system = line.rstrip("\n").partition(" - ")
        left, right = mount.split(" "), file_system.split(" ")
        if len(left) >= 6 and len(right) >= 3:
            yield Mount(left[2], _unescape(left[4]), _unescape(right[1]), right[-1].split(","))


def _unescape(text: str) -> str:
    return _OCTAL.sub(lambda found: chr(int(found[1], 8)), text)


def mount_of(path: str, mounts: Sequence[Mount]) -> Mount | None:
    """The mount of a path without links. Of several over each other, the last one."""
    found = [mount for mount in mounts if _is_below(path, mount.point)]
    return max(reversed(found), key=lambda mount: len(mount.point), default=None)


def _is_below(path: str, folder: str) -> bool:
    """Or the same."""
    return f"{path}/".startswith(f"{folder.rstrip('/')}/")


def read_only_cause(path: str, info: os.statvfs_result, mounts: Sequence[Mount] | None = None) -> str:
    """Why the file system of the path accepts no writes; "" if it reports no cause."""
    if info.f_flag & os.ST_RDONLY:
        return "mounted read-only"
    device = Path(path).stat().st_dev
    return error_state(device, read_mounts() if mounts is None else mounts)


def error_state(device: int, mounts: Iterable[Mount]) -> str:
    """The state after an error that the mount table has for a device; "" if it has none.

    All mounts of a device have the same options, so it does not matter which of them, also of several mounts over each
    other, is the one of a path.
    """
    number = _number(device)
    options = next((mount.options for mount in mounts if mount.device == number), ())
    return next((text for name, text in _ERROR_STATES.items() if name in options), "")


def _number(device: int) -> str:
    return f"{os.major(device)}:{os.minor(device)}"


# ---- what should be mounted


class MountMemory:
    """The mount of a path at the last check at which it was right."""

    def __init__(self) -> None:
        self._point = ""

    def missing_point(self, path: str, required: str, mounts: Sequence[Mount], fstab: Iterable[str]) -> str:
        """The mount point above the path at which nothing is mounted, with the reason to expect it; "" if all are."""
        if not mounts:
            return ""  # no /proc
        points = {mount.point for mount in mounts}
        if required and required not in points:
            return f"{required} (option mount)"
        for point in fstab_points(fstab):
            if point not in points and _is_below(path, point):
                return f"{point} (in {_FSTAB})"
        if self._point and self._point not in points and _is_below(path, self._point):
            return f"{self._point} (it was mounted before)"
        mount = mount_of(path, mounts)
        self._point = "" if mount is None else mount.point
        return ""


def read_fstab() -> list[str]:
    try:
        return _FSTAB.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except (FileNotFoundError, PermissionError):
        return []


def fstab_points(fstab: Iterable[str]) -> Iterator[str]:
    """The mount points of fstab(5) that are mounted at boot, without the root."""
    for line in fstab:
        _, point, kind, options, *_ = [*line.split(), "", "", "", ""]
        is_mounted = kind != "swap" and "noauto" not in options.split(",")
        if point.startswith("/") and point != "/" and not line.lstrip().startswith("#") and is_mounted:
            yield _unescape(point).rstrip("/")


def has_uuid(path: str, uuid: str, mounts: Sequence[Mount]) -> bool | None:
    """Whether the file system of the path, without links, has this UUID; None if this machine does not tell."""
    mount = mount_of(path, mounts)
    numbers = {_number(Path(path).stat().st_dev), _source_number(mount.source) if mount else ""}
    # First: a link has room for one of the devices of a btrfs, or of a volume and its snapshots. They share a UUID.
    if found := [text.casefold() for text in map(_udev_uuid, sorted(numbers)) if text]:
        return uuid.casefold() in found
    if not _BY_UUID.is_dir():
        return None
    try:
        return _number((_BY_UUID / uuid).stat().st_rdev) in numbers
    except FileNotFoundError:
        return False


def _source_number(source: str) -> str:
    """btrfs has numbers of its own for its mounts; its source is one of its devices."""
    with suppress(OSError):
        return _number(Path(source).stat().st_rdev)
    with suppress(OSError):
        return (_BLOCK_DEVICES / Path(source).name / "dev").read_text().strip()
    return ""


def _udev_uuid(number: str) -> str:
    with suppress(OSError):
        text = (_UDEV_DATA / f"b{number}").read_text(errors="replace")
        return "".join(re.findall("^E:ID_FS_UUID=(.*)$", text, re.MULTILINE)[:1])
    return ""
