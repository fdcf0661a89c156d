"""Runs the checks of one service: start, deadline, verdict and next start.

A check is a task that awaits `Probe.check`, or a `BatchCheck` if the probe has one.
"""

from __future__ import annotations

import asyncio
import logging
import math
from typing import TYPE_CHECKING

from svcnode.core.codes import ReasonCode
from svcnode.core.model import Evidence, Outcome, Verdict
from svcnode.core.state_machine import is_change_pending
from svcnode.core.text import one_line
from svcnode.probes.base import check_deadline_s
from svcnode.probes.run import (
    RECANCEL_AFTER_S,
    close_probe,
    finalize_verdict,
    log_probe_error,
    probe_error_verdict,
    step_timeout_verdict,
    timeout_verdict,
    validate_verdict,
)
from svcnode.scheduler.limiter import SpeedClass
from svcnode.scheduler.timer_queue import TICK_S, TIMER_RESOLUTION_S

if TYPE_CHECKING:
    from svcnode.core.model import ServiceState
    from svcnode.definition import ProbeConfig
    from svcnode.net.batch import BatchCheck
    from svcnode.scheduler import ProbeScheduler

SLOW_CHECK_S = 0.25  # a service with a longer check uses the slots for slow services
LATE_AFTER_S = 0.1
GRACE_S = 0.02
MAX_LOGGED_CHANGES = 4  # of the outcome: a restart has up to three
SUMMARY_INTERVAL_S = 60.0  # of the log, if the outcome changes more often

log = logging.getLogger("svcnode.scheduler")


class ProbeRunner:
    """Runs the checks of one service, one at a time."""

    __slots__ = (
        "_batch_check",
        "_deadline_s",
        "_has_logged_blocking",
        "_is_overdue",
        "_is_probe_working",
        "_is_stopped",
        "_outcome_log",
        "_scheduler",
        "_speed_class",
        "_started_at_s",
        "_started_s",
        "_task",
        "due_s",
        "probe_config",
        "service_id",
    )

    def __init__(self, scheduler: ProbeScheduler, service_id: str, probe_config: ProbeConfig) -> None:
        self._scheduler = scheduler
        self.service_id = service_id
        self.probe_config = probe_config
        self._is_stopped = self._is_overdue = False
        self._speed_class = SpeedClass.QUICK
        self._is_probe_working = True
        self._has_logged_blocking = False
        self._outcome_log = OutcomeLog(service_id)
        self.due_s = 0.0
        self._task: asyncio.Task[None] | None = None
        self._deadline_s = math.inf  # until a check runs
        self._started_s = self._started_at_s = 0.0  # of a batch check
        self._batch_check = None if scheduler.poller is None else probe_config.probe.batch_check()
        if self._batch_check is not None:
            self._batch_check.on_verdict = self._end_batch_check

    def schedule_check(self, due_s: float) -> None:
        self.due_s = due_s
        self._scheduler.timers.add(due_s, self._request_slot)

    def stop(self) -> asyncio.Task[None] | None:
        """Returns the task of the check that is being cancelled, if any."""
        self._is_stopped = True
        if self._batch_check is not None:
            self._cancel_batch_check(self._batch_check)
        if self._task is None:
            close_probe(self.probe_config.probe)
        elif self._deadline_s < math.inf:  # without a deadline, the task has not run yet and ends by itself
            self._task.cancel()
        return self._task

    def _request_slot(self) -> None:
        if not self._is_stopped:
            self._scheduler.limiter.acquire(self._start_check, self._speed_class)

    def _start_check(self) -> bool:
        """Returns whether the slot is used: not if the service was removed while it waited."""
        if self._is_stopped:
            return False
        if self._batch_check is not None:
            return self._start_batch_check(self._batch_check)
        self._task = self._scheduler.loop.create_task(self._run_check())
        return True

    def _set_deadline(self, at_s: float) -> None:
        self._deadline_s = at_s
        self._scheduler.timers.add(at_s, self._enforce_deadline)

    def _clear_deadline(self) -> None:
        if self._deadline_s < math.inf:
            self._scheduler.timers.cancel(self._deadline_s, self._enforce_deadline)
            self._deadline_s = math.inf

    def _enforce_deadline(self) -> None:
        # A timer of a finished check finds no deadline, or a later one. The timer of this check may be early by one
        # tick of the queue and by the resolution of the timer.
        late_s = self._scheduler.loop.time() - self._deadline_s
        if late_s < -TIMER_RESOLUTION_S:
            if late_s >= -(TICK_S + TIMER_RESOLUTION_S):
                self._scheduler.timers.add(self._deadline_s, self._enforce_deadline)
            return
        if late_s > LATE_AFTER_S and not self._is_overdue:
            # The loop was blocked: a response may have arrived and is read first.
            self._set_deadline(self._deadline_s + late_s + GRACE_S)
            return
        self._is_overdue = True
        if self._task is None:
            self._end_overdue_batch_check()
            return
        self._task.cancel()
        self._scheduler.timers.add(self._scheduler.loop.time() + RECANCEL_AFTER_S, self._enforce_deadline)

    # ---- a check in a batch

    def _start_batch_check(self, check: BatchCheck) -> bool:
        """Returns whether the slot is used: not if there is a verdict at once."""
        scheduler = self._scheduler
        assert scheduler.poller is not None
        self._started_s, self._started_at_s = scheduler.loop.time(), scheduler.node.now_s()
        scheduler.count_start(self.service_id, self._started_s - self.due_s)
        self._is_overdue = False
        result = scheduler.poller.start(check)
        if result is None:
            self._set_deadline(self._started_s + self.probe_config.schedule.timeout_s)
            return True
        self._finish_batch_check(result)
        return False

    def _end_batch_check(self, result: Verdict | Exception) -> None:
        self._deadline_s = math.inf
        self._scheduler.limiter.release(self._speed_class)
        self._finish_batch_check(result)

    def _end_overdue_batch_check(self) -> None:
        check, poller = self._batch_check, self._scheduler.poller
        assert check is not None
        assert poller is not None
        poller.cancel(check)
        self._end_batch_check(step_timeout_verdict(self.probe_config.schedule.timeout_s, check.step))

    def _cancel_batch_check(self, check: BatchCheck) -> None:
        assert self._scheduler.poller is not None
        if self._deadline_s < math.inf:
            self._deadline_s = math.inf
            self._scheduler.poller.cancel(check)
            self._scheduler.limiter.release(self._speed_class)

    def _finish_batch_check(self, result: Verdict | Exception) -> None:
        error = result if isinstance(result, Exception) else None
        verdict = probe_error_verdict(result) if isinstance(result, Exception) else result
        duration_s = self._scheduler.node.now_s() - self._started_at_s
        verdict = self._take_verdict(verdict, error, self._started_s, duration_s)
        self._scheduler.report_in_batch(self, Evidence(verdict, self._started_at_s, duration_s))

    def schedule_next_check(self, state: ServiceState | None) -> None:
        """After a check in a batch, with the state that it led to; None if it was not recorded."""
        self._schedule_next(self._started_s, is_change_pending=state is not None and is_change_pending(state))

    # ---- a check in a task

    async def _run_check(self) -> None:
        scheduler, speed_class = self._scheduler, self._speed_class
        started_s, started_at_s = scheduler.loop.time(), scheduler.node.now_s()
        try:
            if self._is_stopped:
                return
            scheduler.count_start(self.service_id, started_s - self.due_s)
            verdict, error = await self._await_verdict(started_s)
        finally:
            self._clear_deadline()
            self._task = None
            scheduler.limiter.release(speed_class)
            if self._is_stopped:
                close_probe(self.probe_config.probe)
        duration_s = scheduler.node.now_s() - started_at_s
        verdict = self._take_verdict(verdict, error, started_s, duration_s)
        is_change_pending = scheduler.report(self, verdict, duration_s, started_at_s)
        self._schedule_next(started_s, is_change_pending=is_change_pending)

    async def _await_verdict(self, started_s: float) -> tuple[Verdict, BaseException | None]:
        """The verdict, and the exception if the probe raised one."""
        timeout_s = self.probe_config.schedule.timeout_s
        error: BaseException | None = None
        self._is_overdue = False
        # Not earlier: a task that is cancelled before its first step does not run its `finally`.
        self._set_deadline(started_s + timeout_s)
        check_deadline_s.set(started_s + timeout_s)  # each check has its own task, so no reset is needed
        try:
            verdict = validate_verdict(await self.probe_config.probe.check())
        except (asyncio.CancelledError, Exception, SystemExit) as exc:  # noqa: BLE001  the checks continue
            error = exc
        # A probe may have swallowed the cancellation.
        if self._is_stopped:
            raise asyncio.CancelledError from error
        # A check function may block the loop, and with it the timer of its deadline.
        blocked_s = self.probe_config.probe.loop_blocked_s
        if is_late_from_blocking(self._scheduler.loop.time() - started_s, blocked_s, timeout_s):
            self._log_blocking(blocked_s)
            reason = f"the check blocked the event loop for {blocked_s:.3g} s, its timeout is {timeout_s:g} s"
            return Verdict.failed(reason, code=ReasonCode.BLOCKED_LOOP), None
        if self._is_overdue:
            return timeout_verdict(timeout_s, error), None
        return (verdict, None) if error is None else (probe_error_verdict(error), error)

    # ---- after a check

    def _take_verdict(
        self, verdict: Verdict, error: BaseException | None, started_s: float, duration_s: float
    ) -> Verdict:
        """The verdict to record."""
        self._speed_class = (
            SpeedClass.HUNG if self._is_overdue else SpeedClass.SLOW if duration_s > SLOW_CHECK_S else SpeedClass.QUICK
        )
        verdict = finalize_verdict(verdict, duration_s, self.probe_config.max_latency_s)
        if error is not None or not self._is_probe_working:
            self._log_probe_error(error)
        self._outcome_log.record(verdict, started_s)
        return verdict

    def _schedule_next(self, started_s: float, *, is_change_pending: bool) -> None:
        wait_s = self.probe_config.schedule.wait_s(is_change_pending=is_change_pending)
        self.schedule_check(self._scheduler.next_due_s(started_s, wait_s))

    def _log_blocking(self, blocked_s: float) -> None:
        if not self._has_logged_blocking:  # once, not at every interval
            self._has_logged_blocking = True
            log.warning(
                "the check of service %r blocked the event loop for %.3g s; "
                "await in the check, or make it a plain function, which runs in a thread",
                self.service_id,
                blocked_s,
                extra={"event": "blocked_loop", "service": self.service_id, "blocked_s": blocked_s},
            )

    def _log_probe_error(self, error: BaseException | None) -> None:
        if error is not None and self._is_probe_working:  # once, not at every interval
            log_probe_error(log, self.service_id, error)
        self._is_probe_working = error is None


class OutcomeLog:
    """Logs when the outcome of the checks of one service changes.

    A few changes are logged at once. If the outcome changes again and again, as behind a load balancer with a broken
    server, one line per minute has the number of changes, until a minute has none. The others are logged for debugging.
    """

    __slots__ = ("_changed_s", "_changes", "_logged_s", "_outcome", "_service_id", "_unlogged")

    def __init__(self, service_id: str) -> None:
        self._service_id = service_id
        self._outcome = Outcome.READY
        self._changed_s = self._logged_s = -math.inf
        self._changes = 0  # without a minute between them
        self._unlogged = 0

    def record(self, verdict: Verdict, now_s: float) -> None:
        if verdict.outcome is not self._outcome:
            self._record_change(verdict, now_s)
        elif self._unlogged and now_s - self._logged_s >= SUMMARY_INTERVAL_S:
            self._log(verdict, now_s)

    def _record_change(self, verdict: Verdict, now_s: float) -> None:
        is_first = now_s - self._changed_s >= SUMMARY_INTERVAL_S
        self._changes = 1 if is_first else self._changes + 1
        self._outcome, self._changed_s = verdict.outcome, now_s
        self._unlogged += 1
        if self._changes <= MAX_LOGGED_CHANGES or now_s - self._logged_s >= SUMMARY_INTERVAL_S:
            self._log(verdict, now_s)
        else:
            self._write(logging.DEBUG, verdict)

    def _log(self, verdict: Verdict, now_s: float) -> None:
        # An error in the program, which only its log shows: the status of the service stays as it is for a while.
        level = logging.WARNING if verdict.code == ReasonCode.BAD_RETURN else logging.INFO
        summary = f"; {self._unlogged} changes in {now_s - self._logged_s:.0f} s" if self._unlogged > 1 else ""
        self._write(level, verdict, summary)
        self._logged_s, self._unlogged = now_s, 0

    def _write(self, level: int, verdict: Verdict, summary: str = "") -> None:
        reason = one_line(verdict.reason)
        extra = {
            "event": "check_outcome",
            "service": self._service_id,
            "outcome": verdict.outcome,
            "code": verdict.code,
            "reason": reason,
        }
        suffix = (f": {reason}" if reason else "") + summary
        log.log(level, "service %s %s%s", self._service_id, _OUTCOME_TEXT[verdict.outcome], suffix, extra=extra)


def is_late_from_blocking(duration_s: float, blocked_s: float, timeout_s: float) -> bool:
    """Whether a check is late because it blocked the loop itself. Other code that blocks it is not counted."""
    return blocked_s > timeout_s or (blocked_s > LATE_AFTER_S and duration_s - blocked_s <= timeout_s < duration_s)


_OUTCOME_TEXT = {
    Outcome.READY: "passed a check",
    Outcome.NOT_READY: "is not ready",
    Outcome.FAILED: "failed a check",
    Outcome.UNKNOWN: "could not be checked",
}
