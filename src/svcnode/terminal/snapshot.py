"""One look at one node or at many: who it is, how it is, which services it has."""

from __future__ import annotations

import asyncio
import math
import resource
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from svcnode.core.errors import ClientError, UnreachableError, VersionNotFoundError
from svcnode.core.model import Health, Status
from svcnode.terminal.loop_lag import LoopLagMonitor

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from svcnode.client import AsyncClient, BackingService, Identity

# Nodes asked at the same time. All at once as far as files can be opened: one that hangs keeps its place for the whole
# of its timeout, and must keep nobody waiting.
MAX_CONCURRENT_NODES = 1000
_RESERVED_FDS = 50
_PATHS = {"identity": "/node", "health": "/node/health", "services": "/node/services"}
_NODE_WIDE_ERRORS = (UnreachableError, VersionNotFoundError)
_EXCLUSIVE_TIMEOUT_SHARE = 0.25  # of the timeout: that long, a question has the node to itself


class OverallHealth(IntEnum):
    """What a look came to; the value is the exit code, and the worst is the highest."""

    HEALTHY = 0
    PARTIAL = 1
    UNHEALTHY = 2
    UNKNOWN = 3


_OVERALL_HEALTH = {
    Health.HEALTHY: OverallHealth.HEALTHY,
    Health.PARTIAL: OverallHealth.PARTIAL,
    Health.UNHEALTHY: OverallHealth.UNHEALTHY,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSnapshot:
    """What a node told; None where it told nothing."""

    url: str  # fit to be shown
    identity: Identity | None = None
    health: Health | None = None
    services: tuple[BackingService, ...] | None = None
    errors: tuple[ClientError, ...] = ()
    interrupted: str = ""  # why it was not asked to the end, which is no fault of the node
    deviations: tuple[str, ...] = ()
    duration_s: float = 0.0

    @property
    def has_data(self) -> bool:
        return any(part is not None for part in (self.identity, self.health, self.services))

    @property
    def is_reachable(self) -> bool:
        return self.has_data or any(not isinstance(error, UnreachableError) for error in self.errors)

    @property
    def shown_errors(self) -> tuple[ClientError, ...]:
        """The errors to show. Where nothing could be had, one is enough: the others are of its kind."""
        return self.errors if self.has_data else self.errors[:1]

    @property
    def overall_health(self) -> OverallHealth:
        """A 200 beside an answer that could not be had is no green light."""
        if self.errors or self.interrupted or self.health is None:
            return OverallHealth.UNKNOWN
        return _OVERALL_HEALTH[self.health]

    @property
    def remarks(self) -> tuple[str, ...]:
        """What is no fault for sure, and worth a second look: the node may not count a service, or may not look."""
        not_up = sum(service.status in (Status.DOWN, Status.INITIALIZING) for service in self.services or ())
        if self.health is not Health.HEALTHY or not not_up:
            return ()
        return (f"it says 200 although {not_up} of its services {'is' if not_up == 1 else 'are'} not Up",)


async def take_snapshot(client: AsyncClient, timeout_s: float, lag_monitor: LoopLagMonitor) -> NodeSnapshot:
    """Never raises for what a node does."""
    asking = _SnapshotTask(client, timeout_s, lag_monitor)
    asking.start()
    await asking.run()
    return asking.snapshot()


class _SnapshotTask:
    """One question after another, on one connection; where one is kept waiting, the others do not wait for it.

    What is known can be had even where it did not come to the end, or never began.
    """

    def __init__(self, client: AsyncClient, timeout_s: float, pulse: LoopLagMonitor) -> None:
        self.client = client
        self._timeout_s = timeout_s
        self._lag_monitor = pulse
        self._clock = asyncio.get_running_loop().time
        self._started_s = self._ended_s = 0.0
        self._is_complete = False
        self._tasks: dict[str, asyncio.Task[Any]] = {}
        self._unanswered: set[str] = set()

    def start(self) -> None:
        """From now on, the timeout runs."""
        self._started_s = self._clock()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            await self._request_all(loop)
            self._is_complete = True
        finally:
            self._unanswered = {what for what, task in self._tasks.items() if task.cancel() or task.cancelled()}
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)
            self._ended_s = self._clock()

    async def _request_all(self, loop: asyncio.AbstractEventLoop) -> None:
        for what in _PATHS:
            task = self._tasks[what] = loop.create_task(getattr(self.client, what)())
            await self._wait([task], loop.time() + self._timeout_s * _EXCLUSIVE_TIMEOUT_SHARE)
            if task.done() and not task.cancelled() and isinstance(task.exception(), _NODE_WIDE_ERRORS):
                return  # the others would say the same
        await self._wait(self._tasks.values(), math.inf)

    async def _wait(self, tasks: Collection[asyncio.Task[Any]], until_s: float) -> None:
        await self._lag_monitor.wait(tasks, min(until_s, self._started_s + self._timeout_s))

    def snapshot(self) -> NodeSnapshot:
        told: dict[str, Any] = {}
        errors: list[ClientError] = []
        for what, task in self._tasks.items():
            if what in self._unanswered:
                errors += [self._timeout_error(f"{self.client.root}{_PATHS[what]}")] if self._is_complete else []
            elif (exc := task.exception()) is not None:
                errors.append(exc if isinstance(exc, ClientError) else _internal_error(exc))
            else:
                told[what] = task.result()
        if self._is_complete and len(self._unanswered) == len(self._tasks):
            errors = [self._timeout_error(self.client.url)]
        return NodeSnapshot(
            url=self.client.url,
            errors=tuple(errors),
            interrupted="" if self._is_complete else self._interrupted_text(has_answers=bool(told or errors)),
            deviations=self.client.deviations,
            duration_s=self._duration_s,
            **told,
        )

    @property
    def _duration_s(self) -> float:
        return self._ended_s - self._started_s if self._tasks else 0.0

    def _timeout_error(self, where: str) -> ClientError:
        return UnreachableError(f"no whole answer from {where} within {self._timeout_s:g} s")

    def _interrupted_text(self, *, has_answers: bool) -> str:
        if not self._tasks:
            return "stopped before it was asked"
        return f"stopped after {self._duration_s:.1f} s, before it had answered{' everything' if has_answers else ''}"


def _internal_error(exc: BaseException) -> ClientError:
    """What nobody has thought of must not take the other nodes along."""
    return ClientError(f"asking it failed by itself: {type(exc).__name__}: {exc}")


async def take_snapshots(
    clients: Sequence[AsyncClient],
    timeout_s: float,
    *,
    on_snapshot: Callable[[], object] = lambda: None,
    stopped: asyncio.Future[None] | None = None,
) -> list[NodeSnapshot]:
    """In the order of the clients, each of which is closed; `on_look` is called with the end of every look.

    When `stopped` is done, nobody is waited for any longer; what is known by then is returned.
    """
    places = asyncio.Semaphore(max_concurrent_nodes())

    async def ask(asking: _SnapshotTask) -> None:
        async with places, asking.client:
            asking.start()
            await asyncio.sleep(0)  # so that all who have a place begin before the first of them works
            await asking.run()
        on_snapshot()

    with LoopLagMonitor() as pulse:
        askings = [_SnapshotTask(client, timeout_s, pulse) for client in clients]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(ask(asking)) for asking in askings]
            if stopped is not None:
                stopped.add_done_callback(lambda _: [task.cancel() for task in tasks])
    return [asking.snapshot() for asking in askings]


def max_concurrent_nodes() -> int:
    """Asks for as many files as we may have; often, fewer are given unasked."""
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_CONCURRENT_NODES * len(_PATHS) + _RESERVED_FDS  # of a node that hangs, each question has a connection
    if allowed != resource.RLIM_INFINITY and allowed < wanted:
        allowed = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, most))
    if allowed == resource.RLIM_INFINITY:
        return MAX_CONCURRENT_NODES
    return max(1, min(MAX_CONCURRENT_NODES, (allowed - _RESERVED_FDS) // len(_PATHS)))
