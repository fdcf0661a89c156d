"""`file:/path`: a file exists, is readable and recent.

ready    it can be opened for reading, was modified within `max_age`, and contains `contains`
failed   missing, not readable, not a regular file, too old, dated in the future, or the text is missing
unknown  no file descriptors or threads left on this machine
"""

from __future__ import annotations

import os
import stat
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from svcnode.core.codes import ReasonCode
from svcnode.core.model import Verdict
from svcnode.net.os_errors import CodedOSError, verdict_for_file_error
from svcnode.net.threads import DaemonCall
from svcnode.net.url import UrlError
from svcnode.probes.base import MAX_CLOCK_SKEW_S, UrlProbe
from svcnode.probes.options import Seconds

MAX_READ_BYTES = 1024 * 1024
_FILE_TYPES = {stat.S_IFDIR: "directory", stat.S_IFIFO: "pipe", stat.S_IFSOCK: "socket"}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class FileProbe(UrlProbe):
    max_age: Seconds | None = None
    contains: str = ""  # in the first MiB
    _thread: DaemonCall = field(init=False, compare=False)

    def __post_init__(self) -> None:
        if not self.url.file_path:
            raise UrlError("path", 'the URL has no path; write "file:/run/app/heartbeat"')
        object.__setattr__(self, "_thread", DaemonCall("file"))

    async def check(self) -> Verdict:
        return await self._thread.check(self._check_now)

    def _check_now(self) -> Verdict:
        path = Path(self.url.file_path)
        try:
            _require_regular_file(path.stat())  # before it is opened: opening a device can have effects
            with open(path, "rb", opener=_open_nonblocking) as file:
                info = os.fstat(file.fileno())
                _require_regular_file(info)
                self._validate(file, time.time() - info.st_mtime)
        except OSError as exc:
            return verdict_for_file_error(exc, str(path))
        return Verdict.ready()

    def _validate(self, file: BinaryIO, age_s: float) -> None:
        if self.max_age is not None:
            if age_s < -MAX_CLOCK_SKEW_S:
                raise CodedOSError(f"dated {-age_s:.0f} s in the future", ReasonCode.CLOCK_SKEW)
            if age_s > self.max_age:
                raise CodedOSError(f"{age_s:.0f} s old, max_age is {self.max_age:g} s", ReasonCode.FILE_OUTDATED)
        if self.contains and self.contains.encode() not in file.read(MAX_READ_BYTES):
            raise CodedOSError(f'does not contain "{self.contains}"', ReasonCode.UNEXPECTED_RESPONSE)


def _open_nonblocking(path: str, flags: int) -> int:
    """Opening does not block, even if a pipe has replaced the file since stat()."""
    return os.open(path, flags | os.O_NONBLOCK)


def _require_regular_file(info: os.stat_result) -> None:
    file_type = stat.S_IFMT(info.st_mode)
    if file_type != stat.S_IFREG:
        name = _FILE_TYPES.get(file_type, "device")
        raise CodedOSError(f"not a regular file but a {name}", ReasonCode.NOT_A_FILE)
