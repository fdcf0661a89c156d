"""The status of the writer: errors, retries and notices."""

from __future__ import annotations

import pytest

from svcnode.history.errors import HistoryError, HistoryProblem
from svcnode.history.writer import MAX_BACKOFF_S, MIN_BACKOFF_S, NOTICE_S, STABLE_AFTER_S, WriterStatus
from tests.support.virtual_time import VirtualClock

FULL = HistoryError("disk full", HistoryProblem.DISK_FULL)
QUARANTINED = HistoryError("corrupt", HistoryProblem.CORRUPT)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def status(clock: VirtualClock) -> WriterStatus:
    return WriterStatus(clock)


def test_alternating_errors_are_each_logged_once_and_only_unexpected_ones_with_their_traceback(
    status: WriterStatus, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        status.record_failure(FULL, OSError())
        status.record_failure(HistoryError("unusable", HistoryProblem.UNUSABLE), TypeError("bug"))
    assert [bool(record.exc_info) for record in caplog.records] == [False, True]


def test_the_delay_between_attempts_doubles_up_to_a_limit_and_recovery_resets_it(
    status: WriterStatus, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    delays_s = []
    for _ in range(10):
        status.record_failure(FULL, OSError())
        delays_s.append(status.retry_in_s)
    assert delays_s[:4] == [MIN_BACKOFF_S, 2 * MIN_BACKOFF_S, 4 * MIN_BACKOFF_S, 8 * MIN_BACKOFF_S]
    assert delays_s[-1] == MAX_BACKOFF_S
    status.record_success()
    status.record_success()
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]
    assert (status.is_failing, status.problem, status.retry_in_s) == (False, None, 0.0)
    status.record_failure(FULL, OSError())
    assert status.retry_in_s == MIN_BACKOFF_S


def test_after_a_second_failure_soon_after_the_first_writes_must_succeed_for_a_while(
    status: WriterStatus, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """On a full disk single writes succeed now and then."""
    caplog.set_level("INFO")
    for _ in range(2):
        status.record_failure(FULL, OSError())
        status.record_success()
        clock.advance(1.0)
    for _ in range(6):
        status.record_failure(FULL, OSError())
        assert status.retry_in_s > 0
        clock.advance(status.retry_in_s)
        status.record_success()
        assert status.retry_in_s == 0
        assert status.problem is FULL
        clock.advance(5.0)
    clock.advance(STABLE_AFTER_S)
    assert status.is_failing
    status.record_success()
    assert (status.is_failing, status.problem) == (False, None)
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO", "ERROR", "INFO"]


def test_after_a_failure_long_after_the_first_one_success_is_enough(status: WriterStatus, clock: VirtualClock) -> None:
    for _ in range(2):
        status.record_failure(FULL, OSError())
        status.record_success()
        assert not status.is_failing
        clock.advance(STABLE_AFTER_S)


def test_a_notice_lasts_a_day_is_not_a_failure_and_is_hidden_by_one(status: WriterStatus, clock: VirtualClock) -> None:
    status.set_notice(QUARANTINED)
    assert (status.problem, status.is_failing) == (QUARANTINED, False)
    status.record_failure(FULL, OSError())
    assert status.problem is FULL
    status.record_success()
    assert status.problem is QUARANTINED
    clock.advance(NOTICE_S)
    assert status.problem is None
