"""The checks of a node: whether and where they run."""

from __future__ import annotations

import logging
import os
import threading
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakSet

from svcnode.core.errors import SvcnodeError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from svcnode.node.node_state import NodeState
    from svcnode.node.scheduler import ProbeScheduler
    from svcnode.node.scheduler.record import CheckRecorder
    from svcnode.node.scheduler.thread import SchedulerThread
    from svcnode.node.workers import ElectedScheduler, Workers

NOT_RUNNING_REASON = "the checks are not running; call node.start(), or use node.lifespan in the application"

log = logging.getLogger("svcnode.node")

_instances: WeakSet[Checks] = WeakSet()


class Checks:
    """Runs them in an event loop of the program or in a thread. Of processes that share states, only one runs them."""

    def __init__(self, node: NodeState) -> None:
        self._node = node
        node.why_unchecked = self._why_unchecked
        self.workers_folder: Path | None = None  # through which the worker processes share states; set before a start
        # What is open while the checks run here, and while another worker runs them: history, messages.
        self.while_running: Callable[[Workers | None], AbstractAsyncContextManager[None]] = lambda _: nullcontext()
        self.while_waiting: Callable[[], AbstractAsyncContextManager[None]] = nullcontext
        self._pid = os.getpid()
        self._scheduler: ProbeScheduler | ElectedScheduler | None = None
        self._workers: Workers | None = None
        self._thread: SchedulerThread | None = None
        self._thread_lock = threading.Lock()
        self._starting_loop: asyncio.AbstractEventLoop | None = None  # until the scheduler runs
        self._not_running_reason = ""
        _instances.add(self)

    @asynccontextmanager
    async def running(
        self, *, max_concurrent_checks: int | None = None, recorder: CheckRecorder | None = None
    ) -> AsyncIterator[None]:
        """Check the services that have a probe while the block runs. A nested block does nothing.

        `recorder` records the evidence of the checks; by default, the node does.
        """
        from asyncio import get_running_loop

        if self._running_scheduler is not None or self._is_starting:
            yield
            return
        scheduler = self._make_scheduler(max_concurrent_checks or _checks_beside_a_program(), recorder)
        try:
            async with AsyncExitStack() as stack:
                if self.workers_folder is None:
                    self._starting_loop = get_running_loop()
                    await stack.enter_async_context(self.while_running(None))
                self._scheduler = await stack.enter_async_context(scheduler)
                self._starting_loop = None
                yield
        finally:
            self._starting_loop = None
            if self._scheduler is scheduler:
                self._scheduler = None

    def start(self) -> None:
        """In a background thread, for programs without an event loop. Idempotent.

        If threads do not run in this process, a warning is logged, and it is the reason of every checked service.
        """
        from svcnode.node.scheduler.thread import SchedulerThread, starts_after_fork, threads_problem

        if self._pid != os.getpid():  # uWSGI forks without telling Python
            self._node.after_fork()
            self.after_fork()
        with self._thread_lock:
            if problem := threads_problem():
                self.warn_if_not_running(f"the checks are not running: {problem}")
            elif not (starts_after_fork(self.start_or_warn) or (self._thread and self._thread.is_alive)):
                self.join_workers()  # before the thread does it: so the first answer is that of the others
                self._thread = SchedulerThread(self.running)

    def start_or_warn(self) -> None:
        """As `start`, for a server: if there can be no thread, it says so and goes on."""
        try:
            self.start()
        except (SvcnodeError, MemoryError) as exc:
            self.warn_if_not_running(f"the checks are not running: {exc}")

    def stop(self) -> None:
        with self._thread_lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.stop()

    @property
    def are_running(self) -> bool:
        """In a `running` block, or after `start`."""
        thread = self._thread  # another thread may set it to None
        return self._running_scheduler is not None or self._is_starting or (thread is not None and thread.is_alive)

    def require_not_running(self, method: str) -> None:
        if self.are_running:
            raise SvcnodeError(f"the checks are running; call {method}() before they start")

    def warn_if_not_running(self, reason: str = NOT_RUNNING_REASON) -> None:
        """When the node is served: if no checks run, say so in the log and in the reason of each checked service."""
        if reason != self._not_running_reason and not self.are_running:
            self._not_running_reason = reason
            if any(self._node.probe_config(service.id) for service, _ in self._node):
                log.warning("%s", reason, extra={"event": "not_probing"})

    def next_check_in_s(self, service_id: str) -> float | None:
        """Seconds until the next check of a service, 0 during a check; None if it is not being checked."""
        scheduler = self._running_scheduler
        return None if scheduler is None else scheduler.next_check_in_s(service_id)

    def ping(self, answer: Callable[[], object]) -> bool:
        """Call `answer` from the scheduler; False if no checks run here. On the event loop of the scheduler."""
        scheduler = self._running_scheduler
        return scheduler is not None and scheduler.ping(answer)

    def join_workers(self) -> Workers | None:
        if self.workers_folder is None:
            return None
        if self._workers is None:
            from svcnode.node.workers import Workers

            self._workers = Workers(self._node, self.workers_folder)
            self._node.share_with(self._workers)
        self._workers.join()
        return self._workers

    def _make_scheduler(
        self, max_concurrent_checks: int, recorder: CheckRecorder | None
    ) -> ProbeScheduler | ElectedScheduler:
        from svcnode.node.scheduler import ProbeScheduler

        scheduler = ProbeScheduler(self._node, max_concurrent_checks=max_concurrent_checks, recorder=recorder)
        workers = self.join_workers()
        if workers is None:
            return scheduler
        from svcnode.node.workers import ElectedScheduler

        elected = partial(self.while_running, workers)
        return ElectedScheduler(self._node, workers, scheduler, waiting=self.while_waiting, elected=elected)

    def _why_unchecked(self) -> str:
        return "" if not self._not_running_reason or self.are_running else self._not_running_reason

    @property
    def _is_starting(self) -> bool:
        loop = self._starting_loop  # another thread may set it to None
        return loop is not None and loop.is_running() and self._pid == os.getpid()

    @property
    def _running_scheduler(self) -> ProbeScheduler | ElectedScheduler | None:
        scheduler = self._scheduler  # another thread may set it to None
        return scheduler if scheduler is not None and scheduler.is_running else None

    def after_fork(self) -> None:
        self._pid = os.getpid()
        self._thread_lock = threading.Lock()
        self._starting_loop = None
        if self._workers is not None:
            self._workers.after_fork()


def _checks_beside_a_program() -> int:
    """The limit of concurrent checks in a program that embeds the node: half of the descriptors are for the program."""
    from svcnode.net.fd_limit import fd_limit
    from svcnode.node.scheduler import MAX_CONCURRENT_CHECKS

    return max(1, int(min(MAX_CONCURRENT_CHECKS, fd_limit() // 2)))


def _after_fork() -> None:
    for checks in _instances:
        checks.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
