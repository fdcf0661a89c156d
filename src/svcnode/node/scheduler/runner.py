"""Runs the checks of one service: start, deadline, verdict.

A check is a task that awaits `Probe.check`, or a `BatchCheck` if the probe has one.
"""

from __future__ import annotations

import logging
import math
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from svcnode.core.codes import ReasonCode
from svcnode.core.model import Evidence, Outcome, Verdict
from svcnode.core.state_machine import host_fault
from svcnode.core.text import one_line
from svcnode.net.timers import Deadline
from svcnode.probes.run import (
    await_verdict,
    close_probe,
    finalize_verdict,
    log_probe_error,
    probe_error_verdict,
    step_timeout_verdict,
)

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from svcnode.net.batch import BatchPoller
    from svcnode.net.timers import TimerQueue
    from svcnode.node.definition import ProbeConfig

SLOW_CHECK_S = 0.25  # a service with a longer check uses the slots for slow services
MAX_LOGGED_CHANGES = 4  # of the outcome: a restart has up to three
SUMMARY_INTERVAL_S = 60.0  # of the log, if the outcome changes more often

log = logging.getLogger("svcnode.scheduler")


class SpeedClass(IntEnum):
    """How long the last check of a service took."""

    QUICK = 0
    SLOW = 1
    HUNG = 2


class RunnerContext(NamedTuple):
    """What all runners share."""

    loop: asyncio.AbstractEventLoop
    now_s: Callable[[], float]  # the clock that evidence is dated with
    timers: TimerQueue
    poller: BatchPoller | None
    acquire_slot: Callable[[ProbeRunner], None]
    release_slot: Callable[[SpeedClass], None]
    record: Callable[[ProbeRunner, Evidence], None]


class ProbeRunner:
    """Runs the checks of one service, one at a time.

    Between checks, it is part of no reference cycle, so it is freed as soon as it is replaced. If a reload left
    thousands of runners to the garbage collector, the collection would block the event loop.
    """

    __slots__ = (
        "_batch_check",
        "_context",
        "_deadline",
        "_has_logged_blocking",
        "_is_probe_working",
        "_is_stopped",
        "_outcome_log",
        "_started_at_s",
        "_task",
        "due_s",
        "probe_config",
        "service_id",
        "speed_class",
        "started_s",
    )

    def __init__(self, service_id: str, probe_config: ProbeConfig, context: RunnerContext) -> None:
        self.service_id = service_id
        self.probe_config = probe_config
        self._context = context
        self._deadline = Deadline(context.timers)
        self._batch_check = None if context.poller is None else probe_config.probe.batch_check()
        self._task: asyncio.Task[None] | None = None
        self._is_stopped = False
        self._is_probe_working = True
        self._has_logged_blocking = False
        self._outcome_log = OutcomeLog(service_id)
        self.speed_class = SpeedClass.QUICK
        self.due_s = 0.0
        # Of the last check, by the clocks of the loop and of evidence.
        self.started_s = self._started_at_s = 0.0

    def request_slot(self) -> None:
        """When a check is due."""
        self._context.acquire_slot(self)

    def start(self) -> bool:
        """Start a check. Returns whether it uses the slot: not if the runner is stopped, or has a verdict at once."""
        if self._is_stopped:
            return False
        if self._batch_check is None:
            self._task = self._context.loop.create_task(self._run_task())
            return True
        assert self._context.poller is not None
        self._mark_start()
        result = self._context.poller.start(self._batch_check, self._end_batch_check)
        if result is not None:
            self._finish(result)
            return False
        self._deadline.set(self.started_s + self.probe_config.schedule.timeout_s, self._expire_batch_check)
        return True

    def stop(self) -> asyncio.Task[None] | None:
        """Returns the task of the check that is being cancelled, if any."""
        self._is_stopped = True
        if self._task is None:
            if self._deadline.is_set:
                self._cancel_batch_check()
            close_probe(self.probe_config.probe)
        elif self._deadline.is_set:  # otherwise the task has not run yet, and ends by itself
            self._task.cancel()
        return self._task

    def _mark_start(self) -> None:
        self._deadline.expirations = 0
        self.started_s, self._started_at_s = self._context.loop.time(), self._context.now_s()

    # ---- a check in a batch

    def _end_batch_check(self, result: Verdict | Exception) -> None:
        self._deadline.clear()
        self._context.release_slot(self.speed_class)
        self._finish(result)

    def _expire_batch_check(self) -> None:
        """The deadline has passed."""
        assert self._batch_check is not None
        self._cancel_batch_check()
        self._finish(step_timeout_verdict(self.probe_config.schedule.timeout_s, self._batch_check.step))

    def _cancel_batch_check(self) -> None:
        assert self._context.poller is not None
        assert self._batch_check is not None
        self._context.poller.cancel(self._batch_check)
        self._deadline.clear()
        self._context.release_slot(self.speed_class)

    # ---- a check in a task

    async def _run_task(self) -> None:
        try:
            if self._is_stopped:
                return
            self._mark_start()
            result = await await_verdict(self.probe_config.probe, self.probe_config.schedule.timeout_s, self._deadline)
        finally:
            self._task = None
            self._context.release_slot(self.speed_class)
            if self._is_stopped:
                close_probe(self.probe_config.probe)
        if isinstance(result, Verdict) and result.code == ReasonCode.BLOCKED_LOOP:
            self._log_blocking(self.probe_config.probe.loop_blocked_s)
        self._finish(result)

    # ---- after a check

    def _finish(self, result: Verdict | BaseException) -> None:
        """An exception is a fault of the probe."""
        duration_s = self._context.now_s() - self._started_at_s
        self.speed_class = (
            SpeedClass.HUNG
            if self._deadline.expirations
            else SpeedClass.SLOW
            if duration_s > SLOW_CHECK_S
            else SpeedClass.QUICK
        )
        if isinstance(result, BaseException):
            if self._is_probe_working:  # logged once, not at every interval
                log_probe_error(log, self.service_id, result)
            self._is_probe_working = False
            verdict = probe_error_verdict(result)
        else:
            self._is_probe_working = True
            verdict = finalize_verdict(result, duration_s, self.probe_config.max_latency_s)
        self._outcome_log.record(verdict, self.started_s)
        self._context.record(self, Evidence(verdict, self._started_at_s, duration_s))

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
        if host_fault(verdict):  # one line of the recorder is about all services
            level = logging.DEBUG
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


_OUTCOME_TEXT = {
    Outcome.READY: "passed a check",
    Outcome.NOT_READY: "is not ready",
    Outcome.FAILED: "failed a check",
    Outcome.UNKNOWN: "could not be checked",
}
