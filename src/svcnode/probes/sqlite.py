"""`sqlite:/path`: a SQLite database opens and passes its own quick check.

ready      it opens, `PRAGMA quick_check(1)` reports "ok", and the file is not truncated
not ready  it is locked
failed     missing, corrupt, not a SQLite database, or of another application if `application_id` is set
unknown    no file descriptors or threads left on this machine
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

from svcnode.core.codes import ReasonCode
from svcnode.core.model import Verdict
from svcnode.net.os_errors import CodedOSError, verdict_for_file_error
from svcnode.net.threads import DaemonCall
from svcnode.net.url import Url, UrlError
from svcnode.probes.base import UrlProbe

# "svcn", the PRAGMA application_id of the node's own store.
STORE_APPLICATION_ID = 0x7376636E

_LOCK_WAIT_S = 0.1  # less than any usual deadline, so that a locked database is reported as locked
_MIN_DATABASE_BYTES = 512  # one page of the smallest size


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SqliteProbe(UrlProbe):
    application_id: int | None = None  # the expected PRAGMA application_id
    path: Path = field(init=False, compare=False)
    _thread: DaemonCall = field(init=False, compare=False)

    @classmethod
    def for_path(cls, path: Path, application_id: int | None = None) -> Self:
        return cls(Url(scheme="sqlite", path=quote(str(path))), application_id=application_id)

    def __post_init__(self) -> None:
        if "?" in self.url.path or self.url.query:
            raise UrlError("query", "sqlite URLs have no query; write the path only, and %3F for a question mark")
        if not self.url.file_path:
            raise UrlError("path", 'the URL has no path; write "sqlite:/var/lib/app/ledger.db"')
        object.__setattr__(self, "path", Path(self.url.file_path))
        object.__setattr__(self, "_thread", DaemonCall("sqlite"))

    async def check(self) -> Verdict:
        return await self._thread.check(self._check_now)

    def _check_now(self) -> Verdict:
        # mode=rw: a missing database must not be created by the check.
        uri = f"file:{quote(str(self.path.absolute()))}?mode=rw"
        try:
            info = self.path.stat()
            # SQLite opens an empty file as an empty database, but for its owner the data is lost.
            if not stat.S_ISREG(info.st_mode) or info.st_size < _MIN_DATABASE_BYTES:
                raise _corrupt("not a SQLite database")
            with closing(sqlite3.connect(uri, uri=True, timeout=_LOCK_WAIT_S)) as database:
                database.execute("BEGIN")  # all queries see the same state
                self._validate(database, info)
        except OSError as exc:
            return verdict_for_file_error(exc, str(self.path))
        except sqlite3.Error as exc:
            return self._verdict_for_error(exc)
        return Verdict.ready()

    def _validate(self, database: sqlite3.Connection, info: os.stat_result) -> None:
        application_id = _read_pragma(database, "application_id")
        if self.application_id not in (None, application_id):
            raise CodedOSError(
                f"application_id is {application_id}, expected {self.application_id}", ReasonCode.UNEXPECTED_RESPONSE
            )
        if (result := _read_pragma(database, "quick_check(1)")) != "ok":
            raise _corrupt(f"quick_check: {result}")
        if missing_bytes := self._missing_bytes(database, info):
            missing = "1 byte is" if missing_bytes == 1 else f"{missing_bytes} bytes are"
            raise _corrupt(f"truncated: {missing} missing at the end")

    def _missing_bytes(self, database: sqlite3.Connection, info: os.stat_result) -> int:
        """SQLite itself does not notice that less than a page is missing at the end; it reads zeros.

        Our transaction is open, so no other process truncates the part of the file that belongs to our state.
        """
        if _read_pragma(database, "journal_mode") == "wal" and _size_bytes(f"{self.path.resolve()}-wal"):
            return 0  # the end may still be in the write-ahead log
        now = self.path.stat()
        if not os.path.samestat(info, now):
            return 0  # the file was replaced since
        expected_bytes: int = _read_pragma(database, "page_count") * _read_pragma(database, "page_size")
        return max(0, expected_bytes - now.st_size)

    def _verdict_for_error(self, exc: sqlite3.Error) -> Verdict:
        name = getattr(exc, "sqlite_errorname", "")
        if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            return Verdict.not_ready(f"database is locked: {self.path}", code=ReasonCode.LOCKED)
        if name == "SQLITE_NOTADB":
            return verdict_for_file_error(_corrupt("not a SQLite database"), str(self.path))
        if name.startswith("SQLITE_CANTOPEN") and (error := _open_error(self.path)):
            return verdict_for_file_error(error, str(self.path))
        code = next(
            (code for prefix, code in _CODES_BY_ERROR_NAME.items() if name.startswith(prefix)), ReasonCode.OTHER
        )
        return Verdict.failed(f"{exc}: {self.path}", code=code)


_CODES_BY_ERROR_NAME = {  # SQLite has longer names too, such as SQLITE_IOERR_READ
    "SQLITE_CORRUPT": ReasonCode.CORRUPT,
    "SQLITE_CANTOPEN": ReasonCode.FILE_NOT_READABLE,
    "SQLITE_IOERR": ReasonCode.FILE_NOT_READABLE,
    "SQLITE_READONLY": ReasonCode.READ_ONLY,
}


def _corrupt(text: str) -> CodedOSError:
    return CodedOSError(text, ReasonCode.CORRUPT)


def _read_pragma(database: sqlite3.Connection, pragma: str) -> Any:  # noqa: ANN401  a number or a text
    return database.execute(f"PRAGMA {pragma}").fetchone()[0]


def _open_error(path: Path) -> OSError | None:
    """Why SQLite could not open the file; its own error does not say.

    The file itself is not opened here: closing it would release all POSIX locks of this process on it.
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
