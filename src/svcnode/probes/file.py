"""`file:/path`: a file that is there, can be read, and is fresh.

ready    it can be opened for reading, was changed within `max_age`, and holds `contains`
failed   it is missing, unreadable, no regular file, too old, dated in the future, or lacks that text
unknown  no file descriptors or threads left here
"""

from __future__ import annotations

import os
import stat
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from svcnode.core.errors import ProbeError
from svcnode.core.model import Verdict
from svcnode.core.text import os_error_text
from svcnode.net.os_errors import verdict_for_os_error
from svcnode.net.threads import DaemonCall
from svcnode.probes.base import MAX_CLOCK_SKEW_S, UrlProbe
from svcnode.probes.options import Seconds

MAX_READ_BYTES = 1024 * 1024
_FILE_TYPES = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class FileProbe(UrlProbe):
    max_age: Seconds | None = None
    contains: str = ""  # somewhere in the first MiB
    _thread: DaemonCall = field(init=False, compare=False)

    def __post_init__(self) -> None:
        if not self.url.file_path:
            raise ProbeError('names no file; write its path, as in "file:/run/app/heartbeat"')
        object.__setattr__(self, "_thread", DaemonCall("file"))

    async def check(self) -> Verdict:
        return await self._thread.check(self._check_now)

    def _check_now(self) -> Verdict:
        path = Path(self.url.file_path)
        try:
            _require_regular_file(path.stat())  # before it is opened, which a device may take for a command
            with open(path, "rb", opener=_open_nonblocking) as file:
                about = os.fstat(file.fileno())
                _require_regular_file(about)
                fault = self._find_problem(file, time.time() - about.st_mtime)
        except _NotRegularFileError as exc:
            fault = str(exc)
        except PermissionError as exc:
            fault = f"cannot be read: {os_error_text(exc)}"
        except OSError as exc:
            return verdict_for_os_error(exc, str(path))
        return Verdict.failed(f"{fault}: {path}") if fault else Verdict.ready()

    def _find_problem(self, file: BinaryIO, age_s: float) -> str:
        if self.max_age is not None and not -MAX_CLOCK_SKEW_S <= age_s <= self.max_age:
            age = f"{age_s:.0f} s old" if age_s > 0 else f"dated {-age_s:.0f} s in the future"
            return f"{age}, allowed are {self.max_age:g} s"
        if self.contains and self.contains.encode() not in file.read(MAX_READ_BYTES):
            return f'does not hold "{self.contains}"'
        return ""


def _open_nonblocking(path: str, flags: int) -> int:
    """Not even for who writes to a pipe, if one has just taken the place of the file."""
    return os.open(path, flags | os.O_NONBLOCK)


class _NotRegularFileError(Exception):
    pass


def _require_regular_file(about: os.stat_result) -> None:
    sort = stat.S_IFMT(about.st_mode)
    if sort != stat.S_IFREG:
        raise _NotRegularFileError(f"is {_FILE_TYPES.get(sort, 'a device')}, not a file")
