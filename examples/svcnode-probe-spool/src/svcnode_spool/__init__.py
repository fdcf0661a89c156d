"""`spool:/path`: a folder that one program fills and another one empties.

ready      it holds fewer than `max_files` files
not ready  it holds more: whoever empties it lags behind
failed     it is missing, or is no folder
unknown    no file descriptors or threads left here
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from itertools import islice

from svcnode import OptionError, ProbeError, Verdict
from svcnode.net.os_errors import verdict_for_os_error
from svcnode.net.threads import DaemonCall
from svcnode.probes.base import UrlProbe
from svcnode.probes.options import Count


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SpoolProbe(UrlProbe):
    # Every field is an option. Its type says what is accepted, so it is imported for real and not for type checkers
    # only; the refusals, by name, come for free.
    max_files: Count = 100

    # No option (init=False), and no reason to take two probes for different ones (compare=False).
    _thread: DaemonCall = field(init=False, compare=False)

    def __post_init__(self) -> None:
        # What can be known to be wrong is refused here, before the first look, with the way to mend it.
        if not self.url.file_path:
            raise ProbeError('names no folder; write its path, as in "spool:/var/spool/app"')
        if not self.url.file_path.startswith("/"):
            # It would be sought in the folder where svcnode was started, which is rarely the one that was meant.
            raise ProbeError('names a folder by a relative path; write all of it, as in "spool:/var/spool/app"')
        if self.max_files < 1:
            raise OptionError("max_files", "is at least 1, or the folder could never be ready")
        object.__setattr__(self, "_thread", DaemonCall("spool"))  # the dataclass is frozen

    async def check(self) -> Verdict:
        # The folder may lie on a disk that hangs, and nothing may hold up the event loop. There is no deadline here:
        # svcnode sets it, and cancels.
        return await self._thread.look(self._check_now)

    def _check_now(self) -> Verdict:
        path = self.url.file_path
        try:
            with os.scandir(path) as entries:
                files = (entry for entry in entries if entry.is_file(follow_symlinks=False))
                # Counted no further than it matters: a spool that nobody empties holds millions.
                count = sum(1 for _ in islice(files, self.max_files))
        except OSError as exc:
            return verdict_for_os_error(exc, path)  # failed, or unknown where the fault is our own
        if count < self.max_files:
            return Verdict.ready()
        return Verdict.not_ready(f"{self.max_files} files or more wait there: {path}")
