"""What is said when history cannot be kept: what, where, and how to mend it."""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path

import pytest

from svcnode.history.errors import CorruptionError, HistoryError, history_error_from
from svcnode.history.writer import MAX_BACKOFF_S, MIN_BACKOFF_S, QUARANTINE_NOTICE_S, STABLE_AFTER_S, WriterStatus
from tests.support.virtual_time import VirtualClock

PATH = Path("/var/lib/svcnode/history.db")


def sqlite_error(code: int, text: str = "as SQLite says") -> sqlite3.Error:
    error = sqlite3.OperationalError(text)
    error.sqlite_errorcode = code
    return error


def system_error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (sqlite_error(sqlite3.SQLITE_BUSY), "another program holds {path} locked"),
        (sqlite_error(sqlite3.SQLITE_BUSY_RECOVERY), "another program holds {path} locked"),
        (sqlite_error(sqlite3.SQLITE_FULL), "no room left on the disk of {path}"),
        (sqlite_error(sqlite3.SQLITE_READONLY), "{path} cannot be written"),
        (sqlite_error(sqlite3.SQLITE_IOERR_WRITE), "the disk of {path} fails, or has no room: as SQLite says"),
        (sqlite_error(sqlite3.SQLITE_CANTOPEN), "cannot use {path}: as SQLite says"),
        (system_error(errno.ENOSPC), "no room left on the disk of {path}"),
        (system_error(errno.EROFS), "{path} cannot be written: read-only file system"),
        (system_error(errno.EACCES), "{path} cannot be written: permission denied"),
        (system_error(errno.ENOTDIR), "cannot use {path}: not a directory"),
        (RuntimeError("out of threads"), "cannot use {path}: out of threads"),
    ],
)
def test_a_fault_is_told_in_words(error: Exception, words: str) -> None:
    assert words.format(path=PATH) in str(history_error_from(error, PATH))


def test_what_a_person_has_to_mend_comes_with_the_key_to_set() -> None:
    for error in (sqlite_error(sqlite3.SQLITE_READONLY), system_error(errno.EACCES), system_error(errno.EISDIR)):
        assert "name another file in [history] path" in str(history_error_from(error, PATH))


@pytest.mark.parametrize("code", [sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT_VTAB])
def test_damage_is_told_from_all_else(code: int) -> None:
    assert isinstance(history_error_from(sqlite_error(code), PATH), CorruptionError)
    assert not isinstance(history_error_from(sqlite_error(sqlite3.SQLITE_FULL), PATH), CorruptionError)


def test_a_fault_that_is_one_already_stays_as_it_is() -> None:
    fault = HistoryError("belongs to another svcnode")
    assert history_error_from(fault, PATH) is fault


def full() -> tuple[HistoryError, Exception]:
    cause = sqlite_error(sqlite3.SQLITE_FULL)
    return history_error_from(cause, PATH), cause


def test_the_same_fault_is_logged_once_however_often_it_is_met(caplog: pytest.LogCaptureFixture) -> None:
    trouble = WriterStatus(VirtualClock())
    for _ in range(3):
        trouble.record_failure(*full())
    assert len(caplog.records) == 1
    trouble.record_failure(HistoryError("another"), OSError())
    assert len(caplog.records) == 2


def test_the_pauses_between_attempts_grow_up_to_a_limit() -> None:
    trouble = WriterStatus(VirtualClock())
    pauses = []
    for _ in range(10):
        trouble.record_failure(*full())
        pauses.append(trouble.retry_in_s)
    assert pauses[:4] == [MIN_BACKOFF_S, 2 * MIN_BACKOFF_S, 4 * MIN_BACKOFF_S, 8 * MIN_BACKOFF_S]
    assert pauses[-1] == MAX_BACKOFF_S


def test_when_it_is_over_that_is_told_once_and_the_pauses_begin_anew(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    trouble = WriterStatus(VirtualClock())
    trouble.record_failure(*full())
    trouble.record_failure(*full())
    trouble.record_success()
    trouble.record_success()
    assert [record.message for record in caplog.records[1:]] == ["history is written again"]
    assert (trouble.is_failing, trouble.problem, trouble.retry_in_s) == (False, None, 0.0)
    trouble.record_failure(*full())
    assert trouble.retry_in_s == MIN_BACKOFF_S


def test_what_fails_again_soon_is_not_well_before_it_has_worked_for_a_while(caplog: pytest.LogCaptureFixture) -> None:
    """As a disk does that is full and takes a little now and then."""
    caplog.set_level("INFO")
    clock = VirtualClock()
    trouble = WriterStatus(clock)
    for _ in range(2):
        trouble.record_failure(*full())
        trouble.record_success()
        clock.advance(1.0)
    for _ in range(6):
        trouble.record_failure(*full())
        assert trouble.retry_in_s > 0
        clock.advance(trouble.retry_in_s)
        trouble.record_success()
        assert trouble.retry_in_s == 0
        assert "no room" in (trouble.problem or "")
        clock.advance(5.0)
    clock.advance(STABLE_AFTER_S)
    assert trouble.is_failing
    trouble.record_success()
    assert (trouble.is_failing, trouble.problem) == (False, None)
    levels = [record.levelname for record in caplog.records]
    assert levels == ["ERROR", "INFO", "ERROR", "INFO"]


def test_what_fails_again_after_a_long_time_is_well_as_soon_as_it_works() -> None:
    clock = VirtualClock()
    trouble = WriterStatus(clock)
    for _ in range(2):
        trouble.record_failure(*full())
        trouble.record_success()
        assert not trouble.is_failing
        clock.advance(STABLE_AFTER_S)


def test_faults_that_take_turns_are_each_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    trouble = WriterStatus(VirtualClock())
    for _ in range(3):
        trouble.record_failure(*full())
        trouble.record_failure(HistoryError("another"), OSError())
    assert len(caplog.records) == 2


def test_a_notice_is_told_for_a_day_and_is_no_fault() -> None:
    clock = VirtualClock()
    trouble = WriterStatus(clock)
    trouble.set_notice("set aside")
    assert (trouble.problem, trouble.is_failing) == ("set aside", False)
    clock.advance(QUARANTINE_NOTICE_S)
    assert trouble.problem is None


def test_a_fault_is_told_before_a_notice() -> None:
    trouble = WriterStatus(VirtualClock())
    trouble.set_notice("set aside")
    trouble.record_failure(HistoryError("full"), OSError())
    assert trouble.problem == "full"


def test_only_a_fault_of_our_own_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    trouble = WriterStatus(VirtualClock())
    trouble.record_failure(*full())
    trouble.record_failure(HistoryError("strange"), TypeError("strange"))
    assert [bool(record.exc_info) for record in caplog.records] == [False, True]
