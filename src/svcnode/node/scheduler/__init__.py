"""The scheduler: every service is checked at its own interval, one check at a time, each with a deadline.

A check passes four parts. Each calls the next one, and knows none before it:

    TimerQueue ──► ConcurrencyLimiter ──► ProbeRunner ──► Recorder ──► node
    when due       when a slot is free    one check       all of one iteration of the loop

`ProbeScheduler` connects them, and puts the next check of a recorded service into the queue. It follows the node:
when a service is registered, redefined or removed, only the checks of this service start, restart or stop.

Thousands of checks per second must cost little, so a service has a task only during a check, and simple checks over TCP
have none: they run in batches (`net.batch`). Between checks a service has an entry in the timer queue, which one timer
of the event loop serves. The deadline of a check is another entry.
"""

from __future__ import annotations

import asyncio
import math
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from svcnode.core.model import Change, ChangeKind
from svcnode.core.state_machine import is_change_pending
from svcnode.net.batch import BatchPoller
from svcnode.net.clock import next_tick_s
from svcnode.net.timers import RECANCEL_AFTER_S, TimerQueue
from svcnode.node.scheduler.limiter import ConcurrencyLimiter
from svcnode.node.scheduler.record import Recorder
from svcnode.node.scheduler.runner import ProbeRunner, RunnerContext

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from svcnode.core.model import ServiceState
    from svcnode.node.node_state import NodeState
    from svcnode.node.scheduler.record import CheckRecorder

FIRST_CHECKS_WITHIN_S = 2.0
# Between the first checks of services that are registered together, such as those of a replica that is lost. A thousand
# connections at once overflow the backlog of a server, and the checks would stay in step.
START_SPACING_S = 0.0005
JITTER = 0.05  # a share of the interval, added or subtracted, so that equal intervals do not run in step
_RANDOM_BYTES = 4096  # read at once: a system call for each check is dear
MAX_CONCURRENT_CHECKS = 8192  # a check that hangs costs a descriptor, and little else
LATE_CHECKS_LOG_INTERVAL_S = 60.0

_REGISTRATION_CHANGES = {ChangeKind.REGISTERED, ChangeKind.REPLACED, ChangeKind.DEREGISTERED}


def random_jitters() -> Iterator[float]:
    """Endless, from -JITTER to JITTER. The module `random` takes as long to load as the whole scheduler."""
    while True:
        for number in memoryview(os.urandom(_RANDOM_BYTES)).cast("I"):
            yield JITTER * (number / 2**31 - 1)


class ProbeScheduler:
    """Runs the checks of a node while its `async with` block runs."""

    def __init__(
        self,
        node: NodeState,
        jitter: Callable[[], float] | None = None,
        *,
        max_concurrent_checks: int = MAX_CONCURRENT_CHECKS,
        recorder: CheckRecorder | None = None,
    ) -> None:
        """`jitter` is random by default. `recorder` records the evidence of the checks; by default, the node does."""
        self._node = node
        self._check_recorder: CheckRecorder = node if recorder is None else recorder
        self._jitter = random_jitters().__next__ if jitter is None else jitter
        self._limiter = ConcurrencyLimiter(max_concurrent_checks)
        self._runners: dict[str, ProbeRunner] = {}
        self._last_start_s = -math.inf
        self._pid = os.getpid()

    async def __aenter__(self) -> Self:
        self._loop = loop = asyncio.get_running_loop()
        self._timers = TimerQueue(loop)
        self._recorder = Recorder(self._node, self._check_recorder, loop, self._schedule_next)
        self._poller: BatchPoller | None = None
        with suppress(OSError, NotImplementedError):  # every check then has a task
            self._poller = BatchPoller(loop)
        self._context = RunnerContext(
            loop=loop,
            now_s=self._node.now_s,
            timers=self._timers,
            poller=self._poller,
            acquire_slot=self._limiter.acquire,
            release_slot=self._limiter.release,
            record=self._recorder.add,
        )
        self._is_running = True
        self._unsubscribe = self._node.subscribe(self._on_change)
        self._node.standstill.start()
        self._expire_stale_periodically()
        self._log_late_checks_periodically()
        probed_ids = [service.id for service, _ in self._node if self._node.probe_config(service.id)]
        for position, service_id in enumerate(probed_ids):
            self._sync_runner(service_id, first_check_in_s=FIRST_CHECKS_WITHIN_S * position / len(probed_ids))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._unsubscribe()
        self._node.standstill.stop()
        self._is_running = False  # a call of `_sync_runner` may still be queued in the loop
        self._recorder.flush()
        self._timers.close()
        cancelled_tasks = [runner.stop() for runner in self._runners.values()]
        self._runners.clear()
        if self._poller is not None:
            self._poller.close()
        tasks = {task for task in cancelled_tasks if task is not None}
        while pending := {task for task in tasks if not task.done()}:
            await asyncio.wait(pending, timeout=RECANCEL_AFTER_S)
            for task in pending:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def ping(self, answer: Callable[[], object]) -> bool:
        """Call `answer` in the way in which checks are started: it shows that the scheduler runs. On its event loop.

        False: it has stopped.
        """
        if self._is_running:
            self._timers.add(self._loop.time(), answer)
        return self._is_running

    @property
    def is_running(self) -> bool:
        """False after a fork, which copies this object but not the thread, and if the event loop ended without it."""
        return self._is_running and self._pid == os.getpid() and self._loop.is_running()

    def next_check_in_s(self, service_id: str) -> float | None:
        runner = self._runners.get(service_id)
        return None if runner is None else max(0.0, runner.due_s - self._loop.time())

    def _on_change(self, change: Change) -> None:
        # Called on the thread that made the change.
        if change.kind in _REGISTRATION_CHANGES and change.service_id is not None:
            self._loop.call_soon_threadsafe(self._sync_runner, change.service_id)

    def _sync_runner(self, service_id: str, first_check_in_s: float | None = None) -> None:
        """Start, restart or stop the checks of a service if its probe configuration has changed."""
        probe_config = self._node.probe_config(service_id) if self._is_running else None
        runner = self._runners.get(service_id)
        if probe_config == (None if runner is None else runner.probe_config):
            return
        if runner is not None:
            self._timers.cancel(runner.due_s, runner.request_slot)
            runner.stop()
            del self._runners[service_id]
        if probe_config is not None:
            runner = self._runners[service_id] = ProbeRunner(service_id, probe_config, self._context)
            now_s = self._loop.time()
            self._schedule(runner, self._next_start_s(now_s) if first_check_in_s is None else now_s + first_check_in_s)

    def _next_start_s(self, now_s: float) -> float:
        self._last_start_s = max(now_s, self._last_start_s + START_SPACING_S)
        return self._last_start_s

    def _schedule(self, runner: ProbeRunner, due_s: float) -> None:
        runner.due_s = due_s
        self._timers.add(due_s, runner.request_slot)

    def _schedule_next(self, runner: ProbeRunner, state: ServiceState | None) -> None:
        """After a check, with the state that it led to; None if it was not recorded."""
        is_pending = state is not None and is_change_pending(state)
        wait_s = runner.probe_config.schedule.wait_s(is_change_pending=is_pending)
        wait_s *= 1 + self._jitter()
        self._schedule(runner, max(runner.started_s + wait_s, self._loop.time()))

    def _expire_stale_periodically(self) -> None:
        """Expire stale states without a read, once a second, so that listeners are called."""
        # First: an error below must not be the end of it.
        self._timers.add(next_tick_s(self._loop.time()), self._expire_stale_periodically)
        self._node.expire_stale()
        self._node.standstill.tick()

    def _log_late_checks_periodically(self) -> None:
        self._recorder.log_late_checks()
        self._timers.add(self._loop.time() + LATE_CHECKS_LOG_INTERVAL_S, self._log_late_checks_periodically)
