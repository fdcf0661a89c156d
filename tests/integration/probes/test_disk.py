"""Disk probes on file systems of their own: full, without inodes, read-only, after an error, and frozen."""

from __future__ import annotations

import asyncio
import os
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest

from svcnode.core.codes import ReasonCode
from svcnode.probes import file_system, make_probe
from svcnode.probes.run import run_check
from tests.support.disks import LoopDisk, MemoryDisk
from tests.support.servers.base import wait_until
from tests.support.verdicts import READY, failed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from svcnode.core.model import Verdict
    from svcnode.probes.base import Probe

HANG_TIMEOUT_S = 0.5
WAIT_TIMEOUT_S = 30.0
UNPRIVILEGED_UID = 65534


def probe_of(path: Path, **options: object) -> Probe:
    return make_probe({"url": f"disk:{path}", **options})


def check(path: Path, **options: object) -> Verdict:
    return run(probe_of(path, **options))


def run(probe: Probe, timeout_s: float = WAIT_TIMEOUT_S) -> Verdict:
    verdict, error = asyncio.run(run_check(probe, timeout_s))
    assert error is None
    return verdict


@pytest.fixture
def mount_point(tmp_path: Path) -> Path:
    return tmp_path / "mount"


@contextmanager
def without_inodes(disk: MemoryDisk) -> Iterator[None]:
    files: list[Path] = []
    while os.statvfs(disk.path).f_favail:
        files.append(disk.path / f"{len(files)}")
        files[-1].touch()
    yield
    for file in files:
        file.unlink()


def test_a_file_system_without_free_inodes_is_failed(mount_point: Path) -> None:
    with MemoryDisk(mount_point, inodes=10) as disk:
        assert check(mount_point) == READY
        with without_inodes(disk):
            assert check(mount_point) == failed(ReasonCode.INODES_LOW)
            assert check(mount_point, write=True) == failed(ReasonCode.INODES_LOW)
        assert check(mount_point) == READY


def test_a_read_only_mount_is_failed(mount_point: Path) -> None:
    with MemoryDisk(mount_point) as disk:
        with disk.read_only():
            assert check(mount_point) == failed(ReasonCode.READ_ONLY)
        assert check(mount_point) == READY


@pytest.mark.parametrize("options", [{}, {"read_only": True}, {"write": True}])
def test_a_file_system_after_an_error_is_failed(mount_point: Path, options: dict[str, bool]) -> None:
    with LoopDisk(mount_point, size_bytes=1024**2) as disk:
        assert check(mount_point, **options) == READY
        disk.report_error()
        with pytest.raises(OSError, match=r"[Rr]ead-only"):
            (mount_point / "file").touch()
        assert check(mount_point, **options) == failed(ReasonCode.READ_ONLY)


def test_a_write_creates_syncs_and_removes_a_file(mount_point: Path) -> None:
    with MemoryDisk(mount_point):
        before = mount_point.stat().st_mtime_ns
        assert check(mount_point, write=True) == READY
        assert mount_point.stat().st_mtime_ns > before
        assert list(mount_point.iterdir()) == []


def test_a_write_to_a_full_file_system_is_failed_and_leaves_no_file(mount_point: Path) -> None:
    with LoopDisk(mount_point, size_bytes=1024**2) as disk:
        probe = probe_of(mount_point, min_free="0B", write=True)
        files = set(mount_point.iterdir())
        with disk.full():
            assert check(mount_point, min_free="0B") == READY
            assert run(probe) == failed(ReasonCode.STORAGE_FULL)
        assert set(mount_point.iterdir()) == files
        assert run(probe) == READY


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change its user")
def test_a_write_without_permission_is_failed() -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        probe = probe_of(folder, min_free="0B", write=True)
        os.seteuid(UNPRIVILEGED_UID)
        try:
            assert run(probe) == failed(ReasonCode.PERMISSION_DENIED)
        finally:
            os.seteuid(0)


def test_a_write_that_hangs_is_failed_until_the_file_system_works_again(mount_point: Path) -> None:
    with LoopDisk(mount_point, size_bytes=1024**2) as disk:
        files = set(mount_point.iterdir())
        probe = probe_of(mount_point, write=True)
        assert run(probe) == READY
        with disk.frozen():
            assert run(probe_of(mount_point), HANG_TIMEOUT_S) == READY  # statvfs does not hang
            assert run(probe, HANG_TIMEOUT_S) == failed(ReasonCode.WRITE_TIMEOUT)
            assert run(probe, HANG_TIMEOUT_S) == failed(ReasonCode.STILL_RUNNING)
        wait_until(lambda: run(probe) == READY, "ready again")
        assert set(mount_point.iterdir()) == files


# ---- volumes that are not mounted


def test_a_volume_that_was_mounted_is_failed_while_it_is_not(mount_point: Path) -> None:
    probe = probe_of(mount_point, min_free="1B", write=True)
    with MemoryDisk(mount_point):
        assert run(probe) == READY
    assert run(probe) == failed(ReasonCode.NOT_MOUNTED)
    assert list(mount_point.iterdir()) == []  # nothing is written to the file system below
    with MemoryDisk(mount_point):
        assert run(probe) == READY


def test_a_folder_of_a_volume_that_is_not_mounted_is_failed_with_the_cause(mount_point: Path) -> None:
    probe = probe_of(mount_point / "chain", min_free="1B")
    with MemoryDisk(mount_point):
        (mount_point / "chain").mkdir()
        assert run(probe) == READY
    assert run(probe) == failed(ReasonCode.NOT_MOUNTED)


def test_a_path_that_must_be_a_mount_point_is_failed_if_it_is_none(mount_point: Path) -> None:
    options = {"min_free": "1B", "mount": True}
    mount_point.mkdir()
    assert check(mount_point, **options) == failed(ReasonCode.NOT_MOUNTED)
    with MemoryDisk(mount_point):
        link = mount_point.with_name("link")
        link.symlink_to(mount_point)
        assert check(mount_point, **options) == check(link, **options) == READY
        (mount_point / "chain").mkdir()
        assert check(mount_point / "chain", **options) == failed(ReasonCode.NOT_MOUNTED)
        assert check(mount_point / "chain", min_free="1B", mount=str(mount_point)) == READY


def test_a_volume_in_fstab_that_is_not_mounted_is_failed(
    mount_point: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(file_system, "_FSTAB", tmp_path / "fstab")
    mount_point.mkdir()
    assert check(mount_point, min_free="1B") == READY
    (tmp_path / "fstab").write_text(f"UUID=6a22 {mount_point} ext4 defaults,nofail 0 2\n")
    assert check(mount_point, min_free="1B") == failed(ReasonCode.NOT_MOUNTED)
    with MemoryDisk(mount_point):
        assert check(mount_point, min_free="1B") == READY


def test_the_mounted_file_system_must_have_the_uuid(
    mount_point: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    by_uuid = tmp_path / "by-uuid"
    by_uuid.mkdir()
    monkeypatch.setattr(file_system, "_BY_UUID", by_uuid)
    with LoopDisk(mount_point, size_bytes=1024**2) as disk:
        (by_uuid / "6a22-13f4").symlink_to(disk.device())
        assert check(mount_point, uuid="6a22-13f4") == READY
        assert check(mount_point, uuid="6a22-13f5") == failed(ReasonCode.NOT_MOUNTED)
        assert check(tmp_path, min_free="1B", uuid="6a22-13f4") == failed(ReasonCode.NOT_MOUNTED)
