"""`disk:/path`: the file system of a path is mounted, has free space and inodes, and accepts writes.

ready      it is writable, has free inodes, more than `min_free` is free, and more than `warn_free` if it is set
not ready  less than `warn_free` is free
failed     read-only, also after an error; no free inodes; less than `min_free` is free; with `write`, a file cannot be
           created, synced and removed; the path does not exist, or its file system stores no data, like /proc; a
           volume is not mounted that was mounted before, or that /etc/fstab, `mount` or `uuid` expect
unknown    no file descriptors or threads left on this machine; with `uuid`, the machine does not tell it
"""

from __future__ import annotations

import errno
import os
import re
import stat
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import InvalidValueError, OptionError
from svcnode.core.model import Outcome, Verdict
from svcnode.core.option_types import SIZE_SCHEMA, option_type
from svcnode.core.text import os_error_text, type_name
from svcnode.core.url import UrlError, UrlForm
from svcnode.net.os_errors import CodedOSError, code_for_os_error, verdict_for_file_error, verdict_for_os_error
from svcnode.net.threads import DaemonCall
from svcnode.net.trace import step
from svcnode.probes.base import UrlProbe
from svcnode.probes.file_system import (
    MountMemory,
    has_no_inodes,
    has_uuid,
    read_fstab,
    read_mounts,
    read_only_cause,
)
from svcnode.probes.options import WriteTarget, size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from svcnode.probes.file_system import Mount

_PERCENT = re.compile(r"([0-9]{1,2}(?:\.[0-9]+)?) ?%", re.ASCII)
_UUID = re.compile("[0-9A-Fa-f-]{4,36}", re.ASCII)
_UNITS = ("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024)
_WRITE_BYTES = 4096  # one block: less may be stored in the inode, also if no block is free
_CREATE_ATTEMPTS = 10  # several nodes may write in the same directory
_WRITE_CODES = {
    errno.ENOSPC: ReasonCode.STORAGE_FULL,
    errno.EDQUOT: ReasonCode.STORAGE_FULL,
    errno.EROFS: ReasonCode.READ_ONLY,
    errno.EACCES: ReasonCode.PERMISSION_DENIED,
    errno.EPERM: ReasonCode.PERMISSION_DENIED,
}


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """A size in bytes, or a share of the file system."""

    text: str
    bytes: int = 0
    share: float = 0.0

    def of(self, total_bytes: int) -> float:
        return self.bytes or self.share * total_bytes


@option_type(
    {"anyOf": [SIZE_SCHEMA, {"type": "string", "pattern": f"^{_PERCENT.pattern}$"}]}, show=lambda space: space.text
)
def disk_space(value: object) -> DiskSpace:
    if isinstance(value, str) and (found := _PERCENT.fullmatch(value)):
        return DiskSpace(value, share=float(found[1]) / 100)
    try:
        return DiskSpace(str(value), bytes=size(value))
    except InvalidValueError:
        text = f'must be a size such as "5GiB" or a share such as "10%", not {_shown(value)}'
        raise InvalidValueError(text) from None


@option_type({"anyOf": [{"type": "boolean"}, {"type": "string", "pattern": "^/."}]}, show=lambda value: value)
def mount_point(value: object) -> bool | str:
    """`true` for the path of the URL, or another absolute path."""
    if isinstance(value, bool) or (isinstance(value, str) and value.startswith("/") and value != "/"):
        return value
    raise InvalidValueError(
        f'must be true or the absolute path of a mount point, such as "/srv/data", not {_shown(value)}'
    )


def _shown(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else type_name(value)


@option_type({"type": "string", "pattern": f"^{_UUID.pattern}$"}, show=str)
def file_system_uuid(value: object) -> str:
    if isinstance(value, str) and _UUID.fullmatch(value):
        return value
    raise InvalidValueError(f"must be the UUID of a file system, as blkid shows it, not {_shown(value)}")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DiskProbe(UrlProbe):
    min_free: Annotated[DiskSpace, disk_space] = DiskSpace("5%", share=0.05)
    warn_free: Annotated[DiskSpace | None, disk_space] = None
    read_only: bool = False  # a read-only mount is allowed; it needs no free space
    write: WriteTarget = ""  # the name of the file
    mount: Annotated[bool | str, mount_point] = False  # True: the path is a mount point
    uuid: Annotated[str, file_system_uuid] = ""
    _mounts: MountMemory = field(init=False, compare=False, default_factory=MountMemory)
    _thread: DaemonCall = field(init=False, compare=False, default_factory=lambda: DaemonCall("disk"))
    url_form: ClassVar = UrlForm(host="none", path=".+")

    def __post_init__(self) -> None:
        if not self.url.file_path:
            raise UrlError("path", 'the URL has no path; write "disk:/var/lib/app"')
        minimum, warning = self.min_free, self.warn_free
        if warning and bool(minimum.share) == bool(warning.share) and warning.of(1) <= minimum.of(1):
            raise OptionError("warn_free", f'must be more than min_free ("{minimum.text}")')
        if self.write and self.read_only:
            raise OptionError("write", "cannot be used with read_only = true")
        if "/" in self.write or "\0" in self.write:
            raise OptionError("write", f'must be true or the name of a file without a directory, not "{self.write}"')

    async def check(self) -> Verdict:
        verdict = await self._thread.check(self._check_now)
        if self.write and verdict.outcome in (Outcome.READY, Outcome.NOT_READY):
            with step("write"):
                written = await self._thread.check(self._write_now)
            return verdict if written.outcome is Outcome.READY else written
        return verdict

    def _check_now(self) -> Verdict:
        path = self.url.file_path
        try:
            with suppress(OSError):
                os.statvfs(path)  # mounts what is mounted on demand
            mounts = read_mounts()
            return self._mount_verdict(path, mounts) or self._file_system_verdict(path, mounts)
        except OSError as exc:
            return verdict_for_file_error(exc, path)

    def _mount_verdict(self, path: str, mounts: Sequence[Mount]) -> Verdict | None:
        """None if everything that is expected above the path is mounted."""
        real_path = os.path.realpath(path)
        required = real_path if self.mount is True else str(self.mount or "").rstrip("/")
        if missing := self._mounts.missing_point(real_path, required, mounts, read_fstab()):
            return Verdict.failed(f"not mounted: {missing}: {path}", code=ReasonCode.NOT_MOUNTED)
        if not self.uuid:
            return None
        match has_uuid(real_path, self.uuid, mounts):
            case True:
                return None
            case False:
                text = f"not mounted: another file system than that with the UUID {self.uuid} is at this path: {path}"
                return Verdict.failed(text, code=ReasonCode.NOT_MOUNTED)
            case None:
                text = f"cannot find out the UUID: neither udev nor /dev/disk/by-uuid has it on this machine: {path}"
                return Verdict.unknown(text, code=ReasonCode.NOT_SUPPORTED)

    def _file_system_verdict(self, path: str, mounts: Sequence[Mount]) -> Verdict:
        info = os.statvfs(path)
        if not info.f_blocks:
            text = f"the file system has 0 blocks, so it stores no data: {path}"
            return Verdict.failed(text, code=ReasonCode.NOT_SUPPORTED)
        if self.read_only and info.f_flag & os.ST_RDONLY:
            return Verdict.ready()
        if cause := read_only_cause(path, info, mounts):
            return Verdict.failed(f"{cause}: {path}", code=ReasonCode.READ_ONLY)
        return self._verdict_for_free_space(info, path)

    def _verdict_for_free_space(self, info: os.statvfs_result, path: str) -> Verdict:
        free_bytes, total_bytes = info.f_bavail * info.f_frsize, info.f_blocks * info.f_frsize
        free = _free_space_text(free_bytes, total_bytes)
        if free_bytes < self.min_free.of(total_bytes):
            return Verdict.failed(f"{free}, but min_free is {self.min_free.text}: {path}", code=ReasonCode.DISK_LOW)
        if has_no_inodes(info):
            return Verdict.failed(f"0 of {info.f_files} inodes free: {path}", code=ReasonCode.INODES_LOW)
        if self.warn_free and free_bytes < self.warn_free.of(total_bytes):
            return Verdict.not_ready(
                f"{free}, but warn_free is {self.warn_free.text}: {path}", code=ReasonCode.DISK_LOW
            )
        return Verdict.ready()

    def _write_now(self) -> Verdict:
        path = Path(self.url.file_path)
        # The user is in the name: one that runs as another user could not remove the file after a crash.
        file = (path if path.is_dir() else path.parent) / f".{self.write}.{os.geteuid()}.tmp"
        try:
            write_and_remove(file)
        except OSError as exc:
            return _verdict_for_write_error(exc, str(file))
        return Verdict.ready()


def _free_space_text(free_bytes: int, total_bytes: int) -> str:
    """In the largest unit that is not larger than the file system."""
    name, size_bytes = next((unit for unit in _UNITS if total_bytes >= unit[1]), _UNITS[-1])
    return f"{free_bytes / size_bytes:.1f} of {total_bytes / size_bytes:.1f} {name} free"


# ---- the write


def write_and_remove(file: Path) -> None:
    """Create the file, sync it and remove it, also after an error."""
    descriptor = _create(file)
    created = os.fstat(descriptor)
    try:
        try:
            if os.write(descriptor, bytes(_WRITE_BYTES)) < _WRITE_BYTES:
                raise OSError(errno.ENOSPC, "")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    finally:
        with suppress(FileNotFoundError):  # another node removed it
            if os.path.samestat(file.lstat(), created):
                file.unlink()


def _create(file: Path) -> int:
    for _ in range(_CREATE_ATTEMPTS):
        try:
            return os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            _remove_own(file)
    raise FileExistsError(errno.EEXIST, "")


def _remove_own(file: Path) -> None:
    """Remove the file that a killed process left, or that another node of this user is writing; neither needs it."""
    with suppress(FileNotFoundError):
        if not _is_own(file):
            raise CodedOSError("the file exists and was not created by svcnode; remove it", ReasonCode.WRITE_FAILED)
        file.unlink()


def _is_own(file: Path) -> bool:
    """Whether it is as `write_and_remove` leaves it: empty, or zeros."""
    info = file.lstat()
    is_small = stat.S_ISREG(info.st_mode) and info.st_uid == os.geteuid() and info.st_size <= _WRITE_BYTES
    return is_small and not file.read_bytes().strip(b"\0")


def _verdict_for_write_error(exc: OSError, file: str) -> Verdict:
    if code_for_os_error(exc) is ReasonCode.RESOURCE_EXHAUSTED:
        return verdict_for_os_error(exc, file)
    code = _WRITE_CODES.get(exc.errno or 0, ReasonCode.WRITE_FAILED)
    return Verdict.failed(f"write failed: {os_error_text(exc)}: {file}", code=code)
