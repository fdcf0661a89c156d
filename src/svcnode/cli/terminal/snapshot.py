"""Snapshots of nodes: identity, health and services, requested once from one node or from many at the same time."""

from __future__ import annotations

import asyncio
import math
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from svcnode.cli.terminal.loop_lag import LoopLagMonitor
from svcnode.core.codes import ReasonCode
from svcnode.core.errors import (
    ClientError,
    NodeFailedError,
    UnexpectedResponseError,
    UnreachableError,
    VersionIgnoredError,
    VersionNotFoundError,
)
from svcnode.core.model import Health, Status
from svcnode.net.fd_limit import raise_fd_limit

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from svcnode.client import BackingService, Identity

# All nodes at once, as far as the limit of open files allows: a node that hangs uses its slot for the whole timeout.
MAX_CONCURRENT_NODES = 1000
_RESERVED_FDS = 50
_PATHS = {"identity": "/node", "health": "/node/health", "services": "/node/services"}
_NODE_WIDE_ERRORS = (UnreachableError, VersionNotFoundError, VersionIgnoredError)
# A request runs alone for this share of the timeout; then the next one starts in parallel.
_EXCLUSIVE_TIMEOUT_SHARE = 0.25


class OverallHealth(IntEnum):
    """The result of a snapshot. The value is the exit code; a higher one is worse."""

    HEALTHY = 0
    PARTIAL = 1
    UNHEALTHY = 2
    UNKNOWN = 3


_OVERALL_HEALTH = {
    Health.HEALTHY: OverallHealth.HEALTHY,
    Health.PARTIAL: OverallHealth.PARTIAL,
    Health.UNHEALTHY: OverallHealth.UNHEALTHY,
}


class RegistryEntry(NamedTuple):
    """What a registry says of a replica, or of a node without a replica that can be asked."""

    node: str
    replica: str  # "" stands for the node
    url: str  # "" for the node
    remark: str
    is_gone: bool = False  # no longer in the registry

    @property
    def key(self) -> tuple[str, str, str]:
        return self.node, self.replica, self.url

    def as_gone(self) -> RegistryEntry:
        remark = f"the replica {self.replica} is no longer in the registry: it was stopped, or its lease is over"
        return self._replace(remark=remark, is_gone=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSnapshot:
    """The responses of a node; None for a response that is missing."""

    url: str  # without secrets
    identity: Identity | None = None
    health: Health | None = None
    services: tuple[BackingService, ...] | None = None
    errors: tuple[ClientError, ...] = ()
    interrupted: str = ""  # set if Ctrl-C stopped the requests; not a fault of the node
    deviations: tuple[str, ...] = ()
    prefix_remark: str = ""  # set if the node answers under another prefix than the first one
    in_registry: RegistryEntry | None = None  # if the URL comes from a registry
    duration_s: float = 0.0
    # By service id, and by None for the node: who has acknowledged the problem. Only nodes on this machine say it.
    acknowledged: Mapping[str | None, Mapping[str, Any]] = field(default_factory=dict)
    problems: dict[str, Any] | None = None  # as /problems answers; None: the node has none, or does not say it here
    problems_remark: str = ""  # set if they could not be read

    @property
    def node_name(self) -> str:
        """ "" if it is not known."""
        if self.identity is not None:
            return self.identity.node_name
        return "" if self.in_registry is None else self.in_registry.node

    @property
    def lacks_identity(self) -> bool:
        """Whether the node answers for its health and services, but has no identity.

        If a version is requested, they are not shown: without the identity, the version of the answers is not known.
        """
        if self.identity is not None or not self.errors or not _is_not_found(self.errors[0]):
            return False
        others = self.errors[1:]
        has_data = self.health is not None and self.services is not None
        return has_data if not others else all(error.code is ReasonCode.NOT_SUPPORTED for error in others)

    @property
    def has_data(self) -> bool:
        return any(part is not None for part in (self.identity, self.health, self.services))

    @property
    def is_reachable(self) -> bool:
        return self.has_data or any(not isinstance(error, UnreachableError) for error in self.errors)

    @property
    def shown_errors(self) -> tuple[ClientError, ...]:
        """All errors; only the first if there is no data, since the others then repeat it."""
        return self.errors if self.has_data else self.errors[:1]

    @property
    def overall_health(self) -> OverallHealth:
        """Unknown if a response is missing, also if the health response is 200."""
        if self.errors or self.interrupted or self.health is None:
            return OverallHealth.UNKNOWN
        return _OVERALL_HEALTH[self.health]

    @property
    def trouble(self) -> tuple[int, int]:
        """Sorts nodes: those without a valid answer first, then 503 before 206, and then more services Down."""
        down = sum(service.status is Status.DOWN for service in self.services or ())
        return -self.overall_health, -down

    @property
    def has_problem(self) -> bool:
        """Whether the node says that something is wrong with it, or with a service."""
        are_up = all(service.status is Status.UP for service in self.services or ())
        return self.health is not None and not (self.health is Health.HEALTHY and are_up)

    @property
    def _condition(self) -> str:
        """Why the node is not healthy, if that is not about its services: a drain, an issue, its start, a caveat."""
        node = (self.problems or {}).get("node") or {}
        is_told = any(node.get(key) for key in ("draining", "issues", "starting", "caveats"))
        return str(node.get("health_summary") or node.get("health_reason") or "") if is_told else ""

    @property
    def remarks(self) -> tuple[str, ...]:
        """Possible faults. They may be intended: a node may ignore a service with impact none, or check no service."""
        remarks = [remark for remark in (self.prefix_remark, self._condition, self.problems_remark) if remark]
        if self.in_registry is not None and self.errors:
            remarks.append(self.in_registry.remark)
        not_up = sum(service.status in (Status.DOWN, Status.INITIALIZING) for service in self.services or ())
        if self.health is Health.HEALTHY and not_up:
            remarks.append(f"health is 200, but {not_up} service{' is' if not_up == 1 else 's are'} not Up")
        return tuple(remarks)


class NodeClient(Protocol):
    """What a snapshot needs of an `AsyncClient`."""

    @property
    def url(self) -> str: ...
    @property
    def root(self) -> str: ...
    @property
    def deviations(self) -> tuple[str, ...]: ...
    async def identity(self) -> Identity: ...
    async def health(self) -> Health: ...
    async def services(self) -> tuple[BackingService, ...]: ...
    async def aclose(self) -> None: ...


class NodeSource:
    """The client of a node, and the client of the same node under another prefix, which is tried if all is 404."""

    def __init__(
        self, client: NodeClient, other: NodeClient | None = None, *, in_registry: RegistryEntry | None = None
    ) -> None:
        self.client = client
        self.other = other
        self.prefix_remark = ""
        self.in_registry = in_registry

    async def use_other(self) -> None:
        """From now on, request only the other prefix."""
        assert self.other is not None
        unused, self.client, self.other = self.client, self.other, None
        self.prefix_remark = f"no endpoint exists at {unused.root}; the node answers at {self.client.root}"
        await unused.aclose()

    async def aclose(self) -> None:
        for client in (self.client, self.other):
            if client is not None:
                await client.aclose()


async def take_snapshot(source: NodeSource, timeout_s: float, lag_monitor: LoopLagMonitor) -> NodeSnapshot:
    """An error of the node is in the snapshot; it is never raised."""
    task = _SnapshotTask(source, timeout_s, lag_monitor)
    await task.run()
    return task.snapshot()


class _SnapshotTask:
    """Sends the requests one after another on one connection; if one is slow, the others do not wait for it.

    `snapshot` can be called at any time, also if the requests were interrupted or never started.
    """

    def __init__(self, source: NodeSource, timeout_s: float, lag_monitor: LoopLagMonitor) -> None:
        self.source = source
        self._client = source.client
        self._timeout_s = timeout_s
        self._lag_monitor = lag_monitor
        self._clock = asyncio.get_running_loop().time
        self._started_s = self._ended_s = 0.0
        self._is_complete = False
        self._tasks: dict[str, asyncio.Task[Any]] = {}
        self._unanswered: set[str] = set()

    async def run(self) -> None:
        self._started_s = self._clock()
        await asyncio.sleep(0)  # of several snapshots, all start before the first one works
        try:
            await self._request_all()
            if self.source.other is not None and self._has_no_endpoints():
                await self._try_other_prefix(self.source.other)
            self._is_complete = True
        finally:
            self._unanswered = await self._cancel_requests()
            self._ended_s = self._clock()

    async def _request_all(self) -> None:
        for name in _PATHS:
            task = self._tasks[name] = asyncio.create_task(getattr(self._client, name)())
            await self._wait([task], self._clock() + self._timeout_s * _EXCLUSIVE_TIMEOUT_SHARE)
            if task.done() and not task.cancelled() and isinstance(task.exception(), _NODE_WIDE_ERRORS):
                return  # the other requests would fail with the same error
        await self._wait(self._tasks.values(), math.inf)

    def _has_no_endpoints(self) -> bool:
        tasks = self._tasks.values()
        return len(tasks) == len(_PATHS) and all(task.done() and _is_not_found(task.exception()) for task in tasks)

    async def _try_other_prefix(self, other: NodeClient) -> None:
        first_tasks, self._tasks, self._client = self._tasks, {}, other
        await self._request_all()
        if any(task.done() and _is_from_node(task.exception()) for task in self._tasks.values()):
            await self.source.use_other()
            return
        await self._cancel_requests()
        self._tasks, self._client = first_tasks, self.source.client

    async def _cancel_requests(self) -> set[str]:
        """The names of the requests without a response."""
        unanswered = {name for name, task in self._tasks.items() if task.cancel() or task.cancelled()}
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        return unanswered

    async def _wait(self, tasks: Collection[asyncio.Task[Any]], until_s: float) -> None:
        await self._lag_monitor.wait(tasks, min(until_s, self._started_s + self._timeout_s))

    def snapshot(self) -> NodeSnapshot:
        client = self._client
        data: dict[str, Any] = {}
        errors: list[ClientError] = []
        for name, task in self._tasks.items():
            if name in self._unanswered:
                errors += [self._timeout_error(f"{client.root}{_PATHS[name]}")] if self._is_complete else []
            elif (exc := task.exception()) is not None:
                errors.append(exc if isinstance(exc, ClientError) else _internal_error(exc))
            else:
                data[name] = task.result()
        if self._is_complete and len(self._unanswered) == len(self._tasks):
            errors = [self._timeout_error(client.url)]
        snapshot = NodeSnapshot(
            url=client.url,
            errors=tuple(errors),
            interrupted="" if self._is_complete else self._interrupted_text(is_partial=bool(data or errors)),
            deviations=client.deviations,
            prefix_remark=self.source.prefix_remark,
            in_registry=self.source.in_registry,
            duration_s=self._duration_s,
            **data,
        )
        if not snapshot.lacks_identity:
            return snapshot
        return replace(snapshot, errors=(_no_identity_error(client.root), *snapshot.errors[1:]))

    @property
    def _duration_s(self) -> float:
        return self._ended_s - self._started_s if self._tasks else 0.0

    def _timeout_error(self, url: str) -> ClientError:
        problem = f"timeout: no complete response within {self._timeout_s:g} s"
        return UnreachableError(problem, url=url, code=ReasonCode.TIMEOUT)

    def _interrupted_text(self, *, is_partial: bool) -> str:
        if not self._tasks:
            return "interrupted before the first request"
        missing = "some responses are missing" if is_partial else "no response"
        return f"interrupted after {self._duration_s:.1f} s: {missing}"


def _is_not_found(exc: BaseException | None) -> bool:
    return isinstance(exc, UnexpectedResponseError) and exc.code is ReasonCode.NOT_FOUND


def _is_from_node(exc: BaseException | None) -> bool:
    """Whether a node answered: with a value, or with an error of the interface."""
    return exc is None or isinstance(exc, VersionIgnoredError | VersionNotFoundError | NodeFailedError)


def _no_identity_error(root: str) -> ClientError:
    return UnexpectedResponseError(
        "the identity does not exist (404), although health and services do",
        url=f"{root}{_PATHS['identity']}",
        hint="this may be an older draft of the interface",
        code=ReasonCode.NOT_FOUND,
    )


def _internal_error(exc: BaseException) -> ClientError:
    """An unforeseen error for one node must not affect the other nodes."""
    return ClientError(f"internal error: {type(exc).__name__}: {exc}")


async def take_snapshots(
    sources: Sequence[NodeSource],
    timeout_s: float,
    *,
    on_snapshot: Callable[[], object] = lambda: None,
    stopped: asyncio.Future[None] | None = None,
) -> list[NodeSnapshot]:
    """Snapshots in the order of the sources, which are closed; `on_snapshot` is called after each one.

    When `stopped` is done, the requests are cancelled, and the snapshots hold the responses received so far.
    """
    slots = asyncio.Semaphore(max_concurrent_nodes())

    async def run(task: _SnapshotTask) -> None:
        async with slots, aclosing(task.source):
            await task.run()
        on_snapshot()

    with LoopLagMonitor() as lag_monitor:
        snapshot_tasks = [_SnapshotTask(source, timeout_s, lag_monitor) for source in sources]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(run(task)) for task in snapshot_tasks]
            if stopped is not None:
                stopped.add_done_callback(lambda _: [task.cancel() for task in tasks])
    return [task.snapshot() for task in snapshot_tasks]


def max_concurrent_nodes() -> int:
    """Raises the soft limit of open files as far as needed and allowed."""
    needed = MAX_CONCURRENT_NODES * len(_PATHS) + _RESERVED_FDS  # a node that hangs uses one connection per request
    return max(1, (raise_fd_limit(needed) - _RESERVED_FDS) // len(_PATHS))
