"""The node: a registry of services, and the checks of those that have a probe."""

from __future__ import annotations

import os
import threading
import time
from contextlib import AsyncExitStack, asynccontextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from svcnode.clock import monotonic_s
from svcnode.core.model import SPEC_VERSION, Identity
from svcnode.registry import ServiceRegistry

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    from svcnode.scheduler import ProbeScheduler
    from svcnode.scheduler.thread import SchedulerThread


_EMBED = "svcnode.embed"  # a layer above this one: loaded by its name, on first use


class Companion(Protocol):
    """Runs as long as the checks of a node: its history and notifications inside another program."""

    def running(self) -> AbstractAsyncContextManager[None]: ...


class Node(ServiceRegistry):
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
        self._scheduler: ProbeScheduler | None = None
        self._probing_pid: int | None = None
        self._scheduler_thread: SchedulerThread | None = None
        self._scheduler_thread_lock = threading.Lock()
        self.companion: Companion | None = None

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
        scheduler = self._scheduler  # another thread may set it to None
        return None if scheduler is None else scheduler.next_check_in_s(service_id)

    @asynccontextmanager
    async def probing(self, *, max_concurrent_checks: int | None = None) -> AsyncIterator[Node]:
        """Check the services that have a probe while the block runs. A nested block does nothing."""
        from svcnode.scheduler import MAX_CONCURRENT_CHECKS, ProbeScheduler

        if self._probing_pid == os.getpid():  # a fork copies the attribute, but not the scheduler
            yield self
            return
        self._probing_pid = os.getpid()
        scheduler = ProbeScheduler(self, max_concurrent_checks=max_concurrent_checks or MAX_CONCURRENT_CHECKS)
        try:
            async with AsyncExitStack() as stack:
                if self.companion is not None:
                    await stack.enter_async_context(self.companion.running())
                self._scheduler = await stack.enter_async_context(scheduler)
                yield self
        finally:
            self._probing_pid = None
            self._scheduler = None

    @asynccontextmanager
    async def lifespan(self, app: object = None) -> AsyncIterator[None]:
        """`probing` as a lifespan function of a framework: `FastAPI(lifespan=node.lifespan)`."""
        async with self.probing():
            yield

    def start(self) -> None:
        """Check the services from a background thread, for programs without an event loop. Idempotent."""
        from svcnode.scheduler.thread import SchedulerThread

        with self._scheduler_thread_lock:
            # After a fork, the thread does not run in the child.
            if self._scheduler_thread is None or not self._scheduler_thread.is_alive:
                self._scheduler_thread = SchedulerThread(self.probing)

    def stop(self) -> None:
        with self._scheduler_thread_lock:
            thread, self._scheduler_thread = self._scheduler_thread, None
        if thread is not None:
            thread.stop()

    @property
    def is_probing(self) -> bool:
        """Whether the services are checked: in a `probing` block, or after `start`."""
        thread = self._scheduler_thread  # another thread may set it to None
        return self._probing_pid == os.getpid() or (thread is not None and thread.is_alive)

    def _after_fork(self) -> None:
        super()._after_fork()
        self._scheduler_thread_lock = threading.Lock()
