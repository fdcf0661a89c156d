"""`file:/path`: a file that is there, and fresh.

ready    it exists, was changed within `max_age`, and holds `contains`
failed   it is missing, too old, dated in the future, or lacks that text
unknown  no file descriptors or threads left here
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from svcnode.core.errors import ProbeError
from svcnode.core.model import Verdict
from svcnode.probes.tools.clocks import CLOCK_SLACK_S
from svcnode.probes.tools.faults import verdict_on
from svcnode.probes.tools.kind import UrlProbe
from svcnode.probes.tools.options import Seconds
from svcnode.probes.tools.threads import OwnThread

MAX_READ_BYTES = 1024 * 1024


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
            age_s = time.time() - path.stat().st_mtime
            if self.max_age is not None and not -CLOCK_SLACK_S <= age_s <= self.max_age:
                age = f"{age_s:.0f} s old" if age_s > 0 else f"dated {-age_s:.0f} s in the future"
                return Verdict.failed(f"{age}, allowed are {self.max_age:g} s: {path}")
            if self.contains and not self._is_held_by(path):
                return Verdict.failed(f'does not hold "{self.contains}": {path}')
        except OSError as exc:
            return verdict_on(exc, str(path))
        return Verdict.ready()

    def _is_held_by(self, path: Path) -> bool:
        if not path.is_file():
            return False  # a pipe would keep us waiting
        with path.open("rb") as file:
            return self.contains.encode() in file.read(MAX_READ_BYTES)
