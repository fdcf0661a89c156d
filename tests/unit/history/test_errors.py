"""Errors of SQLite and of the operating system become history errors with a code."""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path

import pytest

from svcnode.history.errors import CorruptionError, HistoryError, HistoryProblem, history_error_from

PATH = Path("/var/lib/svcnode/history.db")


def sqlite_error(code: int) -> sqlite3.Error:
    error = sqlite3.OperationalError("text of SQLite")
    error.sqlite_errorcode = code
    return error


def os_error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (sqlite_error(sqlite3.SQLITE_BUSY), HistoryProblem.LOCKED),
        (sqlite_error(sqlite3.SQLITE_BUSY_RECOVERY), HistoryProblem.LOCKED),
        (sqlite_error(sqlite3.SQLITE_LOCKED), HistoryProblem.LOCKED),
        (sqlite_error(sqlite3.SQLITE_PROTOCOL), HistoryProblem.LOCKED),
        (sqlite_error(sqlite3.SQLITE_FULL), HistoryProblem.DISK_FULL),
        (sqlite_error(sqlite3.SQLITE_READONLY), HistoryProblem.NOT_WRITABLE),
        (sqlite_error(sqlite3.SQLITE_IOERR_WRITE), HistoryProblem.IO_ERROR),
        (sqlite_error(sqlite3.SQLITE_CANTOPEN), HistoryProblem.UNUSABLE),
        (sqlite_error(sqlite3.SQLITE_CORRUPT), HistoryProblem.CORRUPT),
        (sqlite_error(sqlite3.SQLITE_CORRUPT_VTAB), HistoryProblem.CORRUPT),
        (sqlite_error(sqlite3.SQLITE_NOTADB), HistoryProblem.CORRUPT),
        (os_error(errno.ENOSPC), HistoryProblem.DISK_FULL),
        (os_error(errno.EDQUOT), HistoryProblem.DISK_FULL),
        (os_error(errno.EROFS), HistoryProblem.NOT_WRITABLE),
        (os_error(errno.EACCES), HistoryProblem.NOT_WRITABLE),
        (os_error(errno.ENOTDIR), HistoryProblem.UNUSABLE),
        (RuntimeError("out of threads"), HistoryProblem.UNUSABLE),
    ],
)
def test_an_error_has_a_code_and_names_the_file(error: Exception, problem: HistoryProblem) -> None:
    translated = history_error_from(error, PATH)
    assert translated.code is problem
    assert type(translated) is (CorruptionError if problem is HistoryProblem.CORRUPT else HistoryError)
    assert str(PATH) in str(translated)
    assert history_error_from(translated, PATH) is translated


def test_an_error_that_needs_a_fix_names_the_key_to_set() -> None:
    for error in (sqlite_error(sqlite3.SQLITE_READONLY), os_error(errno.EACCES), os_error(errno.EISDIR)):
        assert "[history] path" in str(history_error_from(error, PATH))
