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
from svcnode.core.wording import system_words
from svcnode.probes.tools.clocks import CLOCK_SLACK_S
from svcnode.probes.tools.faults import verdict_on
from svcnode.probes.tools.kind import UrlProbe
from svcnode.probes.tools.options import Seconds
from svcnode.probes.tools.threads import OwnThread

MAX_READ_BYTES = 1024 * 1024
_SORTS = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class FileProbe(UrlProbe):
    max_age: Seconds | None = None
    contains: str = ""  # somewhere in the first MiB
    _thread: OwnThread = field(init=False, compare=False)

    def __post_init__(self) -> None:
        if not self.url.file_path:
            raise ProbeError('names no file; write its path, as in "file:/run/app/heartbeat"')
        object.__setattr__(self, "_thread", OwnThread("file"))

    async def look(self) -> Verdict:
        return await self._thread.look(self._look_now)

    def _look_now(self) -> Verdict:
        path = Path(self.url.file_path)
        try:
            _refuse_other_sorts(path.stat())  # before it is opened, which a device may take for a command
            with open(path, "rb", opener=_without_waiting) as file:
                about = os.fstat(file.fileno())
                _refuse_other_sorts(about)
                fault = self._fault_of(file, time.time() - about.st_mtime)
        except _OtherSortError as exc:
            fault = str(exc)
        except PermissionError as exc:
            fault = f"cannot be read: {system_words(exc)}"
        except OSError as exc:
            return verdict_on(exc, str(path))
        return Verdict.failed(f"{fault}: {path}") if fault else Verdict.ready()

    def _fault_of(self, file: BinaryIO, age_s: float) -> str:
        if self.max_age is not None and not -CLOCK_SLACK_S <= age_s <= self.max_age:
            age = f"{age_s:.0f} s old" if age_s > 0 else f"dated {-age_s:.0f} s in the future"
            return f"{age}, allowed are {self.max_age:g} s"
        if self.contains and self.contains.encode() not in file.read(MAX_READ_BYTES):
            return f'does not hold "{self.contains}"'
        return ""


def _without_waiting(path: str, flags: int) -> int:
    """Not even for who writes to a pipe, if one has just taken the place of the file."""
    return os.open(path, flags | os.O_NONBLOCK)


class _OtherSortError(Exception):
    pass


def _refuse_other_sorts(about: os.stat_result) -> None:
    sort = stat.S_IFMT(about.st_mode)
    if sort != stat.S_IFREG:
        raise _OtherSortError(f"is {_SORTS.get(sort, 'a device')}, not a file")
