"""Unpacks svcnode and its packages from svcnode.pyz, once for each version of the file, and runs svcnode.

Compiled modules cannot be imported from a zip file. Their folder holds code that will run, so only this user may write
to it. It gets its name when it is complete, so a killed process leaves none with that name. Of processes that
start at the same time, one unpacks and the others wait. Each process holds a shared lock on its folder, and folders of
other versions are removed when none has used them for 30 days.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import stat
import sys
import tempfile
import time
import zlib
from contextlib import contextmanager, suppress
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import TYPE_CHECKING
from zipfile import BadZipFile, ZipFile

if TYPE_CHECKING:
    from collections.abc import Iterator

# Names version, processor and C library, such as cpython-311-x86_64-linux-gnu.
ABI = EXTENSION_SUFFIXES[0].strip(".").removesuffix(".so")

UNUSED_S = 30 * 86400

ADVICE = "set XDG_CACHE_HOME to a folder of yours"


class UnpackError(Exception):
    """The packages cannot be unpacked, and why."""


def main() -> int:
    archive = Path(__file__).parent
    try:
        sys.path[0] = str(unpacked(archive))
    except (BadZipFile, EOFError, zlib.error) as exc:
        sys.exit(f"svcnode.pyz: the file is damaged ({exc}): copy it again")
    except (OSError, UnpackError) as exc:
        sys.exit(f"svcnode.pyz: {exc}")
    from svcnode.cli import main as svcnode

    return svcnode()


def unpacked(archive: Path) -> Path:
    """The folder with the packages for this Python."""
    with ZipFile(archive) as outer:
        digest = _digest_for(json.loads(outer.read("packages.json")))
        folder = _cache_folder() / digest
        with _locked(folder.parent):
            _clean(folder.parent, keep=folder)
            if not folder.exists():
                _unpack(outer, folder)
            _check_private(folder)
            _use(folder)
    return folder


def _digest_for(digests: dict[str, str]) -> str:
    if ABI not in digests:
        raise UnpackError(f"this Python is {ABI}, and the file is for {', '.join(digests)}; use another, or the wheel")
    return digests[ABI]


def _cache_folder() -> Path:
    """The first folder that can be used: in the user's cache, or in the folder for temporary files."""
    problems = []
    for folder in _candidates():
        try:
            folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)
            _check_private(folder)
            _check_parents(folder)
            _check_writable(folder)
        except (OSError, UnpackError) as exc:
            problems.append(str(exc))
        else:
            return folder
    raise UnpackError(f"no folder to unpack into: {'; '.join([*problems, ADVICE])}")


def _candidates() -> Iterator[Path]:
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111  that of Path can raise
    if os.path.isabs(cache):  # noqa: PTH117  a user without a home has none
        yield Path(cache, "svcnode-pyz")
    with suppress(FileNotFoundError):  # no such folder can be written
        yield Path(tempfile.gettempdir()).resolve() / f"svcnode-pyz-{os.geteuid()}"


def _check_private(folder: Path) -> None:
    """Code of another user must not run."""
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise UnpackError(f"{folder} must be a folder of this user with permissions 0700")


def _check_parents(folder: Path) -> None:
    """Another user must not be able to replace the folder, such as in a home that `sudo` has kept."""
    trusted = {0, os.geteuid(), Path("/").stat().st_uid}
    for parent in folder.resolve().parents:
        status = parent.stat()
        anyone = status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX
        if status.st_uid not in trusted or anyone:
            raise UnpackError(f"another user can write to {parent}")


def _check_writable(folder: Path) -> None:
    if os.statvfs(folder).f_flag & os.ST_NOEXEC:
        raise UnpackError(f"{folder} is on a file system without execution (noexec)")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UnpackError(f"{folder} cannot be written")


def _clean(cache: Path, *, keep: Path) -> None:
    """Remove the folders of other versions that are not used, and those that a killed process has left."""
    for folder in cache.glob("[0-9a-f]" * 32):
        with suppress(OSError):  # it stays
            if folder != keep and folder.lstat().st_mtime < time.time() - UNUSED_S and not _is_used(folder):
                folder.rename(cache / f"partial-{folder.name}")
    for folder in cache.glob("partial-*"):
        shutil.rmtree(folder, ignore_errors=True)


def _unpack(outer: ZipFile, folder: Path) -> None:
    cache = folder.parent
    partial = Path(tempfile.mkdtemp(prefix="partial-", dir=cache))
    try:
        for name in ("any.zip", f"{ABI}.zip"):
            with outer.open(name) as file, ZipFile(file) as packages:
                packages.extractall(partial)
        partial.rename(folder)
    except OSError as exc:
        raise UnpackError(f"cannot unpack into {cache}: {exc.strerror or exc}; {ADVICE}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def _locked(folder: Path, flags: int = 0) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | flags)
        yield
    finally:
        os.close(descriptor)


def _use(folder: Path) -> None:
    """Neither another version nor systemd-tmpfiles removes a folder with a lock. The lock ends with the process."""
    fcntl.flock(os.open(folder, os.O_RDONLY | os.O_CLOEXEC), fcntl.LOCK_SH)
    os.utime(folder)


def _is_used(folder: Path) -> bool:
    try:
        with _locked(folder, fcntl.LOCK_NB):
            return False
    except BlockingIOError:
        return True
