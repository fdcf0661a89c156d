"""`sqlite:/path`: a SQLite database that opens and passes its own quick check.

ready      it opens, and `PRAGMA quick_check(1)` finds nothing wrong
not ready  it is locked
failed     it is missing, damaged, no SQLite database, or another program's where `application_id` is set
unknown    no file descriptors or threads left here
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from urllib.parse import quote

from svcnode.core.errors import ProbeError
from svcnode.core.model import Verdict
from svcnode.probes.tools.faults import verdict_on
from svcnode.probes.tools.kind import UrlProbe
from svcnode.probes.tools.threads import OwnThread
from svcnode.probes.tools.url import Url

# "svcn": tells the node's own store from anybody else's database. See PRAGMA application_id.
STORE_APPLICATION_ID = 0x7376636E

_LOCK_WAIT_S = 0.1  # below the deadline of any ordinary look, so that "locked" can still be told
_FILE_HEADER = b"SQLite format 3\0"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SqliteProbe(UrlProbe):
    application_id: int | None = None  # whose database it must be, where that matters
    path: Path = field(init=False, compare=False)
    _thread: OwnThread = field(init=False, compare=False)

    @classmethod
    def at(cls, path: Path, application_id: int | None = None) -> Self:
        return cls(Url(scheme="sqlite", path=quote(str(path))), application_id=application_id)

    def __post_init__(self) -> None:
        if "?" in self.url.path or self.url.query:
            raise ProbeError("a sqlite probe takes no query; write the path alone, and %3F for a ? in it")
        if not self.url.file_path:
            raise ProbeError('a sqlite probe names a file, such as "sqlite:/var/lib/app/ledger.db"')
        object.__setattr__(self, "path", Path(self.url.file_path))
        object.__setattr__(self, "_thread", OwnThread("sqlite"))

    async def look(self) -> Verdict:
        return await self._thread.look(self._look_now)

    def _look_now(self) -> Verdict:
        # mode=rw: a database that is gone must not come back to life, empty, because somebody looked.
        address = f"file:{quote(str(self.path.absolute()))}?mode=rw"
        try:
            if not _is_database(self.path):
                return Verdict.failed(f"not a SQLite database: {self.path}")
            with closing(sqlite3.connect(address, uri=True, timeout=_LOCK_WAIT_S)) as database:
                (answer,) = database.execute("PRAGMA quick_check(1)").fetchone()
                (owner,) = database.execute("PRAGMA application_id").fetchone()
        except OSError as exc:
            return verdict_on(exc, str(self.path))
        except sqlite3.Error as exc:
            return self._verdict_on(exc)
        if self.application_id not in (None, owner):
            return Verdict.failed(f"the database of another program: {self.path}")
        return Verdict.ready() if answer == "ok" else Verdict.failed(f"quick_check: {answer}: {self.path}")

    def _verdict_on(self, exc: sqlite3.Error) -> Verdict:
        if getattr(exc, "sqlite_errorname", "").startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            return Verdict.not_ready(f"the database is locked: {self.path}")
        return Verdict.failed(f"{exc}: {self.path}")


def _is_database(path: Path) -> bool:
    """SQLite takes an empty file for an empty database; for whoever lost what was in it, it is not."""
    if not path.is_file():
        path.stat()  # says why there is nothing
        return False
    with path.open("rb") as file:
        return file.read(len(_FILE_HEADER)) == _FILE_HEADER
