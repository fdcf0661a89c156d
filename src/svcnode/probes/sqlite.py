"""`sqlite:/path`: a SQLite database that opens and passes its own quick check.

ready      it opens, `PRAGMA quick_check(1)` finds nothing wrong, and nothing is missing at its end
not ready  it is locked
failed     it is missing, damaged, no SQLite database, or another program's where `application_id` is set
unknown    no file descriptors or threads left here
"""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from svcnode.core.errors import ProbeError
from svcnode.core.model import Verdict
from svcnode.net.os_errors import verdict_for_os_error
from svcnode.net.threads import DaemonCall
from svcnode.net.url import Url
from svcnode.probes.base import UrlProbe

# "svcn": tells the node's own store from anybody else's database. See PRAGMA application_id.
STORE_APPLICATION_ID = 0x7376636E

_LOCK_WAIT_S = 0.1  # below the deadline of any ordinary look, so that "locked" can still be told
_SMALLEST_PAGE_BYTES = 512  # and every database has one


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SqliteProbe(UrlProbe):
    application_id: int | None = None  # whose database it must be, where that matters
    path: Path = field(init=False, compare=False)
    _thread: DaemonCall = field(init=False, compare=False)

    @classmethod
    def for_path(cls, path: Path, application_id: int | None = None) -> Self:
        return cls(Url(scheme="sqlite", path=quote(str(path))), application_id=application_id)

    def __post_init__(self) -> None:
        if "?" in self.url.path or self.url.query:
            raise ProbeError("a sqlite probe takes no query; write the path alone, and %3F for a ? in it")
        if not self.url.file_path:
            raise ProbeError('a sqlite probe names a file, such as "sqlite:/var/lib/app/ledger.db"')
        object.__setattr__(self, "path", Path(self.url.file_path))
        object.__setattr__(self, "_thread", DaemonCall("sqlite"))

    async def check(self) -> Verdict:
        return await self._thread.check(self._check_now)

    def _check_now(self) -> Verdict:
        # mode=rw: a database that is gone must not come back to life, empty, because somebody looked.
        address = f"file:{quote(str(self.path.absolute()))}?mode=rw"
        try:
            found = self.path.stat()
            # SQLite takes an empty file for an empty database; for whoever lost what was in it, it is not.
            if not stat.S_ISREG(found.st_mode) or found.st_size < _SMALLEST_PAGE_BYTES:
                return Verdict.failed(f"not a SQLite database: {self.path}")
            with closing(sqlite3.connect(address, uri=True, timeout=_LOCK_WAIT_S)) as database:
                database.execute("BEGIN")  # all that follows is about one state of it
                fault = self._find_problem(database, found)
        except OSError as exc:
            return verdict_for_os_error(exc, str(self.path))
        except sqlite3.Error as exc:
            return self._verdict_for_error(exc)
        return Verdict.failed(f"{fault}: {self.path}") if fault else Verdict.ready()

    def _find_problem(self, database: sqlite3.Connection, found: os.stat_result) -> str:
        if self.application_id not in (None, _read_pragma(database, "application_id")):
            return "the database of another program"
        if (answer := _read_pragma(database, "quick_check(1)")) != "ok":
            return f"quick_check: {answer}"
        missing_bytes = self._missing_bytes(database, found)
        return f"its end is missing, {missing_bytes} bytes of it" if missing_bytes else ""

    def _missing_bytes(self, database: sqlite3.Connection, found: os.stat_result) -> int:
        """At the end of the file. Less than a page of it, SQLite itself does not miss: it reads zeros instead.

        While our transaction lasts, nobody takes anything from the file that belongs to the state that we see.
        """
        if _read_pragma(database, "journal_mode") == "wal" and _size_bytes(f"{self.path.resolve()}-wal"):
            return 0  # the end may still stand there
        now = self.path.stat()
        if not os.path.samestat(found, now):
            return 0  # somebody has just put another one in its place
        whole_bytes: int = _read_pragma(database, "page_count") * _read_pragma(database, "page_size")
        return max(0, whole_bytes - now.st_size)

    def _verdict_for_error(self, exc: sqlite3.Error) -> Verdict:
        name = getattr(exc, "sqlite_errorname", "")
        if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            return Verdict.not_ready(f"the database is locked: {self.path}")
        if name == "SQLITE_NOTADB":
            return Verdict.failed(f"not a SQLite database: {self.path}")
        if name.startswith("SQLITE_CANTOPEN") and (fault := _open_error(self.path)):
            return verdict_for_os_error(fault, str(self.path))
        return Verdict.failed(f"{exc}: {self.path}")


def _read_pragma(database: sqlite3.Connection, pragma: str) -> Any:  # noqa: ANN401  a number or words, each in its own way
    return database.execute(f"PRAGMA {pragma}").fetchone()[0]


def _open_error(path: Path) -> OSError | None:
    """Why SQLite could not open it, which it does not tell.

    The database is not opened for that: to close it beside SQLite would end all locks that this process has on it.
    """
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as exc:
        return exc
    return None if os.access(path, os.R_OK, effective_ids=True) else PermissionError(errno.EACCES, "")


def _size_bytes(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except FileNotFoundError:
        return 0
