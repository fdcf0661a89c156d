"""Disk probes on the real file system, and on a simulated one with a known size."""

from __future__ import annotations

import asyncio
import errno
import os
from typing import TYPE_CHECKING

import pytest

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import OptionError
from svcnode.probes import file_system, make_probe
from svcnode.probes.file_system import error_state
from tests.support.verdicts import READY, failed

if TYPE_CHECKING:
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


# ---- the real file system


def test_a_disk_below_min_free_is_failed_and_the_reason_has_its_size(tmp_path: Path) -> None:
    verdict = check(tmp_path, min_free="9000000TB")
    assert verdict == failed(ReasonCode.DISK_LOW)
    info = os.statvfs(tmp_path)
    assert f"{info.f_blocks * info.f_frsize / GIB:.1f} GiB" in verdict.reason
    assert "9000000TB" in verdict.reason


def test_a_missing_path_is_failed(tmp_path: Path) -> None:
    folder = tmp_path / "mount"
    folder.mkdir()

    probe = make_probe({"url": f"disk:{folder}", "min_free": "1B"})
    assert asyncio.run(probe.check()) == READY
    folder.rmdir()
    assert asyncio.run(probe.check()) == failed(ReasonCode.FILE_NOT_FOUND)


# ---- a file system of 100 GiB


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
        ({"min_free": "1GiB", "warn_free": "10GiB"}, 9.9, "not_ready"),
        ({"min_free": "1%", "warn_free": "10GiB"}, 9.9, "not_ready"),
    ],
)
def test_free_space_is_compared_with_sizes_and_shares(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, str], free_gib: float, outcome: str
) -> None:
    disk(monkeypatch, free_gib=free_gib)
    assert check("/", **options).outcome.value == outcome


@pytest.mark.parametrize(
    ("blocks", "amount"),
    [(64 * 256, "32.0 of 64.0 MiB"), (4, "8.0 of 16.0 KiB"), (256 * 1024, "0.5 of 1.0 GiB")],
)
def test_the_reason_of_a_small_disk_has_a_small_unit(monkeypatch: pytest.MonkeyPatch, blocks: int, amount: str) -> None:
    info = os.statvfs_result((BLOCK_BYTES, BLOCK_BYTES, blocks, blocks // 2, blocks // 2, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: info)
    assert check("/boot", min_free="5GiB").reason.startswith(amount)


@pytest.mark.parametrize("path", ["/proc", "/sys"])
@pytest.mark.parametrize("options", [{}, {"min_free": "0%"}, {"min_free": "0B"}])
def test_a_file_system_without_blocks_is_failed(path: str, options: dict[str, str]) -> None:
    assert os.statvfs(path).f_blocks == 0  # 5 % of nothing is always free
    assert check(path, **options) == failed(ReasonCode.NOT_SUPPORTED)


def test_space_reserved_for_root_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    disk(monkeypatch, free_gib=1.0, reserved_gib=50.0)
    assert check("/").outcome.value == "failed"


# ---- configuration


@pytest.mark.parametrize("value", ["5", "5 apples", "100%", "-1%", "\u0665%", "%", "", 5, 0.05, True, None, []])
def test_an_amount_that_is_neither_a_size_nor_a_share_is_rejected(value: object) -> None:
    with pytest.raises(OptionError) as caught:
        make_probe({"url": "disk:/", "min_free": value})
    assert caught.value.option == "min_free"


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
    [
        (254, 0, ""),
        (7, 0, "emergency_ro"),
        (7, 1, ""),
        (0, 44, ""),
        (7, 2, "shutdown"),
        (7, 3, ""),
        (0, 7, ""),
        (70, 0, ""),
    ],
)
def test_the_mount_table_has_the_state_after_an_error(major: int, minor: int, state: str) -> None:
    found = error_state(os.makedev(major, minor), MOUNT_TABLE.splitlines(keepends=True))
    assert bool(found) == bool(state)
    assert state in found


@pytest.mark.parametrize("line", ["", "\n", "27", "27 1 7:0", "27 1 7:0 / / rw", "27 1 7:0 / / rw -", " - ", "- - 7:0"])
def test_an_incomplete_mount_table_has_no_state(line: str) -> None:
    assert error_state(os.makedev(7, 0), [line]) == ""


def test_without_a_mount_table_the_file_system_is_used_as_it_reports_itself(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(file_system, "_MOUNT_TABLE", tmp_path / "missing")
    assert check(tmp_path, min_free="1B") == READY


# ---- the write


def temporary_file(folder: Path) -> Path:
    return folder / f".svcnode_write.{os.geteuid()}.tmp"


def test_the_file_of_a_killed_process_is_removed(tmp_path: Path) -> None:
    temporary_file(tmp_path).write_bytes(bytes(BLOCK_BYTES))
    assert check(tmp_path, min_free="1B", write=True) == READY
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [bytes(BLOCK_BYTES + 1), b"entries"])
def test_a_file_of_another_program_is_not_removed(tmp_path: Path, content: bytes) -> None:
    file = temporary_file(tmp_path)
    file.write_bytes(content)
    verdict = check(tmp_path, min_free="1B", write=True)
    assert verdict == failed(ReasonCode.WRITE_FAILED)
    assert "not created by svcnode" in verdict.reason
    assert str(file) in verdict.reason
    assert file.read_bytes() == content


def test_a_link_is_neither_followed_nor_removed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("entries")
    temporary_file(tmp_path).symlink_to(target)
    assert check(tmp_path, min_free="1B", write=True) == failed(ReasonCode.WRITE_FAILED)
    assert target.read_text() == "entries"
    assert temporary_file(tmp_path).is_symlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_file_of_another_user_is_not_removed(tmp_path: Path) -> None:
    file = temporary_file(tmp_path)
    file.touch()
    os.chown(file, 65534, 65534)
    assert check(tmp_path, min_free="1B", write=True) == failed(ReasonCode.WRITE_FAILED)
    assert file.exists()


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
