"""`sqlite:/path`: a SQLite database opens, and its header, its schema and one row can be read.

ready      all of it can be read, the file is not truncated, and no write lock is held for all of `lock_wait`
           with `query`: it returns 1, or what `require` says
not ready  a write lock is held for longer, or another file has been put at the path since the last check
           with `query`: a condition of `starting` holds; a value that must advance has not yet
           with `write`: it is full or read-only
failed     missing, corrupt, not a SQLite database, or of another application if `application_id` is set
           with `thorough`: the last `PRAGMA quick_check` reported an error
           with `query`: it fails, or returns something else
           with `write`: the table is missing, or the write fails for another reason
unknown    no file descriptors or threads left on this machine

A check must not disturb the application. In rollback mode, a reader holds a shared lock, and a writer that commits at
that moment fails or waits. So the file is read without a lock (`immutable=1`), and read again with a lock only if that
fails, since the file may have changed while it was read. In WAL mode, a reader does not block a writer, and it reads
with `mode=ro`, because closing such a connection does not try to lock the file.
"""

from __future__ import annotations

import asyncio
import errno
import os
import sqlite3
import stat
import time
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self
from urllib.parse import quote

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import OptionError
from svcnode.core.model import Outcome, Verdict
from svcnode.core.units import iso_time
from svcnode.core.url import Url, UrlError, UrlForm
from svcnode.net.os_errors import CodedOSError, ThreadStartError, verdict_for_file_error
from svcnode.net.threads import DaemonCall
from svcnode.net.trace import step
from svcnode.probes.base import CheckError, UrlProbe, time_left_s
from svcnode.probes.file_system import has_no_inodes, read_only_cause
from svcnode.probes.options import PositiveSeconds, Seconds, WriteTarget
from svcnode.probes.sql import Row, SqlConditions, SqlProbe
from svcnode.probes.sqlite_files import DatabaseFiles, DatabaseIdentity, size_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

# "svcn", the PRAGMA application_id of the node's own store.
STORE_APPLICATION_ID = 0x7376636E

_MIN_DATABASE_BYTES = 512  # one page of the smallest size
_LOCK_POLL_S = 0.02
_BUSY_TIMEOUT_S = 0.05
_THOROUGH_WAIT_S = 0.25  # so that the thorough check of a small database is part of the check that starts it
_PASSES_WITHOUT_LOCK = 3
_MAX_THOROUGH_ERRORS = 1000
_STEPS_BETWEEN_DEADLINE_CHECKS = 10_000  # of SQLite's virtual machine


class _Memory:
    """What a probe remembers between its checks."""

    def __init__(self) -> None:
        self.identity: DatabaseIdentity | None = None
        self.commits_at_lock: tuple[bytes | None, ...] | None = None  # when the running check found the lock held
        self.thorough_verdict = Verdict.ready()
        self.thorough_due_s = 0.0
        self.thorough_connection: sqlite3.Connection | None = None

    def is_replaced_by(self, identity: DatabaseIdentity) -> bool:
        """Whether this is another database than that of the last successful check. It is remembered."""
        previous, self.identity = self.identity, identity
        if previous is None or not identity.is_replacement_of(previous):
            return False
        self.thorough_verdict, self.thorough_due_s = Verdict.ready(), 0.0
        return True


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SqliteProbe(SqlProbe, UrlProbe):
    application_id: int | None = None  # the expected PRAGMA application_id
    lock_wait: Seconds = 1.0  # a write lock that is held for longer is reported
    thorough: PositiveSeconds | None = None  # the interval of PRAGMA quick_check
    query: str = ""  # cannot write; its first value must be 1, unless there are conditions
    require: SqlConditions = ()  # on the first row
    starting: SqlConditions = ()  # one of them holds: not ready
    write: WriteTarget = ""  # the table
    _thread: DaemonCall = field(init=False, compare=False, default_factory=lambda: DaemonCall("sqlite"))
    _thorough_thread: DaemonCall = field(
        init=False, compare=False, default_factory=lambda: DaemonCall("sqlite quick_check")
    )
    _memory: _Memory = field(init=False, compare=False, default_factory=_Memory)
    url_form: ClassVar = UrlForm(host="none", path="[^?]+")
    has_booleans: ClassVar = False

    @classmethod
    def for_path(cls, path: Path, application_id: int | None = None) -> Self:
        return cls(Url(scheme="sqlite", path=quote(str(path))), application_id=application_id)

    def __post_init__(self) -> None:
        if "?" in self.url.path or self.url.query:
            raise UrlError("query", "sqlite URLs have no query; write the path only, and %3F for a question mark")
        if not self.url.file_path:
            raise UrlError("path", 'the URL has no path; write "sqlite:/var/lib/app/ledger.db"')
        if "\0" in self.write:
            raise OptionError("write", "must not contain null characters")
        if "\0" in self.query:
            raise OptionError("query", "must not contain null characters")
        self.validate_query()

    @property
    def path(self) -> Path:
        return Path(self.url.file_path)

    async def check(self) -> Verdict:
        self._memory.commits_at_lock = None
        verdict = await self._wait_while_locked(self._check_now)
        if self.thorough is not None and verdict.outcome is Outcome.READY:
            verdict = await self._check_thoroughly(self.thorough)
        if self.query and verdict.outcome is Outcome.READY:
            with step("query"):
                verdict = await self._check_query()
        if self.write and verdict.outcome is Outcome.READY:
            with step("write"):
                verdict = await self._wait_while_locked(self._write_now)
        return verdict

    async def _wait_while_locked(self, check: Callable[[], Verdict]) -> Verdict:
        """At the deadline, the name of the step makes the check not ready, as after `lock_wait`."""
        deadline_s = time.monotonic() + self.lock_wait
        verdict = await self._thread.check(check)
        if verdict.code is not ReasonCode.LOCKED:
            return verdict
        with step("wait for lock"):
            while time.monotonic() < deadline_s:
                await asyncio.sleep(_LOCK_POLL_S)
                verdict = await self._thread.check(check)
                if verdict.code is not ReasonCode.LOCKED:
                    break
        return verdict

    def close(self) -> None:
        if (connection := self._memory.thorough_connection) is not None:
            with suppress(sqlite3.Error):  # it has just been closed
                connection.interrupt()

    # ---- the check

    def _check_now(self) -> Verdict:
        try:
            info = self.path.stat()
            # SQLite opens an empty file as an empty database, but for its owner the data is lost.
            if not stat.S_ISREG(info.st_mode) or info.st_size < _MIN_DATABASE_BYTES:
                raise _corrupt("not a SQLite database")
            identity = self._read(info)
        except _LockedError:
            return self._locked()
        except OSError as exc:
            return verdict_for_file_error(exc, str(self.path))
        except sqlite3.Error as exc:
            return self._verdict_for_error(exc)
        if self._memory.is_replaced_by(identity):
            text = f"the database at this path has been replaced since the last check: {self.path}"
            return Verdict.not_ready(text, code=ReasonCode.REPLACED)
        return Verdict.ready()

    def _read(self, info: os.stat_result) -> DatabaseIdentity:
        files = DatabaseFiles(os.path.realpath(self.path))
        if files.has_wal:
            return self._read_as(files.wal_mode, files, info)
        for _ in range(_PASSES_WITHOUT_LOCK):
            with suppress(sqlite3.Error, CodedOSError):
                return self._read_as("immutable=1", files, info)
        return self._read_as("mode=rw", files, info)  # if a rollback is due after a crash, SQLite does it now

    def _read_as(self, mode: str, files: DatabaseFiles, info: os.stat_result) -> DatabaseIdentity:
        with closing(self._connect(mode)) as database:
            self._require_unlocked(files)
            database.execute("BEGIN")  # all queries see the same state
            self._validate(database, info)
            database.rollback()
            if files.has_wal:
                self._require_unlocked(files)  # its lock is in a file that is open only now
            return files.identity(info)

    def _connect(self, mode: str) -> sqlite3.Connection:
        # In no mode is a missing database created.
        uri = f"file:{quote(str(self.path.absolute()))}?{mode}"
        return sqlite3.connect(uri, uri=True, timeout=_BUSY_TIMEOUT_S, isolation_level=None)

    def _require_unlocked(self, files: DatabaseFiles) -> None:
        """If the lock is held, but there was a commit since this check found it held, it is not one transaction."""
        if not files.is_write_locked():
            return
        commits = files.commit_state()
        if self._memory.commits_at_lock in (None, commits):
            self._memory.commits_at_lock = commits
            raise _LockedError

    def _validate(self, database: sqlite3.Connection, info: os.stat_result) -> None:
        application_id = _read_pragma(database, "application_id")
        if self.application_id not in (None, application_id):
            raise CodedOSError(
                f"application_id is {application_id}, expected {self.application_id}", ReasonCode.UNEXPECTED_RESPONSE
            )
        tables = database.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0 LIMIT 1")
        for (table,) in tables.fetchall():
            database.execute(f"SELECT 1 FROM {_quoted(table)} NOT INDEXED LIMIT 1").fetchall()  # noqa: S608  quoted
        if missing_bytes := self._missing_bytes(database, info):
            missing = "1 byte is" if missing_bytes == 1 else f"{missing_bytes} bytes are"
            raise _corrupt(f"truncated: {missing} missing at the end")

    def _missing_bytes(self, database: sqlite3.Connection, info: os.stat_result) -> int:
        """SQLite itself does not notice that less than a page is missing at the end; it reads zeros.

        While a transaction with a lock is open, no other process truncates the part of the file that belongs to it.
        """
        if _read_pragma(database, "journal_mode") == "wal" and size_bytes(f"{self.path.resolve()}-wal"):
            return 0  # the end may still be in the write-ahead log
        now = self.path.stat()
        if not os.path.samestat(info, now):
            return 0  # the file was replaced since
        expected_bytes: int = _read_pragma(database, "page_count") * _read_pragma(database, "page_size")
        return max(0, expected_bytes - now.st_size)

    # ---- the thorough check

    async def _check_thoroughly(self, interval_s: float) -> Verdict:
        """The result of the last thorough check. If one is due, start it: it may take longer than this check."""
        memory = self._memory
        if time.monotonic() >= memory.thorough_due_s and not self._thorough_thread.is_busy:
            with suppress(TimeoutError, ThreadStartError):
                async with asyncio.timeout(_THOROUGH_WAIT_S):
                    await self._thorough_thread.call(lambda: self._run_thorough_check(interval_s))
        return memory.thorough_verdict

    def _run_thorough_check(self, interval_s: float) -> None:
        memory = self._memory
        identity, verdict = memory.identity, self._thorough_verdict()
        if verdict is not None and memory.identity is not None and memory.identity.is_same_file(identity):
            memory.thorough_verdict = verdict
            memory.thorough_due_s = time.monotonic() + interval_s

    def _thorough_verdict(self) -> Verdict | None:
        """None if it could not be completed, for example because of a lock: the next check starts it again."""
        try:
            errors = self._find_errors()
        except sqlite3.Error as exc:
            return self._verdict_for_error(exc) if _error_name(exc).startswith("SQLITE_IOERR") else None
        if not errors:
            return Verdict.ready()
        return Verdict.failed(f"quick_check: {min(errors)}: {self.path}", code=ReasonCode.CORRUPT)

    def _find_errors(self) -> set[str]:
        """The errors that `PRAGMA quick_check` reports.

        Without a lock, pages change while they are read, so that a healthy database may seem to have errors, but other
        ones in each pass. Only an error that is in all passes is confirmed with a shared lock.
        """
        files = DatabaseFiles(os.path.realpath(self.path))
        if files.has_wal:
            return self._quick_check(files.wal_mode)
        errors = self._quick_check("immutable=1")
        for _ in range(1, _PASSES_WITHOUT_LOCK):
            errors = errors and errors & self._quick_check("immutable=1")
        return errors and self._quick_check("mode=rw")

    def _quick_check(self, mode: str) -> set[str]:
        with closing(self._connect(mode)) as database:
            self._memory.thorough_connection = database
            try:
                rows = database.execute(f"PRAGMA quick_check({_MAX_THOROUGH_ERRORS})").fetchall()
            except sqlite3.Error as exc:
                if not _error_name(exc).startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
                    raise
                return {str(exc)}
            finally:
                self._memory.thorough_connection = None
        return {str(text) for (text,) in rows} - {"ok"}

    # ---- the query

    async def _check_query(self) -> Verdict:
        rows: list[Row] = []
        until_s = time.monotonic() + time_left_s()
        verdict = await self._wait_while_locked(lambda: self._query_now(rows, until_s))
        if not rows:
            return verdict
        try:
            problem = await self.find_row_problem(rows[-1])
        except CheckError as exc:
            return Verdict.failed(f"{exc}: {self.path}", code=exc.code)
        return Verdict(problem.outcome, f"{problem.text}: {self.path}", problem.code) if problem else verdict

    def _query_now(self, rows: list[Row], until_s: float) -> Verdict:
        """With a shared lock, unlike the check: without it, the row may be of no transaction."""
        files = DatabaseFiles(os.path.realpath(self.path))
        try:
            with closing(self._connect(files.wal_mode if files.has_wal else "mode=rw")) as database:
                database.text_factory = lambda text: text.decode("utf-8", "replace")
                database.set_authorizer(_allow_reading)
                database.set_progress_handler(lambda: time.monotonic() > until_s, _STEPS_BETWEEN_DEADLINE_CHECKS)
                cursor = database.execute(self.query)
                row = cursor.fetchone()
                rows.append(Row() if row is None else Row.of([name for name, *_ in cursor.description], row))
        except sqlite3.Error as exc:
            if (code := _QUERY_CODES.get(_error_name(exc))) is not None:
                return Verdict.failed(f"the query failed: {exc}: {self.path}", code=code)
            return self._verdict_for_error(exc)
        return Verdict.ready()

    # ---- the write

    def _write_now(self) -> Verdict:
        table = _quoted(self.write)
        create = f"CREATE TABLE {table} (slot INTEGER PRIMARY KEY, written_at TEXT NOT NULL)"
        try:
            with closing(self._connect("mode=rw")) as database:
                if not _has_table(database, self.write):
                    text = f'table "{self.write}" is missing; create it: {create}: {self.path}'
                    return Verdict.failed(text, code=ReasonCode.NOT_FOUND)
                database.execute("PRAGMA wal_autocheckpoint = 0")  # a checkpoint is the work of the application
                database.execute("BEGIN IMMEDIATE")
                database.execute(
                    f"REPLACE INTO {table} (slot, written_at) VALUES (1, ?)",  # noqa: S608  quoted
                    (iso_time(time.time()),),
                )
                database.execute("COMMIT")
        except sqlite3.Error as exc:
            return self._verdict_for_write_error(exc, create)
        return Verdict.ready()

    def _verdict_for_write_error(self, exc: sqlite3.Error, create: str) -> Verdict:
        verdict = self._verdict_for_error(exc)
        if verdict.outcome is not Outcome.FAILED or verdict.code is ReasonCode.CORRUPT:
            return verdict
        name, path = _error_name(exc), str(self.path)
        with suppress(OSError):
            info = os.statvfs(path)
            if cause := read_only_cause(path, info):
                return Verdict.not_ready(f"{cause}: {path}", code=ReasonCode.READ_ONLY)
            if name == "SQLITE_FULL" or info.f_bavail == 0 or has_no_inodes(info):
                return Verdict.not_ready(f"{exc}: {path}", code=ReasonCode.STORAGE_FULL)
        if denied := _denied_path(self.path):
            return Verdict.failed(f"write failed: no write permission on {denied}", code=ReasonCode.PERMISSION_DENIED)
        if name.startswith("SQLITE_READONLY"):
            return Verdict.failed(f"write failed: {exc}: {path}", code=ReasonCode.PERMISSION_DENIED)
        hint = f"; the table is created by: {create}" if name.startswith(_OTHER_TABLE_ERRORS) else ""
        return Verdict.failed(f"write failed: {exc}{hint}: {path}", code=ReasonCode.WRITE_FAILED)

    # ---- errors

    def _locked(self) -> Verdict:
        return Verdict.not_ready(f"database is locked: {self.path}", code=ReasonCode.LOCKED)

    def _verdict_for_error(self, exc: sqlite3.Error) -> Verdict:
        name = _error_name(exc)
        if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            return self._locked()
        if name == "SQLITE_NOTADB":
            return verdict_for_file_error(_corrupt("not a SQLite database"), str(self.path))
        if name.startswith("SQLITE_CANTOPEN") and (error := _open_error(self.path)):
            return verdict_for_file_error(error, str(self.path))
        code = next(
            (code for prefix, code in _CODES_BY_ERROR_NAME.items() if name.startswith(prefix)), ReasonCode.OTHER
        )
        return Verdict.failed(f"{exc}: {self.path}", code=code)


_QUERY_CODES = {
    "": ReasonCode.BAD_REQUEST,  # an error of the module: several statements, or parameters
    "SQLITE_ERROR": ReasonCode.BAD_REQUEST,
    "SQLITE_AUTH": ReasonCode.BAD_REQUEST,  # it does not only read
    "SQLITE_INTERRUPT": ReasonCode.TIMEOUT,
}
_READING = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE)


def _allow_reading(action: int, *_: object) -> int:
    """A read-only connection would not be enough: ATTACH and VACUUM INTO create files."""
    return sqlite3.SQLITE_OK if action in _READING else sqlite3.SQLITE_DENY


class _LockedError(Exception):
    """The write lock is held."""


_CODES_BY_ERROR_NAME = {  # SQLite has longer names too, such as SQLITE_IOERR_READ
    "SQLITE_CORRUPT": ReasonCode.CORRUPT,
    "SQLITE_CANTOPEN": ReasonCode.FILE_NOT_READABLE,
    "SQLITE_IOERR": ReasonCode.FILE_NOT_READABLE,
    "SQLITE_READONLY": ReasonCode.READ_ONLY,
}


# Of a table that has other columns than the one of `write`.
_OTHER_TABLE_ERRORS = ("SQLITE_ERROR", "SQLITE_CONSTRAINT", "SQLITE_MISMATCH")


def _error_name(exc: sqlite3.Error) -> str:
    return getattr(exc, "sqlite_errorname", "")


def _corrupt(text: str) -> CodedOSError:
    return CodedOSError(text, ReasonCode.CORRUPT)


def _read_pragma(database: sqlite3.Connection, pragma: str) -> Any:  # noqa: ANN401  a number or a text
    return database.execute(f"PRAGMA {pragma}").fetchone()[0]


def _has_table(database: sqlite3.Connection, name: str) -> bool:
    query = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ? COLLATE NOCASE"
    return database.execute(query, (name,)).fetchone() is not None


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _denied_path(path: Path) -> str:
    """What this user may not write to: the file, or its directory, in which SQLite creates a journal; "" if nothing."""
    file = path.resolve()
    if not os.access(file, os.W_OK, effective_ids=True):
        return f"the file: {path}"
    if not os.access(file.parent, os.W_OK | os.X_OK, effective_ids=True):
        return f"the directory of the file, which SQLite needs for its journal: {path}"
    return ""


def _open_error(path: Path) -> OSError | None:
    """Why SQLite could not open the file; its own error does not say.

    The file itself is not opened here: closing it would release all POSIX locks of this process on it.
    """
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as exc:
        return exc
    return None if os.access(path, os.R_OK, effective_ids=True) else PermissionError(errno.EACCES, "")
