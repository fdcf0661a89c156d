"""Small file systems that can be filled, frozen and made read-only. They need root; one needs a loop device."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pytest

from tests.support.servers.base import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

_TOOLS = ("mkfs.ext4", "mount", "umount", "fsfreeze")


class _Disk:
    path: Path

    def free_inodes(self) -> int:
        return os.statvfs(self.path).f_favail

    @contextmanager
    def read_only(self) -> Iterator[None]:
        remount = ["mount", "-o", "remount,ro", str(self.path)]
        # It is busy while a file is open for writing, for example by a check.
        wait_until(lambda: subprocess.run(remount, capture_output=True, check=False).returncode == 0, "read-only")
        try:
            yield
        finally:
            _run("mount", "-o", "remount,rw", str(self.path))

    @contextmanager
    def full(self) -> Iterator[None]:
        filler = self.path / "filler"
        with filler.open("wb", buffering=0) as file:
            for size in (1024 * 1024, 4096):
                try:
                    while True:
                        file.write(bytes(size))
                except OSError as exc:
                    if exc.errno != errno.ENOSPC:
                        raise
        try:
            yield
        finally:
            filler.unlink()


class LoopDisk(_Disk):
    """An ext4 file system in a file, mounted at `path` inside the block; skips where that is not possible."""

    def __init__(self, path: Path, *, size_bytes: int = 48 * 1024**2) -> None:
        self.path = path
        self._image = path.with_name(f"{path.name}.img")
        self._size_bytes = size_bytes

    def __enter__(self) -> Self:
        if os.geteuid() != 0:
            pytest.skip("a file system can be mounted by root only")
        if missing := [tool for tool in _TOOLS if shutil.which(tool) is None]:
            pytest.skip(f"not installed: {', '.join(missing)}")
        self.path.mkdir(parents=True)
        with self._image.open("wb") as image:
            image.truncate(self._size_bytes)
        # Without a journal and without blocks for root, it is full when it is full for every user.
        _run("mkfs.ext4", "-q", "-b", "4096", "-m", "0", "-O", "^has_journal", str(self._image))
        _run("mount", "-o", "loop", str(self._image), str(self.path))
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(["fsfreeze", "--unfreeze", self.path], capture_output=True, check=False)
        subprocess.run(["umount", "--lazy", self.path], check=True)
        self._image.unlink()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """A write waits until the end of the block, and cannot be interrupted."""
        _run("fsfreeze", "--freeze", str(self.path))
        try:
            yield
        finally:
            _run("fsfreeze", "--unfreeze", str(self.path))

    def device(self) -> Path:
        command = ["findmnt", "-n", "-o", "SOURCE", str(self.path)]
        return Path(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip())

    def report_error(self) -> None:
        """As after a damaged block: ext4 accepts no writes until it is mounted again."""
        _run("mount", "-o", "remount,errors=remount-ro", str(self.path))
        trigger = Path("/sys/fs/ext4") / self.device().name / "trigger_fs_error"
        if not trigger.exists():
            pytest.skip(f"not in this kernel: {trigger}")
        trigger.write_text("1")


class MemoryDisk(_Disk):
    """A tmpfs mounted at `path` inside the block; skips where that is not possible."""

    def __init__(self, path: Path, *, size_bytes: int = 1024**2, inodes: int = 0) -> None:
        self.path = path
        self._options = f"size={size_bytes},nr_inodes={inodes}"  # 0: no limit

    def __enter__(self) -> Self:
        if os.geteuid() != 0:
            pytest.skip("a file system can be mounted by root only")
        self.path.mkdir(parents=True, exist_ok=True)
        _run("mount", "-t", "tmpfs", "-o", self._options, "none", str(self.path))
        self._is_mounted = True
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_mounted:
            self.unmount()

    def unmount(self) -> None:
        """At once: whoever has a file open keeps it, although nobody else sees it."""
        subprocess.run(["umount", "--lazy", self.path], check=True)
        self._is_mounted = False


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{command[0]} failed: {done.stderr.strip()}")
