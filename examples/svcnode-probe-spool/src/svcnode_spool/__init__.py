"""`spool:/path`: a directory that one program fills and another one empties.

ready      it has fewer than `max_files` files
not ready  it has more files: the program that empties it lags behind
failed     it is missing, or is not a directory
unknown    no file descriptors or threads left on this machine
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from itertools import islice

from svcnode import OptionError, ReasonCode, Verdict
from svcnode.core.url import UrlError
from svcnode.net.os_errors import verdict_for_file_error
from svcnode.net.threads import DaemonCall
from svcnode.probes.base import UrlProbe
from svcnode.probes.options import Count


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SpoolProbe(UrlProbe):
    # Every field is an option. svcnode parses it by its type, so the type is imported at run time. An invalid value is
    # an error that names the option.
    max_files: Count = 100

    # Not an option (init=False), and not part of the equality of two probes (compare=False).
    _thread: DaemonCall = field(init=False, compare=False)

    def __post_init__(self) -> None:
        # Invalid configurations are rejected here, before the first check. The error says how to fix them.
        if not self.url.file_path:
            raise UrlError("path", 'the URL has no path; write "spool:/var/spool/app"')
        if not self.url.file_path.startswith("/"):
            # A relative path would depend on the directory in which svcnode is started.
            raise UrlError("path", 'the path must be absolute; write "spool:/var/spool/app"')
        if self.max_files < 1:
            raise OptionError("max_files", "must be at least 1")
        object.__setattr__(self, "_thread", DaemonCall("spool"))  # the dataclass is frozen

    async def check(self) -> Verdict:
        # Reading a directory can block, and a check must not block the event loop, so it runs in a thread.
        # There is no timeout here: svcnode sets the deadline and cancels the check.
        return await self._thread.check(self._check_now)

    def _check_now(self) -> Verdict:
        path = self.url.file_path
        try:
            with os.scandir(path) as entries:
                files = (entry for entry in entries if entry.is_file(follow_symlinks=False))
                count = sum(1 for _ in islice(files, self.max_files))  # there may be millions: stop at the limit
        except OSError as exc:
            return verdict_for_file_error(exc, path)  # failed, or unknown if the fault is on this machine
        if count < self.max_files:
            return Verdict.ready()
        return Verdict.not_ready(f"{self.max_files} or more files are waiting: {path}", code=ReasonCode.LAGGING)
