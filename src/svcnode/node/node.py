"""The node: a table of services, and the checks of those that have a probe."""

from __future__ import annotations

import logging
import os
import threading
import time
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import SvcnodeError
from svcnode.core.model import SPEC_VERSION, Identity
from svcnode.net.clock import monotonic_s
from svcnode.node.service_table import ServiceTable

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    from svcnode.core.model import ServiceState
    from svcnode.node.scheduler import ProbeScheduler
    from svcnode.node.scheduler.record import CheckRecorder
    from svcnode.node.scheduler.thread import SchedulerThread
    from svcnode.node.service_table import _Entry
    from svcnode.node.workers import ElectedScheduler, Workers

NOT_PROBING_REASON = "checks are not running; call node.start(), or use node.lifespan in the application"

log = logging.getLogger("svcnode.node")

_EMBED = "svcnode.agent.embed"  # a layer above this one: loaded by its name, on first use


class EmbeddedWork(Protocol):
    """Runs as long as the checks of a node: its history and notifications inside another program."""

    def running(self, workers: Workers | None = None) -> AbstractAsyncContextManager[None]:
        """Where the checks run: in the only process, or in the elected one of several workers."""

    def waiting(self) -> AbstractAsyncContextManager[None]:
        """In a worker, while another one runs the checks."""


class Node(ServiceTable):
    """A validator-service node: its identity, its backing services and their states."""

    def __init__(
        self,
        name: str,
        *,
        version: str,
        starting: bool = False,
        clock: Callable[[], float] = monotonic_s,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """With `starting`, the health is at best 206 until `started()` is called."""
        identity = Identity(node_name=name, spec_version=SPEC_VERSION, node_version=version)
        super().__init__(identity, starting=starting, clock=clock, wall_clock=wall_clock)
        self._scheduler: ProbeScheduler | ElectedScheduler | None = None
        self._workers_folder: Path | None = None
        self._workers: Workers | None = None
        self._scheduler_thread: SchedulerThread | None = None
        self._scheduler_thread_lock = threading.Lock()
        self._not_probing_reason = ""
        self._starting_loop: asyncio.AbstractEventLoop | None = None  # while the companion starts
        self.embedded_work: EmbeddedWork | None = None

    def record_history(self, path: str | os.PathLike[str], **limits: str) -> None:
        """Record every change in a SQLite file while the checks run; the operator page shows it.

        `limits` are `max_age` and `max_size`, as in [history] of the configuration. Call it before the checks start.
        Raises `ConfigError`.
        """
        import_module(_EMBED).record_history(self, {"path": os.fspath(path), **limits})

    def notify(self, **options: Any) -> None:  # noqa: ANN401  they are validated
        """Send a message when the health of the node or of a critical service changes, while the checks run.

        The options are the keys of [notify] in the configuration, such as `webhook="https://…"`. Call it before the
        checks start. Raises `ConfigError`.
        """
        import_module(_EMBED).notify(self, options)

    def next_check_in_s(self, service_id: str) -> float | None:
        """Seconds until the next check of a service, 0 during a check; None if it is not being checked."""
        scheduler = self._running_scheduler
        return None if scheduler is None else scheduler.next_check_in_s(service_id)

    def share_states(self, folder: str | os.PathLike[str]) -> None:
        """Share the states of the services with the other worker processes of the program, through a folder.

        One of the workers runs the checks, writes the history and sends the messages, and all of them give the same
        answers. They start to share when probing starts: call it before. Only the user of the program may write to the
        folder, which is created if it is missing.
        """
        self.require_not_probing("share_states")
        self._workers_folder = Path(folder)

    def ping_scheduler(self, answer: Callable[[], object]) -> None:
        """Call `answer` from the scheduler, at once if no services are checked. On the event loop of the scheduler."""
        scheduler = self._running_scheduler
        if scheduler is None:
            answer()
        else:
            scheduler.ping(answer)

    @asynccontextmanager
    async def probing(
        self, *, max_concurrent_checks: int | None = None, recorder: CheckRecorder | None = None
    ) -> AsyncIterator[Node]:
        """Check the services that have a probe while the block runs. A nested block does nothing.

        `recorder` records the evidence of the checks; by default, the node does.
        """
        from asyncio import get_running_loop

        from svcnode.node.scheduler import MAX_CONCURRENT_CHECKS

        if self._running_scheduler is not None or self._is_starting:
            yield self
            return
        scheduler = self._make_scheduler(max_concurrent_checks or MAX_CONCURRENT_CHECKS, recorder)
        try:
            async with AsyncExitStack() as stack:
                if self.embedded_work is not None and self._workers_folder is None:
                    self._starting_loop = get_running_loop()
                    await stack.enter_async_context(self.embedded_work.running())
                self._scheduler = await stack.enter_async_context(scheduler)
                self._starting_loop = None
                yield self
        finally:
            self._starting_loop = None
            if self._scheduler is scheduler:
                self._scheduler = None

    def _make_scheduler(
        self, max_concurrent_checks: int, recorder: CheckRecorder | None
    ) -> ProbeScheduler | ElectedScheduler:
        from svcnode.node.scheduler import ProbeScheduler

        scheduler = ProbeScheduler(self, max_concurrent_checks=max_concurrent_checks, recorder=recorder)
        workers = self._join_workers()
        if workers is None:
            return scheduler
        from svcnode.node.workers import ElectedScheduler

        if self.embedded_work is None:
            return ElectedScheduler(self, workers, scheduler, waiting=nullcontext, elected=nullcontext)
        elected = partial(self.embedded_work.running, workers)
        return ElectedScheduler(self, workers, scheduler, waiting=self.embedded_work.waiting, elected=elected)

    def _join_workers(self) -> Workers | None:
        if self._workers_folder is None:
            return None
        if self._workers is None:
            from svcnode.node.workers import Workers

            self._workers = self._shared = Workers(self, self._workers_folder)
        self._workers.join()
        return self._workers

    @asynccontextmanager
    async def lifespan(self, app: object = None) -> AsyncIterator[None]:
        """`probing` as a lifespan function of a framework: `FastAPI(lifespan=node.lifespan)`."""
        async with self.probing():
            yield

    def start(self) -> None:
        """Check the services from a background thread, for programs without an event loop. Idempotent.

        If threads do not run in this process, a warning is logged, and it is the reason of every checked service.
        """
        from svcnode.node.scheduler.thread import SchedulerThread, threads_problem

        if self._pid != os.getpid():  # uWSGI forks without telling Python
            self._after_fork()
        with self._scheduler_thread_lock:
            if problem := threads_problem():
                self.warn_if_not_probing(f"checks do not run: {problem}")
            elif self._scheduler_thread is None or not self._scheduler_thread.is_alive:
                self._join_workers()  # before the thread does it: so the first answer is that of the others
                self._scheduler_thread = SchedulerThread(self.probing)

    def start_or_warn(self) -> None:
        """As `start`, for a server: if there can be no thread, it says so and goes on."""
        try:
            self.start()
        except (SvcnodeError, MemoryError) as exc:
            self.warn_if_not_probing(f"checks do not run: {exc}")

    def stop(self) -> None:
        with self._scheduler_thread_lock:
            thread, self._scheduler_thread = self._scheduler_thread, None
        if thread is not None:
            thread.stop()

    @property
    def is_probing(self) -> bool:
        """Whether the services are checked: in a `probing` block, or after `start`."""
        thread = self._scheduler_thread  # another thread may set it to None
        return self._running_scheduler is not None or self._is_starting or (thread is not None and thread.is_alive)

    def require_not_probing(self, method: str) -> None:
        if self.is_probing:
            raise SvcnodeError(f"the checks are running; call {method}() before they start")

    def warn_if_not_probing(self, reason: str = NOT_PROBING_REASON) -> None:
        """When the node is served: if no checks run, say so in the log and in the reason of each checked service."""
        if reason != self._not_probing_reason and not self.is_probing:
            self._not_probing_reason = reason
            if any(entry.probe_config for entry in tuple(self._entries.values())):
                log.warning("%s", reason, extra={"event": "not_probing"})

    @property
    def _is_starting(self) -> bool:
        loop = self._starting_loop  # another thread may set it to None
        return loop is not None and loop.is_running()

    @property
    def _running_scheduler(self) -> ProbeScheduler | ElectedScheduler | None:
        scheduler = self._scheduler  # another thread may set it to None
        return scheduler if scheduler is not None and scheduler.is_running else None

    def _read_state(self, entry: _Entry) -> ServiceState:
        state, reason = entry.state, self._not_probing_reason
        if not reason or entry.probe_config is None or self.is_probing:
            return state
        if state.code == ReasonCode.NO_EVIDENCE:
            return state._replace(reason=reason, code=ReasonCode.NOT_STARTED)
        if state.code == ReasonCode.STALE:
            return state._replace(reason=f"{state.reason}; {reason}")
        return state

    def _after_fork(self) -> None:
        super()._after_fork()
        self._scheduler_thread_lock = threading.Lock()
        self._starting_loop = None
        if self._workers is not None:
            self._workers.after_fork()
