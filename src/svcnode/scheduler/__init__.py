"""When to check: every service on its own interval, one check at a time, each with a deadline.

The scheduler follows the node: a service registered, redefined or removed while it runs starts, restarts or stops its
own checks and nobody else's. It only ever reports; what a verdict means is the rules' business.

Thousands of services a second are to cost little. So a service that is not being looked at has no task, only an entry
in the agenda, which one timer serves; a check is a task of its own, and its deadline another entry.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING, Self

from svcnode.core import state_machine
from svcnode.core.errors import UnknownServiceError
from svcnode.core.model import Change, ChangeKind, Verdict
from svcnode.probes.run import RECANCEL_AFTER_S
from svcnode.scheduler.limiter import ConcurrencyLimiter
from svcnode.scheduler.runner import LATE_AFTER_S, ProbeRunner
from svcnode.scheduler.timer_queue import TimerQueue

if TYPE_CHECKING:
    from types import TracebackType

    from svcnode.node import Node

FIRST_CHECKS_WITHIN_S = 2.0
EXPIRE_STALE_EVERY_S = 0.5
JITTER = 0.05  # of the interval, either way, so that services with one interval do not march in step
MAX_CONCURRENT_CHECKS = 1024
LATE_CHECKS_LOG_INTERVAL_S = 60.0
# Fewer checks than these are late when the machine hiccups, and nobody has anything to mend.
MIN_LATE_CHECKS_LOGGED, MIN_LATE_SHARE_LOGGED = 5, 0.05

_REGISTRATION_CHANGES = {ChangeKind.REGISTERED, ChangeKind.REPLACED, ChangeKind.DEREGISTERED}

log = logging.getLogger("svcnode.scheduler")


class ProbeScheduler:
    """Looks for as long as its `async with` block runs."""

    def __init__(
        self, node: Node, rng: random.Random | None = None, *, max_concurrent_checks: int = MAX_CONCURRENT_CHECKS
    ) -> None:
        self.node = node
        self._rng = rng or random.Random()  # noqa: S311  it spreads load, it guards nothing
        self._runners: dict[str, ProbeRunner] = {}
        self.limiter = ConcurrencyLimiter(max_concurrent_checks)
        self._check_count = self._late_check_count = 0

    async def __aenter__(self) -> Self:
        self.loop = asyncio.get_running_loop()
        self.timers = TimerQueue(self.loop)
        self._is_running = True
        self._unsubscribe = self.node.subscribe(self._on_change)
        self._expire_stale_periodically()
        self.timers.add(self.loop.time() + LATE_CHECKS_LOG_INTERVAL_S, self._log_late_checks)
        probed_ids = [service.id for service, _ in self.node if self.node.probe_config(service.id) is not None]
        for place, service_id in enumerate(probed_ids):
            self._sync_runner(service_id, first_check_in_s=FIRST_CHECKS_WITHIN_S * place / len(probed_ids))
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._unsubscribe()
        self._is_running = False  # a change heard just now has its `_follow` still to come
        self.timers.close()
        stopped = [runner.stop() for runner in self._runners.values()]
        self._runners.clear()
        tasks = {task for task in stopped if task is not None}
        while pending := {task for task in tasks if not task.done()}:
            await asyncio.wait(pending, timeout=RECANCEL_AFTER_S)
            for task in pending:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _on_change(self, change: Change) -> None:
        # Called on whichever thread made the change.
        if change.kind in _REGISTRATION_CHANGES and change.service_id is not None:
            self.loop.call_soon_threadsafe(self._sync_runner, change.service_id)

    def _sync_runner(self, service_id: str, first_check_in_s: float = 0.0) -> None:
        """Bring the looking in line with what the node now says of a service."""
        wanted = self.node.probe_config(service_id) if self._is_running else None
        runner = self._runners.get(service_id)
        if wanted == (None if runner is None else runner.probe_config):
            return
        if runner is not None:
            runner.stop()
            del self._runners[service_id]
        if wanted is not None:
            runner = self._runners[service_id] = ProbeRunner(self, service_id, wanted)
            runner.schedule_check(self.loop.time() + first_check_in_s)

    def _expire_stale_periodically(self) -> None:
        """Let silence be heard by those who follow the changes, even when nobody asks."""
        self.node.expire_stale()
        self.timers.add(self.loop.time() + EXPIRE_STALE_EVERY_S, self._expire_stale_periodically)

    def _log_late_checks(self) -> None:
        if should_log_late_checks(self._late_check_count, self._check_count):
            log.warning(
                "%d of %d checks began more than %g ms late: this process has too much to do, or too much is slow",
                self._late_check_count,
                self._check_count,
                LATE_AFTER_S * 1000,
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

    def report(self, runner: ProbeRunner, verdict: Verdict, duration_s: float, began_at_s: float) -> bool:
        """Returns whether a change of status is pending now."""
        # What was removed or redefined while we looked is not what we saw; `_follow` is about to end this.
        probe_config = self.node.probe_config(runner.service_id)
        if probe_config is not runner.probe_config and probe_config != runner.probe_config:
            return False
        try:
            # Dated when it began: what was seen cannot be older, and may not be any newer.
            state = self.node.record(runner.service_id, verdict, duration_s=duration_s, at_s=began_at_s)
        except UnknownServiceError:
            return False
        except Exception:  # somebody who follows the node, and who must not end the looking
            log.exception("what was seen of service %r could not be told to all", runner.service_id)
            return False
        return state_machine.is_change_pending(state)

    def next_due_s(self, began_s: float, wait_s: float) -> float:
        return max(began_s + wait_s * (1 + self._rng.uniform(-JITTER, JITTER)), self.loop.time())


def should_log_late_checks(late: int, total: int) -> bool:
    return late >= MIN_LATE_CHECKS_LOGGED and late >= MIN_LATE_SHARE_LOGGED * total
