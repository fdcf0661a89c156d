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
from svcnode.probes import make_probe
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
