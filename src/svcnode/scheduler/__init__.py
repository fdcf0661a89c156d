"""The scheduler: every service is checked at its own interval, one check at a time, each with a deadline.

The scheduler follows the node: when a service is registered, redefined or removed, only the checks of this service
start, restart or stop. The scheduler records verdicts in the node; the state machine decides what they mean.

Thousands of checks per second must cost little, so a service has a task only during a check, and simple checks over TCP
have none: they run in batches (`net.batch`), and their verdicts are recorded in batches. Between checks a service has
an entry in the timer queue, which one timer of the event loop serves. The deadline of a check is another entry.
"""

from __future__ import annotations

import asyncio
import logging
import random
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from svcnode.clock import next_tick_s
from svcnode.core import state_machine
from svcnode.core.errors import UnknownServiceError
from svcnode.core.model import Change, ChangeKind, Verdict
from svcnode.net.batch import BatchPoller
from svcnode.probes.run import RECANCEL_AFTER_S
from svcnode.scheduler.limiter import ConcurrencyLimiter
from svcnode.scheduler.runner import LATE_AFTER_S, ProbeRunner
from svcnode.scheduler.timer_queue import TimerQueue

if TYPE_CHECKING:
    from types import TracebackType

    from svcnode.core.model import Evidence, ServiceState
    from svcnode.node import Node

FIRST_CHECKS_WITHIN_S = 2.0
JITTER = 0.05  # a share of the interval, added or subtracted, so that equal intervals do not run in step
MAX_CONCURRENT_CHECKS = 1024
LATE_CHECKS_LOG_INTERVAL_S = 60.0
# Late checks are logged only when at least 5 per minute and 5 % of all checks are late.
MIN_LATE_CHECKS_LOGGED, MIN_LATE_SHARE_LOGGED = 5, 0.05

_REGISTRATION_CHANGES = {ChangeKind.REGISTERED, ChangeKind.REPLACED, ChangeKind.DEREGISTERED}

log = logging.getLogger("svcnode.scheduler")


class ProbeScheduler:
    """Runs the checks of a node while its `async with` block runs."""

    def __init__(
        self, node: Node, rng: random.Random | None = None, *, max_concurrent_checks: int = MAX_CONCURRENT_CHECKS
    ) -> None:
        self.node = node
        self._rng = rng or random.Random()  # noqa: S311  not for security
        self._runners: dict[str, ProbeRunner] = {}
        self.limiter = ConcurrencyLimiter(max_concurrent_checks)
        self._check_count = self._late_check_count = 0
        self._reports: dict[ProbeRunner, Evidence] = {}  # of this iteration of the loop
        self.poller: BatchPoller | None = None

    async def __aenter__(self) -> Self:
        self.loop = asyncio.get_running_loop()
        with suppress(OSError, NotImplementedError):  # every check then has a task
            self.poller = BatchPoller(self.loop)
        self.timers = TimerQueue(self.loop)
        self._is_running = True
        self._unsubscribe = self.node.subscribe(self._on_change)
        self._expire_stale_periodically()
        self.timers.add(self.loop.time() + LATE_CHECKS_LOG_INTERVAL_S, self._log_late_checks)
        probed_ids = [service.id for service, _ in self.node if self.node.probe_config(service.id) is not None]
        for position, service_id in enumerate(probed_ids):
            self._sync_runner(service_id, first_check_in_s=FIRST_CHECKS_WITHIN_S * position / len(probed_ids))
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._unsubscribe()
        self._is_running = False  # a call of `_sync_runner` may still be queued in the loop
        self._record_reports()
        self.timers.close()
        cancelled_tasks = [runner.stop() for runner in self._runners.values()]
        self._runners.clear()
        if self.poller is not None:
            self.poller.close()
            self.poller = None
        tasks = {task for task in cancelled_tasks if task is not None}
        while pending := {task for task in tasks if not task.done()}:
            await asyncio.wait(pending, timeout=RECANCEL_AFTER_S)
            for task in pending:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _on_change(self, change: Change) -> None:
        # Called on the thread that made the change.
        if change.kind in _REGISTRATION_CHANGES and change.service_id is not None:
            self.loop.call_soon_threadsafe(self._sync_runner, change.service_id)

    def _sync_runner(self, service_id: str, first_check_in_s: float = 0.0) -> None:
        """Start, restart or stop the checks of a service if its probe configuration has changed."""
        probe_config = self.node.probe_config(service_id) if self._is_running else None
        runner = self._runners.get(service_id)
        if probe_config == (None if runner is None else runner.probe_config):
            return
        if runner is not None:
            runner.stop()
            del self._runners[service_id]
        if probe_config is not None:
            runner = self._runners[service_id] = ProbeRunner(self, service_id, probe_config)
            runner.schedule_check(self.loop.time() + first_check_in_s)

    def _expire_stale_periodically(self) -> None:
        """Expire stale states without a read, once a second, so that listeners are called."""
        self.node.expire_stale()
        self.timers.add(next_tick_s(self.loop.time()), self._expire_stale_periodically)

    def _log_late_checks(self) -> None:
        if should_log_late_checks(self._late_check_count, self._check_count):
            log.warning(
                "%d of %d checks started more than %g ms late: the process is overloaded or many services are slow",
                self._late_check_count,
                self._check_count,
                LATE_AFTER_S * 1000,
                extra={"event": "late_checks", "late": self._late_check_count, "checks": self._check_count},
            )
        self._check_count = self._late_check_count = 0
        self.timers.add(self.loop.time() + LATE_CHECKS_LOG_INTERVAL_S, self._log_late_checks)

    def next_check_in_s(self, service_id: str) -> float | None:
        runner = self._runners.get(service_id)
        return None if runner is None else max(0.0, runner.due_s - self.loop.time())

    # ---- for the runners

    def count_start(self, service_id: str, late_s: float) -> None:
        self._check_count += 1
        if late_s > LATE_AFTER_S:
            self._late_check_count += 1

    def report(self, runner: ProbeRunner, verdict: Verdict, duration_s: float, started_at_s: float) -> bool:
        """Returns whether a status change is pending."""
        if not self._is_current(runner):
            return False
        try:
            # Dated at the start of the check: the response may be from any time since then.
            state = self.node.record(runner.service_id, verdict, duration_s=duration_s, at_s=started_at_s)
        except UnknownServiceError:
            return False
        except Exception:  # the checks of the service must continue
            extra = {"event": "record_failed", "service": runner.service_id}
            log.exception("recording a check of service %r failed", runner.service_id, extra=extra)
            return False
        return state_machine.is_change_pending(state)

    def report_in_batch(self, runner: ProbeRunner, evidence: Evidence) -> None:
        """Record the evidence at the end of this iteration of the loop, together with others."""
        if not self._reports:
            self.loop.call_soon(self._record_reports)
        self._reports[runner] = evidence

    def _record_reports(self) -> None:
        reports, self._reports = self._reports, {}
        states: dict[str, ServiceState] = {}
        try:
            states = self.node.record_checks(
                {runner.service_id: evidence for runner, evidence in reports.items() if self._is_current(runner)}
            )
        except Exception:  # the checks of the services must continue
            ids = [runner.service_id for runner in reports]
            log.exception("recording %d checks failed", len(ids), extra={"event": "record_failed", "services": ids})
        for runner in reports:
            runner.schedule_next_check(states.get(runner.service_id))

    def _is_current(self, runner: ProbeRunner) -> bool:
        """False if the service was removed or redefined during the check: `_sync_runner` is about to stop it."""
        probe_config = self.node.probe_config(runner.service_id)
        return probe_config is runner.probe_config or probe_config == runner.probe_config

    def next_due_s(self, started_s: float, wait_s: float) -> float:
        return max(started_s + wait_s * (1 + self._rng.uniform(-JITTER, JITTER)), self.loop.time())


def should_log_late_checks(late: int, total: int) -> bool:
    return late >= MIN_LATE_CHECKS_LOGGED and late >= MIN_LATE_SHARE_LOGGED * total
