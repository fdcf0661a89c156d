"""Disk probes on the real file system, and on a simulated one with a known size."""

from __future__ import annotations

import asyncio
import errno
import os
from typing import TYPE_CHECKING

import pytest

from svcnode.core.codes import ReasonCode
from svcnode.probes import file_system, make_probe
from svcnode.probes.file_system import Mount, MountMemory, error_state, fstab_points, mount_of, parse_mounts
from tests.support.verdicts import READY, failed, unknown

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from svcnode.core.model import Verdict

GIB = 1024**3
BLOCK_BYTES = 4096


def check(path: Path | str, **options: object) -> Verdict:
    return asyncio.run(make_probe({"url": f"disk:{path}", **options}).check())


def disk(monkeypatch: pytest.MonkeyPatch, *, free_gib: float, reserved_gib: float = 0.0) -> None:
    """Every disk has 100 GiB; the reserved part of the free space is for root only."""
    blocks_per_gib = GIB // BLOCK_BYTES
    free, reserved = int(free_gib * blocks_per_gib), int(reserved_gib * blocks_per_gib)
    info = os.statvfs_result((BLOCK_BYTES, BLOCK_BYTES, 100 * blocks_per_gib, free + reserved, free, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: info)


def test_a_missing_path_is_failed(tmp_path: Path) -> None:
    folder = tmp_path / "mount"
    folder.mkdir()
    probe = make_probe({"url": f"disk:{folder}", "min_free": "1B"})
    assert asyncio.run(probe.check()) == READY
    folder.rmdir()
    assert asyncio.run(probe.check()) == failed(ReasonCode.FILE_NOT_FOUND)


@pytest.mark.parametrize(
    ("options", "free_gib", "outcome"),
    [
        ({}, 5.0, "ready"),
        ({}, 4.9, "failed"),
        ({"min_free": "5GiB"}, 5.0, "ready"),
        ({"min_free": "5GiB"}, 4.9, "failed"),
        ({"min_free": "10%"}, 10.0, "ready"),
        ({"min_free": "10%"}, 9.9, "failed"),
        ({"min_free": "5 %"}, 5.1, "ready"),
        ({"min_free": "0B"}, 0.0, "ready"),
        ({"warn_free": "20%"}, 20.0, "ready"),
        ({"warn_free": "20%"}, 19.9, "not_ready"),
        ({"warn_free": "20%"}, 4.9, "failed"),
        ({"min_free": "1%", "warn_free": "10GiB"}, 9.9, "not_ready"),
    ],
)
def test_free_space_is_compared_with_sizes_and_shares(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, str], free_gib: float, outcome: str
) -> None:
    disk(monkeypatch, free_gib=free_gib)
    assert check("/", **options).outcome.value == outcome


@pytest.mark.parametrize("options", [{}, {"min_free": "0%"}, {"min_free": "0B"}])
def test_a_file_system_without_blocks_is_failed(options: dict[str, str]) -> None:
    assert os.statvfs("/proc").f_blocks == 0  # 5 % of nothing is always free
    assert check("/proc", **options) == failed(ReasonCode.NOT_SUPPORTED)


def test_space_reserved_for_root_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    disk(monkeypatch, free_gib=1.0, reserved_gib=50.0)
    assert check("/").outcome.value == "failed"


# ---- inodes and the mount table; tests/integration/probes/test_disk.py has real file systems


@pytest.mark.parametrize(("inodes", "free", "code"), [(100, 1, "ok"), (100, 0, "inodes_low"), (0, 0, "ok")])
def test_a_file_system_needs_a_free_inode_if_it_has_a_limit(
    monkeypatch: pytest.MonkeyPatch, inodes: int, free: int, code: str
) -> None:
    info = os.statvfs_result((BLOCK_BYTES, BLOCK_BYTES, 100, 50, 50, inodes, free, free, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: info)
    assert check("/").code == code


def test_a_read_only_mount_is_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    info = os.statvfs_result((BLOCK_BYTES, BLOCK_BYTES, 100, 50, 50, 0, 0, 0, os.ST_RDONLY, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: info)
    assert check("/") == failed(ReasonCode.READ_ONLY)
    assert check("/", read_only=True) == READY


# Lines of Linux 6.18: a bind mount, a mount point with a space, one with " - " in its name, and an empty source.
MOUNT_TABLE = r"""22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard,resuid=65534
42 27 7:0 / /mnt/data rw,relatime shared:7 master:2 - ext4 /dev/loop0 rw,emergency_ro
43 27 7:0 /sub /mnt/bind\040mount ro,relatime - ext4 /dev/loop0 rw,emergency_ro
44 27 7:1 / /mnt/a\040-\040b rw,relatime - ext4 /dev/loop1 rw,errors=remount-ro
45 27 0:44 / /mnt/tmp rw,relatime - tmpfs  rw,size=1024k
46 27 7:2 / /mnt/lost rw,relatime - ext4 /dev/emergency_ro rw,shutdown
47 27 7:3 / /mnt/emergency_ro rw,relatime - ext4 /dev/emergency_ro rw
"""


@pytest.mark.parametrize(
    ("major", "minor", "state"),
    [(254, 0, ""), (7, 0, "emergency_ro"), (7, 1, ""), (0, 44, ""), (7, 2, "shutdown"), (7, 3, ""), (70, 0, "")],
)
def test_the_mount_table_has_the_state_after_an_error(major: int, minor: int, state: str) -> None:
    found = error_state(os.makedev(major, minor), parse_mounts(MOUNT_TABLE.splitlines(keepends=True)))
    assert bool(found) == bool(state)
    assert state in found


@pytest.mark.parametrize("line", ["", "27", "27 1 7:0", "27 1 7:0 / / rw", "27 1 7:0 / / rw - ext4", " - ", "- - 7:0"])
def test_an_incomplete_line_of_the_mount_table_is_left_out(line: str) -> None:
    assert list(parse_mounts([line])) == []


def test_without_a_mount_table_the_file_system_is_used_as_it_reports_itself(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(file_system, "_MOUNT_TABLE", tmp_path / "missing")
    assert check(tmp_path, min_free="1B") == READY


# ---- what should be mounted


def mounted(*points: str) -> list[Mount]:
    return [Mount("8:1", point, "/dev/sda1", ["rw"]) for point in ("/", *points)]


def missing(path: str, *points: str, required: str = "", fstab: str = "", memory: MountMemory | None = None) -> str:
    found = (memory or MountMemory()).missing_point(path, required, mounted(*points), fstab.splitlines())
    return found.partition(" ")[0]


@pytest.mark.parametrize(
    ("path", "point"),
    [
        ("/proc/self", "/proc"),
        ("/mnt/data", "/mnt/data"),
        ("/mnt/database", "/"),
        ("/mnt/bind mount/x", "/mnt/bind mount"),
        ("/mnt/a - b", "/mnt/a - b"),
        ("/", "/"),
    ],
)
def test_the_mount_of_a_path_is_the_longest_above_it(path: str, point: str) -> None:
    found = mount_of(path, list(parse_mounts(MOUNT_TABLE.splitlines())))
    assert found is not None
    assert found.point == point


FSTAB = r"""
# <file system> <mount point> <type> <options> <dump> <pass>
UUID=1f0e / ext4 errors=remount-ro 0 1
UUID=6a22 /srv/data/ xfs defaults,nofail 0 2
/dev/sdc1 /srv/my\040data ext4
/dev/sdd1 /media/backup ext4 noauto,user 0 0
/dev/sde1 none swap sw 0 0
/dev/sdf1 swap swap
#/dev/sdg1 /srv/old ext4
incomplete
"""


def test_what_is_mounted_at_boot_is_read_from_fstab() -> None:
    assert list(fstab_points(FSTAB.splitlines())) == ["/srv/data", "/srv/my data"]


@pytest.mark.parametrize(
    ("path", "points", "expected"),
    [
        ("/srv/data/chain", ["/srv/data"], ""),
        ("/srv/data/chain", [], "/srv/data"),
        ("/srv/data", ["/srv/data/chain"], "/srv/data"),
        ("/srv/database", [], ""),
        ("/media/backup", [], ""),
        ("/srv/old", [], ""),
        ("/", [], ""),
    ],
)
def test_a_volume_of_fstab_must_be_mounted(path: str, points: list[str], expected: str) -> None:
    assert missing(path, *points, fstab=FSTAB) == expected


def test_a_required_mount_point_must_be_mounted() -> None:
    assert missing("/srv/data/chain", "/srv/data", required="/srv/data") == ""
    assert missing("/srv/data/chain", "/srv", required="/srv/data") == "/srv/data"


def test_what_was_mounted_before_must_be_mounted() -> None:
    memory = MountMemory()
    assert missing("/srv/data/chain", memory=memory) == ""
    assert missing("/srv/data/chain", "/srv/data", memory=memory) == ""
    for _ in range(2):
        assert missing("/srv/data/chain", memory=memory) == "/srv/data"
        assert missing("/srv/data/chain", "/srv", memory=memory) == "/srv/data"
    assert missing("/srv/data/chain", "/srv", "/srv/data", memory=memory) == ""
    assert missing("/elsewhere", memory=memory) == ""  # the path is a link that was changed


def test_without_a_mount_table_nothing_is_missing() -> None:
    assert MountMemory().missing_point("/srv/data", "/srv/data", [], FSTAB.splitlines()) == ""


UUID = "6a2213f4-9c6b-4c15-8e0e-3f9d5a0f2d11"


def test_the_uuid_of_a_file_system_is_read_from_dev_or_udev(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of a directory, whose device has a number; udev's files are as udev(7) stores its database."""
    by_uuid, udev = tmp_path / "by-uuid", tmp_path / "udev"
    monkeypatch.setattr(file_system, "_BY_UUID", by_uuid)
    monkeypatch.setattr(file_system, "_UDEV_DATA", udev)
    assert check(tmp_path, min_free="1B", uuid=UUID) == unknown(ReasonCode.NOT_SUPPORTED)
    udev.mkdir()
    device = tmp_path.stat().st_dev
    entry = udev / f"b{os.major(device)}:{os.minor(device)}"
    entry.write_text(f"S:disk/by-uuid/{UUID}\nE:ID_FS_TYPE=ext4\nE:ID_FS_UUID={UUID}\n")
    assert check(tmp_path, min_free="1B", uuid=UUID.upper()) == READY
    entry.write_text("E:ID_FS_UUID=another\n")
    assert check(tmp_path, min_free="1B", uuid=UUID) == failed(ReasonCode.NOT_MOUNTED)
    entry.unlink()
    by_uuid.mkdir()
    assert check(tmp_path, min_free="1B", uuid=UUID) == failed(ReasonCode.NOT_MOUNTED)
    (by_uuid / UUID).symlink_to("/dev/null")  # another device
    assert check(tmp_path, min_free="1B", uuid=UUID) == failed(ReasonCode.NOT_MOUNTED)


def test_the_link_to_another_device_with_the_same_uuid_does_not_count_against_the_mounted_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A btrfs on several devices, or a volume with a snapshot: udev's link names one of them."""
    by_uuid, udev = tmp_path / "by-uuid", tmp_path / "udev"
    monkeypatch.setattr(file_system, "_BY_UUID", by_uuid)
    monkeypatch.setattr(file_system, "_UDEV_DATA", udev)
    for folder in (by_uuid, udev):
        folder.mkdir()
    device = tmp_path.stat().st_dev
    (udev / f"b{os.major(device)}:{os.minor(device)}").write_text(f"E:ID_FS_UUID={UUID}\n")
    (by_uuid / UUID).symlink_to("/dev/null")
    assert check(tmp_path, min_free="1B", uuid=UUID) == READY


def temporary_file(folder: Path) -> Path:
    return folder / f".svcnode_write.{os.geteuid()}.tmp"


def test_the_file_of_a_killed_process_is_removed(tmp_path: Path) -> None:
    temporary_file(tmp_path).write_bytes(bytes(BLOCK_BYTES))
    assert check(tmp_path, min_free="1B", write=True) == READY
    assert list(tmp_path.iterdir()) == []


def too_large(file: Path) -> None:
    file.write_bytes(bytes(BLOCK_BYTES + 1))


def with_content(file: Path) -> None:
    file.write_bytes(b"entries")


def link(file: Path) -> None:
    file.with_name("target").write_text("entries")
    file.symlink_to(file.with_name("target"))


def of_another_user(file: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file to another user")
    file.touch()
    os.chown(file, 65534, 65534)


@pytest.mark.parametrize("create", [too_large, with_content, link, of_another_user])
def test_a_file_of_another_program_is_neither_changed_nor_removed(
    tmp_path: Path, create: Callable[[Path], None]
) -> None:
    file = temporary_file(tmp_path)
    create(file)
    before = file.lstat(), file.read_bytes()
    verdict = check(tmp_path, min_free="1B", write=True)
    assert verdict == failed(ReasonCode.WRITE_FAILED)
    assert str(file) in verdict.reason
    assert (file.lstat().st_ino, file.read_bytes()) == (before[0].st_ino, before[1])


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (errno.ENOSPC, "storage_full"),
        (errno.EDQUOT, "storage_full"),
        (errno.EROFS, "read_only"),
        (errno.EACCES, "permission_denied"),
        (errno.EIO, "write_failed"),
        (errno.EMFILE, "resource_exhausted"),
    ],
)
def test_the_error_of_a_write_has_its_code_and_the_file_is_removed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: int, code: str
) -> None:
    def fail(_: int) -> None:
        raise OSError(number, "")

    monkeypatch.setattr(os, "fsync", fail)
    assert check(tmp_path, min_free="1B", write=True).code == code
    assert list(tmp_path.iterdir()) == []
