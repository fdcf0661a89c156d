"""`file:/path`: a file exists, is readable and recent.

ready    it can be opened for reading, was modified within `max_age`, and contains `contains`
failed   missing, not readable, not a regular file, too old, dated in the future, or the text is missing
unknown  no file descriptors or threads left on this machine
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from svcnode.core.codes import ReasonCode
from svcnode.core.model import Verdict
from svcnode.core.option_types import PublicText
from svcnode.core.url import UrlError, UrlForm
from svcnode.net.files import open_regular_file, read_at_most
from svcnode.net.os_errors import CodedOSError, verdict_for_file_error
from svcnode.net.threads import DaemonCall
from svcnode.probes.base import MAX_CLOCK_SKEW_S, UrlProbe
from svcnode.probes.options import Seconds

if TYPE_CHECKING:
    from io import FileIO

MAX_READ_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class FileProbe(UrlProbe):
    max_age: Seconds | None = None
    contains: PublicText = ""  # in the first MiB
    _thread: DaemonCall = field(init=False, compare=False, default_factory=lambda: DaemonCall("file"))
    url_form: ClassVar = UrlForm(host="none", path=".+")

    def __post_init__(self) -> None:
        if not self.url.file_path:
            raise UrlError("path", 'the URL has no path; write "file:/run/app/heartbeat"')

    async def check(self) -> Verdict:
        return await self._thread.check(self._check_now)

    def _check_now(self) -> Verdict:
        path = self.url.file_path
        try:
            with open_regular_file(path) as file:
                self._validate(file, time.time() - os.fstat(file.fileno()).st_mtime)
        except OSError as exc:
            return verdict_for_file_error(exc, path)
        return Verdict.ready()

    def _validate(self, file: FileIO, age_s: float) -> None:
        if self.max_age is not None:
            if age_s < -MAX_CLOCK_SKEW_S:
                raise CodedOSError(f"dated {-age_s:.0f} s in the future", ReasonCode.CLOCK_SKEW)
            if age_s > self.max_age:
                raise CodedOSError(f"{age_s:.0f} s old, but max_age is {self.max_age:g} s", ReasonCode.FILE_OUTDATED)
        if self.contains and self.contains.encode() not in read_at_most(file, MAX_READ_BYTES):
            raise CodedOSError(f'does not contain "{self.contains}"', ReasonCode.UNEXPECTED_RESPONSE)
