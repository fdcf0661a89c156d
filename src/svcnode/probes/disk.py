"""`disk:/path`: enough free space on the file system that holds a path.

ready      more than `min_free` is free, and more than `warn_free` where that is set
not ready  less than `warn_free` is free
failed     less than `min_free` is free, the path is not there, or what is there holds no data, as /proc does
unknown    no file descriptors or threads left here
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Annotated

from svcnode.core.errors import InvalidValueError, OptionError, ProbeError
from svcnode.core.model import Verdict
from svcnode.core.text import type_name
from svcnode.net.os_errors import verdict_for_os_error
from svcnode.net.threads import DaemonCall
from svcnode.probes.base import UrlProbe
from svcnode.probes.options import size

_PERCENT = re.compile(r"([0-9]{1,2}(?:\.[0-9]+)?) ?%", re.ASCII)
_UNITS = ("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024)


@dataclass(frozen=True, slots=True)
class Space:
    """An amount, or a share of all there is."""

    text: str
    bytes: int = 0
    share: float = 0.0

    def of(self, total_bytes: int) -> float:
        return self.bytes or self.share * total_bytes


def space(value: object) -> Space:
    if isinstance(value, str) and (found := _PERCENT.fullmatch(value)):
        return Space(value, share=float(found[1]) / 100)
    try:
        return Space(str(value), bytes=size(value))
    except InvalidValueError:
        shown = f'"{value}"' if isinstance(value, str) else type_name(value)
        raise InvalidValueError(f'is a size such as "5GiB" or a share such as "10%", not {shown}') from None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DiskProbe(UrlProbe):
    min_free: Annotated[Space, space] = Space("5%", share=0.05)
    warn_free: Annotated[Space | None, space] = None
    _thread: DaemonCall = field(init=False, compare=False)

    def __post_init__(self) -> None:
        if not self.url.file_path:
            raise ProbeError('names no path; write one on the disk, as in "disk:/var/lib/app"')
        least, warning = self.min_free, self.warn_free
        if warning and bool(least.share) == bool(warning.share) and warning.of(1) <= least.of(1):
            raise OptionError("warn_free", f'is more than min_free, "{least.text}", or it would never be told')
        object.__setattr__(self, "_thread", DaemonCall("disk"))

    async def check(self) -> Verdict:
        return await self._thread.check(self._check_now)

    def _check_now(self) -> Verdict:
        path = self.url.file_path
        try:
            about = os.statvfs(path)
        except OSError as exc:
            return verdict_for_os_error(exc, path)
        if not about.f_blocks:  # any share of nothing would be free
            return Verdict.failed(f"on a file system of 0 blocks, which holds no data: {path}")
        free_bytes, total_bytes = about.f_bavail * about.f_frsize, about.f_blocks * about.f_frsize
        free = _free_space_text(free_bytes, total_bytes)
        if free_bytes < self.min_free.of(total_bytes):
            return Verdict.failed(f"{free}, less than min_free, {self.min_free.text}: {path}")
        if self.warn_free and free_bytes < self.warn_free.of(total_bytes):
            return Verdict.not_ready(f"{free}, less than warn_free, {self.warn_free.text}: {path}")
        return Verdict.ready()


def _free_space_text(free_bytes: int, total_bytes: int) -> str:
    """In the largest unit in which the whole is one at least."""
    name, size_bytes = next((unit for unit in _UNITS if total_bytes >= unit[1]), _UNITS[-1])
    return f"{free_bytes / size_bytes:.1f} of {total_bytes / size_bytes:.1f} {name} are free"
