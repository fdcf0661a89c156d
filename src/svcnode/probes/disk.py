"""`disk:/path`: the file system of a path has enough free space.

ready      more than `min_free` is free, and more than `warn_free` if it is set
not ready  less than `warn_free` is free
failed     less than `min_free` is free, the path does not exist, or its file system stores no data, like /proc
unknown    no file descriptors or threads left on this machine
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Annotated

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import InvalidValueError, OptionError
from svcnode.core.model import Verdict
from svcnode.core.text import type_name
from svcnode.net.os_errors import verdict_for_file_error
from svcnode.net.threads import DaemonCall
from svcnode.net.url import UrlError
from svcnode.probes.base import UrlProbe
from svcnode.probes.options import size

_PERCENT = re.compile(r"([0-9]{1,2}(?:\.[0-9]+)?) ?%", re.ASCII)
_UNITS = ("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024)


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """A size in bytes, or a share of the file system."""

    text: str
    bytes: int = 0
    share: float = 0.0

    def of(self, total_bytes: int) -> float:
        return self.bytes or self.share * total_bytes


def disk_space(value: object) -> DiskSpace:
    if isinstance(value, str) and (found := _PERCENT.fullmatch(value)):
        return DiskSpace(value, share=float(found[1]) / 100)
    try:
        return DiskSpace(str(value), bytes=size(value))
    except InvalidValueError:
        shown = f'"{value}"' if isinstance(value, str) else type_name(value)
        raise InvalidValueError(f'must be a size such as "5GiB" or a share such as "10%", not {shown}') from None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DiskProbe(UrlProbe):
    min_free: Annotated[DiskSpace, disk_space] = DiskSpace("5%", share=0.05)
    warn_free: Annotated[DiskSpace | None, disk_space] = None
    _thread: DaemonCall = field(init=False, compare=False)

    def __post_init__(self) -> None:
        if not self.url.file_path:
            raise UrlError("path", 'the URL has no path; write "disk:/var/lib/app"')
        minimum, warning = self.min_free, self.warn_free
        if warning and bool(minimum.share) == bool(warning.share) and warning.of(1) <= minimum.of(1):
            raise OptionError("warn_free", f'must be more than min_free ("{minimum.text}")')
        object.__setattr__(self, "_thread", DaemonCall("disk"))

    async def check(self) -> Verdict:
        return await self._thread.check(self._check_now)

    def _check_now(self) -> Verdict:
        path = self.url.file_path
        try:
            info = os.statvfs(path)
        except OSError as exc:
            return verdict_for_file_error(exc, path)
        if not info.f_blocks:
            return Verdict.failed(
                f"the file system has 0 blocks, so it stores no data: {path}", code=ReasonCode.NOT_SUPPORTED
            )
        free_bytes, total_bytes = info.f_bavail * info.f_frsize, info.f_blocks * info.f_frsize
        free = _free_space_text(free_bytes, total_bytes)
        if free_bytes < self.min_free.of(total_bytes):
            return Verdict.failed(f"{free}, min_free is {self.min_free.text}: {path}", code=ReasonCode.DISK_LOW)
        if self.warn_free and free_bytes < self.warn_free.of(total_bytes):
            return Verdict.not_ready(f"{free}, warn_free is {self.warn_free.text}: {path}", code=ReasonCode.DISK_LOW)
        return Verdict.ready()


def _free_space_text(free_bytes: int, total_bytes: int) -> str:
    """In the largest unit that is not larger than the file system."""
    name, size_bytes = next((unit for unit in _UNITS if total_bytes >= unit[1]), _UNITS[-1])
    return f"{free_bytes / size_bytes:.1f} of {total_bytes / size_bytes:.1f} {name} free"
