"""What is said when history cannot be kept: what, where, and how to mend it."""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path

import pytest

from svcnode.history.faults import DamageError, FaultError, fault_from
from svcnode.history.trouble import FIRST_PAUSE_S, MAX_PAUSE_S, NOTICE_S, PROVEN_AFTER_S, Trouble
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
    assert words.format(path=PATH) in str(fault_from(error, PATH))


def test_what_a_person_has_to_mend_comes_with_the_key_to_set() -> None:
    for error in (sqlite_error(sqlite3.SQLITE_READONLY), system_error(errno.EACCES), system_error(errno.EISDIR)):
        assert "name another file in [history] path" in str(fault_from(error, PATH))


@pytest.mark.parametrize("code", [sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT_VTAB])
def test_damage_is_told_from_all_else(code: int) -> None:
    assert isinstance(fault_from(sqlite_error(code), PATH), DamageError)
    assert not isinstance(fault_from(sqlite_error(sqlite3.SQLITE_FULL), PATH), DamageError)


def test_a_fault_that_is_one_already_stays_as_it_is() -> None:
    fault = FaultError("belongs to another svcnode")
    assert fault_from(fault, PATH) is fault


def full() -> tuple[FaultError, Exception]:
    cause = sqlite_error(sqlite3.SQLITE_FULL)
    return fault_from(cause, PATH), cause


def test_the_same_fault_is_logged_once_however_often_it_is_met(caplog: pytest.LogCaptureFixture) -> None:
    trouble = Trouble(VirtualClock())
    for _ in range(3):
        trouble.rise(*full())
    assert len(caplog.records) == 1
    trouble.rise(FaultError("another"), OSError())
    assert len(caplog.records) == 2


def test_the_pauses_between_attempts_grow_up_to_a_limit() -> None:
    trouble = Trouble(VirtualClock())
    pauses = []
    for _ in range(10):
        trouble.rise(*full())
        pauses.append(trouble.wait_s)
    assert pauses[:4] == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S, 8 * FIRST_PAUSE_S]
    assert pauses[-1] == MAX_PAUSE_S


def test_when_it_is_over_that_is_told_once_and_the_pauses_begin_anew(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    trouble = Trouble(VirtualClock())
    trouble.rise(*full())
    trouble.rise(*full())
    trouble.pass_over()
    trouble.pass_over()
    assert [record.message for record in caplog.records[1:]] == ["history is written again"]
    assert (trouble.is_there, trouble.said, trouble.wait_s) == (False, None, 0.0)
    trouble.rise(*full())
    assert trouble.wait_s == FIRST_PAUSE_S


def test_what_fails_again_soon_is_not_well_before_it_has_worked_for_a_while(caplog: pytest.LogCaptureFixture) -> None:
    """As a disk does that is full and takes a little now and then."""
    caplog.set_level("INFO")
    clock = VirtualClock()
    trouble = Trouble(clock)
    for _ in range(2):
        trouble.rise(*full())
        trouble.pass_over()
        clock.advance(1.0)
    for _ in range(6):
        trouble.rise(*full())
        assert trouble.wait_s > 0
        clock.advance(trouble.wait_s)
        trouble.pass_over()
        assert trouble.wait_s == 0
        assert "no room" in (trouble.said or "")
        clock.advance(5.0)
    clock.advance(PROVEN_AFTER_S)
    assert trouble.is_there
    trouble.pass_over()
    assert (trouble.is_there, trouble.said) == (False, None)
    levels = [record.levelname for record in caplog.records]
    assert levels == ["ERROR", "INFO", "ERROR", "INFO"]


def test_what_fails_again_after_a_long_time_is_well_as_soon_as_it_works() -> None:
    clock = VirtualClock()
    trouble = Trouble(clock)
    for _ in range(2):
        trouble.rise(*full())
        trouble.pass_over()
        assert not trouble.is_there
        clock.advance(PROVEN_AFTER_S)


def test_faults_that_take_turns_are_each_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    trouble = Trouble(VirtualClock())
    for _ in range(3):
        trouble.rise(*full())
        trouble.rise(FaultError("another"), OSError())
    assert len(caplog.records) == 2


def test_a_notice_is_told_for_a_day_and_is_no_fault() -> None:
    clock = VirtualClock()
    trouble = Trouble(clock)
    trouble.notify("set aside")
    assert (trouble.said, trouble.is_there) == ("set aside", False)
    clock.advance(NOTICE_S)
    assert trouble.said is None


def test_a_fault_is_told_before_a_notice() -> None:
    trouble = Trouble(VirtualClock())
    trouble.notify("set aside")
    trouble.rise(FaultError("full"), OSError())
    assert trouble.said == "full"


def test_only_a_fault_of_our_own_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    trouble = Trouble(VirtualClock())
    trouble.rise(*full())
    trouble.rise(FaultError("strange"), TypeError("strange"))
    assert [bool(record.exc_info) for record in caplog.records] == [False, True]
