"""`sqlite:PATH`: a SQLite database that opens and passes its own quick check."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, unquote

from svcnode.core.errors import ProbeError
from svcnode.core.model import Verdict
from svcnode.probes.faults import verdict_on
from svcnode.probes.threads import OwnThread

# "svcn": tells the node's own store from anybody else's database. See PRAGMA application_id.
STORE_APPLICATION_ID = 0x7376636E

_LOCK_WAIT_S = 0.1  # below the deadline of any ordinary look, so that "locked" can still be told
_FILE_HEADER = b"SQLite format 3\0"


@dataclass(frozen=True, slots=True)
class SqliteProbe:
    path: Path
    application_id: int | None = None  # whose database it must be, where that matters
    _thread: OwnThread = field(default_factory=lambda: OwnThread("sqlite"), repr=False, compare=False)

    @classmethod
    def from_url(cls, url: str) -> SqliteProbe:
        path = unquote(url.removeprefix("sqlite:").removeprefix("//"))
        if "?" in url:
            raise ProbeError("a sqlite probe takes no query; write the path alone, and %3F for a ? in it")
        if not path:
            raise ProbeError('a sqlite probe names a file, such as "sqlite:/var/lib/app/ledger.db"')
        return cls(Path(path))

    async def look(self) -> Verdict:
        if self._thread.is_busy:
            return Verdict.failed("the previous look has not returned yet")
        return await self._thread.call(self._look_now)

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
